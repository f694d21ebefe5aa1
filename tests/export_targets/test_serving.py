"""Each engine, really run: an export of CAME is loaded, also after kills, and every expert finds what moeir finds."""

import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import moeir as package
from moeir import variants
from moeir.export_targets.base import ExportedDocument, ExportSchema
from moeir.export_targets.loaders.documents import load_documents
from moeir.records.texts import Text
from tests.conftest import run_moeir
from tests.kill_points import fork

ROOT = Path(__file__).parents[2]
DOCUMENTS, DEPTH = 140, 50  # more documents than two batches of a loader
SEARCH = ("--depth", DEPTH, "--dtype", "float32", "--fuse", "came-sum")
EXPERTS = ("lexical", "local", "global")
LOADERS = {"qdrant": "QdrantCollection", "milvus": "MilvusCollection"}
PACKAGES = {"qdrant": ("qdrant_client",), "milvus": ("pymilvus", "milvus_lite")}
# 32 vectors of a query have products below 1: sums of float32 in another order differ by some 32 · 2^-24 = 2e-6;
# sums of some hundred products of weights, up to 60 here, by some 1e-6 of the sum
TOLERANCE = {"rel": 2e-6, "abs": 5e-6}


class Served(NamedTuple):
    """A checkpoint, encodings of documents, and what moeir finds: hits of each expert and fused, by query."""

    checkpoint: Path
    encodings: Path
    corpus: Path
    queries: dict[str, str]
    runs: dict[str, Any]


def needs(engine: str) -> pytest.MarkDecorator:
    missing = [name for name in PACKAGES[engine] if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: the extra of {engine}")


engines = pytest.mark.parametrize("engine", [pytest.param(name, marks=needs(name)) for name in LOADERS])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, came_checkpoint: Path, toy: Path) -> Served:
    """Documents of words drawn from the toy texts by a seed, so that no two score alike."""
    folder, draw = tmp_path_factory.mktemp("served"), random.Random(3)
    words = sorted({word for line in (toy / "corpus.jsonl").read_text().splitlines() for word in re.findall("[a-z]+", line.lower())})
    records = [{"_id": f"d{row}", "title": draw.choice(words), "text": " ".join(draw.choices(words, k=12))} for row in range(DOCUMENTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    queries = {f"q{number}": " ".join(draw.choices(words, k=5)) for number in range(4)}
    (folder / "queries.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in queries.items()))
    for arguments in (
        ("encode", "--model", came_checkpoint, "--corpus", folder / "corpus.jsonl", "--dtype", "float32", "--output", folder / "enc"),
        ("index", "--encodings", folder / "enc", "--output", folder / "idx"),
        ("search", "--index", folder / "idx", "--queries", folder / "queries.tsv", *SEARCH, "--output", folder / "runs"),
    ):
        run_moeir(*arguments)
    runs = {name: package.read_run(folder / "runs" / f"{name}.trec") for name in (*EXPERTS, "fused")}
    hits = {name: [run.hits(query) for query in queries] for name, run in runs.items()}
    return Served(came_checkpoint, folder / "enc", folder / "corpus.jsonl", queries, hits)


@pytest.fixture(scope="module")
def export(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`export(spec)` -> the folder of the export to an engine, made once."""
    folder = tmp_path_factory.mktemp("exports")

    def make(spec: str) -> Path:
        output = folder / re.sub(r"\W", "-", spec)
        run_moeir("export", "--to", spec, "--encodings", served.encodings, "--corpus", served.corpus, "--output", output)
        return output

    return make


def run_loader(folder: Path, location: Path, *arguments: str, kill_after: int | None = None) -> str:
    """`python load.py LOCATION` as a user runs it; with `kill_after`, SIGKILL before so many batches more are stored."""
    command = [str(folder / "load.py")]
    if kill_after is not None:
        (location.parent / "killed.py").write_text(PATCHED.format(folder=str(folder), batches=kill_after))
        command = [str(location.parent / "killed.py")]
    process = subprocess.run(
        [sys.executable, *command, str(location), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == (-9 if kill_after is not None else 0), process.stderr
    return process.stdout


PATCHED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import load, documents

[name] = [name for name in ("QdrantCollection", "MilvusCollection") if hasattr(load, name)]
opener, left = getattr(load, name), {batches}
original = opener.add

def add(self, points):
    global left
    if left:
        left -= 1
    else:
        original(self, points[:7])
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, points)

opener.add = add
opener.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
documents.run_loader(opener)
"""


def open_collection(engine: str, folder: Path, location: Path) -> Any:
    """The collection, opened in this process by the module that was exported as load.py."""
    return getattr(importlib.import_module(f"moeir.export_targets.loaders.{engine}"), LOADERS[engine])(str(location), folder)


def search_engine(collection: Any, served: Served, experts: tuple[str, ...] = EXPERTS, **options: int) -> dict[str, Any]:
    """The hits of each expert, by query."""
    encoded = package.open_checkpoint(served.checkpoint, "cpu").encode(list(served.queries.values()), "query")
    rows = range(len(served.queries))
    return {
        expert: collection.search(
            expert, [encoded[expert].export_row(row) for row in rows], DEPTH, **(options if expert == "local" else {})
        )
        for expert in experts
    }


def fuse(served: Served, lists: dict[str, Any], method: str) -> list[list[tuple[str, float]]]:
    """moeir's own fusion of an engine's lists."""
    runs = {expert: {query: dict(hits) for query, hits in zip(served.queries, found, strict=True)} for expert, found in lists.items()}
    run = package.fuse(run=runs, method=method, run_depth=DEPTH, depth=DEPTH)
    return [run.hits(query) for query in served.queries]


def fuse_by_qdrant(collection: Any, served: Served) -> list[list[tuple[str, float]]]:
    """The first ten documents by the sum of reciprocal ranks, as docs/serving.md shows it."""
    from qdrant_client import models

    encoded, lists = package.open_checkpoint(served.checkpoint, "cpu").encode(list(served.queries.values()), "query"), []
    for row in range(len(served.queries)):
        vectors = {expert: collection.to_query(expert, encoded[expert].export_row(row)) for expert in EXPERTS}
        searches = [models.Prefetch(query=vector, using=expert, limit=DEPTH) for expert, vector in vectors.items()]
        fused = collection.client.query_points("passages", prefetch=searches, query=models.RrfQuery(rrf=models.Rrf(k=60)), limit=10)
        lists.append([(point.payload["id"], point.score) for point in fused.points])
    return lists


def assert_equal_lists(found: Any, expected: Any, **tolerance: float) -> None:
    for mine, theirs in zip(expected, found, strict=True):
        assert [score for _, score in theirs] == pytest.approx([score for _, score in mine], **(tolerance or TOLERANCE))
        assert [document for document, _ in theirs] == [document for document, _ in mine]


def location_of(engine: str, folder: Path) -> Path:
    return folder / ("milvus.db" if engine == "milvus" else engine)


@engines
@pytest.mark.parametrize("kills", [(1,), pytest.param((1, 9), marks=pytest.mark.torture)])
def test_after_kills_every_expert_finds_what_moeir_finds(
    engine: str, kills: tuple[int, ...], export: Callable[[str], Path], served: Served, tmp_path: Path
) -> None:
    folder, location = export(engine), location_of(engine, tmp_path)
    for batches in kills:  # in the middle of a batch, and when all documents are stored
        run_loader(folder, location, kill_after=batches)
    assert run_loader(folder, location, "--replace") == f"{DOCUMENTS} documents are loaded\n"
    collection = open_collection(engine, folder, location)
    lists = search_engine(collection, served, **({"candidates": 16384} if engine == "milvus" else {}))
    for expert in EXPERTS:
        assert_equal_lists(lists[expert], served.runs[expert])
    assert_equal_lists(fuse(served, lists, "came-sum"), served.runs["fused"])
    if engine == "qdrant":
        assert_equal_lists(fuse_by_qdrant(collection, served), [hits[:10] for hits in fuse(served, lists, "rrf:constant=59")], rel=1e-6)
    collection.close()


@needs("qdrant")
def test_an_engine_that_does_not_answer_is_one_line(export: Callable[[str], Path], tmp_path: Path) -> None:
    command = [sys.executable, export("qdrant") / "load.py", "http://localhost:9", "--option", "api_key=a secret"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Api key is used with an insecure connection" in process.stderr  # --option is the client's
    [line] = [line for line in process.stderr.splitlines() if "Warning" not in line and not line.startswith("  ")]
    assert process.returncode == 1 and line.startswith("http://localhost:9: ResponseHandlingException ") and "Connection refused" in line
    assert line.endswith("; if an engine answers there, the same command goes on where it stopped")


@engines
def test_another_export_replaces_a_loaded_one_only_when_asked_to(
    engine: str, export: Callable[[str], Path], served: Served, tmp_path: Path
) -> None:
    location = location_of(engine, tmp_path)
    flat = open_collection(engine, export(engine), location)
    load_documents(flat, "here", folder=export(engine))
    flat.schema = json.loads((export(f"{engine}:hnsw=true") / "schema.json").read_text())
    with pytest.raises(SystemExit, match=r"passages at here holds another export \(digest \w{12}\), expected this export .*; --replace "):
        load_documents(flat, "here", folder=export(f"{engine}:hnsw=true"))
    flat.close()
    collection = open_collection(engine, export(f"{engine}:hnsw=true"), location)
    assert load_documents(collection, "here", replace=True, folder=export(f"{engine}:hnsw=true")) == DOCUMENTS
    graph_lists = search_engine(collection, served, ("global",))["global"]
    shared = [len(dict(found).keys() & dict(mine).keys()) for found, mine in zip(graph_lists, served.runs["global"], strict=True)]
    assert min(shared) >= 0.9 * DEPTH  # of a graph over all vectors
    if engine == "milvus":
        assert collection.client.describe_index("passages", "global_vector")["index_type"] == "HNSW"
    collection.close()


@needs("qdrant")
def test_the_program_of_the_docs_writes_a_run_of_each_expert_and_a_fused_one(
    export: Callable[[str], Path], served: Served, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(export("qdrant"), folder)
    collection = open_collection("qdrant", folder, folder / "db")
    load_documents(collection, "here", folder=folder)
    collection.close()
    program = (ROOT / "docs" / "serving.md").read_text().split("```python\n")[1].split("```")[0]
    changes = {"http://localhost:6333": "db", "ckpt/came": str(served.checkpoint), "what do owls hunt": served.queries["q1"]}
    for before, after in changes.items():
        assert before in program
        program = program.replace(before, after)
    of_experts = '    moeir.write_run(runs[expert], f"{expert}.trec")\n'
    program = program.replace("moeir.write_run(moeir.fuse", f"{of_experts}moeir.write_run(moeir.fuse")

    def run_program() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        exec(program, {})

    _, status = os.waitpid(fork(run_program), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for expert in EXPERTS:
        hits = package.read_run(folder / f"{expert}.trec").hits("q1")[:10]
        assert [document for document, _ in hits] == [document for document, _ in served.runs[expert][1][:10]]
    assert len(package.read_run(folder / "fused.trec").hits("q1")) == DOCUMENTS


@engines
def test_documents_without_terms_or_vectors_are_loaded_too(engine: str, tmp_path: Path) -> None:
    schema = ExportSchema({"lexical": "sparse", "local": "multivector", "global": "dense"}, {"local": 2, "global": 2}, ["owl", "mouse"])
    none = (np.zeros(0, np.int64), np.zeros(0, np.float32))
    owl = (np.array([0]), np.array([2.0], np.float32))
    documents = [
        ExportedDocument(0, Text("bare", ""), {"global": np.float16([0, 1])}, {"lexical": none}, {"local": np.zeros((0, 2), np.float16)}),
        ExportedDocument(1, Text("long", "ö" * 70000), {"global": np.float16([1, 0])}, {"lexical": owl}, {"local": np.float16([[1, 2]])}),
    ]
    (tmp_path / "export").mkdir()
    variants.bind_variant("export_targets", engine)(schema).write(documents, tmp_path / "export")
    collection = open_collection(engine, tmp_path / "export", location_of(engine, tmp_path))
    assert load_documents(collection, "here", folder=tmp_path / "export") == 2
    assert collection.search("lexical", [owl, none], 5) == [[("long", pytest.approx(4.0, rel=0.01))], []]
    assert collection.search("global", [np.float32([0.5, 1])], 5) == [[("bare", pytest.approx(1.0)), ("long", pytest.approx(0.5))]]
    assert collection.search("local", [np.float32([[1, 0], [0, 1]])], 5) == [[("long", pytest.approx(3.0))]]
    collection.close()
