"""Exact search among tokens of the same term."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError
from moeir.indexes.exact_match import ExactMatchIndex
from moeir.representations.exact_match import ExactMatch as Texts
from tests.indexes.engine_checks import RecordingPool, is_full_sort
from tests.oracles import search as oracle

token = st.tuples(st.integers(0, 4), st.lists(st.integers(-16, 16).map(lambda number: number / 8), min_size=3, max_size=3))
texts = st.lists(st.lists(token, max_size=5), min_size=1, max_size=12)


def pack(texts, width=3):
    starts = torch.tensor([0, *np.cumsum([len(text) for text in texts])])
    terms = torch.tensor([term for text in texts for term, _ in text], dtype=torch.int64)
    return Texts(terms, torch.tensor([vector for text in texts for _, vector in text], dtype=torch.float32).view(-1, width), starts)


def build_index(documents, id_ranks=None, **attributes):
    index = ExactMatchIndex(id_ranks)
    index.add(documents)
    for name, value in attributes.items():
        setattr(index, name, value)
    return index


def near_ties(count=200, width=8, seed=0):
    """Texts whose tokens come from a small set, changed in the last float16 bit, some repeated: many near ties."""
    generator = torch.Generator().manual_seed(seed)
    bases = torch.nn.functional.normalize(torch.randn(6, width, generator=generator), dim=1).half()
    lengths = torch.randint(0, 9, (count,), generator=generator)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    base_numbers = torch.randint(6, (int(starts[-1]),), generator=generator)
    vectors = bases[base_numbers].clone()
    bits = vectors.view(torch.int16)
    bits[:, 0] += torch.randint(-1, 2, (len(bits),), generator=generator).to(torch.int16)
    queries = bases[[0, 1, 2, 0, 5]].float() + 1e-3 * torch.randn(5, width, generator=generator)
    return Texts(torch.tensor([0, 1, 0, 7, 1]), queries, torch.tensor([0, 3, 3, 4, 5])), Texts(base_numbers % 2, vectors, starts)


def to_lists(texts):
    spans = [slice(texts.starts[i], texts.starts[i + 1]) for i in range(len(texts))]
    return [list(zip(texts.terms[text].tolist(), texts.vectors[text].tolist(), strict=True)) for text in spans]


@given(texts, texts, st.integers(1, 15), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_search_is_a_full_sort_by_score_then_id(queries, documents, depth, random):
    id_ranks = random.sample(range(len(documents)), len(documents))
    result = build_index(pack(documents), np.array(id_ranks)).search(pack(queries), depth)
    assert is_full_sort(result, lambda query: oracle.exact_match(query, documents), queries, id_ranks, depth)


def test_a_scan_scores_only_so_many_pairs_at_a_time():
    queries, documents = near_ties(seed=2)
    index = build_index(documents, elements_at_once=2000)
    index.search(queries, 1)  # which opens it
    (block,) = index._query_blocks(queries.select(torch.arange(32) % 4))
    pool = RecordingPool()
    index._scan(block, pool)
    assert sum(part.shape[1] for part in pool.scores) == len(documents)
    assert len(pool.scores) > 1 and max(part.numel() for part in pool.scores) <= 2000 / 4


def test_who_shares_no_term_or_has_no_product_above_zero_is_not_found():
    documents = pack([[(1, [1.0, 0, 0])], [(2, [9.0, 0, 0])], [(1, [-1.0, 0, 0])], [], [(1, [-1.0, 0, 0]), (1, [0.5, 0, 0])]])
    rows, scores = build_index(documents).search(pack([[(1, [1.0, 0, 0])], [(3, [1.0, 0, 0])], []]), 5)
    assert rows.tolist() == [[0, 4, -1, -1, -1], [-1] * 5, [-1] * 5]
    assert scores[0, :2].tolist() == [1.0, 0.5]


def test_a_product_that_float32_rounds_away_is_seen():
    vectors = torch.tensor([[32768.0, -32768, 4e-4], [-32768.0, 32768, -4e-4]]).half()
    index = build_index(Texts(torch.ones(2, dtype=torch.int64), vectors, torch.tensor([0, 1, 2])))
    rows, scores = index.search(Texts(torch.ones(1, dtype=torch.int64), torch.ones(1, 3), torch.tensor([0, 1])), 2)
    assert rows.tolist() == [[0, -1]] and scores[0, 0] == vectors[0, 2].float()


def test_a_score_above_zero_that_a_float32_sum_has_below_zero_is_found():
    width, count, small = 1024, 16, 2.0**-12 * (1 - 2.0**-11)  # 1 + small² is 1 in float32
    document = 256 * torch.tensor([1.0, *[small] * (width - 2), -1.0])
    query = torch.tensor([1.0, *[small] * (width - 2), 1 + 1016 * 2.0**-24])
    index = build_index(Texts(torch.ones(1, dtype=torch.int64), document[None].half(), torch.tensor([0, 1])))
    exact = query.double() @ document.half().double()
    rows, scores = index.search(Texts(torch.ones(count, dtype=torch.int64), query.repeat(count, 1), torch.arange(count + 1)), 1)
    assert exact > 0 and rows.tolist() == [[0]] * count and (scores == exact.float().item()).all()


@pytest.mark.parametrize("documents", [[[], []], [[]]])
def test_documents_without_any_token_make_an_index_that_finds_nothing(documents, tmp_path):
    index = build_index(pack(documents))
    index.save(tmp_path)
    for each in (index, ExactMatchIndex.open(tmp_path)):
        assert each.search(pack([[(1, [1.0, 0, 0])]]), 3)[0].tolist() == [[-1] * len(documents)]


def test_what_is_wrong_is_refused(tmp_path):
    index = build_index(pack([[(1, [1.0, 2, 3])], []]))
    with pytest.raises(DataError, match="row 4: its token vector 1 holds NaN"):
        index.add(pack([[(1, [1.0, 1, 1])], [], [(1, [1.0, 1, 1]), (2, [1.0, float("nan"), 1])]]))
    with pytest.raises(ArtifactError, match="dimension 2, but the index holds dimension 3"):
        index.search(pack([[(1, [1.0, 2])]], width=2), 1)
    index.save(tmp_path)
    np.save(tmp_path / "rows.npy", np.zeros(2, np.int32))
    with pytest.raises(ArtifactError, match=r"rows.npy: damaged: expected int32 \[1\], found int32 \[2\]"):
        ExactMatchIndex.open(tmp_path)
