"""A source that is replaced, or changes, while a stage reads it: no product is recorded as made from what it was not made from."""

import json
import shutil
from pathlib import Path

import pytest

from moeir.artifacts import identity, manifests
from moeir.representations.encodings import ResumableEncodingWriter
from moeir.retrieval.searcher import Searcher
from moeir.stages import base
from moeir.training import retrieval_task
from tests.conftest import run_moeir
from tests.split_encodings import read_files, write_encodings


@pytest.fixture(scope="module")
def original(tmp_path_factory, toy, came_checkpoint, encodings, index, bm25_index, tiny_model):
    """A folder with copies of what stages read, and beside each `other/` content under the same name."""
    folder = tmp_path_factory.mktemp("room")
    other = folder / "other"
    other.mkdir()
    for name in ("corpus.jsonl", "test-queries.tsv", "train-queries.jsonl"):
        shutil.copy(toy / name, folder / name)
        (other / name).write_text((toy / name).read_text().replace("owl", "bee").replace("honey", "night"))
    for name, path in (("ckpt", came_checkpoint), ("enc", encodings), ("idx", index), ("bm25", bm25_index), ("weights", tiny_model)):
        shutil.copytree(path, folder / name)
    for name in ("enc", "idx"):
        manifest = manifests.read_manifest(folder / name)
        manifest["counts"]["checkpoint"]["path"] = str(came_checkpoint)
        (folder / name / "manifest.json").write_text(manifests.serialize_manifest(manifest))
    run_moeir("search", "--index", bm25_index, "--queries", folder / "test-queries.tsv", "--output", folder / "first.trec")
    shutil.copy(folder / "first.trec", folder / "second.trec")
    (other / "first.trec").write_text((folder / "first.trec").read_text().replace(" 1 ", " 2 "))
    ids = manifests.read_lines(encodings / "ids.txt")
    (folder / "ids.txt").write_text("".join(f"{one}\n" for one in ids[1:]))
    write_encodings(encodings, other / "enc", list(range(len(ids)))[::-1], ids[::-1])
    run_moeir("index", "--encodings", other / "enc", "--output", other / "idx")
    spec = json.loads((came_checkpoint / "moeir.json").read_text())["architecture"]
    run_moeir("init", "--model", came_checkpoint, "--arch", spec, "--query-length", 5, "--output", other / "ckpt")
    return folder


@pytest.fixture(autouse=True)
def room(tmp_path, original, monkeypatch):
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0)
    monkeypatch.chdir(shutil.copytree(original, tmp_path / "room"))


def replace(name):
    """Replace what has a name by the other content; undone by another call."""
    Path(name).rename("earlier")
    Path("other", name).rename(name)
    Path("earlier").rename(Path("other", name))


def read_product(path):
    return read_files(Path(path)) if Path(path).is_dir() else Path(path).read_bytes()


COMMANDS = {
    "index --corpus corpus.jsonl --engine bm25": "corpus.jsonl",
    "encode --model ckpt --corpus corpus.jsonl": "ckpt",
    "index --encodings enc --delete ids.txt": "enc",
    "search --index idx --queries test-queries.tsv": "idx",
    "rerank --model ckpt --run first.trec --queries test-queries.tsv --corpus corpus.jsonl": "ckpt",
    "fuse --run first.trec --run second.trec --method rrf": "first.trec",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_source_replaced_after_its_digest_is_an_error_and_its_return_makes_the_product(command, run, refuse, monkeypatch):
    source, output = COMMANDS[command], "out.trec" if command.startswith(("fuse", "rerank")) else "out"
    run(f"{command} --output whole-{output}")
    compute = base.digest_sources

    def digest_and_replace(stage):
        result = compute(stage)
        replace(source)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(base, "digest_sources", digest_and_replace)
        words = f"{source}: was replaced, or has changed, while it was read; run the command again"
        refuse(4 if Path(source).is_dir() else 3, words, f"{command} --output {output}")
    assert not Path(output).exists()
    replace(source)
    run(f"{command} --output {output}")
    assert read_product(output) == read_product(f"whole-{output}")


def test_no_window_of_a_changed_corpus_is_saved_to_go_on_from(run, refuse, monkeypatch):
    """Six windows: the text changes while the third is encoded, and is put back when the command is run again."""
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 2)
    add, windows = ResumableEncodingWriter.add, []

    def replace_and_add(self, *arguments):
        windows.append(arguments)
        if len(windows) == 3:
            replace("corpus.jsonl")
        add(self, *arguments)

    command = "encode --model ckpt --corpus corpus.jsonl --output"
    with monkeypatch.context() as patch:
        patch.setattr(ResumableEncodingWriter, "add", replace_and_add)
        refuse(3, "corpus.jsonl: was replaced", f"{command} new")
    entries = Path(".new.partial/new/resume/journal.jsonl").read_text().splitlines()
    assert [json.loads(entry)["texts"] for entry in entries] == [2, 4]
    refuse(2, "unfinished work of other settings (corpus)", f"{command} new")
    replace("corpus.jsonl")
    run(f"{command} new")
    run(f"{command} whole")
    assert read_product("new") == read_product("whole")


@pytest.fixture
def finetune(examples):
    """A training on the texts of the room; the name of its output follows."""
    texts = f"--train {examples} --corpus corpus.jsonl --queries train-queries.jsonl --query-length 12 --document-length 20"
    return f"finetune --model weights --arch dense {texts} --batch-size 2 --negatives 2 --steps 3 --dtype float32 --output"


def test_what_changes_after_a_training_has_read_it_does_no_harm(finetune, run, monkeypatch):
    """Texts and weights are read before the first step; the files of the tokenizer, which are written at the end, too."""
    run(f"{finetune} undisturbed")
    compute_loss = retrieval_task.RetrievalTask.compute_loss

    def change_and_compute(self, batch):
        if batch == 1:
            replace("corpus.jsonl")
            Path("weights/tokenizer.json").write_text("{}")
            Path("weights/vocab.txt").write_text("")
        return compute_loss(self, batch)

    monkeypatch.setattr(retrieval_task.RetrievalTask, "compute_loss", change_and_compute)
    run(f"{finetune} changed")
    undisturbed, changed = (read_product(name) for name in ("undisturbed", "changed"))
    differing = {name for name in undisturbed.keys() | changed.keys() if undisturbed.get(name) != changed.get(name)}
    assert differing <= {"metrics.jsonl", "settings.yaml", "README.md"}


def test_an_index_that_is_replaced_after_it_was_opened_does_no_harm(run, monkeypatch):
    """Its files are mapped: a search of an hour is not lost because a new index was built beside it."""
    command = "search --index idx --queries test-queries.tsv --dtype float32 --output"
    run(f"{command} undisturbed")
    search = Searcher.search_runs

    def replace_and_search(self, *arguments, **options):
        if not Path("replaced").exists():
            Path("replaced").touch()
            replace("idx")
        return search(self, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_runs", replace_and_search)
    run(f"{command} changed")
    assert Path("replaced").exists() and read_product("undisturbed") == read_product("changed")


def test_what_changes_while_a_training_reads_it_is_an_error_before_the_first_step(finetune, refuse, monkeypatch):
    release = identity.release_held

    def change_and_release(**options):
        replace("corpus.jsonl")
        release(**options)

    monkeypatch.setattr("moeir.training.trainer.release_held", change_and_release)
    refuse(3, "corpus.jsonl: was replaced", f"{finetune} new")
    assert not Path("new").exists() and not Path(".new.partial/new/metrics.jsonl").exists()


def test_an_error_that_a_replaced_source_causes_names_the_replacement(refuse, monkeypatch):
    def remove(folder):
        Path("enc").rename("elsewhere")
        return manifests.read_lines(folder / "ids.txt")

    monkeypatch.setattr("moeir.representations.encodings.read_ids", remove)
    result = refuse(4, "enc: was replaced", "index --encodings enc --output new")
    assert "missing" not in result.stderr
