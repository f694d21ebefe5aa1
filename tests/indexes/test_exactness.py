"""Exact engines return the same bytes for any threads, batches and shards."""

import numba
import pytest
import torch

from moeir.indexes.flat import Flat
from moeir.indexes.inverted import Inverted
from moeir.indexes.maxsim import MaxSim
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse

pytestmark = pytest.mark.usefixtures("form")

DOCUMENTS, QUERIES, DEPTH = 420, 33, 40


def random_numbers(*shape, seed):
    """Numbers of few digits, so that many scores are equal or nearly so."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 4).round() / 4


def dense(count, seed):
    return Dense(random_numbers(count, 12, seed=seed).half().float())


def sparse(count, seed):
    return Sparse.from_matrix(random_numbers(count, 30, seed=seed).clamp(min=0.5) - 0.5)


def multivector(count, seed):
    lengths = torch.randint(0, 6, (count,), generator=torch.Generator().manual_seed(seed))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return MultiVector(random_numbers(int(starts[-1]), 12, seed=seed + 1).half().float(), starts)


def select_rows(encoded, first, last):
    if isinstance(encoded, Dense):
        return Dense(encoded.vectors[first:last])
    return encoded.select(torch.arange(first, last))


@pytest.fixture(params=[1, 2])
def threads(request):
    before, loops = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(request.param)
    numba.set_num_threads(min(request.param, numba.config.NUMBA_NUM_THREADS))
    yield request.param
    torch.set_num_threads(before)
    numba.set_num_threads(loops)


@pytest.mark.parametrize(("engine", "make_texts"), [(Flat, dense), (MaxSim, multivector), (Inverted, sparse)])
@pytest.mark.parametrize("shards", [1, 3, 7])
def test_threads_batches_and_shards_change_no_byte(engine, make_texts, shards, threads, tmp_path):
    documents, queries = make_texts(DOCUMENTS, 1), make_texts(QUERIES, 50)
    whole = engine()
    whole.add(documents)
    rows, scores = whole.search(queries, DEPTH)
    index, each = engine(), DOCUMENTS // shards
    for shard in range(shards):
        index.add(select_rows(documents, shard * each, DOCUMENTS if shard == shards - 1 else (shard + 1) * each))
    index.save(tmp_path)
    for opened in (index, engine.open(tmp_path)):
        for batch in (1, 5, 16, QUERIES):
            results = [opened.search(select_rows(queries, first, min(first + batch, QUERIES)), DEPTH) for first in range(0, QUERIES, batch)]
            assert b"".join(part.tobytes() for part, _ in results) == rows.tobytes()
            assert b"".join(part.tobytes() for _, part in results) == scores.tobytes()
