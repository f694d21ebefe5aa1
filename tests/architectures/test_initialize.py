"""Checkpoints from plain weights: fitted vocabulary heads, and what starts at random."""

import logging
import math
from collections import Counter

import pytest
import torch

from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.packed_tokens import PackedTokens
from tests.architectures.folders import check_same
from tests.architectures.test_checkpoint import RULES, TEXTS


def test_a_dense_model_can_keep_its_vocabulary_head_and_lose_it_again(tiny_model_with_head, tmp_path):
    checkpoint = build_checkpoint(tiny_model_with_head, "dense:head=true", RULES)
    assert checkpoint.architecture.encoder.vocabulary_head is not None
    checkpoint.save(tmp_path)
    dropped = build_checkpoint(tmp_path, "dense:head=false", {})
    assert dropped.architecture.encoder.vocabulary_head is None and build_checkpoint(tmp_path, "splade", {}).spec.startswith("splade")
    check_same(checkpoint.encode(TEXTS), dropped.encode(TEXTS))


def test_from_scratch_only_sizes_and_tokenizer_are_taken(tiny_model_with_head, caplog):
    with caplog.at_level(logging.INFO):
        first, again, other = (
            build_checkpoint(tiny_model_with_head, "splade", RULES, seed=seed, random_weights=True) for seed in (1, 1, 2)
        )
        plain = build_checkpoint(tiny_model_with_head, "splade", RULES)
    words = [one.architecture.encoder.embeddings.words.weight for one in (first, again, other, plain)]
    assert torch.equal(words[0], words[1]) and not torch.equal(words[0], words[2]) and not torch.equal(words[0], words[3])
    assert "fitted" not in caplog.text, "a head that is there is kept"


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
