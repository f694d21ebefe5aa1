"""A published encoder with experts, nomic-embed-text-v2-moe, as a backbone: opened, encoded, trained, analysed and written as it came."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.errors import ArtifactError, UsageError
from tests.backbones.tiny_nomic import CONFIG, EXPERTS, HEADS, INNER, LAYERS, H, encode_text, make_weights, write_folder
from tests.conftest import run_moeir

TEXTS = ["the owl hunting at night", "mice", "bread in the sea, the end"]
GATE = "encoder.layers.{}.mlp.router.layer.weight"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("nomic") / "published")


@pytest.fixture(scope="module")
def checkpoint(published):
    path = published.with_name("ckpt")
    run_moeir("init", "--model", published, "--arch", "dense", "--query-length", 24, "--document-length", 24, "--output", path)
    return path


def test_it_opens_with_its_settings_and_keeps_its_layout_without_running_its_code(published, checkpoint, monkeypatch):
    model = open_checkpoint(checkpoint)
    rules = model.input_config
    assert not model.is_stateless, "its routers remember their last decisions"
    assert (rules.query_prefix, rules.document_prefix) == ("search_query: ", "search_document: ")
    assert "pooling=mean" in model.spec and "normalise=true" in model.spec
    first, second = (load_file(folder / "model.safetensors") for folder in (published, checkpoint))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    written = json.loads((checkpoint / "config.json").read_text())
    assert {name: value for name, value in CONFIG.items() if written.get(name) != value} == {"torch_dtype": "float32"}
    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_from_dynamic_module", None)
    assert CONFIG["auto_map"]
    run_moeir("init", "--model", published, "--arch", "splade", "--output", checkpoint.with_name("splade"))
    again = checkpoint.with_name("again")
    run_moeir("init", "--model", checkpoint, "--arch", "taser:routing=token,layers=1+3", "--output", again)
    assert list(open_checkpoint(again).encode(TEXTS).routing) == ["layer1", "layer2", "layer3", "layer4"]


def test_usage_counts_every_expert_that_a_token_has(checkpoint, tmp_path):
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"_id": text[:3], "text": text}) + "\n" for text in TEXTS))
    command = ("analyze", "usage", "--model", checkpoint, "--corpus", tmp_path / "corpus.jsonl", "--form", "jsonl", "--dtype", "float32")
    rows = [json.loads(line) for line in run_moeir(*command).stdout.splitlines()]
    counts = {"layer2": Counter(), "layer4": Counter()}
    texts = open_checkpoint(checkpoint).token_ids(TEXTS, "document")[0]
    for ids in texts:
        for router, experts in encode_text(make_weights(), ids)[1].items():
            counts[router].update(expert for best in experts for expert in best)
    tokens = sum(map(len, texts))
    for router, expected in counts.items():
        *own, total = [row for row in rows if row["router"] == router]
        assert [row["chosen"] for row in own] == [expected[expert] for expert in range(EXPERTS)] and total["chosen"] == 2 * tokens
        assert total["of"] == "tokens" and total["share"] == pytest.approx(1) and total["probability"] == pytest.approx(1)


@pytest.mark.parametrize("arch", ["came:shared_layers=1,experts=local+global,local_dim=8", "dense:encoders=separate"])
def test_gates_learn_by_their_weights(published, tmp_path, arch):
    examples = [{"query_id": text[:3], "query": text, "negative_passages": []} for text in TEXTS]
    for example in examples:
        example["positive_passages"] = [{"docid": example["query_id"], "text": f"{example['query']} whale"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    sizes = ("--query-length", 12, "--document-length", 12, "--batch-size", 3, "--steps", 3, "--negatives", 0, "--recompute")
    objective = ("--weight-decay", 0, "--objective", "contrastive:load_balance=0.1", "--learning-rate", 1e-3, "--dtype", "float32")
    command = ("finetune", "--model", published, "--arch", arch, "--train", tmp_path / "train.jsonl", *sizes, *objective)
    run_moeir(*command, "--output", tmp_path / "ckpt")
    metrics = [json.loads(line) for line in (tmp_path / "ckpt" / "metrics.jsonl").read_text().splitlines()]
    routers = ["local.layer1", "local.layer3", "global.layer1", "global.layer3"] if "came" in arch else ["layer2", "layer4"]
    for router in routers:
        assert sum(metrics[0][f"usage.{router}.{expert}"] for expert in range(EXPERTS)) == pytest.approx(1, abs=1e-6)
    model = open_checkpoint(tmp_path / "ckpt")
    assert sorted(model.encode(TEXTS, "document").routing) == sorted(routers)
    for side in ("query", "document"):
        for router in model.architecture.routers(side).values():
            started = [make_weights()[GATE.format(number)] for number in (1, 3)]
            assert not any(torch.equal(router.gate.weight, one) for one in started) and router.last_routing is None


def test_an_architecture_adds_no_experts_to_layers_that_have_some(published):
    for arch in ("mote:similarity=dense", "mote:similarity=dense,adapters=2"):
        with pytest.raises(UsageError, match=r"layer 2: its weights have experts already; expected layers of 1\+3"):
            build_checkpoint(published, arch, {}, TEXTS)
    assert build_checkpoint(published, "mote:similarity=dense,layers=1+3", {}, TEXTS).encode(TEXTS).routing.keys() == {"layer2", "layer4"}


def test_transformers_has_no_place_for_experts(tmp_path):
    sizes = {"hidden_size": H, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER, "vocab_size": 64}
    folder = write_folder(tmp_path / "published", **sizes)
    with pytest.raises(ArtifactError, match=r"weights are (missing|not read), first .*layers"):
        build_checkpoint(folder, "dense", {}, TEXTS, backbone="transformers")
