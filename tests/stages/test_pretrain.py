"""`moeir pretrain` on the toy texts: every objective, killed and resumed, and then fine-tuned."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForMaskedLM

from moeir import variants
from moeir.architectures.checkpoint import open_checkpoint
from moeir.backbones.families import weights_io
from tests.architectures.folders import change_json
from tests.conftest import run_in_process, run_moeir
from tests.kill_points import kill_at
from tests.processes import assert_same_training, read_metrics, run_captured, run_processes

SIZES = ("--batch-size", 4, "--steps", 3, "--document-length", 20, "--query-length", 12, "--learning-rate", 1e-3, "--dtype", "float32")
QUERIES = ("cotmae-qc", "mote")
OBJECTIVES = [variant.name for variant in variants.list_variants("pretraining")]


@pytest.fixture(scope="module")
def room(tmp_path_factory, toy):
    """Long documents of the toy texts, so that each has several spans, and queries for them."""
    folder = tmp_path_factory.mktemp("pretraining")
    documents = [json.loads(line) for line in (toy / "corpus.jsonl").read_text().splitlines()]
    parts = {first: " ".join(one["text"] for one in documents[first : first + 4]) for first in range(0, len(documents) - 3, 2)}
    long = [{"_id": f"d{first}", "text": text} for first, text in parts.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in long))
    queries = [{"_id": one["_id"], "queries": ["who hunts at night", "what is " + one["text"].split()[1]]} for one in long]
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    return folder


def make_command(room, model, objective, output, *more):
    arch = "mote" if objective == "mote" else "dense"
    query_flags = ("--queries", room / "queries.jsonl") if objective in QUERIES else ()
    sources = ("--model", model, "--corpus", room / "corpus.jsonl", *query_flags)
    return ("pretrain", *sources, "--arch", arch, "--objective", objective, *SIZES, *more, "--output", output)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains_and_its_product_is_fine_tuned(objective, room, examples, texts, tmp_path, tiny_model_with_head):
    result = run_moeir(*make_command(room, tiny_model_with_head, objective, tmp_path / "pre"))
    lines = [json.loads(line) for line in (tmp_path / "pre" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and all(0 < line["loss"] < 100 for line in lines)
    assert {key.split(".")[0] for key in lines[0]} >= {"loss", "accuracy"} and lines[0]["tokens"] > 0
    checkpoint = open_checkpoint(tmp_path / "pre")
    assert not [name for name in checkpoint.architecture.state_dict() if name.startswith("decoder")], "the decoder is thrown away"
    assert checkpoint.architecture.encoder.vocabulary_head is not None, "the vocabulary head is kept"
    counts = json.loads((tmp_path / "pre" / "manifest.json").read_text())["counts"]
    assert ("bottleneck_gain" in lines[-1]) == ("bottleneck_gain" in counts["last"]) == (objective != "mlm")
    assert ("the bottleneck is worth " in result.stderr) == (objective != "mlm")
    assert counts["last"]["tokens_per_second"] > 0
    if objective != "mote":
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / "pre")
        words = weights_io.read_weights(tmp_path / "pre", weights_io.read_config(tmp_path / "pre"))["embeddings.words.weight"]
        assert model.get_input_embeddings().weight.equal(words)
    for arch in ("mote",) if objective == "mote" else ("dense:head=false", "came:shared_layers=2,local_dim=8"):
        sizes = ("--steps", 1, "--batch-size", 1, "--negatives", 1, "--dtype", "float32")
        tuned = ("finetune", "--model", tmp_path / "pre", "--arch", arch, "--train", examples, *texts, *sizes)
        run_moeir(*tuned, "--output", tmp_path / arch.split(":")[0])


@pytest.mark.parametrize(("objective", "arch"), [("cotmae", "dense"), ("mote", "mote")])
def test_adapters_are_pretrained_on_a_frozen_encoder(objective, arch, room, tmp_path, tiny_model_with_head):
    spec = f"{arch}:adapters=4" + (",head=true" if arch == "dense" else "")
    run_moeir(*make_command(room, tiny_model_with_head, objective, tmp_path / "pre", "--arch", spec))
    plain = weights_io.read_weights(tiny_model_with_head, weights_io.read_config(tiny_model_with_head))
    state = open_checkpoint(tmp_path / "pre").architecture.encoder.state_dict()
    frozen = [name for name in plain if not name.startswith("vocabulary_head.")]
    assert len(frozen) > 60 and all(state[name].equal(plain[name]) for name in frozen)
    assert all(state[name].any() for name in state if name.endswith(".up"))
    towers = make_command(room, tiny_model_with_head, "mlm", tmp_path / "x", "--arch", "came:shared_layers=2,adapters=4")
    words = "came cannot be pre-trained as one encoder: its encoder has 2 of 4 layers, the rest are towers"
    assert words in run_in_process(*towers).stderr


def test_a_trunk_in_bfloat16_is_pretrained_on_and_stays_so(room, tmp_path, tiny_model_with_head):
    objective, arch = "cotmae", "dense:head=true,adapters=4"
    model = shutil.copytree(tiny_model_with_head, tmp_path / "model")
    change_json(model / "config.json", dtype="bfloat16")
    half = make_command(room, model, objective, tmp_path / "half", "--arch", arch)
    run_moeir(*half)
    checkpoint = open_checkpoint(tmp_path / "half")
    dtypes = {one.dtype for name, one in checkpoint.architecture.encoder.layers.named_parameters() if name.endswith("query.weight")}
    assert checkpoint.trunk.dtype == "bfloat16" and dtypes == {torch.bfloat16}
    run_moeir(*make_command(room, tiny_model_with_head, objective, tmp_path / "whole", "--arch", arch))
    losses = [[line["loss"] for line in read_metrics(tmp_path / name)] for name in ("half", "whole")]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("objective", ["cocondenser", "mote"])
def test_two_processes_learn_what_one_does(objective, room, tmp_path, tiny_model_without_dropout):
    command = make_command(room, tiny_model_without_dropout, objective, tmp_path / "two", "--device", "cpu", "--learning-rate", 2e-4)
    result = run_processes(2, lambda rank: run_captured(*command))
    assert [one["code"] for one in result] == [0, 0], result
    assert result[1]["stderr"] == ""
    run_moeir(*command[:-1], tmp_path / "one")
    assert_same_training(tmp_path / "one", tmp_path / "two")


def test_batches_of_a_step_are_the_mean_of_their_losses(room, tmp_path, tiny_model_with_head):
    single = make_command(room, tiny_model_with_head, "mlm", tmp_path / "single", "--steps", 2, "--learning-rate", 1e-9)
    double = make_command(room, tiny_model_with_head, "mlm", tmp_path / "double", "--steps", 1, "--learning-rate", 1e-9, "--accumulate", 2)
    run_moeir(*single)
    run_moeir(*double, "--recompute")
    one, other = read_metrics(tmp_path / "single"), read_metrics(tmp_path / "double")
    assert len(one) == 2 and len(other) == 1
    assert other[0]["loss"] == pytest.approx((one[0]["loss"] + one[1]["loss"]) / 2, rel=1e-6)
    assert other[0]["tokens"] == one[0]["tokens"] + one[1]["tokens"]


def test_the_objective_mote_trains_the_architecture_mote_and_no_other(room, tmp_path, tiny_model_with_head):
    sources = ("--model", tiny_model_with_head, "--corpus", room / "corpus.jsonl", "--output", tmp_path / "x", "--show")
    architectures = {}
    for flags in ((), ("--objective", "mote:sparse=false"), ("--objective", "mote", "--arch", "mote:encoders=siamese")):
        result = run_in_process("pretrain", *sources, *flags)
        architectures[flags] = next(line for line in result.stdout.splitlines() if line.startswith("arch"))
    assert list(architectures.values()) == ["arch: dense", "arch: mote", "arch: mote:encoders=siamese"]
    result = run_in_process("pretrain", *sources[:-1], "--objective", "mote", "--arch", "dense:pooling=mean")
    advice = "leave --arch out, or type --arch mote:encoders=siamese for a single encoder"
    assert result.code == 2 and result.stderr.startswith(
        "error: --arch dense:pooling=mean: --objective mote trains the experts of --arch mote"
    )
    assert advice in result.stderr


def test_the_loss_on_held_out_documents_is_measured_at_intervals_and_the_same_after_a_kill(room, tmp_path, tiny_model_with_head):
    flags = ("--steps", 4, "--held-out", 0.4, "--evaluate-every", 2, "--log-every", 100, "--draw", "spans")
    whole = run_moeir(*make_command(room, tiny_model_with_head, "cotmae", tmp_path / "whole", *flags))
    lines = read_metrics(tmp_path / "whole")
    assert [line["step"] for line in lines if "dev.loss" in line] == [2, 4]
    last = lines[-1]
    assert last["dev.loss"] == pytest.approx(last["dev.mlm.loss"] + last["dev.decoder.loss"], rel=1e-6)
    assert "dev.bottleneck_gain" in last and "--batch-size" not in whole.stderr
    counts = json.loads((tmp_path / "whole" / "manifest.json").read_text())["counts"]
    assert counts["held_out"]["evaluations"] == 2 and counts["held_out"]["spans"] > 0
    assert counts["held_out"]["value"] == min(line["dev.loss"] for line in lines if "dev.loss" in line)
    assert f"on held-out documents {last['dev.loss']:.3f}" in whole.stderr
    command = make_command(room, tiny_model_with_head, "cotmae", tmp_path / "killed", *flags, "--save-minutes", 0)
    assert kill_at(lambda: run_moeir(*command), 60)
    run_moeir(*command)
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    kept = [name for name in last if name.startswith("dev.")]
    assert [[line.get(name) for name in kept] for line in read_metrics(tmp_path / "killed")] == [
        [line.get(name) for name in kept] for line in lines
    ]
    report = run_moeir("report", "--training", tmp_path / "whole", "--output", tmp_path / "report.html")
    assert report.code == 0 and "dev" in (tmp_path / "report.html").read_text()


def test_measuring_held_out_documents_changes_no_weight_and_tokens_are_read_once(room, tmp_path, tiny_model_with_head):
    weights = set()
    for every in (1, 3):
        flags = ("--held-out", 0.4, "--evaluate-every", every, "--cache", tmp_path / "cache")
        run_moeir(*make_command(room, tiny_model_with_head, "mote", tmp_path / str(every), *flags))
        weights.add((tmp_path / str(every) / "model.safetensors").read_bytes())
    assert len(weights) == 1 and len(list((tmp_path / "cache").glob("documents-*[0-9a-f]"))) == 1
    result = run_in_process(*make_command(room, tiny_model_with_head, "mlm", tmp_path / "x", "--held-out", 1e-6))
    assert result.code == 3 and "--held-out: leaves no span" in result.stderr


def test_two_processes_measure_held_out_documents_as_one_does(room, tmp_path, tiny_model_without_dropout):
    flags = ("--device", "cpu", "--learning-rate", 2e-4, "--held-out", 0.4, "--checkpoint-every", 2, "--draw", "spans")
    command = make_command(room, tiny_model_without_dropout, "cotmae", tmp_path / "two", *flags)
    result = run_processes(2, lambda rank: run_captured(*command))
    assert [one["code"] for one in result] == [0, 0], result
    run_moeir(*command[:-1], tmp_path / "one")
    one, other = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    assert one[-1]["dev.loss"] == pytest.approx(other[-1]["dev.loss"], abs=1e-4)
    assert_same_training(tmp_path / "one-step-2", tmp_path / "two-step-2")
    few = make_command(room, tiny_model_without_dropout, "cotmae", tmp_path / "few", "--device", "cpu", "--held-out", 0.4)
    result = run_processes(2, lambda rank: run_captured(*few))
    assert "--held-out: 1 spans in a batch are too few for 2 processes" in result[0]["stderr"] + result[1]["stderr"]


def test_batches_larger_than_an_epoch_or_than_the_held_out_documents_are_warned_of(room, tmp_path, tiny_model_with_head):
    warnings = {
        ("cotmae", "--batch-size", 64): "--batch-size 64: an epoch has 5 documents, and so has a batch",
        ("cocondenser", "--held-out", 0.4): "--held-out: a batch has 1 documents, fewer than ",
    }
    for number, ((objective, *flags), words) in enumerate(warnings.items()):
        result = run_moeir(*make_command(room, tiny_model_with_head, objective, tmp_path / str(number), *flags, "--steps", 1))
        assert words in result.stderr
    flags = ("--held-out", 0.4, "--steps", 1, "--draw", "spans", "--batch-size", 2)
    result = run_moeir(*make_command(room, tiny_model_with_head, "cocondenser", tmp_path / "y", *flags, "--from-scratch"))
    assert "--held-out" not in result.stderr.replace("next: ", "")


def test_a_decoder_that_hardly_uses_the_bottleneck_at_the_end_is_said_in_the_last_line(room, tmp_path, tiny_model_with_head):
    result = run_moeir(*make_command(room, tiny_model_with_head, "cotmae-qc", tmp_path / "short", "--learning-rate", 1e-7))
    assert "nats per token (a decoder hardly uses it: train longer or raise its rate" in result.stderr
    assert read_metrics(tmp_path / "short")[0]["learning_rate.decoder"] == 1e-7
    rates = ("--learning-rate", 1e-7, "--group-rate", "decoder=2e-3")
    run_moeir(*make_command(room, tiny_model_with_head, "cotmae-qc", tmp_path / "rate", *rates))
    assert read_metrics(tmp_path / "rate")[0]["learning_rate.decoder"] == 2e-3
