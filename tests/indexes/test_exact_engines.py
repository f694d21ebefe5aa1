"""What every exact engine promises: the head of a full sort, with the same bytes for any blocks, batches, threads, shards and device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import torch

from moeir.errors import ArtifactError
from moeir.indexes.exact_match import ExactMatchIndex
from moeir.indexes.flat import Flat
from moeir.indexes.inverted import Inverted
from moeir.indexes.maxsim import MaxSim
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from tests.indexes import test_exact_match, test_flat, test_maxsim
from tests.indexes.engine_checks import is_full_sort, limit_device_memory, same_bytes, scores_one_by_one
from tests.oracles import search as oracle

pytestmark = pytest.mark.usefixtures("form")

DEPTH = 30


class Engine(NamedTuple):
    """An engine, and queries and documents whose scores a scan cannot tell apart."""

    type: Any
    near_ties: Callable[[int], Any]
    to_lists: Callable[[Any], Any]
    scores: Callable[[Any, Any], Any]
    files: tuple[str, ...]


def sparse_ties(seed: int) -> Any:
    """Sparse texts of few different weights."""
    matrices = [torch.rand(count, 60, generator=torch.Generator().manual_seed(seed + count)) for count in (9, 300)]
    return [Sparse.from_matrix(torch.where(matrix > 0.8, (matrix * 40).round() / 40, torch.zeros(()))) for matrix in matrices]


def sparse_lists(texts: Sparse) -> Any:
    rows = [texts.select(torch.tensor([row])) for row in range(len(texts))]
    return [dict(zip(row.terms.tolist(), row.weights.tolist(), strict=True)) for row in rows]


ENGINES = {
    "flat": Engine(
        Flat, lambda seed: list(map(Dense, test_flat.near_ties(seed=seed))), lambda texts: texts.vectors.tolist(), oracle.dense,
        ("vectors",),
    ),
    "maxsim": Engine(
        MaxSim, lambda seed: test_maxsim.near_ties(seed=seed), test_maxsim.to_lists, oracle.maxsim, ("starts", "vectors")
    ),
    "exact-match": Engine(
        ExactMatchIndex, lambda seed: test_exact_match.near_ties(seed=seed), test_exact_match.to_lists, oracle.exact_match,
        ("rows", "starts", "terms", "vectors"),
    ),
    "inverted": Engine(
        Inverted, sparse_ties, sparse_lists, oracle.sparse,
        ("begins", "ends", "highest", "lists", "offsets", "starts", "steps", "terms", "weights", "windows"),
    ),
}  # fmt: skip
TWO_STEP = ["flat", "maxsim", "exact-match"]


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


def build_index(engine, *shards, **attributes):
    index = engine.type()
    for shard in shards:
        index.add(shard)
    for name, value in attributes.items():
        setattr(index, name, value)
    return index


def test_documents_that_differ_in_the_last_bit_are_told_apart(engine):
    queries, documents = engine.near_ties(0)
    result, plain = build_index(engine, documents).search(queries, 40), engine.to_lists(documents)
    assert is_full_sort(result, lambda query: engine.scores(query, plain), engine.to_lists(queries), range(len(plain)), 40)


@pytest.mark.parametrize("name", TWO_STEP)
@pytest.mark.parametrize(("elements", "slack"), [(1, 3), (300, 0), (5000, 64)])
def test_blocks_batches_and_pools_change_no_byte(name, elements, slack):
    engine = ENGINES[name]
    queries, documents = engine.near_ties(1)
    whole = build_index(engine, documents).search(queries, DEPTH)
    index = build_index(engine, documents, queries_at_once=2, elements_at_once=elements, slack=slack)
    assert same_bytes(index.search(queries, DEPTH), whole) and scores_one_by_one(index, queries, DEPTH) == whole[1].tobytes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shards", [1, 7])
def test_threads_batches_and_shards_change_no_byte(engine, shards, threads, tmp_path):
    queries, documents = engine.near_ties(5)
    queries = queries.select(torch.arange(33) % len(queries))
    expected = build_index(engine, documents).search(queries, DEPTH)
    before, loops = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        index = build_index(engine, *(documents.select(part) for part in torch.arange(len(documents)).chunk(shards)))
        index.save(tmp_path)
        for opened in (index, engine.type.open(tmp_path)):
            for batch in (1, 16, 33):
                results = [opened.search(queries.select(part), DEPTH) for part in torch.arange(33).split(batch)]
                assert same_bytes([np.concatenate(column) for column in zip(*results, strict=True)], expected)
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(loops)


def test_a_saved_index_is_the_same_index_and_takes_no_more_documents(engine, tmp_path):
    queries, documents = engine.near_ties(3)
    index = build_index(engine, documents)
    index.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["engine.json", *(f"{name}.npy" for name in engine.files)])
    opened = engine.type.open(tmp_path)
    assert same_bytes(index.search(queries, DEPTH), opened.search(queries, DEPTH))
    with pytest.raises(ArtifactError, match="takes no more documents"):
        opened.add(documents)


def test_the_score_is_that_of_the_representation(engine):
    queries, documents = engine.near_ties(2)
    rows, scores = build_index(engine, documents).search(queries, 10)
    reference = queries.scores(documents).numpy()
    for line in range(len(queries)):
        is_hit = rows[line] >= 0
        scale = max(1.0, float(np.abs(reference[line]).max(initial=0.0, where=np.isfinite(reference[line]))))
        assert np.allclose(reference[line, rows[line][is_hit]], scores[line][is_hit], rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", TWO_STEP)
@pytest.mark.parametrize("available", [None, 3000], ids=["vectors on the device", "vectors on the host"])
def test_cuda_and_cpu_give_the_same_bytes(name, tmp_path, monkeypatch, available):
    limit_device_memory(available, monkeypatch)
    engine = ENGINES[name]
    queries, documents = engine.near_ties(4)
    build_index(engine, documents).save(tmp_path)
    here, there = (engine.type.open(tmp_path, device=device).search(queries, 40) for device in ("cpu", "cuda"))
    assert same_bytes(here, there)
