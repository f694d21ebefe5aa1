"""BM25."""

import filecmp

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.bm25 import Bm25
from moeir.indexes.flat import Flat
from tests.indexes.engine_checks import same_bytes
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


def build_index(texts, id_ranks=None, **options):
    index = Bm25(id_ranks, **options)
    index.add(texts)
    return index


@given(texts, texts, st.integers(1, 12), st.floats(0, 2), st.floats(0, 1))
@settings(deadline=None, max_examples=50)
def test_scores_are_those_of_the_formula(queries, documents, depth, k1, b):
    index = build_index([" ".join(text) for text in documents], k1=k1, b=b)
    rows, scores = index.search([" ".join(text) for text in queries], depth)
    for line, query in enumerate(queries):
        exact = oracle.bm25(query, documents, k1, b)
        hits = oracle.result_hits(rows[line], scores[line])
        assert len(hits) == min(depth, len(exact))
        for rank, (row, score) in enumerate(hits):
            assert score == pytest.approx(exact[row], rel=1e-5, abs=1e-6)
            assert score == pytest.approx(sorted(exact.values(), reverse=True)[rank], rel=1e-5, abs=1e-6)


def test_scores_are_those_of_bm25s():
    index = build_index(TEXTS)
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
        alone, padded = (build_index(one).search(queries, len(contents))[1] for one in (contents, mixed))
        assert padded.tobytes() == alone.tobytes()


def test_equal_texts_are_ordered_by_id_also_at_the_cut():
    id_ranks = np.array([0, 1, 2, 3, 4, 5, 6])
    assert build_index(TEXTS, id_ranks).search(["life"], 1)[0].tolist() == [[6]]
    assert build_index(TEXTS, id_ranks[::-1]).search(["life"], 1)[0].tolist() == [[1]]


def test_stop_words_and_unknown_words_find_nothing():
    rows, scores = build_index(TEXTS).search(["the of", "zebra", ""], 3)
    assert (rows == -1).all() and (scores == -np.inf).all()


def test_a_saved_index_needs_no_texts(tmp_path):
    index = Bm25(k1=1.2, b=0.75, stemmer="none", stop_words="none")
    index.add(TEXTS[:3])
    index.add(TEXTS[3:])
    index.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy", ".json"}
    opened = Bm25.open(tmp_path)
    assert (opened.k1, opened.b, opened.stemmer, opened.stop_words) == (1.2, 0.75, "none", "none")
    assert same_bytes(index.search(QUERIES, 7), opened.search(QUERIES, 7))
    with pytest.raises(ArtifactError, match="takes no more"):
        opened.add(["more"])


def test_shards_and_the_order_of_documents_change_no_byte():
    whole = build_index(TEXTS).search(QUERIES, 7)
    sharded = Bm25()
    for text in TEXTS:
        sharded.add([text])
    backwards = build_index(TEXTS[::-1], np.arange(7)[::-1].copy()).search(QUERIES, 7)
    assert same_bytes(sharded.search(QUERIES, 7), whole)
    assert backwards[1].tobytes() == whole[1].tobytes()
    assert np.where(backwards[0] >= 0, 6 - backwards[0], -1).tolist() == whole[0].tolist()


def test_blocks_change_no_byte():
    whole = build_index(TEXTS).search(QUERIES, 4)
    for window in (64, 128):
        index = build_index(TEXTS)
        index.window = window
        assert same_bytes(index.search(QUERIES, 4), whole)


@pytest.mark.parametrize("texts", [[], [""], ["the", "of"]])
def test_texts_without_terms_make_an_index_that_finds_nothing(texts, tmp_path):
    index = build_index(texts)
    index.save(tmp_path)
    for each in (index, Bm25.open(tmp_path)):
        assert (each.search(["cat"], 2)[0] == -1).all()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"k1": -0.1}, "k1 must be 0 or more"),
        ({"k1": float("nan")}, "k1 must"),
        ({"b": 1.5}, "b must lie between 0 and 1"),
        ({"stemmer": "klingon"}, "stemmer 'klingon' is unknown; known: snowball, none, arabic, armenian"),
        ({"stop_words": "all"}, "stop_words 'all' is unknown"),
        ({"language": "german", "stop_words": "all"}, "stop_words 'all' is unknown; known: lucene, none"),
        ({"language": "cjk", "stop_words": "all"}, "stop_words 'all' is unknown; known: lucene, none"),
        ({"language": "german", "stemmer": "lucene"}, "stemmer 'lucene' is unknown; known: snowball, none, arabic, armenian"),
        ({"language": "cjk", "stemmer": "porter"}, "language 'cjk' has pairs of characters and no stemmer, found stemmer 'porter'"),
    ],
)
def test_wrong_options_are_refused(options, what):
    with pytest.raises(UsageError, match=what):
        Bm25(**options)


def test_english_is_the_default_and_its_stemmer_porters(tmp_path):
    for name, options in {"default": {}, "stated": {"language": "english", "stemmer": "porter"}}.items():
        build_index(TEXTS, **options).save(tmp_path / name)
    names = [file.name for file in (tmp_path / "default").iterdir()]
    assert filecmp.cmpfiles(tmp_path / "default", tmp_path / "stated", names, shallow=False) == (names, [], [])


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="row 1: expected a text, found int"):
        build_index(["a", 1])
    with pytest.raises(ArtifactError, match=r"engine.json: cannot be read"):
        Bm25.open(tmp_path)
    build_index(TEXTS).save(tmp_path)
    with pytest.raises(ArtifactError, match="an index of engine 'bm25', expected 'flat'"):
        Flat.open(tmp_path)
    (tmp_path / "terms.npy").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"terms.npy: damaged: expected an array, found another file"):
        Bm25.open(tmp_path)
    (tmp_path / "terms.npy").unlink()
    with pytest.raises(ArtifactError, match=r"terms.npy: damaged: expected an array, found no file"):
        Bm25.open(tmp_path)
