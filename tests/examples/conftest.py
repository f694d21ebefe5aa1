"""Fixtures: one long-lived `moeir` process for all scripts, and small collections for those of the declared experiments."""

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeir.records import texts
from tests.conftest import write_tiny_bert
from tests.examples import toy_collections
from tests.examples.server import serve, write_clients
from tests.examples.shell import CommandServer, Experiment, run_program
from tests.kill_points import fork


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    """`moeir` in one process for all scripts."""
    with tempfile.TemporaryDirectory(prefix="moeir-") as short, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(short)  # a socket's path may have about a hundred characters
        listener.bind(str(folder / "socket"))
        listener.listen()
        write_clients(folder, folder / "socket")
        process = fork(lambda: serve(listener, folder / "journal"))
        yield CommandServer(folder / "moeir", folder / "python", folder / "journal")
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)


@pytest.fixture(scope="session")
def shallow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers with an MLM head: most of the time of a toy command goes into making layers."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "shallow", head=True, layers=2)


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


@pytest.fixture(scope="session")
def collections(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """The toy texts as msmarco, nq and beir with a few sets, and as odqa, which the examples' programs make of DPR's and others' files."""
    root, small = tmp_path_factory.mktemp("collections"), toy_collections.ToyTexts(toy)
    toy_collections.write_dpr(small, root / "downloads", ("nq", "trivia", "webq", "curatedtrec", "squad1"))
    toy_collections.write_entity_questions(small, root / "entityquestions")
    toy_collections.write_msmarco(small, root / "msmarco")
    toy_collections.write_nq(small, root / "nq")
    for name in ("scifact", "cqadupstack/android", "nq", "nq-train", "cs"):
        toy_collections.write_beir(small, root / "beir" / name)
    programs = {"taser_sets.py": ["downloads", "odqa"], "entityquestions.py": ["entityquestions", "odqa/entityquestions.jsonl"]}
    for program, (source, product) in programs.items():
        assert run_program(program, root / source, root / product).code == 0
    return root


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of work for each paper, shared by its scripts as in real use."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def experiment(server: CommandServer, articles: Path, shallow_model: Path, tmp_path: Path) -> Experiment:
    """The declared experiments on the toy collections."""
    return Experiment(server, articles, shallow_model, tmp_path)
