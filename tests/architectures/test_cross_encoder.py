"""Cross-encoders give the scores, files and tokens of transformers' sequence classification, in every family."""

import itertools
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moeir import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.errors import ArtifactError, UsageError
from moeir.records.texts import Text
from tests.architectures.folders import assert_refused, save
from tests.backbones.tiny_models import is_close, make_model
from tests.backbones.tiny_tokenizers import ALL_WRITERS
from tests.conftest import run_moeir
from tests.reranking.pairs import make_all_pairs

FAMILIES = list(ALL_WRITERS)
QUERIES = ["An owl, hunting at night.", "the sea (the end)", "cat"]
DOCUMENTS = ["mice in the bread", "the whale in the sea hunting an owl at night", "the"]
RULES = {"query_length": 12, "document_length": 16}


@pytest.fixture(scope="module")
def published(family_weights):
    """`published(family)`: a folder of a classifier with its tokenizer."""
    return lambda name, labels=1, **changes: family_weights(name, kind="ForSequenceClassification", num_labels=labels, **changes)


def pairs(checkpoint):
    """Every query with every document, as packed tokens."""
    return make_all_pairs(checkpoint, QUERIES, DOCUMENTS).pack(range(len(QUERIES) * len(DOCUMENTS)))


@torch.no_grad()
def scores(checkpoint, tokens):
    return checkpoint.architecture.eval()(tokens)["relevance"].vectors[:, 0]


@torch.no_grad()
def transformers_logits(model, tokens):
    """Logits of transformers for each text, unbatched."""
    inputs = {"input_ids": tokens.ids} | ({} if tokens.segments is None else {"token_type_ids": tokens.segments})
    parts = [dict(zip(inputs, parts)) for parts in zip(*(part[None].split(list(tokens.lengths), 1) for part in inputs.values()))]
    return torch.cat([model(**part).logits for part in parts])


OPTIONS = [{"classifier_pooling": "mean"}, {"norm_bias": True}, {"classifier_bias": True}]


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in FAMILIES), *(("modernbert", one) for one in OPTIONS)])
def test_scores_are_those_of_transformers_and_files_open_there(name, changes, published, tmp_path):
    folder = published(name, **changes)
    checkpoint = build_checkpoint(folder, "cross-encoder", RULES)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = pairs(checkpoint)
    actual, expected = scores(checkpoint, tokens), transformers_logits(model, tokens)[:, 0]
    assert is_close(actual, expected) and float(expected.std()) > 1e-3
    checkpoint.save(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(again) is type(model) and torch.equal(transformers_logits(again, tokens)[:, 0], expected)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(scores(open_checkpoint(tmp_path), tokens), actual)


def test_weights_that_the_head_has_no_place_for_are_warned_of(published, tmp_path, caplog):
    folder = shutil.copytree(published("modernbert"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"head.norm.bias": torch.zeros(24)}, folder / "model.safetensors", metadata={"format": "pt"})
    build_checkpoint(folder, "cross-encoder", RULES)
    assert "1 weights are not read, first heads.relevance.norm.bias: this cross-encoder's head has none" in caplog.text


@pytest.mark.parametrize("name", FAMILIES)
def test_pairs_are_read_as_the_familys_tokenizer_joins_them(name, published):
    folder = published(name)
    checkpoint = build_checkpoint(folder, "cross-encoder", RULES)
    classes = {"roberta": "RobertaTokenizerFast", "xlm-roberta": "PreTrainedTokenizerFast", "modernbert": "PreTrainedTokenizerFast"}
    tokenizer = getattr(transformers, classes.get(name, "BertTokenizerFast")).from_pretrained(folder)
    tokens, options = pairs(checkpoint), {"truncation": "only_second", "max_length": RULES["document_length"]}
    segments = torch.zeros_like(tokens.ids) if tokens.segments is None else tokens.segments
    columns = (part.split(list(tokens.lengths)) for part in (tokens.ids, segments))
    for (query, document), ids, kinds in zip(itertools.product(QUERIES, DOCUMENTS), *columns, strict=True):
        encoding = tokenizer(query, document, return_token_type_ids=True, **options)
        assert ids.tolist() == encoding["input_ids"] and kinds.tolist() == encoding["token_type_ids"]
    assert max(tokens.lengths) == RULES["document_length"]


def test_parts_of_a_document_stand_behind_one_another_with_the_separator_between(published):
    text = Text("d", "the owl", title="bread", url="sea")
    checkpoint = build_checkpoint(published("bert"), "cross-encoder", RULES)
    separator, reader = checkpoint.tokenizer.special_tokens.separator, checkpoint.tokenizer
    sea, bread, owl = reader.encode(["sea", "bread", "the owl"], special=False)
    assert checkpoint.token_ids([text.joined_fields], "document")[0] == [[*sea, separator, *bread, separator, *owl]]
    assert checkpoint.token_ids([Text("d", "the owl", title="bread").joined_fields], "document")[0] == [[*bread, separator, *owl]]
    titled = build_checkpoint(published("bert"), "cross-encoder:fields=title+text,separate=false", RULES)
    assert titled.token_ids([text.joined_fields], "document")[0] == [reader.encode(["bread the owl"], special=False)[0]]
    assert titled.token_ids([Text("d", "a\x1fowl").joined_fields], "document")[0] == reader.encode(["a owl"], special=False)
    prefixed = build_checkpoint(published("bert"), "cross-encoder", RULES | {"document_prefix": "cat: ", "query_prefix": "whale "})
    [prefix] = reader.encode(["cat: sea"], special=False)
    assert prefixed.token_ids([text.joined_fields], "document")[0][0][: len(prefix)] == prefix
    assert prefixed.token_ids(["owl"], "query")[0] == reader.encode(["whale owl"], special=False)


def test_two_classes_are_one_number(published, tmp_path, caplog):
    folder = published("bert", 2)
    checkpoint = build_checkpoint(folder, "cross-encoder", RULES)
    tokens = pairs(checkpoint)
    logits = transformers_logits(transformers.AutoModelForSequenceClassification.from_pretrained(folder), tokens)
    torch.testing.assert_close(scores(checkpoint, tokens), logits[:, 1] - logits[:, 0], atol=1e-5, rtol=1e-5)
    with pytest.raises(ArtifactError, match=r"the head has 3 classes; expected 1, or 2 \(no and yes\)"):
        build_checkpoint(published("bert", 3), "cross-encoder", RULES)


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_weights_begin_a_cross_encoder_and_their_pooler_is_kept(name, tmp_path):
    size = ALL_WRITERS[name](tmp_path / "plain")
    model = make_model(name, head=False, vocab_size=size)
    model.save_pretrained(tmp_path / "plain")
    checkpoint = build_checkpoint(tmp_path / "plain", "cross-encoder", RULES, seed=3)
    if name == "bert":
        assert torch.equal(checkpoint.architecture.encoder.pooler.weight, model.pooler.dense.weight)
    other, same = (build_checkpoint(tmp_path / "plain", "cross-encoder", RULES, seed=seed) for seed in (4, 3))
    outputs = [one.architecture.heads["relevance"].output.weight for one in (checkpoint, other, same)]
    assert torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1])
    opened = open_checkpoint(save(checkpoint, tmp_path / "saved"))
    assert torch.equal(scores(opened, pairs(opened)), scores(checkpoint, pairs(checkpoint)))


def test_a_linear_head_is_one_product_with_the_first_token(published, tmp_path):
    checkpoint = build_checkpoint(published("roberta"), "cross-encoder:head=linear", RULES)
    tokens = pairs(checkpoint)
    output = checkpoint.architecture.heads["relevance"].output
    with torch.no_grad():
        first = checkpoint.architecture.eval().encoder(tokens)[tokens.starts[:-1]]
        expected = first @ output.weight[0] + output.bias
    assert is_close(scores(checkpoint, tokens), expected)
    checkpoint.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "moeir"
    assert torch.equal(scores(open_checkpoint(tmp_path), tokens), scores(checkpoint, tokens))


def test_scores_are_float32_under_half_precision(published):
    checkpoint = build_checkpoint(published("bert"), "cross-encoder", RULES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = scores(checkpoint, pairs(checkpoint))
    assert actual.dtype == torch.float32 and not torch.equal(actual, actual.bfloat16().float())


@pytest.mark.parametrize(
    ("spec", "rules", "message"),
    [
        ("cross-encoder:head=mean", {}, "head=mean: expected one of hf, linear"),
        ("cross-encoder:fields=text+body", {}, r"fields=text\+body: expected some of url, title, text"),
        ("cross-encoder:fields=text+text", {}, r"fields=text\+text: expected some of"),
        ("cross-encoder", {"query_length": 15}, "a query of 15 tokens leaves no room for a document in a pair of 16"),
        ("cross-encoder", {"query_length": 8, "document_length": 9}, "a query of 8 tokens leaves no room for a document in a pair of 9"),
        ("cross-encoder", {"document_length": 99}, "--document-length 99: expected 3 to 16, the encoder's positions"),
    ],
)
def test_what_cannot_be_is_refused(spec, rules, message, published):
    assert_refused(UsageError, message, build_checkpoint, published("bert"), spec, RULES | rules)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({}, (8, 16)),
        ({"document_length": 10}, (5, 10)),
        ({"query_length": 4}, (4, 16)),
        ({"query_length": 12}, (12, 16)),
        ({"document_length": 6}, (3, 6)),
    ],
)
def test_a_length_that_is_left_out_follows_from_the_other(lengths, expected, published, tmp_path):
    build_checkpoint(published("bert"), "cross-encoder", {}).save(tmp_path)
    for model, arch in ((published("bert"), "cross-encoder"), (tmp_path, None), (tmp_path, "cross-encoder:head=linear")):
        built = build_checkpoint(model, arch, lengths).input_config
        assert (built.query_length, built.document_length) == expected


def test_a_text_alone_has_no_representation(published, tmp_path, moeir, toy):
    checkpoint = build_checkpoint(published("bert"), "cross-encoder", RULES)
    assert_refused(ArtifactError, "reads a query and a document together; moeir rerank uses it", checkpoint.encode, ["owl"])
    run_moeir("init", "--model", published("bert"), "--arch", "cross-encoder", "--output", tmp_path / "ckpt")
    assert "A cross-encoder reranker" in (tmp_path / "ckpt" / "README.md").read_text()
    result = moeir("encode", "--model", tmp_path / "ckpt", "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "enc")
    assert result.code == 4 and "moeir rerank uses it" in result.stderr and not (tmp_path / "enc").exists()
    assert "relevance" in run_moeir("info", tmp_path / "ckpt").stdout
