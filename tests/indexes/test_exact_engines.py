"""What every exact engine promises: the head of a full sort, with the same bytes for any blocks, batches, threads and shards."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError
from moeir.indexes import flat, maxsim, two_step, vector_store
from moeir.retrieval.latency import limit_threads
from tests.indexes.engine_checks import ENGINES, build_index, is_full_sort, near_ties, same_bytes, scores_one_by_one
from tests.representations.test_representations import to_lists

pytestmark = pytest.mark.usefixtures("form")

DEPTH = 30
TWO_STEP = ["flat", "maxsim", "exact-match"]
every_engine = pytest.mark.parametrize("engine", ENGINES)


@every_engine
@given(data=st.data(), depth=st.integers(1, 30), random=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_search_is_a_full_sort_by_score_then_id(engine, data, depth, random):
    _, text, pack, scores, _ = ENGINES[engine]
    queries, documents = (data.draw(st.lists(text, min_size=1, max_size=most)) for most in (6, 20))
    id_ranks = random.sample(range(len(documents)), len(documents))
    attributes = {"window": random.choice((64, 128))} if engine == "inverted" else {}
    index = build_index(engine, pack(documents), id_ranks=np.array(id_ranks), **attributes)
    result = index.search(pack(queries), depth)
    assert [part.shape for part in result] == [(len(queries), min(depth, len(documents)))] * 2
    assert is_full_sort(result, lambda query: scores(query, documents), queries, id_ranks, depth)


@every_engine
def test_documents_that_differ_in_the_last_bit_are_told_apart_and_score_as_their_representation(engine):
    queries, documents = near_ties(engine)
    rows, scores = build_index(engine, documents).search(queries, 40)
    plain = to_lists(documents)
    assert is_full_sort((rows, scores), lambda query: ENGINES[engine].scores(query, plain), to_lists(queries), range(len(plain)), 40)
    reference = queries.scores(documents).numpy()
    for line in range(len(queries)):
        is_hit = rows[line] >= 0
        scale = max(1.0, float(np.abs(reference[line]).max(initial=0.0, where=np.isfinite(reference[line]))))
        assert np.allclose(reference[line, rows[line][is_hit]], scores[line][is_hit], rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("engine", TWO_STEP)
def test_blocks_batches_and_pools_change_no_byte(engine):
    queries, documents = near_ties(engine, 1, count=150)
    whole = build_index(engine, documents).search(queries, DEPTH)
    for elements, slack in ((1, 3), (300, 0), (5000, 64)):
        index = build_index(engine, documents, queries_at_once=2, elements_at_once=elements, slack=slack)
        assert same_bytes(index.search(queries, DEPTH), whole) and scores_one_by_one(index, queries, DEPTH) == whole[1].tobytes()


@every_engine
@pytest.mark.parametrize(("shards", "threads"), [(1, 1), (7, 2)])
def test_threads_batches_and_shards_change_no_byte(engine, shards, threads, tmp_path):
    queries, documents = near_ties(engine, 5)
    queries = queries.select(torch.arange(33) % len(queries))
    expected = build_index(engine, documents).search(queries, DEPTH)
    with limit_threads(threads):
        index = ENGINES[engine].type()
        for part in torch.arange(len(documents)).chunk(shards):
            index.add(documents.select(part))
        index.save(tmp_path)
        opened = ENGINES[engine].type.open(tmp_path)
        for batch in (1, 16, 33):
            results = [opened.search(queries.select(part), DEPTH) for part in torch.arange(33).split(batch)]
            assert same_bytes([np.concatenate(column) for column in zip(*results, strict=True)], expected)
        assert torch.get_num_threads() == threads
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["engine.json", *(f"{name}.npy" for name in ENGINES[engine].files)])
    for built in (index, opened):
        with pytest.raises(ArtifactError, match="takes no more documents"):
            built.add(documents)


@pytest.mark.parametrize("engine", ["flat", "maxsim"])
def test_scans_in_either_precision_on_several_threads_change_no_byte(engine, monkeypatch):
    queries, documents = near_ties(engine, count=6000, width=16)
    queries, started, results = queries.select(torch.arange(33) % len(queries)), set(), []
    monkeypatch.setattr(flat, "DOCUMENTS_PER_THREAD", 1000)
    monkeypatch.setattr(maxsim, "MAX_ELEMENTS", 512 * 16)  # blocks of 512 tokens
    monkeypatch.setattr(vector_store, "PLAIN_NUMBERS", -1)
    for module in (flat, maxsim):
        monkeypatch.setattr(module, "run_on_threads", lambda work, threads: started.add(threads) or two_step.run_on_threads(work, threads))
    for coarse in (True, False):
        index = build_index(engine, documents, coarse=coarse)
        for threads in (1, 2, 3):
            with limit_threads(threads):
                results.append(index.search(queries, 50))
                assert torch.get_num_threads() == threads  # those that scan have one each
    assert started == {1, 2, 3}
    assert all(same_bytes(result, results[0]) for result in results)


def test_no_document_of_the_best_is_lost_by_sums_that_bfloat16_rounds_to_the_same():
    """Products just above a power of two, where the spacing of bfloat16 is widest: the second document is ahead in the scan alone."""
    tilt, close = 2.0**-4, 2.0**-5
    documents = [[[1, tilt * (1 - close), 0], [0, 0, 1]], [[1, tilt * (1 + close), 0], [0, 0, 1 - 2.0**-7]]]
    index = build_index("maxsim", ENGINES["maxsim"].pack(documents), coarse=True)
    query = ENGINES["maxsim"].pack([[[1, tilt, 0]] * 15 + [[0, 0, 1]]])
    assert index.search(query, 1)[0].tolist() == [[0]] and index.search(query, 2)[0].tolist() == [[0, 1]]


@pytest.mark.parametrize(("engine", "nothing"), [
    ("flat", []), ("maxsim", [[], []]), ("exact-match", [[], []]), ("exact-match", [[]]), ("inverted", []), ("inverted", [{}, {}]),
])  # fmt: skip
def test_documents_of_nothing_make_an_index_that_finds_nothing(engine, nothing):
    query = {"flat": [1.0] * 3, "maxsim": [[1.0] * 3], "exact-match": [(1, [1.0] * 3)], "inverted": {0: 1.0}}[engine]
    index = build_index(engine, ENGINES[engine].pack(nothing))
    assert index.search(ENGINES[engine].pack([query]), 3)[0].tolist() == [[-1] * len(nothing)]


NAN = float("nan")
TOKENS = [[1.0, 2, 3]], [[[1.0, 1, 1]], [], [[1.0, 1, 1], [1.0, NAN, 1]]], [[1.0, 2]]
REFUSED = {  # good documents, faulty ones, what is said of them, a query of another size, a damaged array, and what is said of it
    "flat": ([[1.0, 1, 1]] * 3, [[1.0, 1, 1], [1.0, 1, 1e6]], "row 4: its vector holds NaN, infinity or more than float16", [[1.0, 2]],
             "vectors", np.zeros((3, 2), np.float16), r"vectors.npy: damaged: expected float16 \[3, 3\], found float16 \[3, 2\]"),
    "maxsim": ([TOKENS[0], []], TOKENS[1], "row 4: its token vector 1 holds NaN", [TOKENS[2]], "starts", np.array([0, 2, 2]),
               "starts.npy: damaged: expected ascending offsets from 0 to 1 by engine.json and vectors.npy, found 0 to 2"),
    "exact-match": (*([[(1, token) for token in text] for text in texts] for texts in ([TOKENS[0], []], TOKENS[1])),
                    "row 4: its token vector 1 holds NaN", [[(1, [1.0, 2])]], "rows", np.zeros(2, np.int32),
                    r"rows.npy: damaged: expected int32 \[1\], found int32 \[2\]"),
    "inverted": ([{1: 1.0}], [{0: 1.0}, {}, {2: 1.0, 3: NAN}], "row 3: a weight is NaN or infinite", [{0: 1.0}], "terms",
                 np.zeros(5, np.uint16),
                 "starts.npy: damaged: expected ascending offsets from 0 to 5 by engine.json and terms.npy, found 0 to 1"),
}  # fmt: skip


@pytest.mark.parametrize("engine", REFUSED)
def test_what_is_wrong_is_refused(engine, tmp_path):
    documents, faulty, words, query, array, content, damage = REFUSED[engine]
    pack, index = ENGINES[engine].pack, ENGINES[engine].type()
    index.add(pack(documents))
    with pytest.raises(DataError, match=words):
        index.add(pack(faulty))
    size, words = (7, "vocabulary of 7, but the index holds one of 6") if engine == "inverted" else (2, "dimension 2, but the index holds")
    with pytest.raises(ArtifactError, match=words):
        index.add(pack(query, size))
    index.save(tmp_path)
    with pytest.raises(ArtifactError, match=words):
        ENGINES[engine].type.open(tmp_path).search(pack(query, size), 1)
    np.save(tmp_path / f"{array}.npy", content)
    with pytest.raises(ArtifactError, match=damage):
        ENGINES[engine].type.open(tmp_path)
