"""A source that is replaced, or changes, while a stage reads it: no product is recorded as made from what it was not made from."""

import json
import shutil

import pytest

from moeir.artifacts import identity, manifests
from moeir.retrieval.searcher import Searcher
from moeir.stages import base
from moeir.training import retrieval_task
from tests.conftest import run_in_process
from tests.split_encodings import read_files, write_encodings

TRAINING = ("--batch-size", 2, "--negatives", 2, "--steps", 3, "--query-length", 12, "--document-length", 20, "--dtype", "float32")


@pytest.fixture(scope="module")
def original(tmp_path_factory, toy, came_checkpoint, encodings, index, bm25_index):
    """A folder with copies of what stages read, and beside each `other/` content under the same name."""
    tmp_path = tmp_path_factory.mktemp("room")
    for name in ("corpus.jsonl", "test-queries.tsv", "train-queries.jsonl"):
        shutil.copy(toy / name, tmp_path / name)
    for name, folder in (("ckpt", came_checkpoint), ("enc", encodings), ("idx", index), ("bm25", bm25_index)):
        shutil.copytree(folder, tmp_path / name)
    for name in ("enc", "idx"):
        manifest = manifests.read_manifest(tmp_path / name)
        manifest["counts"]["checkpoint"]["path"] = str(came_checkpoint)
        (tmp_path / name / "manifest.json").write_text(manifests.serialize_manifest(manifest))
    search = ("search", "--index", tmp_path / "bm25", "--queries", tmp_path / "test-queries.tsv", "--output", tmp_path / "first.trec")
    assert run_in_process(*search).code == 0
    other = tmp_path / "other"
    other.mkdir()
    for name in ("corpus.jsonl", "test-queries.tsv"):
        (other / name).write_text((tmp_path / name).read_text().replace("owl", "bee").replace("honey", "night"))
    (other / "first.trec").write_text((tmp_path / "first.trec").read_text().replace(" 1 ", " 2 "))
    ids = manifests.read_lines(encodings / "ids.txt")
    write_encodings(encodings, other / "enc", list(range(len(ids)))[::-1], ids[::-1])
    assert run_in_process("index", "--encodings", other / "enc", "--output", other / "idx").code == 0
    spec = json.loads((came_checkpoint / "moeir.json").read_text())["architecture"]
    init = ("init", "--model", came_checkpoint, "--arch", spec, "--query-length", 5)
    assert run_in_process(*init, "--output", other / "ckpt").code == 0
    return tmp_path


@pytest.fixture
def room(tmp_path, original):
    return shutil.copytree(original, tmp_path / "room")


def replace(room, name):
    """Replace what has a name by the other content; undone by another call."""
    (room / name).rename(room / "earlier")
    (room / "other" / name).rename(room / name)
    (room / "earlier").rename(room / "other" / name)


COMMANDS = {
    "index": ("corpus.jsonl", ("index", "--corpus", "corpus.jsonl", "--engine", "bm25")),
    "encode, the checkpoint": ("ckpt", ("encode", "--model", "ckpt", "--corpus", "corpus.jsonl")),
    "delete": ("enc", ("index", "--encodings", "enc", "--delete", "ids.txt")),
    "search": ("idx", ("search", "--index", "idx", "--queries", "test-queries.tsv")),
    "rerank": ("ckpt", ("rerank", "--model", "ckpt", "--run", "first.trec", "--queries", "test-queries.tsv", "--corpus", "corpus.jsonl")),
    "fuse": ("first.trec", ("fuse", "--run", "first.trec", "--run", "second.trec", "--method", "rrf")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_source_replaced_after_its_digest_is_an_error_and_its_return_makes_the_product(name, room, monkeypatch):
    source, words = COMMANDS[name]
    monkeypatch.chdir(room)
    shutil.copy("first.trec", "second.trec")
    ids = manifests.read_lines(room / "enc/ids.txt")
    (room / "ids.txt").write_text("".join(f"{one}\n" for one in ids[1:]))
    output = "out.trec" if words[0] in ("fuse", "rerank") else "out"
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0)
    assert run_in_process(*words, "--output", f"whole-{output}").code == 0
    compute = base.digest_sources

    def digest_and_replace(stage):
        result = compute(stage)
        replace(room, source)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(base, "digest_sources", digest_and_replace)
        result = run_in_process(*words, "--output", output)
    code = 4 if (room / source).is_dir() else 3
    assert result.code == code and f"{source}: was replaced, or has changed, while it was read; run the command again" in result.stderr
    assert not (room / output).exists()
    replace(room, source)
    assert run_in_process(*words, "--output", output).code == 0
    made, whole = ((room / name) for name in (output, f"whole-{output}"))
    assert read_files(made) == read_files(whole) if made.is_dir() else made.read_bytes() == whole.read_bytes()


def test_no_window_of_a_changed_corpus_is_saved_to_go_on_from(room, monkeypatch):
    """Six windows: the text changes while the third is encoded, and is put back when the command is run again."""
    from moeir.representations.encodings import ResumableEncodingWriter

    monkeypatch.setattr("moeir.stages.encode.CHUNK", 2)
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0)
    add, windows = ResumableEncodingWriter.add, []

    def replace_and_add(self, *arguments):
        windows.append(arguments)
        if len(windows) == 3:
            replace(room, "corpus.jsonl")
        add(self, *arguments)

    command = ("encode", "--model", room / "ckpt", "--corpus", room / "corpus.jsonl", "--output", room / "new")
    with monkeypatch.context() as patch:
        patch.setattr(ResumableEncodingWriter, "add", replace_and_add)
        assert "corpus.jsonl: was replaced" in run_in_process(*command).stderr
    entries = (room / ".new.partial/new/resume/journal.jsonl").read_text().splitlines()
    assert [json.loads(entry)["texts"] for entry in entries] == [2, 4]
    assert "unfinished work of other settings (corpus)" in run_in_process(*command).stderr
    replace(room, "corpus.jsonl")
    assert run_in_process(*command).code == 0 and run_in_process(*command[:-1], room / "whole").code == 0
    assert read_files(room / "new") == read_files(room / "whole")


@pytest.fixture
def finetune(room, examples, tiny_model):
    """`finetune()` -> the result of a training on the texts of the room."""
    shutil.copytree(tiny_model, room / "weights")
    texts = ("--train", examples, "--corpus", room / "corpus.jsonl", "--queries", room / "train-queries.jsonl")
    return lambda name: run_in_process(
        "finetune", "--model", room / "weights", "--arch", "dense", *texts, *TRAINING, "--output", room / name
    )


def test_what_changes_after_a_training_has_read_it_does_no_harm(room, finetune, monkeypatch):
    """Texts and weights are read before the first step; the files of the tokenizer, which are written at the end, too."""
    assert finetune("undisturbed").code == 0
    compute_loss = retrieval_task.RetrievalTask.compute_loss

    def change_and_compute(self, batch):
        if batch == 1:
            replace(room, "corpus.jsonl")
            (room / "weights/tokenizer.json").write_text("{}")
            (room / "weights/vocab.txt").write_text("")
        return compute_loss(self, batch)

    monkeypatch.setattr(retrieval_task.RetrievalTask, "compute_loss", change_and_compute)
    assert finetune("changed").code == 0
    undisturbed, changed = (read_files(room / name) for name in ("undisturbed", "changed"))
    differing = {name for name in undisturbed.keys() | changed.keys() if undisturbed.get(name) != changed.get(name)}
    assert differing <= {"metrics.jsonl", "settings.yaml", "README.md"}


def test_an_index_that_is_replaced_after_it_was_opened_does_no_harm(room, monkeypatch):
    """Its files are mapped: a search of an hour is not lost because a new index was built beside it."""
    words = ("search", "--index", room / "idx", "--queries", room / "test-queries.tsv", "--dtype", "float32", "--output")
    assert run_in_process(*words, room / "undisturbed").code == 0
    search = Searcher.search_runs

    def replace_and_search(self, *arguments, **options):
        if not (room / "replaced").exists():
            (room / "replaced").touch()
            replace(room, "idx")
        return search(self, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_runs", replace_and_search)
    assert run_in_process(*words, room / "changed").code == 0 and (room / "replaced").exists()
    undisturbed, changed = (read_files(room / name) for name in ("undisturbed", "changed"))
    assert undisturbed == changed


def test_what_changes_while_a_training_reads_it_is_an_error_before_the_first_step(room, finetune, monkeypatch):
    build = identity.release_held

    def change_and_release(**options):
        replace(room, "corpus.jsonl")
        build(**options)

    monkeypatch.setattr("moeir.training.trainer.release_held", change_and_release)
    result = finetune("new")
    assert result.code == 3 and "corpus.jsonl: was replaced" in result.stderr
    assert not (room / "new").exists() and not (room / ".new.partial/new/metrics.jsonl").exists()


def test_an_error_that_a_replaced_source_causes_names_the_replacement(room, monkeypatch):
    from moeir.representations import encodings

    def remove(folder):
        (room / "enc").rename(room / "elsewhere")
        return manifests.read_lines(folder / "ids.txt")

    monkeypatch.setattr(encodings, "read_ids", remove)
    result = run_in_process("index", "--encodings", room / "enc", "--output", room / "new")
    assert result.code == 4 and "enc: was replaced" in result.stderr and "missing" not in result.stderr
