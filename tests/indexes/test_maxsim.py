"""Exact late interaction, among all tokens and among those of the same term."""

import numpy as np
import pytest
import torch

from moeir.indexes import token_store
from moeir.indexes.token_store import TokenVectorStore
from moeir.indexes.vector_store import VectorStore
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector
from tests.indexes import engine_checks
from tests.indexes.engine_checks import RecordingPool, near_ties
from tests.indexes.engine_checks import pack_tokens as pack
from tests.representations.test_representations import to_lists

pytestmark = pytest.mark.usefixtures("form")


def build_index(documents, **attributes):
    return engine_checks.build_index("maxsim", documents, **attributes)


def test_a_float32_product_that_loses_the_best_token_is_seen_through():
    tokens = torch.tensor([[0.0, 32768, -32768, 4e-4], [1.5e-3, 32768, -32768, 0]]).half()  # 32768 + 0.0015 is 32768
    index = build_index(MultiVector(tokens, torch.tensor([0, 2])))
    scores = index.search(MultiVector(torch.ones(2, 4), torch.tensor([0, 2])), 1)[1]
    assert scores[0, 0] == 2 * tokens[1, 0].float()


def test_a_query_token_of_zeros_adds_nothing():
    documents = pack([[[1.0, 2, 3]], [[3.0, 2, 1], [0.5, 0, 9]]])
    with_zeros, without = pack([[[0.0, 0, 0], [1, 1, 0]], [[0.0, 0, 0]]]), pack([[[1.0, 1, 0]]])
    rows, scores = build_index(documents).search(with_zeros, 2)
    assert scores[0].tobytes() == build_index(documents).search(without, 2)[1].tobytes()
    assert rows[1].tolist() == [1, 0] and scores[1].tolist() == [0.0, 0.0]


def test_the_stored_vectors_of_each_text_are_returned():
    _, documents = near_ties("maxsim", count=20)
    index = build_index(documents)
    for row, tokens in enumerate(to_lists(documents)):
        assert index.token_vectors(row).tolist() == tokens


def test_texts_are_padded_with_their_last_token():
    texts = pack([[[1.0, 0, 0], [2.0, 0, 0]], [], [[3.0, 0, 0]]])
    documents = TokenVectorStore(texts.starts, VectorStore(texts.vectors.half().numpy(), torch.device("cpu"), 3.0))
    rows, texts = next(iter(documents.iterate_by_length()))
    assert rows.tolist() == [2, 0] and texts.host_lengths.tolist() == [1, 2]  # shortest first, none without tokens
    tokens, real = texts.pad(0, 2)
    assert tokens[..., 0].tolist() == [[3, 3], [1, 2]] and real.tolist() == [[True, False], [True, True]]
    tokens, real = documents.select(torch.tensor([0])).pad(0, 1)
    assert tokens[..., 0].tolist() == [[1, 2]] and real.all()


class StoredElsewhere(VectorStore):
    """Vectors that do not fit on the device of the search."""

    storage_device = torch.device("meta")


@pytest.mark.parametrize(("per_load", "available"), [(3000, 2**40), (2**28, 4 * 3000)])
def test_texts_that_do_not_fit_on_the_device_are_read_in_parts(per_load, available, monkeypatch):
    _, packed = near_ties("maxsim", count=60, width=16)
    texts = to_lists(packed)
    monkeypatch.setattr(token_store, "BYTES_PER_LOAD", per_load)
    monkeypatch.setattr(token_store, "available_bytes", lambda device: available)
    vectors, found = StoredElsewhere(packed.vectors.numpy(), torch.device("cpu"), 1.0), {}
    parts = list(TokenVectorStore(packed.starts, vectors).iterate_by_length())
    for rows, part in parts:
        assert part.vectors.nbytes <= 3000 and (np.diff(part.host_lengths) >= 0).all()
        for number, row in enumerate(rows.tolist()):
            tokens, real = part.pad(number, number + 1)
            found[row] = tokens[real].tolist()
    assert len(parts) > 1 and found == {row: tokens for row, tokens in enumerate(texts) if tokens}


def test_a_device_keeps_every_token_that_its_rounding_may_have_put_behind_another():
    """1 + 2^-25 + 2^-25 + … - 1: float32 loses the small numbers in any order of blocks, so that the nearer token looks farther."""
    large, small = 512, 2**17
    query = torch.cat([torch.ones(large), torch.full((small,), 2.0**-13), torch.ones(large)])[None]
    nearer = torch.cat([torch.ones(large), torch.full((small,), 2.0**-12), -torch.ones(large)])
    farther = torch.zeros(len(nearer))
    farther[0] = small * 2.0**-25 - 2.0**-12
    index, mask = build_index(MultiVector(torch.stack([nearer, farther]), torch.tensor([0, 2]))), torch.ones(1, 2, dtype=torch.bool)
    documents = torch.stack([nearer, farther]).half()[None]
    approximate = (documents.float() @ query.T)[0, :, 0]
    assert approximate[1] > approximate[0] + 2.0**-9, "float32 has them in the wrong order"
    scores = index._exact_pair_scores(query[None], torch.tensor([0]), documents, mask)
    assert scores.tolist() == [small * 2.0**-25]


def test_a_scan_scores_only_so_many_pairs_at_a_time():
    queries, documents = near_ties("exact-match", 2)
    index = engine_checks.build_index("exact-match", documents, elements_at_once=2000)
    (block,) = index._query_blocks(queries.select(torch.arange(32) % 4))
    pool = RecordingPool()
    index._scan(block, pool)
    assert sum(part.shape[1] for part in pool.scores) == len(documents)
    assert len(pool.scores) > 1 and max(part.numel() for part in pool.scores) <= 2000 / 4


def test_a_product_that_float32_rounds_away_is_seen():
    vectors = torch.tensor([[32768.0, -32768, 4e-4], [-32768.0, 32768, -4e-4]]).half()
    index = engine_checks.build_index("exact-match", ExactMatch(torch.ones(2, dtype=torch.int64), vectors, torch.tensor([0, 1, 2])))
    rows, scores = index.search(ExactMatch(torch.ones(1, dtype=torch.int64), torch.ones(1, 3), torch.tensor([0, 1])), 2)
    assert rows.tolist() == [[0, -1]] and scores[0, 0] == vectors[0, 2].float()


def test_a_score_above_zero_that_a_float32_sum_has_below_zero_is_found():
    width, count, small = 1024, 16, 2.0**-12 * (1 - 2.0**-11)  # 1 + small² is 1 in float32
    document = 256 * torch.tensor([1.0, *[small] * (width - 2), -1.0])
    query = torch.tensor([1.0, *[small] * (width - 2), 1 + 1016 * 2.0**-24])
    documents = ExactMatch(torch.ones(1, dtype=torch.int64), document[None].half(), torch.tensor([0, 1]))
    index = engine_checks.build_index("exact-match", documents)
    exact = query.double() @ document.half().double()
    rows, scores = index.search(ExactMatch(torch.ones(count, dtype=torch.int64), query.repeat(count, 1), torch.arange(count + 1)), 1)
    assert exact > 0 and rows.tolist() == [[0]] * count and (scores == exact.float().item()).all()
