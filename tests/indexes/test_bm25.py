"""BM25."""

import filecmp

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, UsageError
from moeir.indexes.bm25 import Bm25
from moeir.indexes.flat import Flat
from tests.indexes.engine_checks import open_index, same_bytes
from tests.oracles import search as oracle

pytestmark = pytest.mark.usefixtures("form")

TEXTS = [
    "The cat sat on the mat.",
    "Dogs and cats: a dog's life",
    "",
    "the of and",
    "A mat is a mat is a mat",
    "Cat, cat, cat!",
    "Dogs and cats: a dog's life",
]
QUERIES = ["cats on mats", "the", "zebra", "", "mat mat dog", "life"]
words = st.sampled_from(["cat", "dog", "mat", "sun", "moon"])
texts = st.lists(st.lists(words, max_size=6), min_size=1, max_size=12)


@given(texts, texts, st.integers(1, 12), st.floats(0, 2), st.floats(0, 1))
@settings(deadline=None, max_examples=50)
def test_scores_are_those_of_the_formula(queries, documents, depth, k1, b):
    index = open_index(Bm25(k1=k1, b=b), [" ".join(text) for text in documents])
    rows, scores = index.search([" ".join(text) for text in queries], depth)
    for line, query in enumerate(queries):
        exact = oracle.bm25(query, documents, k1, b)
        hits = oracle.result_hits(rows[line], scores[line])
        assert len(hits) == min(depth, len(exact))
        for rank, (row, score) in enumerate(hits):
            assert score == pytest.approx(exact[row], rel=1e-5, abs=1e-6)
            assert score == pytest.approx(sorted(exact.values(), reverse=True)[rank], rel=1e-5, abs=1e-6)


def test_scores_are_those_of_bm25s():
    index = open_index(Bm25(), TEXTS)
    rows, scores = index.search(QUERIES, 7)
    model = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    terms_by_row = {row: terms for row, text in enumerate(TEXTS) if (terms := list(index._analyzer.terms(text)))}
    model.index(list(terms_by_row.values()), show_progress=False)
    for line, query in enumerate(QUERIES):
        terms = [term for term in index._analyzer.terms(query) if term in model.vocab_dict]
        reference = model.get_scores(terms) if terms else np.zeros(len(terms_by_row))
        positive = {row: score for row, score in zip(terms_by_row, reference, strict=True) if score > 0}
        expected = oracle.top_rows(positive, range(7), 7)
        hits = oracle.result_hits(rows[line], scores[line])
        assert [row for row, _ in hits] == [row for row, _ in expected]
        assert [score for _, score in hits] == pytest.approx([score for _, score in expected], rel=1e-6)


@given(texts, texts, st.integers(0, 5), st.randoms())
@settings(deadline=None, max_examples=30)
def test_documents_without_terms_change_no_score_of_the_others(queries, documents, count, rng):
    contents, queries = [" ".join(text) for text in documents if text], [" ".join(query) for query in queries]
    mixed = contents + ["the of"] * count
    rng.shuffle(mixed)
    if contents:
        alone, padded = (open_index(Bm25(), one).search(queries, len(contents))[1] for one in (contents, mixed))
        assert padded.tobytes() == alone.tobytes()


def test_equal_texts_are_ordered_by_id_also_at_the_cut():
    for id_ranks, first in ((np.arange(7), 6), (np.arange(7)[::-1], 1)):
        assert open_index(Bm25(id_ranks), TEXTS).search(["life"], 1)[0].tolist() == [[first]]


def test_shards_windows_and_the_order_of_documents_change_no_byte():
    whole = open_index(Bm25(), TEXTS).search(QUERIES, 7)
    for window in (64, 128):
        assert same_bytes(open_index(Bm25(), *([text] for text in TEXTS), window=window).search(QUERIES, 7), whole)
    backwards = open_index(Bm25(np.arange(7)[::-1].copy()), TEXTS[::-1]).search(QUERIES, 7)
    assert backwards[1].tobytes() == whole[1].tobytes()
    assert np.where(backwards[0] >= 0, 6 - backwards[0], -1).tolist() == whole[0].tolist()


@pytest.mark.parametrize("texts", [[], [""], ["the", "of"]])
def test_texts_without_terms_make_an_index_that_finds_nothing(texts):
    assert (open_index(Bm25(), texts).search(["cat"], 2)[0] == -1).all()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"k1": -0.1}, "k1 must be 0 or more"),
        ({"k1": float("nan")}, "k1 must"),
        ({"b": 1.5}, "b must lie between 0 and 1"),
        ({"stemmer": "klingon"}, "stemmer 'klingon' is unknown; known: snowball, none, arabic, armenian"),
        ({"language": "german", "stop_words": "all"}, "stop_words 'all' is unknown; known: lucene, none"),
        ({"language": "cjk", "stop_words": "all"}, "stop_words 'all' is unknown"),
        ({"language": "cjk", "stemmer": "porter"}, "language 'cjk' has pairs of characters and no stemmer, found stemmer 'porter'"),
    ],
)
def test_wrong_options_are_refused(options, what):
    with pytest.raises(UsageError, match=what):
        Bm25(**options)


def test_a_folder_has_the_options_and_english_and_porters_stemmer_are_the_default(tmp_path):
    stated = {"k1": 0.9, "b": 0.4, "language": "english", "stemmer": "porter", "stop_words": "lucene"}
    other = {"k1": 1.2, "b": 0.75, "stemmer": "none", "stop_words": "none"}
    for name, options in {"default": {}, "stated": stated, "other": other}.items():
        index = Bm25(**options)
        index.add(TEXTS)
        index.save(tmp_path / name)
    names = [file.name for file in (tmp_path / "default").iterdir()]
    assert filecmp.cmpfiles(tmp_path / "default", tmp_path / "stated", names, shallow=False) == (names, [], [])
    assert {name.rpartition(".")[2] for name in names} == {"npy", "json"}
    opened = Bm25.open(tmp_path / "other")
    assert (opened.k1, opened.b, opened.stemmer, opened.stop_words) == (1.2, 0.75, "none", "none")
    assert opened.search(["the"], 1)[0].tolist() == [[0]]
    with pytest.raises(ArtifactError, match=r"engine.json: cannot be read"):
        Bm25.open(tmp_path)
    with pytest.raises(ArtifactError, match="an index of engine 'bm25', expected 'flat'"):
        Flat.open(tmp_path / "default")
