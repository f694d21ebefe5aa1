"""`moeir pretrain` on the device: every objective learns what it learns on the CPU, in any precision, and goes on after a kill."""

import math

import pytest

from moeir.errors import MoeirError
from moeir.pretraining import task
from tests.device.conftest import assert_same_training, read_metrics
from tests.stages.test_pretrain import OBJECTIVES, make_command, room  # noqa: F401 - a fixture

HALF = ("--dtype", "bfloat16")


@pytest.fixture
def learn(moeir_on, room, tiny_model_with_head, tiny_model_without_dropout, tmp_path):  # noqa: F811
    """`learn(objective, *options)`: the folder of a training on the device, unless `on` names another; without dropout, unless asked."""

    def learned(objective, *options, on="cuda", name=None, dropout=False, fails=None):
        output = tmp_path / (name or on)
        result = moeir_on(
            *make_command(room, tiny_model_with_head if dropout else tiny_model_without_dropout, objective, output, *options), on=on
        )
        assert (result.code and fails in result.stderr) if fails else result.code == 0, result.stderr
        return output

    return learned


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_learns_what_it_learns_on_the_cpu(objective, learn):
    assert_same_training(learn(objective), learn(objective, on="cpu"))


@pytest.mark.parametrize("objective", ["cotmae", "mote"])
def test_an_objective_learns_in_half_precision_and_with_dropout(objective, learn):
    random = read_metrics(learn(objective, *HALF, dropout=True, name="random"))
    assert all(math.isfinite(value) for step in random for value in step.values()) and len(random) == 3
    losses = [
        [step["loss"] for step in read_metrics(learn(objective, *HALF, on=device, name=f"half-{device}"))] for device in ("cuda", "cpu")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("option", ["--recompute", "--accumulate=2", "--from-scratch"])
def test_options_do_what_they_do_on_the_cpu(option, learn):
    assert_same_training(learn("cotmae", option), learn("cotmae", option, on="cpu"))


@pytest.mark.parametrize(("objective", "precision"), [("cotmae", "bfloat16"), ("mote", "float32")])
def test_a_killed_training_goes_on_to_the_same_bytes(objective, precision, learn, monkeypatch):
    options = ("--save-minutes", 1e-9, "--deterministic", "--recompute", "--accumulate", 2, "--dtype", precision)
    whole = learn(objective, *options, name="whole", dropout=True)
    plain, batches = task.PretrainingTask.compute_loss, []

    def outcome(self, batch):
        batches.append(batch)
        if batches == [0, 1, 2, 3]:
            raise MoeirError("gone")
        return plain(self, batch)

    monkeypatch.setattr(task.PretrainingTask, "compute_loss", outcome)
    learn(objective, *options, dropout=True, fails="gone")
    killed = learn(objective, *options, dropout=True)
    assert batches == [0, 1, 2, 3, 2, 3, 4, 5]
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes() and read_metrics(
        killed
    ) == read_metrics(whole)
