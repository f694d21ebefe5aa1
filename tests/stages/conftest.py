"""What several tests of stages read."""

import json
import shlex

import pytest

from moeir.records.texts import read_texts_by_id


@pytest.fixture(scope="session")
def examples(tmp_path_factory, toy):
    """Training examples by id: four toy queries with a positive and three negatives each."""
    corpus, queries = (list(read_texts_by_id(toy / name)) for name in ("corpus.jsonl", "train-queries.jsonl"))
    rows = ({"query_id": name, "positive_ids": corpus[row : row + 1], "negative_ids": corpus[row + 1 : row + 4]}
            for row, name in enumerate(queries[:4]))  # fmt: skip
    path = tmp_path_factory.mktemp("examples") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(toy):
    """The flags that name the texts of the examples."""
    return ("--queries", toy / "train-queries.jsonl", "--corpus", toy / "corpus.jsonl")


@pytest.fixture
def work_folder(tmp_path, monkeypatch, toy, tiny_model, came_checkpoint, encodings, index, bm25_index):
    """A folder to type short commands in, with links to the toy texts and what is made from them."""
    links = {"toy": toy, "tiny": tiny_model, "came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index}
    for name, path in links.items():
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(moeir):
    """`run(command)` runs a command line that must succeed."""

    def run_command(command):
        result = moeir(*shlex.split(command))
        assert result.code == 0, result.stderr
        return result

    return run_command


@pytest.fixture
def refuse(moeir):
    """`refuse(code, words, command)` runs a command line that must end with this exit code and one error, which has the words."""

    def refuse_command(code, words, command):
        result = moeir(*shlex.split(command))
        assert (result.code, result.stderr.count("error: ")) == (code, 1), (command, result)
        assert words in result.stderr.splitlines()[-1], (command, result)
        return result

    return refuse_command
