"""`moeir finetune` on the device: every architecture and objective learns what it learns on the CPU, and every option does what it says."""

import json
import math
import os
import warnings

import pytest
import torch

from moeir.backbones.device import select_device, set_determinism
from moeir.kernels import attention
from moeir.training.retrieval_task import RetrievalTask
from tests.backbones import tiny_models
from tests.conftest import _write_tokenizer
from tests.device.conftest import REAL, assert_same_training, assert_similar_losses, read_metrics

CAME = "came:shared_layers=1,local_dim=8,normalise=true"
COMPETITIVE = "competitive:standardised=0.4,flops_query=1e-3,flops_document=1e-3"
BALANCED = "contrastive:load_balance=0.01,entropy_of=batch"
FLOPS = "contrastive:flops_query=1e-3,flops_document=1e-3"
COLBERT = "colbert:dim=8,normalise=true,markers=true,augmentation=true,punctuation=false"
KINDS = {
    CAME: COMPETITIVE,
    "dense:encoders=separate": "contrastive",
    "splade": FLOPS,
    COLBERT: "contrastive",
    "coil:dim=8,cls_dim=16": "contrastive",
    "mote": FLOPS,
    "taser:every=1": "contrastive",
    "taser:routing=sequence,every=1": BALANCED,
    "taser:routing=token,gates=per_layer,gradient=full,every=1": BALANCED,
    "sbmoe:experts=3": BALANCED,
    "sbmoe:experts=3,gate=random": "contrastive",
    "bge-m3:fresh_heads=true": "self-distillation:start=1,block=2",
    "cross-encoder": "lce",
    f"{CAME},adapters=4,shared_adapters=2": COMPETITIVE,
    "taser:routing=token,gates=per_layer,gradient=pair,every=1,adapters=4,experts=3": BALANCED,
}
ROUTED = "taser:routing=token,every=1"
KINDS_OF_HALF = {COLBERT: "contrastive", "mote": FLOPS, ROUTED: BALANCED, "sbmoe:experts=3": BALANCED, "cross-encoder": "lce"}
KINDS_OF_HALF |= {f"{CAME},adapters=4": COMPETITIVE, f"{ROUTED},adapters=4,gate_input=block_input": BALANCED}
RANDOM = ("mote", "sbmoe:experts=3", "cross-encoder", f"{ROUTED},adapters=4,gate_input=block_input")  # the others drop in test_caching.py


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory):
    """A seeded ModernBERT without dropout: a global layer, one with windows of six tokens, and the tokenizer of the tiny BERT."""
    folder = tmp_path_factory.mktemp("weights") / "modernbert"
    folder.mkdir()
    changes = {"hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 4, "cls_token_id": 4, "eos_token_id": 5, "sep_token_id": 5}
    tiny_models.make_model("modernbert", vocab_size=_write_tokenizer(folder), **changes).save_pretrained(folder)
    return folder


EVERYTHING = ("--gradient-cache", 120, "--recompute", "--accumulate", 2, "--layer-decay", 0.8)
TRAININGS = [
    *KINDS.items(),
    (CAME, "competitive:rank_scope=batch,ties=optimistic,flops_query=1e-3,flops_document=1e-3,flops_ramp=3"),
    (CAME, "competitive:standardised=0,normalise_standardised=true,ties=pessimistic,entropy_sign=as-printed"),
    (CAME, "competitive:standardised=0,shares=loss,permuted=true"),
    ("splade", "bce"),
    ("mote", "kl:temperature=2,contrastive=0.5"),
    (CAME, "margin-mse"),
    ("cross-encoder", "margin-mse"),
    (CAME, COMPETITIVE, *EVERYTHING[2:]),
    ("cross-encoder", "lce", *EVERYTHING),
    (CAME, COMPETITIVE, "--batch-size", 1, "--negatives", 1),
]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: " ".join(map(str, training)))
def test_a_training_learns_what_it_learns_on_the_cpu(training, learn, quiet):
    assert_same_training(learn(*training), learn(*training, on="cpu"))


def test_windows_and_rotary_positions_learn_what_they_learn_on_the_cpu(learn, quiet, modernbert):
    assert_same_training(learn(CAME, weights=modernbert), learn(CAME, weights=modernbert, on="cpu"))
    half = read_metrics(learn(ROUTED, weights=modernbert, dtype="bfloat16", name="half"))
    assert_similar_losses(half, read_metrics(learn(ROUTED, weights=modernbert, dtype="bfloat16", on="cpu", name="half-cpu")))


@pytest.mark.parametrize("arch", KINDS_OF_HALF)
def test_an_architecture_learns_in_half_precision(arch, learn, quiet):
    half, other = (read_metrics(learn(arch, KINDS_OF_HALF[arch], dtype="bfloat16", on=on)) for on in ("cuda", "cpu"))
    assert_similar_losses(half, other)


@pytest.mark.parametrize("arch", RANDOM)
def test_an_architecture_learns_in_half_precision_with_dropout_and_noise(arch, learn):
    (step,) = read_metrics(learn(arch, KINDS_OF_HALF[arch], "--steps", 1, dtype="bfloat16", dropout=True))
    assert step["gradient_norm"] > 0 and all(math.isfinite(value) for value in step.values())


@pytest.mark.parametrize("arch, measure", [(CAME, "nDCG@10"), ("cross-encoder", "nDCG@10"), ("mote", "loss")])
def test_a_development_set_chooses_the_weights_that_it_chooses_on_the_cpu(arch, measure, learn, shop, quiet):
    run = ("--dev-run", shop / "dev.trec") if arch == "cross-encoder" else ()
    development = ("--dev-queries", shop / "queries.tsv", "--dev-qrels", shop / "dev.qrels", "--dev-measure", measure)
    arguments = (*development, "--evaluate-every", 1, "--learning-rate", 1e-3, *run)
    output, other = learn(arch, KINDS[arch], *arguments), learn(arch, KINDS[arch], *arguments, on="cpu")
    assert_same_training(output, other, loss=1e-3)
    assert all(any(name.startswith("dev.") for name in step) for step in read_metrics(output))
    actual, expected = (json.loads((folder / "manifest.json").read_text())["counts"]["development"] for folder in (output, other))
    assert actual.pop("value") == pytest.approx(expected.pop("value"), rel=1e-5) and actual == expected


def test_a_killed_training_goes_on_to_the_same_bytes(learn, kill_at_batch):
    """With dropout, gates' noise, parts and accumulated batches; on a GPU because --deterministic asks for it."""
    settings = {"dtype": "bfloat16", "dropout": True}
    training = (ROUTED, BALANCED, "--save-minutes", 1e-9, *EVERYTHING[:5], "--deterministic")
    whole = learn(*training, name="whole", **settings)
    batches = kill_at_batch(RetrievalTask, 4)
    learn(*training, **settings, fails="killed here")
    killed = learn(*training, **settings)
    assert batches == [0, 1, 2, 3, 2, 3]
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert read_metrics(killed) == read_metrics(whole)


@pytest.mark.parametrize("arch", ["dense:pooling=mean", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_takes_the_kernel_of_packed_texts_in_half_precision(arch, dtype, learn, monkeypatch):
    kernels = set()
    for name in ("_flash_attention", "padded_sdpa", "grouped_sdpa"):
        monkeypatch.setattr(attention, name, noted(kernels, name, getattr(attention, name)))
    learn(arch, "contrastive", "--steps", 1, dtype=dtype, dropout=True)
    assert kernels == {"_flash_attention" if dtype == "bfloat16" else "padded_sdpa"}


def noted(names, name, work):
    """`work`, which leaves its name."""

    def called(*arguments, **options):
        names.add(name)
        return work(*arguments, **options)

    return called


def test_losses_are_read_seldom_and_are_all_there(learn, machine):
    waits, steps = [], []
    for every in (1, 3):
        before = machine and machine.counts.syncs
        options = ("--log-every", every, "--deterministic", "--steps", 5)
        steps.append(read_metrics(learn("dense", "contrastive", *options, dropout=True, name=f"every-{every}")))
        waits.append(machine and machine.counts.syncs - before)
    assert steps[0] == steps[1] and [step["step"] for step in steps[0]] == list(range(1, 6))
    assert machine is None or waits[1] == waits[0] - 3  # after steps 3 and 5 alone


def test_a_training_takes_the_device_by_itself_and_tells_the_memory_of_its_steps(learn):
    output, other = learn("dense", on="auto", dtype="auto", dropout=True), learn("dense", on="cpu")
    steps, others = ([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (output, other))
    assert all(step["peak_memory_bytes"] > 0 for step in steps) and not any("peak_memory_bytes" in step for step in others)


@pytest.mark.parametrize("options", [(), ("--deterministic",)], ids=["as it comes", "deterministic"])
def test_algorithms_are_deterministic_where_that_is_asked_for(options, learn, monkeypatch):
    states = []
    plain = RetrievalTask.compute_loss

    def outcome(self, batch):
        enabled, lenient = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        states.append((enabled, enabled and not lenient, os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        return plain(self, batch)

    monkeypatch.setattr(RetrievalTask, "compute_loss", outcome)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*determinis")
        learn("dense", "contrastive", *options, dropout=True)
    assert set(states) == {(True, True, ":4096:8") if options else (False, False, None)}


def test_a_training_on_the_cpu_leaves_no_warnings_for_the_device():
    """A CPU's work is deterministic and warns where it could not be; on CUDA that would be a warning at every product."""
    set_determinism("cpu", deterministic=False)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    select_device("cuda")
    assert not torch.are_deterministic_algorithms_enabled()


def test_compiled_layers_are_for_a_device(learn):
    learn("dense", "contrastive", "--compile", on="cpu", fails="--compile: needs a CUDA device")


@pytest.mark.skipif(not REAL, reason="torch's compiler makes kernels of a real device")
@pytest.mark.parametrize("arch", ["dense", CAME])
def test_compiled_layers_learn_what_others_do(arch, learn, quiet):
    assert_same_training(learn(arch, KINDS[arch], "--compile"), learn(arch, KINDS[arch], on="cpu"))
