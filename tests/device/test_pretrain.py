"""`moeir pretrain` on the device: every objective learns what it learns on the CPU, in any precision, and goes on after a kill."""

import math

import pytest

from moeir.pretraining.task import PretrainingTask
from tests.device.conftest import REAL, assert_same_training, read_metrics
from tests.stages.test_pretrain import OBJECTIVES, make_command, room  # noqa: F401 - a fixture


@pytest.fixture
def learn(moeir_on, room, tiny_model_with_head, tiny_model_without_dropout, tmp_path):  # noqa: F811
    """`learn(objective, *options)`: the folder of a training on the device, unless `on` names another; without dropout, unless asked."""

    def learned(objective, *options, on="cuda", name=None, dropout=False, fails=None):
        output = tmp_path / (name or on)
        model = tiny_model_with_head if dropout else tiny_model_without_dropout
        result = moeir_on(*make_command(room, model, objective, output, "--steps", 2, *options), on=on)
        assert (result.code and fails in result.stderr) if fails else result.code == 0, result.stderr
        return output

    return learned


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_learns_what_it_learns_on_the_cpu(objective, learn):
    assert_same_training(learn(objective), learn(objective, on="cpu"))


def test_an_objective_learns_in_half_precision_and_with_dropout(learn):
    half = ("mote", "--dtype", "bfloat16")
    (random,) = read_metrics(learn(*half, "--steps", 1, dropout=True, name="random"))
    assert random["gradient_norm"] > 0 and all(math.isfinite(value) for value in random.values())
    losses = [[step["loss"] for step in read_metrics(learn(*half, on=device))] for device in ("cuda", "cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_options_do_what_they_do_on_the_cpu(learn):
    training = ("cotmae", "--recompute", "--accumulate", 2, "--from-scratch")
    assert_same_training(learn(*training), learn(*training, on="cpu"))


@pytest.mark.skipif(not REAL, reason="torch's compiler makes kernels of a real device")
def test_compiled_losses_learn_what_others_do(learn):
    assert_same_training(learn("cotmae", "--compile"), learn("cotmae", on="cpu"))


def test_a_killed_training_goes_on_to_the_same_bytes(learn, kill_at_batch):
    training = ("cotmae", "--save-minutes", 1e-9, "--deterministic", "--recompute", "--accumulate", 2, "--dtype", "bfloat16")
    whole = learn(*training, name="whole", dropout=True)
    batches = kill_at_batch(PretrainingTask, 4)
    learn(*training, dropout=True, fails="killed here")
    killed = learn(*training, dropout=True)
    assert batches == [0, 1, 2, 3, 2, 3]
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert read_metrics(killed) == read_metrics(whole)
