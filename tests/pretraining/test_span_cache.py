"""Token caches: every token is in one span, in order; a cache is reused, built in bounded memory, and whole after a kill."""

import gc
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from moeir.artifacts import manifests
from moeir.backbones import token_files
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import DataError, UsageError
from moeir.pretraining import span_cache
from moeir.records import lines
from tests.records.test_sentences import split_sentences

ANIMALS = ("owl", "bat", "bee", "fox", "cat", "hen", "oak", "eel")


@pytest.fixture(scope="session")
def reader(tiny_model: Path) -> TextTokenizer:
    """The tokenizer of the toy texts."""
    return TextTokenizer(tiny_model)


def write_corpus(path, documents):
    """A corpus of (id, title, text)."""
    records = (json.dumps({"_id": name, "title": title, "text": text}) for name, title, text in documents)
    path.write_text("".join(f"{line}\n" for line in records), encoding="utf-8")
    return path


def make_documents(count, sentences=6):
    """Documents of sentences like `The owl hunts the bat.`"""
    for row in range(count):
        animals = [(ANIMALS[(row + index) % 8], ANIMALS[(3 * row + index) % 7]) for index in range(sentences)]
        yield f"d{row}", "", " ".join(f"The {one} hunts the {other}." for one, other in animals)


def build_cache(folder, path, reader, **options):
    return span_cache.build_span_cache(folder, path, reader, **({"digest": "one", "maximum": 14} | options))


def tokens(cache, begin, end):
    return cache.ids[begin:end].tolist()


def contents(folder):
    """Every file of the caches in a folder except manifests, which hold times."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.glob("*/*")) if file.name != "manifest.json"}


def test_a_worked_example(tmp_path, reader):
    documents = [
        ("one", "Owl", "The owl hunts. It sleeps by day."),
        ("none", "", "\u200b"),
        ("two", "", "The bat finds the moths and the bee and the fox"),
    ]
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", documents), reader, maximum=8, short=0, keep_empty=True)
    words = [" ".join(map(reader.id_to_token, part)) for part in np.split(cache.ids, cache.boundaries.sentences[1:-1])]
    # A title is a sentence of its own; the last sentence, of eleven tokens, is cut at the eighth.
    assert words == ["owl", "the owl hunts .", "it sleeps by day .", "the bat finds the moths and the bee", "and the fox"]
    assert cache.boundaries.sentences.tolist() == [0, 1, 5, 10, 18, 21]
    assert cache.boundaries.spans.tolist() == [0, 2, 3, 4, 5]  # 1 + 4 tokens, with 5 more than 8; then 5; then 8 and 3
    assert cache.boundaries.documents.tolist() == [0, 2, 2, 4]
    assert cache.document_ids() == ["one", "none", "two"]
    assert cache.ids.dtype == np.uint16


def test_every_token_of_a_document_is_in_one_span_and_the_order_is_kept(tmp_path, reader):
    documents = list(make_documents(40))
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", documents), reader)
    spans = np.arange(len(cache))
    begins, ends = cache.boundaries.token_bounds(spans)
    assert begins.tolist() == [0, *ends[:-1].tolist()] and ends[-1] == len(cache.ids) and (ends - begins).max() <= 14
    owners = cache.boundaries.document_rows(spans)
    for row, (name, _, text) in enumerate(documents):
        own = [tokens(cache, *bounds) for bounds in zip(begins[owners == row], ends[owners == row], strict=True)]
        assert [token for span in own for token in span] == reader.encode([text])[0][1:-1], name
    sentences = [tokens(cache, *bounds) for bounds in zip(cache.boundaries.sentences[:-1], cache.boundaries.sentences[1:], strict=True)]
    assert sentences == [ids[1:-1] for _, _, text in documents for ids in reader.encode([part.strip() for part in split_sentences(text)])]


def test_a_cache_is_read_again_and_other_settings_make_another(tmp_path, reader, monkeypatch):
    path = write_corpus(tmp_path / "c.jsonl", make_documents(5))
    first = build_cache(tmp_path / "cache", path, reader)
    before, spans = contents(tmp_path / "cache"), first.boundaries.spans.tolist()
    with monkeypatch.context() as patch:
        patch.setattr(TextTokenizer, "encode_with_offsets", None)  # nothing is read again
        assert build_cache(tmp_path / "cache", path, reader).ids.tolist() == first.ids.tolist()
    assert contents(tmp_path / "cache") == before
    for options in ({"maximum": 20}, {"seed": 7}, {"short": 0.9}, {"digest": "two"}):
        assert build_cache(tmp_path / "cache", path, reader, **options).folder != first.folder
    (first.folder / "spans.npy").write_bytes(b"torn")
    assert build_cache(tmp_path / "cache", path, reader).boundaries.spans.tolist() == spans
    assert {name: file for name, file in contents(tmp_path / "cache").items() if name in before} == before


def test_what_comes_from_a_pipe_is_read_anew(tmp_path, reader):
    one, other = (write_corpus(tmp_path / name, make_documents(count)) for name, count in (("a.jsonl", 3), ("b.jsonl", 5)))
    assert len(build_cache(tmp_path / "cache", one, reader, digest="stdin").document_ids()) == 3
    assert len(build_cache(tmp_path / "cache", other, reader, digest="stdin").document_ids()) == 5


def test_memory_does_not_grow_with_the_corpus(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 30)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(manifests, "HASH_BLOCK_BYTES", 1 << 12)  # of a file, which each of the threads that compute checksums holds
    peaks = []
    for count in (30, 60, 260):  # the first warms up
        path = write_corpus(tmp_path / f"{count}.jsonl", make_documents(count, sentences=20))
        gc.collect()
        tracemalloc.start()
        cache = build_cache(tmp_path / f"{len(peaks)}", path, reader)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(cache.document_ids()) == count
    grown = (peaks[2] - peaks[1]) / (260 - 60)  # bytes per additional text: only its id stays in memory
    assert grown < 250


def test_what_cannot_be_a_cache_is_refused(tmp_path, reader):
    path = write_corpus(tmp_path / "c.jsonl", make_documents(2))
    with pytest.raises(UsageError, match="spans of 1 tokens"):
        build_cache(tmp_path / "cache", path, reader, maximum=1)
    with pytest.raises(DataError, match="no document has a token"):
        build_cache(tmp_path / "cache", write_corpus(tmp_path / "e.jsonl", [("a", "", "")]), reader, keep_empty=True)


LINES = [("d3", ["the owl", "", "a bat"]), ("d0", ["the fox"]), ("d1", [])]


def write_queries(path, inputs=LINES):
    path.write_text("".join(json.dumps({"_id": name, "queries": queries}) + "\n" for name, queries in inputs))
    return path


def build_queries(folder, cache, reader, inputs=LINES):
    return span_cache.build_query_cache(folder, cache, [write_queries(folder / "q.jsonl", inputs)], reader, digests=["q"])


def query_texts(cache, reader, row):
    """The queries of a document."""
    links = cache.links[cache.offsets[row] : cache.offsets[row + 1]]
    return [" ".join(map(reader.id_to_token, cache.ids[cache.starts[link] : cache.starts[link + 1]])) for link in links]


def test_generated_queries_belong_to_their_documents(tmp_path, reader):
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", make_documents(5)), reader)
    query_cache = build_queries(tmp_path, cache, reader)
    assert [query_texts(query_cache, reader, row) for row in range(5)] == [["the fox"], [], [], ["the owl", "a bat"], []]
    spans_per_document = np.diff(cache.boundaries.documents)
    assert query_cache.has_query(spans_per_document).tolist() == np.repeat([True, False, False, True, False], spans_per_document).tolist()
    begins, _ = query_cache.sample_queries(np.full(200, 3), np.full(200, len(cache) - 1), np.arange(200, dtype=np.uint64))
    assert 60 < (begins == query_cache.starts[0]).sum() < 140
    assert set(begins.tolist()) == {int(query_cache.starts[0]), int(query_cache.starts[1])}


SPAN_TEXTS = ("The owl hunts.", " It sleeps by day.", " The bat finds the moths and the bee", " and the fox")
SPANNED = "".join(SPAN_TEXTS)  # cut into these spans of at most 8 tokens; a next one begins at characters 15, 33 and 69 of 80


@pytest.mark.parametrize("characters, span", [((4, 7), 0), ((0, 80), 2), ((14, 17), 1), ((14, 16), 0), ((60, 80), 3), ((69, 70), 3)])
def test_a_query_of_some_characters_belongs_to_the_span_with_most_of_them(tmp_path, reader, characters, span):
    documents = [("first", "", "The bee."), ("d#1", "", SPANNED)]
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", documents), reader, maximum=8, short=0)
    assert cache.character_ends.tolist() == [8, 15, 33, 69, 80]
    name = f"d#1#char={characters[0]},{characters[1]}"
    query_cache = build_queries(tmp_path, cache, reader, [(name, ["the owl"])])
    assert query_cache.has_query(np.diff(cache.boundaries.documents)).tolist() == [row == span + 1 for row in range(5)]


def test_a_span_draws_from_its_own_queries_and_from_those_of_its_document(tmp_path, reader):
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", [("d", "", SPANNED)]), reader, maximum=8, short=0)
    inputs = [("d#char=0,14", ["the owl"]), ("d", ["the hen", "the eel"]), ("d#char=4,7", ["the cat"]), ("d#char=15,32", ["the fox"])]
    query_cache = build_queries(tmp_path, cache, reader, inputs)
    assert query_cache.has_query(np.array([4])).all()
    sampled = []
    for span in range(4):
        begins, ends = query_cache.sample_queries(np.zeros(400, int), np.full(400, span), np.arange(400, dtype=np.uint64))
        words = [reader.id_to_token(query_cache.ids[end - 1]) for end in ends]
        assert all(end - begin == 2 for begin, end in zip(begins, ends, strict=True))
        sampled.append({word: words.count(word) for word in set(words)})
    assert [set(one) for one in sampled] == [{"owl", "hen", "eel", "cat"}, {"hen", "eel", "fox"}, {"hen", "eel"}, {"hen", "eel"}]
    assert all(abs(count - 400 / len(one)) < 60 for one in sampled for count in one.values())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("d9#char=0,4", ["the owl"])], "has queries of document 'd9', which is not in the corpus"),
        ([("d0#char=4,x", ["the owl"])], "has queries of document 'd0#char=4,x', which is not in the corpus"),
        ([("d0#char=4,4", ["the owl"])], "'d0#char=4,4': expected #char=BEGIN,END with BEGIN < END <= "),
        ([("d0#char=0,900", ["the owl"])], "BEGIN < END <= 137, its characters with the title"),
        ([("d0", [])], "no query for a document of the corpus"),
    ],
)
def test_queries_that_belong_to_nothing_are_refused(tmp_path, reader, given, words):
    cache = build_cache(tmp_path, write_corpus(tmp_path / "c.jsonl", make_documents(3)), reader)
    with pytest.raises(DataError, match=words):
        build_queries(tmp_path, cache, reader, given)
