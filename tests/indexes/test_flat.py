"""Exact dense search."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from moeir.errors import ArtifactError, DataError
from moeir.indexes.base import read_settings
from moeir.indexes.flat import Flat
from moeir.indexes.two_step import scan_error_bound
from moeir.indexes.vector_store import exact_dot
from moeir.representations.dense import Dense
from tests.indexes import engine_checks
from tests.indexes.engine_checks import RecordingPool, near_ties, same_bytes
from tests.oracles import search as oracle

pytestmark = pytest.mark.usefixtures("form")


def build_index(documents, id_ranks=None, **attributes):
    return engine_checks.build_index("flat", Dense(torch.as_tensor(documents)), id_ranks=id_ranks, **attributes)


def test_a_float32_sum_that_loses_the_winner_is_seen_through():
    documents = torch.tensor([[0.0, 32768, -32768, 4e-4], [1.5e-3, 32768, -32768, 0]]).half()  # 32768 + 0.0015 is 32768
    for slack in (0, 1):
        rows, scores = build_index(documents, slack=slack).search(Dense(torch.ones(1, 4)), 1)
        assert rows.tolist() == [[1]] and scores[0, 0] == documents[1, 0].float()


@pytest.mark.parametrize("factor", [1e-45, 1e-38, 1e-20, 1e36])
def test_tiny_and_huge_queries_are_ranked_exactly(factor):
    queries, documents = (texts.vectors for texts in near_ties("flat", count=150, width=8))
    queries = (queries[:1].double() * factor).float()
    rows, scores = build_index(documents, slack=0).search(Dense(queries), 20)
    exact = oracle.dense(queries[0].tolist(), documents.tolist())
    assert oracle.result_hits(rows[0], scores[0]) == oracle.top_rows(exact, range(150), 20)


def test_the_precision_a_process_has_chosen_neither_matters_nor_changes():
    queries, documents = Dense(torch.randn(16, 64)), torch.randn(4096, 64)
    expected = build_index(documents, slack=0).search(queries, 100)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = build_index(documents, slack=0).search(queries, 100)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert same_bytes(result, expected)


def test_dots_are_padding_blind():
    left, right = torch.randn(50, 37), torch.randn(50, 37).half()
    pad = torch.nn.functional.pad
    assert torch.equal(exact_dot(left, right), exact_dot(pad(left, (0, 91)), pad(right, (0, 91))))
    assert torch.allclose(exact_dot(left, right), (left.double() * right.double()).sum(1), rtol=0, atol=1e-13)


@pytest.mark.parametrize("number, expected", [(errno.EMFILE, OSError), (errno.ENODATA, ArtifactError)])
def test_too_many_open_files_are_no_damage_and_other_errors_are(number, expected, tmp_path, monkeypatch):
    Flat().save(tmp_path)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("moeir.artifacts.memmap.open_memmap", fail)
    with pytest.raises(expected, match=os.strerror(number)):
        Flat.open(tmp_path)


def test_no_queries_find_nothing():
    assert build_index(torch.ones(2, 3)).search(Dense(torch.ones(0, 3)), 5)[0].shape == (0, 2)


@pytest.mark.parametrize(("value", "query"), [(float("nan"), 1), (3e38, 0)])
def test_a_query_whose_scores_are_no_float32_is_refused(value, query):
    queries = torch.full((2, 4), value)
    queries[:query] = 1.0
    with pytest.raises(DataError, match=f"query {query}: NaN, infinity, or a score too large"):
        build_index(torch.ones(3, 4)).search(Dense(queries), 1)


@pytest.mark.parametrize("count", [16, 40])
def test_a_scan_in_bfloat16_stays_within_its_margin_and_finds_the_same(count):
    generator = torch.Generator().manual_seed(count)
    documents = torch.nn.functional.normalize(torch.randn(700, 24, generator=generator), dim=1) * 3
    queries = torch.randn(count, 24, generator=generator)
    coarse, fine = build_index(documents, coarse=True), build_index(documents, coarse=False)
    for block in coarse._query_blocks(Dense(queries)):
        pool = RecordingPool()
        coarse._scan_documents(block.vectors[:, 0].bfloat16(), slice(0, len(coarse)), pool, loops=False)
        assert {part.dtype for part in pool.scores} == {torch.bfloat16}
        errors = (torch.cat(pool.scores, 1).double() - queries.double() @ documents.half().double().T).abs().amax(dim=1)
        assert (2 * errors <= scan_error_bound(block, coarse._vectors, coarse=True)).all() and errors.max() > 0
    for depth in (1, 30, 700):
        assert same_bytes(coarse.search(Dense(queries), depth), fine.search(Dense(queries), depth))


@pytest.mark.parametrize(("change", "words"), [
    ({"options": {"lists": 4}}, "damaged flat index: .*; run `moeir index` again"), ({"options": 7}, "damaged flat index: "),
    ({"longest": None}, "damaged flat index: "), ({"documents": 2}, r"vectors.npy: damaged: expected float16 \[2, 3\]"),
    *(({name: None}, "engine, options or documents are missing") for name in ("engine", "options", "documents")),
])  # fmt: skip
def test_settings_of_no_such_index_are_damage(change, words, tmp_path):
    index = Flat()
    index.add(Dense(torch.eye(3)))
    index.save(tmp_path)
    settings = read_settings(tmp_path) | change
    (tmp_path / "engine.json").write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    with pytest.raises(ArtifactError, match=words):
        Flat.open(tmp_path)


def test_an_index_to_which_nothing_was_added_has_vectors_of_no_numbers(tmp_path):
    Flat().save(tmp_path / "index")
    assert np.load(tmp_path / "index" / "vectors.npy").shape == (0, 0)
    assert read_settings(tmp_path / "index")["dimension"] == 0
    assert len(Flat.open(tmp_path / "index")) == 0
