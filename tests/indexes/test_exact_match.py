"""Exact search among tokens of the same term."""

import torch

from moeir.representations.exact_match import ExactMatch as Texts
from tests.indexes.engine_checks import RecordingPool, build_index, near_ties


def test_a_scan_scores_only_so_many_pairs_at_a_time():
    queries, documents = near_ties("exact-match", 2)
    index = build_index("exact-match", documents, elements_at_once=2000)
    index.search(queries, 1)  # which opens it
    (block,) = index._query_blocks(queries.select(torch.arange(32) % 4))
    pool = RecordingPool()
    index._scan(block, pool)
    assert sum(part.shape[1] for part in pool.scores) == len(documents)
    assert len(pool.scores) > 1 and max(part.numel() for part in pool.scores) <= 2000 / 4


def test_a_product_that_float32_rounds_away_is_seen():
    vectors = torch.tensor([[32768.0, -32768, 4e-4], [-32768.0, 32768, -4e-4]]).half()
    index = build_index("exact-match", Texts(torch.ones(2, dtype=torch.int64), vectors, torch.tensor([0, 1, 2])))
    rows, scores = index.search(Texts(torch.ones(1, dtype=torch.int64), torch.ones(1, 3), torch.tensor([0, 1])), 2)
    assert rows.tolist() == [[0, -1]] and scores[0, 0] == vectors[0, 2].float()


def test_a_score_above_zero_that_a_float32_sum_has_below_zero_is_found():
    width, count, small = 1024, 16, 2.0**-12 * (1 - 2.0**-11)  # 1 + small² is 1 in float32
    document = 256 * torch.tensor([1.0, *[small] * (width - 2), -1.0])
    query = torch.tensor([1.0, *[small] * (width - 2), 1 + 1016 * 2.0**-24])
    index = build_index("exact-match", Texts(torch.ones(1, dtype=torch.int64), document[None].half(), torch.tensor([0, 1])))
    exact = query.double() @ document.half().double()
    rows, scores = index.search(Texts(torch.ones(count, dtype=torch.int64), query.repeat(count, 1), torch.arange(count + 1)), 1)
    assert exact > 0 and rows.tolist() == [[0]] * count and (scores == exact.float().item()).all()
