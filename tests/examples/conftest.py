"""Fixtures: one long-lived `moeir` process for all scripts, and small collections for those of the declared experiments."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeir.records import texts
from tests.examples import toy_collections
from tests.examples.shell import EXAMPLES, CommandServer


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    """`moeir` in one process for all scripts."""
    with tempfile.TemporaryDirectory(prefix="moeir-") as short:  # a socket's path may have about a hundred characters
        socket_path, journal = Path(short) / "socket", Path(short) / "journal"
        command = [sys.executable, "-m", "tests.examples.server", socket_path, short, journal]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=EXAMPLES.parent) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield CommandServer(Path(short) / "moeir", Path(short) / "python", journal)
            process.terminate()


@pytest.fixture(scope="session")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """squad and medquad with train and dev questions, and four test collections."""
    folder = tmp_path_factory.mktemp("collections")
    train = [f"train {number}" for number in range(4)]
    toy_collections.write_articles(folder / "squad", {"train": train, "dev": [f"dev {number}" for number in range(6)]})
    toy_collections.write_articles(folder / "medquad", {"train": train, "dev": ["dev"]})
    for name in ("nfcorpus", "scifact", "cacm", "cranfield"):
        toy_collections.write_articles(folder / name, {"test": [name]})
    documents = list(texts.read_texts(folder / "cranfield/corpus.jsonl.gz"))
    texts.write_texts([*documents, texts.Text("empty", "")], folder / "cranfield/corpus.jsonl.gz")  # as its document 471
    return folder
