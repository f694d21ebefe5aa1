"""The temperature of normalised experts: who gets the default, who keeps a scale, and that training, files and search agree on it."""

import json

import pytest

from moeir.architectures.checkpoint import open_checkpoint, read_metadata
from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.temperature import set_temperature
from tests.conftest import run_moeir

COSINE = "dense:pooling=mean,normalise=true"


@pytest.fixture
def finetune(moeir, tiny_model_with_head, training_files, tmp_path):
    """`finetune(*flags, model=…, name=…)` -> the command's result and its checkpoint."""

    def run(*flags, model=tiny_model_with_head, name="tuned", code=0):
        sizes = ("--steps", 1, "--batch-size", 4, "--negatives", 0, "--query-length", 16, "--document-length", 32, "--dtype", "float32")
        result = moeir("finetune", "--model", model, *training_files, *sizes, *flags, "--output", tmp_path / name)
        assert result.code == code, result.stderr
        return result, tmp_path / name

    return run


def scales(checkpoint):
    return {name: expert["scale"] for name, expert in read_metadata(checkpoint)["experts"].items()}


@pytest.mark.parametrize(
    "arch, expected",
    [
        (f"{COSINE},scale=30", {"global": 30.0}),
        ("dense", {"global": 1.0}),
        ("sbmoe:normalise=true", {"global": 20.0}),
        ("mote:normalise=true", {"global": 20.0, "lexical": 1.0}),
        ("came:shared_layers=2,local_dim=8,normalise=true,local_normalise=true", {"lexical": 1.0, "local": 1.0, "global": 20.0}),
        ("came:shared_layers=2,local_dim=8,normalise=true,global-scale=7", {"lexical": 1.0, "local": 1.0, "global": 7.0}),
        ("came:shared_layers=2,local_dim=8", {"lexical": 1.0, "local": 1.0, "global": 1.0}),
        ("colbert:dim=8,normalise=true", {"local": 1.0}),
        ("bge-m3:fresh_heads=true", {"global": 50.0, "lexical": 50.0, "local": 50.0}),
    ],
)
def test_the_cosine_of_an_expert_has_a_temperature_unless_a_scale_is_set(arch, expected, tiny_model_with_head):
    checkpoint = build_checkpoint(tiny_model_with_head, arch, {})
    set_temperature(checkpoint, tiny_model_with_head, arch, None)
    assert checkpoint.architecture.scales == expected


@pytest.mark.parametrize(
    "arch, flags, scale",
    [
        (COSINE, ("--temperature", 0.1), 10.0),
        (COSINE, ("--objective", "lce", "--negatives", 1), 20.0),
        (COSINE, ("--objective", "lce:temperature=0.1", "--negatives", 1), 1.0),
    ],
)
def test_training_sets_it_and_the_checkpoint_keeps_it(arch, flags, scale, finetune):
    result, checkpoint = finetune("--arch", arch, *flags)
    opened = open_checkpoint(checkpoint)
    assert scales(checkpoint) == opened.architecture.scales == {"global": scale} and f"scale={scale}" in opened.spec
    message = f"temperature {1 / scale:g}: the cosines of the global expert are scaled by {scale:g}"
    assert result.stderr.count(message) == (scale != 1.0)


def test_a_trained_checkpoint_keeps_its_scale_and_an_untrained_one_gets_the_default(finetune, tiny_model_with_head, tmp_path):
    start, other = tmp_path / "start", tmp_path / "other"
    run_moeir("init", "--model", tiny_model_with_head, "--arch", COSINE, "--output", start)
    assert scales(start) == {"global": 1.0}, "scores without training are cosines"
    run_moeir("init", "--model", tiny_model_with_head, "--arch", f"{COSINE},scale=5", "--output", other)
    _, cosine = finetune("--arch", f"{COSINE},scale=1", name="cosine")
    for folder, arch, temperature, expected in (
        (start, None, None, 20.0),
        (cosine, None, None, 1.0),
        (other, None, None, 5.0),
        (other, None, 0.01, 100.0),
        (other, "taser:normalise=true", None, 20.0),  # a new architecture
    ):
        checkpoint = build_checkpoint(folder, arch, {})
        set_temperature(checkpoint, folder, arch, temperature)
        assert checkpoint.architecture.scales == {"global": expected}
    assert scales(finetune(model=cosine, name="continued")[1]) == {"global": 1.0}


def test_a_temperature_needs_a_normalised_expert_and_no_scale(finetune):
    result, _ = finetune("--arch", "dense", "--temperature", 0.1, code=2)
    message = "--temperature 0.1: no expert of dense has a normalised vector and a scale; set its scale with --arch, or normalise=true"
    assert message in result.stderr
    result, _ = finetune("--arch", f"{COSINE},scale=3", "--temperature", 0.1, code=2)
    assert "--temperature 0.1: --arch sets the scale already, which is 1 / temperature; leave one of them out" in result.stderr


def test_training_divides_cosines_by_the_temperature_from_its_first_step(finetune):
    metrics = []
    for options in ("", ",scale=20", ",scale=1"):
        _, checkpoint = finetune("--arch", f"{COSINE}{options}", name=f"tuned{options}")
        metrics.append(json.loads((checkpoint / "metrics.jsonl").read_text().splitlines()[0]))
    assert metrics[0]["loss"] == metrics[1]["loss"] != metrics[2]["loss"]
    assert metrics[0]["uniform_loss"] == pytest.approx(1.386294, abs=1e-5)  # ln 4
