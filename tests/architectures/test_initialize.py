"""Checkpoints from plain weights: configuration of sentence-transformers folders, and fitted vocabulary heads."""

import json
import logging
import math
from collections import Counter

import pytest
import torch

from moeir import variants
from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.sentence_transformers_files import read_folder_settings
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import ArtifactError
from tests.architectures.test_checkpoint import RULES, TEXTS, assert_same_encodings


def modules(*names):
    """The content of a modules.json."""
    paths = ("" if name == "Transformer" else f"{number}_{name}" for number, name in enumerate(names))
    return [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in zip(names, paths, strict=True)]


@pytest.fixture
def sentence_transformer(tiny_model, tmp_path):
    """The tiny weights as sentence-transformers lays them out."""
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "1_Pooling").mkdir()
    contents = {
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_what_the_user_says_wins_over_the_folder(sentence_transformer):
    checkpoint = build_checkpoint(sentence_transformer, "dense:pooling=cls,normalise=false", {"query_prefix": "", "document_length": 20})
    options = variants.resolve_spec("architectures", checkpoint.spec)[1]
    assert options["pooling"] == "cls" and options["normalise"] is False
    assert (
        checkpoint.input_config.query_prefix == ""
        and checkpoint.input_config.document_length == 20
        and checkpoint.input_config.query_length == 24
    )


def test_what_the_folder_says_of_a_text_holds_for_a_pair(sentence_transformer):
    rules = build_checkpoint(sentence_transformer, "cross-encoder", {}).input_config
    assert (rules.query_length, rules.document_length) == (12, 24)
    rules = build_checkpoint(sentence_transformer, "cross-encoder", {"document_length": 32, "query_length": 20}).input_config
    assert (rules.query_length, rules.document_length) == (20, 32)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, {"normalise": "true", "pooling": "cls"}),
        ({"1_Pooling/config.json": {"pooling_mode": ["mean"]}}, {"normalise": "true", "pooling": "mean"}),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, {"normalise": "true", "pooling": "cls"}),
        ({"1_Pooling/config.json": {"word_embedding_dimension": 8}}, {"normalise": "true", "pooling": "mean"}),
        ({"modules.json": modules("Transformer", "Pooling")}, {"normalise": "false", "pooling": "mean"}),
        ({"modules.json": modules("Transformer", "Pooling", "Dropout")}, {"normalise": "false", "pooling": "mean"}),
    ],
)
def test_pooling_and_normalisation_are_read_in_every_spelling(changes, expected, sentence_transformer):
    for name, content in changes.items():
        (sentence_transformer / name).write_text(json.dumps(content))
    assert read_folder_settings(sentence_transformer, "dense", {})[2] == expected


@pytest.mark.parametrize(
    "name, content",
    [
        *(("modules.json", content) for content in (None, 7, {"type": "Pooling"}, [7], [{}], [{"type": 7}], ["Pooling"])),
        *(("sentence_bert_config.json", {"max_seq_length": value}) for value in (-1, True, "x", 1.5, 1e300, float("inf"), [16])),
        ("sentence_bert_config.json", [16]),
        *(("config_sentence_transformers.json", {"prompts": value}) for value in (7, "x", ["x"], {"query": 7}, {"document": ["x"]})),
        *(("1_Pooling/config.json", {"pooling_mode_cls_token": value}) for value in (None, 1, "true", [])),
        ("1_Pooling/config.json", "cls"),
    ],
)
def test_sentence_transformers_files_of_other_types_are_refused(name, content, sentence_transformer):
    (sentence_transformer / name).write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=rf"{sentence_transformer / name}: .*expected ") as caught:
        read_folder_settings(sentence_transformer, "dense", {})
    assert "\n" not in str(caught.value)


def test_a_head_that_is_there_is_kept(tiny_model_with_head, caplog):
    with caplog.at_level(logging.INFO):
        build_checkpoint(tiny_model_with_head, "splade", RULES)
    assert "fitted" not in caplog.text


def test_markers_are_no_words_a_head_is_fitted_on(tiny_model, caplog):
    counts = []
    for markers in ("false", "true"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            build_checkpoint(tiny_model, f"came:shared_layers=4,experts=lexical,markers={markers}", {"document_length": 32}, TEXTS)
        counts.append(caplog.text.split("fitted one on ")[1].split()[0])
    assert counts[0] == counts[1]


def test_a_dense_model_can_keep_its_vocabulary_head_and_lose_it_again(tiny_model_with_head, tmp_path):
    checkpoint = build_checkpoint(tiny_model_with_head, "dense:head=true", RULES)
    assert checkpoint.architecture.encoder.vocabulary_head is not None
    checkpoint.save(tmp_path)
    dropped = build_checkpoint(tmp_path, "dense:head=false", {})
    assert dropped.architecture.encoder.vocabulary_head is None and build_checkpoint(tmp_path, "splade", {}).spec.startswith("splade")
    assert_same_encodings(checkpoint.encode(TEXTS), dropped.encode(TEXTS))


def test_from_scratch_only_sizes_and_tokenizer_are_taken(tiny_model_with_head, caplog):
    with caplog.at_level(logging.INFO):
        first, again, other = (
            build_checkpoint(tiny_model_with_head, "splade", RULES, seed=seed, random_weights=True) for seed in (1, 1, 2)
        )
    plain = build_checkpoint(tiny_model_with_head, "splade", RULES)
    words = [one.architecture.encoder.embeddings.words.weight for one in (first, again, other, plain)]
    assert torch.equal(words[0], words[1]) and not torch.equal(words[0], words[2]) and not torch.equal(words[0], words[3])
    assert "fitted" not in caplog.text


def test_the_weights_of_query_tokens_start_at_their_inverse_document_frequency(tiny_model_with_head):
    texts = ["owl mice owl", "owl bee", "owl bat", "owl"]
    checkpoint = build_checkpoint(tiny_model_with_head, "splade:queries=tokens", RULES, texts)
    ids = {word: checkpoint.token_ids([word], "query")[0][0][1:-1] for word in ("owl", "mice", "bee")}
    head = checkpoint.architecture.heads["lexical"]
    weights = {word: head.weigh_tokens(PackedTokens.from_lists([of_word], "query")).weights for word, of_word in ids.items()}
    assert not len(weights["owl"]), "in every text"
    tokens_of_texts = [{token for word in text.split() for token in checkpoint.token_ids([word], "document")[0][0]} for text in texts]
    counts = Counter(token for tokens in tokens_of_texts for token in tokens)
    idf = {token: math.log(5 / (count + 1)) for token, count in counts.items()}
    mean = sum(idf[token] for tokens in tokens_of_texts for token in tokens) / sum(map(len, tokens_of_texts))
    for word in ("mice", "bee"):
        assert weights[word].tolist() == pytest.approx([idf[token] / mean for token in sorted(set(ids[word])) if idf.get(token)])
    fresh = build_checkpoint(tiny_model_with_head, "splade:queries=tokens", RULES)
    assert set(fresh.encode(["owl mice"], "query")["lexical"].weights.tolist()) == {1.0}, "without texts all tokens weigh the same"
