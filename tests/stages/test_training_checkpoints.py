"""`--checkpoint-every`: complete checkpoints beside the output, while it is trained."""

import shutil

import pytest

from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts import manifests
from tests.conftest import run_in_process, run_moeir
from tests.kill_points import each_disk_call, kill_at
from tests.processes import read_metrics

SIZES = ("--steps", 5, "--batch-size", 2, "--learning-rate", 1e-3, "--dtype", "float32", "--document-length", 20, "--query-length", 12)


def make_command(stage, toy, examples, model, output, *more):
    sources = ("--model", model, "--arch", "dense", "--corpus", toy / "corpus.jsonl")
    own = {
        "pretrain": ("--objective", "condenser"),
        "finetune": ("--train", examples, "--queries", toy / "train-queries.jsonl", "--negatives", 1),
    }
    return (stage, *sources, *own[stage], *SIZES, *more, "--output", output)


@pytest.fixture
def command(toy, examples, tiny_model_with_head):
    return lambda stage, output, *more: make_command(stage, toy, examples, tiny_model_with_head, output, *more)


@pytest.mark.parametrize("stage", ["finetune", "pretrain"])
def test_a_checkpoint_on_the_way_opens_like_any_other_and_changes_nothing(stage, command, toy, examples, texts, tmp_path):
    assert "-step-" not in run_moeir(*command(stage, tmp_path / "plain")).stderr
    result = run_moeir(*command(stage, tmp_path / "model", "--checkpoint-every", 2, "--log-every", 100))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model-step-2", "model-step-4", "plain"]
    whole = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert whole == (tmp_path / "plain" / "model.safetensors").read_bytes()
    for step in (2, 4):
        path = tmp_path / f"model-step-{step}"
        assert manifests.verify_artifact(path, "checkpoint")["counts"]["steps"] == step
        assert {file.name for file in path.iterdir()} == {file.name for file in (tmp_path / "model").iterdir()}
        assert (path / "model.safetensors").read_bytes() != whole
        open_checkpoint(path)
        assert [line["step"] for line in read_metrics(path)] == list(range(1, step + 1))
        assert f"made {path}" in result.stderr
    arch = ("--arch", "dense:head=false") if stage == "pretrain" else ()
    sizes = ("--train", examples, *texts, "--batch-size", 1, "--negatives", 1, "--steps", 1, "--dtype", "float32")
    run_moeir("finetune", "--model", tmp_path / "model-step-2", *arch, *sizes, "--output", tmp_path / "next")


@each_disk_call(9, sample=90)
def test_wherever_it_is_killed_all_its_checkpoints_have_the_same_bytes(every, command, tmp_path):
    names = ("model", "model-step-2", "model-step-4")
    (tmp_path / "whole").mkdir()
    run_moeir(*command("pretrain", tmp_path / "whole/model", "--checkpoint-every", 2, "--save-minutes", 0))
    expected = [(tmp_path / "whole" / name / "model.safetensors").read_bytes() for name in names]
    survived = False
    for moment in range(every, 400, every):
        folder = tmp_path / f"killed-{moment}"
        arguments = command("pretrain", folder / "model", "--checkpoint-every", 2, "--save-minutes", 0)
        survived = not kill_at(lambda arguments=arguments: run_moeir(*arguments), moment)
        run_moeir(*arguments)
        assert [(folder / name / "model.safetensors").read_bytes() for name in names] == expected, moment
        assert sorted(path.name for path in folder.iterdir()) == sorted(names), moment
        if survived:
            break
    assert survived


def test_what_is_not_a_checkpoint_of_this_training_is_not_replaced(command, tmp_path):
    foreign = tmp_path / "model-step-2"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    for force in ((), ("--force",)):
        result = run_in_process(*command("finetune", tmp_path / "model", "--checkpoint-every", 2, *force))
        assert result.code == 2 and f"{foreign}: exists and was not made by moeir" in result.stderr
        assert (foreign / "notes.txt").read_text() == "mine" and not (tmp_path / "model").exists()
    run_moeir(*command("finetune", tmp_path / "model", "--checkpoint-every", 3))
    assert (tmp_path / "model-step-3").is_dir(), "what it does not write is not in its way"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toy, examples, tiny_model_with_head):
    """A training with two checkpoints on the way."""
    folder = tmp_path_factory.mktemp("trained")
    run_moeir(*make_command("finetune", toy, examples, tiny_model_with_head, folder / "model", "--checkpoint-every", 2))
    return folder


@pytest.fixture
def interrupted(trained, tmp_path):
    """The checkpoints on the way, without the model at the end."""
    for name in ("model-step-2", "model-step-4"):
        shutil.copytree(trained / name, tmp_path / name)
    return tmp_path


def test_one_that_cannot_be_written_again_is_refused_before_the_first_step(command, interrupted):
    arguments = command("finetune", interrupted / "model", "--checkpoint-every", 2)
    (interrupted / "model-step-4" / "README.md").write_text("mine")
    for force in ((), ("--force",)):
        result = run_in_process(*arguments, *force)
        assert result.code == 2 and "model-step-4/README.md: is no file of the product" in result.stderr
        assert "steps of" not in result.stderr, "nothing is trained"
    (interrupted / "model-step-4" / "README.md").unlink()
    run_moeir(*arguments, "--force")


def test_those_of_other_settings_are_replaced_only_by_force(command, interrupted):
    weights, other = interrupted / "model-step-2" / "model.safetensors", command("finetune", interrupted / "model", "--seed", 7)
    before, every = weights.read_bytes(), ("--checkpoint-every", 2)
    result = run_in_process(*other, *every)
    assert result.code == 2 and "model-step-2: exists, made with other settings or sources (seed); --force replaces it" in result.stderr
    assert weights.read_bytes() == before and not (interrupted / "model").exists()
    run_moeir(*other)
    assert weights.read_bytes() == before, "without the flag they are left alone"
    run_moeir(*other, *every, "--force")
    assert weights.read_bytes() != before


def test_what_is_read_is_not_replaced(toy, examples, interrupted):
    source = interrupted / "model-step-2"
    before = (source / "model.safetensors").read_bytes()
    again = make_command("finetune", toy, examples, source, interrupted / "model", "--checkpoint-every", 1, "--force")
    result = run_in_process(*again)
    assert result.code == 2 and "model-step-2: is read here" in result.stderr
    assert (source / "model.safetensors").read_bytes() == before and not (interrupted / "model").exists()
