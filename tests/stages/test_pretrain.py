"""`moeir pretrain` on the toy texts: every objective, killed and resumed, and then fine-tuned."""

import functools
import json
import shutil

import pytest
import torch
from transformers import AutoModelForMaskedLM

from moeir import variants
from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts import manifests
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


@pytest.fixture(scope="module")
def pretrained(room, tmp_path_factory, tiny_model_with_head):
    """`pretrained(objective)` -> the checkpoint of an objective and what its command logged; each is trained once."""
    folder = tmp_path_factory.mktemp("pretrained")

    @functools.cache
    def pretrain(objective):
        return folder / objective, run_moeir(*make_command(room, tiny_model_with_head, objective, folder / objective)).stderr

    return pretrain


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains_an_encoder_and_leaves_its_vocabulary_head(objective, pretrained):
    folder, logged = pretrained(objective)
    lines = read_metrics(folder)
    assert [line["step"] for line in lines] == [1, 2, 3] and all(0 < line["loss"] < 100 for line in lines)
    assert {key.split(".")[0] for key in lines[0]} >= {"loss", "accuracy"} and lines[0]["tokens"] > 0
    architecture = open_checkpoint(folder).architecture
    assert not [name for name in architecture.state_dict() if name.startswith("decoder")], "the decoder is thrown away"
    assert architecture.encoder.vocabulary_head is not None, "the vocabulary head is kept"
    last = manifests.read_counts(folder)["last"]
    assert ("bottleneck_gain" in lines[-1]) == ("bottleneck_gain" in last) == (objective != "mlm")
    assert ("the bottleneck is worth " in logged) == (objective != "mlm") and last["tokens_per_second"] > 0


@pytest.mark.parametrize(("objective", "arch"), [("cotmae", "dense:head=false"), ("mlm", "came:shared_layers=2"), ("mote", "mote")])
def test_what_was_pretrained_is_fine_tuned(objective, arch, pretrained, examples, texts, tmp_path):
    sizes = ("--steps", 1, "--batch-size", 1, "--negatives", 1, "--dtype", "float32")
    sources = ("--model", pretrained(objective)[0], "--arch", arch, "--train", examples, *texts)
    run_moeir("finetune", *sources, *sizes, "--output", tmp_path / "tuned")


def test_transformers_opens_what_was_pretrained(pretrained):
    folder, _ = pretrained("cotmae")
    words = weights_io.read_weights(folder, weights_io.read_config(folder))["embeddings.words.weight"]
    assert AutoModelForMaskedLM.from_pretrained(folder).get_input_embeddings().weight.equal(words)


def test_adapters_are_pretrained_on_a_frozen_encoder_which_may_be_in_bfloat16(room, tmp_path, tiny_model_with_head):
    half = shutil.copytree(tiny_model_with_head, tmp_path / "model")
    change_json(half / "config.json", dtype="bfloat16")
    dense = ("cotmae", "dense:head=true,adapters=4")
    for name, model, (objective, arch) in (
        *(("whole", tiny_model_with_head, dense), ("half", half, dense)),
        ("mote", tiny_model_with_head, ("mote", "mote:adapters=4")),
    ):
        run_moeir(*make_command(room, model, objective, tmp_path / name, "--arch", arch))
    plain = weights_io.read_weights(tiny_model_with_head, weights_io.read_config(tiny_model_with_head))
    frozen = [name for name in plain if not name.startswith("vocabulary_head.")]
    for name in ("whole", "mote"):
        state = open_checkpoint(tmp_path / name).architecture.encoder.state_dict()
        assert len(frozen) > 60 and all(state[name].equal(plain[name]) for name in frozen)
        assert all(state[name].any() for name in state if name.endswith(".up"))
    checkpoint = open_checkpoint(tmp_path / "half")
    dtypes = {one.dtype for name, one in checkpoint.architecture.encoder.layers.named_parameters() if name.endswith("query.weight")}
    assert checkpoint.trunk.dtype == "bfloat16" and dtypes == {torch.bfloat16}
    losses = [[line["loss"] for line in read_metrics(tmp_path / name)] for name in ("half", "whole")]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize(("objective", "flags"), [
    ("cocondenser", ("--held-out", 0.4, "--draw", "spans", "--checkpoint-every", 2)), ("mote", ()),
])  # fmt: skip
def test_two_processes_learn_what_one_does(objective, flags, room, tmp_path, tiny_model_without_dropout):
    """They measure held-out documents and write a checkpoint on the way as one does, too."""
    more = ("--device", "cpu", "--learning-rate", 2e-4, *flags)
    command = make_command(room, tiny_model_without_dropout, objective, tmp_path / "two", *more)
    result = run_processes(2, lambda rank: run_captured(*command))
    assert [one["code"] for one in result] == [0, 0], result
    assert result[1]["stderr"] == ""
    run_moeir(*command[:-1], tmp_path / "one")
    for name in ("", "-step-2") if flags else ("",):
        assert_same_training(tmp_path / f"one{name}", tmp_path / f"two{name}")
    assert ("dev.loss" in read_metrics(tmp_path / "two")[-1]) == bool(flags)


def test_too_few_held_out_spans_for_the_processes_are_refused(room, tmp_path, tiny_model_without_dropout):
    command = make_command(room, tiny_model_without_dropout, "cotmae", tmp_path / "few", "--device", "cpu", "--held-out", 0.4)
    result = run_processes(2, lambda rank: run_captured(*command))
    assert "--held-out: 1 spans in a batch are too few for 2 processes" in result[0]["stderr"] + result[1]["stderr"]


def test_batches_of_a_step_are_the_mean_of_their_losses(room, tmp_path, tiny_model_with_head):
    single = make_command(room, tiny_model_with_head, "mlm", tmp_path / "single", "--steps", 2, "--learning-rate", 1e-9)
    double = make_command(room, tiny_model_with_head, "mlm", tmp_path / "double", "--steps", 1, "--learning-rate", 1e-9, "--accumulate", 2)
    run_moeir(*single)
    run_moeir(*double, "--recompute")
    one, other = read_metrics(tmp_path / "single"), read_metrics(tmp_path / "double")
    assert len(one) == 2 and len(other) == 1
    assert other[0]["loss"] == pytest.approx((one[0]["loss"] + one[1]["loss"]) / 2, rel=1e-6)
    assert other[0]["tokens"] == one[0]["tokens"] + one[1]["tokens"]


def test_the_objective_mote_trains_the_architecture_mote_and_no_other_and_none_trains_towers(room, tmp_path, tiny_model_with_head):
    sources = ("--model", tiny_model_with_head, "--corpus", room / "corpus.jsonl", "--output", tmp_path / "x", "--show")
    for flags, arch in (
        ((), "dense"), (("--objective", "mote:sparse=false"), "mote"),
        (("--objective", "mote", "--arch", "mote:encoders=siamese"), "mote:encoders=siamese"),
    ):  # fmt: skip
        assert f"arch: {arch}" in run_in_process("pretrain", *sources, *flags).stdout.splitlines()
    result = run_in_process("pretrain", *sources[:-1], "--objective", "mote", "--arch", "dense:pooling=mean")
    assert result.code == 2
    assert result.stderr.startswith("error: --arch dense:pooling=mean: --objective mote trains the experts of --arch mote")
    assert "leave --arch out, or type --arch mote:encoders=siamese for a single encoder" in result.stderr
    towers = make_command(room, tiny_model_with_head, "mlm", tmp_path / "x", "--arch", "came:shared_layers=2,adapters=4")
    words = "came cannot be pre-trained as one encoder: its encoder has 2 of 4 layers, the rest are towers"
    assert words in run_in_process(*towers).stderr


def test_the_loss_on_held_out_documents_is_measured_at_intervals_and_the_same_after_a_kill(room, tmp_path, tiny_model_with_head):
    flags = ("--steps", 4, "--held-out", 0.4, "--evaluate-every", 2, "--log-every", 100, "--draw", "spans")
    whole = run_moeir(*make_command(room, tiny_model_with_head, "cotmae", tmp_path / "whole", *flags))
    lines = read_metrics(tmp_path / "whole")
    assert [line["step"] for line in lines if "dev.loss" in line] == [2, 4]
    last = lines[-1]
    assert last["dev.loss"] == pytest.approx(last["dev.mlm.loss"] + last["dev.decoder.loss"], rel=1e-6)
    assert "dev.bottleneck_gain" in last and "--batch-size" not in whole.stderr
    held_out = manifests.read_counts(tmp_path / "whole")["held_out"]
    assert held_out["evaluations"] == 2 and held_out["spans"] > 0
    assert held_out["value"] == min(line["dev.loss"] for line in lines if "dev.loss" in line)
    assert f"on held-out documents {last['dev.loss']:.3f}" in whole.stderr
    command = make_command(room, tiny_model_with_head, "cotmae", tmp_path / "killed", *flags, "--save-minutes", 0)
    assert kill_at(lambda: run_moeir(*command), 60)
    run_moeir(*command)
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    names = [name for name in last if name.startswith("dev.")]
    killed = read_metrics(tmp_path / "killed")
    assert [[line.get(name) for name in names] for line in killed] == [[line.get(name) for name in names] for line in lines]
    report = run_moeir("report", "--training", tmp_path / "whole", "--output", tmp_path / "report.html")
    assert report.code == 0 and "dev" in (tmp_path / "report.html").read_text()


def test_measuring_held_out_documents_changes_no_weight_and_tokens_are_read_once(room, tmp_path, tiny_model_with_head):
    weights = set()
    for every in (1, 3):
        flags = ("--held-out", 0.4, "--evaluate-every", every, "--cache", tmp_path / "cache")
        run_moeir(*make_command(room, tiny_model_with_head, "cotmae", tmp_path / str(every), *flags))
        weights.add((tmp_path / str(every) / "model.safetensors").read_bytes())
    assert len(weights) == 1 and len(list((tmp_path / "cache").glob("documents-*[0-9a-f]"))) == 1
    result = run_in_process(*make_command(room, tiny_model_with_head, "mlm", tmp_path / "x", "--held-out", 1e-6))
    assert result.code == 3 and "--held-out: leaves no span" in result.stderr


@pytest.mark.parametrize(("objective", "flags", "words"), [
    ("cotmae", ("--batch-size", 64), "--batch-size 64: an epoch has 5 documents, and so has a batch"),
    ("cocondenser", ("--held-out", 0.4), "--held-out: a batch has 1 documents, fewer than "),
    ("cocondenser", ("--held-out", 0.4, "--draw", "spans", "--batch-size", 2, "--from-scratch"), None),
])  # fmt: skip
def test_batches_larger_than_an_epoch_or_than_the_held_out_documents_are_warned_of(
    objective, flags, words, room, tmp_path, tiny_model_with_head
):
    logged = run_moeir(*make_command(room, tiny_model_with_head, objective, tmp_path / "x", *flags, "--steps", 1)).stderr
    assert words in logged if words else "--held-out" not in logged.replace("next: ", "")


def test_a_decoder_that_hardly_uses_the_bottleneck_at_the_end_is_said_in_the_last_line(room, tmp_path, tiny_model_with_head):
    result = run_moeir(*make_command(room, tiny_model_with_head, "cotmae-qc", tmp_path / "short", "--learning-rate", 1e-7))
    assert "nats per token (a decoder hardly uses it: train longer or raise its rate" in result.stderr
    assert read_metrics(tmp_path / "short")[0]["learning_rate.decoder"] == 1e-7
    rates = ("--learning-rate", 1e-7, "--group-rate", "decoder=2e-3")
    run_moeir(*make_command(room, tiny_model_with_head, "cotmae-qc", tmp_path / "rate", *rates))
    assert read_metrics(tmp_path / "rate")[0]["learning_rate.decoder"] == 2e-3
