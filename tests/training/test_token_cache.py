"""The token cache: every batch equals the checkpoint's own tokens of its texts; a cache is written whole or not at all."""

import gc
import json
import os
import shutil
import threading
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from moeir.architectures.checkpoint import RetrievalModel
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import token_files
from moeir.errors import DataError
from moeir.records.examples import Example
from moeir.records.texts import Text
from moeir.training import token_cache as learned
from moeir.training.sampling import MultiDatasetSampler, make_sampler
from moeir.training.text_stream import TextStream, without_texts
from tests.kill_points import kill_at, kill_points
from tests.training.toy_examples import animal_text, assert_same_tokens, make_examples, tokenize_in_memory, write_collection

SHORT = {"query_length": 9, "document_length": 14}
PREFIXED = SHORT | {"query_prefix": "query: ", "document_prefix": "the passage "}
CHECKPOINTS = {
    "prefixes": ("dense:head=false", PREFIXED),
    "nothing is cut": ("splade", {"query_length": 60, "document_length": 60}),
    "separate": ("dense:head=false,encoders=separate", SHORT),
    "markers": ("colbert:dim=8,markers=true", PREFIXED),
    "augmentation": ("colbert:dim=8,markers=true,augmentation=true", PREFIXED),
    "all masks are seen": ("colbert:dim=8,augmentation=true,attend_masks=true", SHORT),
}


def encode_batch(checkpoint, queries, documents, ids):
    """The texts of a batch, tokenized by the checkpoint."""
    texts = {"query": [queries[one] for one in ids.queries], "document": [documents[one] for one in ids.documents]}
    return [checkpoint.tokenize(part, side) for side, part in texts.items()]


@pytest.fixture(scope="session")
def reader(tiny_model):
    """A dense checkpoint over the tokenizer of the toy texts."""
    return build_checkpoint(tiny_model, "dense:head=false", SHORT)


@pytest.fixture
def needed(tmp_path):
    """`needed(count)` -> the texts of that many examples, from two collections."""

    def made(count=12):
        query_file, document_file = write_collection(tmp_path, "queries", count)[0], write_collection(tmp_path, "documents", count + 2)[0]
        return TextStream([make_examples(count)], ["train.jsonl"], queries=[query_file], corpora=[document_file])

    return made


def file_bytes(folder):
    """Every file of the caches in a folder, except manifests, which contain times."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.glob("*/*")) if file.name != "manifest.json"}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_batches_are_what_the_checkpoint_reads(name, tmp_path, tiny_model_with_head):
    spec, rules = CHECKPOINTS[name]
    checkpoint = build_checkpoint(tiny_model_with_head, spec, rules)
    query_file, queries = write_collection(tmp_path, "queries", 15)
    corpus, documents = write_collection(tmp_path, "documents", 17, shift=5)
    stream = TextStream([make_examples(15)], ["x"], queries=[query_file], corpora=[corpus])
    dataset = learned.build_token_cache(tmp_path / "cache", stream, checkpoint)
    assert dataset.cache.ids.dtype == np.uint16
    of_empty = [checkpoint.token_ids([""], side)[0][0] for side in ("query", "document")]
    assert dataset.template_ids == {*of_empty[0], *of_empty[1]}, "prefixes, too, are no words that a query and its positive share"
    sampler = make_sampler(make_examples(15), batch_size=4, negatives=3, seed=1, source="x")
    for step in range(4):
        ids = sampler.batch_at(step)
        assert_same_tokens(dataset.read_batch(ids), encode_batch(checkpoint, queries, documents, ids))


def test_equal_ids_of_two_sets_are_texts_of_their_own(tmp_path, reader):
    """A data set by ids, and one with inline texts, some of which its own collection replaces."""
    (query_file, queries), (corpus, documents) = write_collection(tmp_path, "queries", 8), write_collection(tmp_path, "documents", 10)
    other, others = write_collection(tmp_path, "d-others", 3, shift=40)
    own = {name: f"the {text} {number}" for number, (name, text) in enumerate(documents.items())}
    sets = [make_examples(8), []]
    for one in sets[0]:
        passages = tuple(Text(name, own[name]) for name in (*one.positive_ids, *one.negative_ids))
        sets[1].append(replace(one, query=Text(one.query_id, "what " + queries[one.query_id]), passages=passages))
    samplers = tuple(make_sampler(without_texts(part), batch_size=2, negatives=3, seed=1, source="x") for part in sets)
    needed = TextStream(sets, ["1", "2"], queries=[query_file, write_collection(tmp_path, "x-queries", 1)[0]], corpora=[corpus, other])
    dataset = learned.build_token_cache(tmp_path / "cache", needed, reader)
    expected = [(queries, documents), ({name: "what " + text for name, text in queries.items()}, own | others)]
    multi_sampler = MultiDatasetSampler(samplers, (1.0, 0.5), 1)
    numbers = set()
    for step in range(12):
        ids = multi_sampler.batch_at(step)
        numbers.add(ids.dataset)
        assert_same_tokens(dataset.read_batch(ids), encode_batch(reader, *expected[ids.dataset], ids))
    assert numbers == {0, 1} and not any(one.passages or one.query for plan in samplers for one in plan.examples)
    assert [needed.queries[dataset_number] for dataset_number in (0, 1)] == [expected[0][0], expected[1][0]]


def test_the_first_documents_are_those_of_the_first_set_and_a_collection_corrects_them(tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.training.text_stream.HEAD_FIT_DOCUMENTS", 3)
    inline = Example("q", ("d5",), ("d1",), (), Text("q", "?"), (Text("d5", "mine"), Text("d1", "mine too")))
    corpus, documents = write_collection(tmp_path, "documents", 9)
    stream = TextStream([[inline, *make_examples(5)]], ["x"], queries=[], corpora=[corpus])
    assert stream.first_documents == [documents["d5"], documents["d1"], documents["d0"]]


def test_texts_of_a_pipe_are_walked_again_once_it_is_gone(tmp_path):
    (file, _), pipe = write_collection(tmp_path, "documents", 6), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(file.read_text()), daemon=True)
    writer.start()
    queries = write_collection(tmp_path, "queries", 4)[0]
    stream = TextStream([make_examples(4)], ["x"], queries=[queries], corpora=[pipe])
    writer.join(60)
    pipe.unlink()
    expected = TextStream([make_examples(4)], ["x"], queries=[queries], corpora=[file])
    assert list(stream.stream()) == list(expected.stream()) and stream.digest == expected.digest


def test_a_cache_is_opened_again_and_anything_else_is_another_folder(tmp_path, tiny_model, reader, needed, monkeypatch):
    first = learned.build_token_cache(tmp_path / "cache", needed(), reader)
    before = file_bytes(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalModel, "token_ids", None)  # nothing is read again
        assert learned.build_token_cache(tmp_path / "cache", needed(), reader).cache.ids.tolist() == first.cache.ids.tolist()
    assert file_bytes(tmp_path / "cache") == before
    other = shutil.copytree(tiny_model, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(tokenizer, indent=3))
    others = [(other, "dense:head=false", SHORT), (tiny_model, "dense:head=false", SHORT | {"query_prefix": "q "})]
    others += [(tiny_model, "dense:head=false", SHORT | {"document_length": 15})]
    others += [
        (tiny_model, f"colbert:markers=true{more}", SHORT) for more in ("", ",augmentation=true", ",augmentation=true,attend_masks=true")
    ]
    for number, parts in enumerate(others, 2):
        learned.build_token_cache(tmp_path / "cache", needed(), build_checkpoint(*parts))
        assert len(list((tmp_path / "cache").iterdir())) == number
    learned.build_token_cache(tmp_path / "cache", needed(), build_checkpoint(tiny_model, "colbert:dim=4", SHORT))  # reads as dense does
    learned.build_token_cache(tmp_path / "cache", needed(10), reader)
    assert len(list((tmp_path / "cache").iterdir())) == 8


def test_a_killed_making_is_never_read_half(tmp_path, reader, needed, monkeypatch):
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 3)
    learned.build_token_cache(tmp_path / "whole", needed(), reader)
    expected = file_bytes(tmp_path / "whole")
    for moment in kill_points(every=12):
        folder = tmp_path / f"killed{moment}"
        if not kill_at(lambda folder=folder: learned.build_token_cache(folder, needed(), reader), moment):
            break
        learned.build_token_cache(folder, needed(), reader)
        assert file_bytes(folder) == expected
    assert moment > 20


def test_texts_that_change_on_the_way_are_refused_and_what_was_read_of_them_is_forgotten(tmp_path, reader, needed, monkeypatch):
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 3)
    learned.build_token_cache(tmp_path / "whole", needed(), reader)
    stream, before = needed(), (tmp_path / "documents.tsv").read_text()
    (tmp_path / "documents.tsv").write_text(before.replace("owl", "bee"))
    with pytest.raises(DataError, match="the texts have changed while they were read; run the same command again"):
        learned.build_token_cache(tmp_path / "cache", stream, reader)
    (tmp_path / "documents.tsv").write_text(before)
    learned.build_token_cache(tmp_path / "cache", stream, reader)
    assert file_bytes(tmp_path / "cache") == file_bytes(tmp_path / "whole")


def test_texts_go_once_their_tokens_are_there(tmp_path, reader, monkeypatch):
    """Memory does not grow with the length of the documents, neither while they are read nor afterwards."""
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 5)
    monkeypatch.setattr("moeir.training.text_stream.HEAD_FIT_DOCUMENTS", 5)
    monkeypatch.setattr("moeir.records.lines.BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr("moeir.artifacts.manifests.HASH_BLOCK_BYTES", 1 << 12)  # of a file, which each thread that hashes holds
    count, peaks, remaining = 200, [], []
    query_file, _ = write_collection(tmp_path, "queries", count)
    for times in (2, 10, 100):  # the first warms up
        corpus = tmp_path / "documents.tsv"
        corpus.write_text("".join(f"d{row}\t{animal_text(row) * times}\n" for row in range(count + 2)))
        gc.collect()
        tracemalloc.start()
        stream = TextStream([make_examples(count)], ["x"], queries=[query_file], corpora=[corpus])
        dataset = learned.build_token_cache(tmp_path / str(len(peaks)), stream, reader)
        del stream
        peaks.append(tracemalloc.get_traced_memory()[1])
        gc.collect()
        remaining.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(dataset.cache) == 2 * count + 1
    grown = corpus.stat().st_size * (1 - 10 / 100)
    assert grown > 800_000
    assert (peaks[2] - peaks[1]) < grown / 3  # five texts of a chunk at once, never two hundred
    assert (remaining[2] - remaining[1]) < grown / 10


def test_batches_are_prefetched_in_order_from_wherever_a_training_goes_on(reader):
    texts = tokenize_in_memory(reader, *({f"{side}{row}": animal_text(row) for row in range(17)} for side in "qd"))
    sampler = make_sampler(make_examples(15), batch_size=4, negatives=3, seed=1, source="x")
    requested = []

    def batch_at(step):
        requested.append((step, threading.current_thread().name.split("_")[0]))
        return sampler.batch_at(step)

    batches = learned.prefetch_batches(SimpleNamespace(batch_at=batch_at), texts, 9)
    for step in (4, 5, 6, 7, 8):
        batch = batches.at(step)
        assert batch.ids == sampler.batch_at(step)
        assert_same_tokens((batch.queries, batch.documents), texts.read_batch(batch.ids))
        assert len(requested) <= step - 4 + 1 + learned.PREFETCH_STEPS
    assert requested == [(step, "batches") for step in (4, 5, 6, 7, 8)]
    assert not [one for one in threading.enumerate() if one.name.startswith("batches")]
