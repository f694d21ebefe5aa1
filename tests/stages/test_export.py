"""Exports of the toy encodings hold what the encodings hold."""

import json

import numpy as np
import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.conftest import run_in_process
from tests.split_encodings import split_encodings, write_encodings

SERVERS = {name: name for name in ("qdrant", "milvus")}
SERVERS |= {"vespa": "examples.untried.vespa:Vespa", "opensearch": "examples.untried.opensearch:Opensearch"}


@pytest.fixture(scope="module")
def exports(tmp_path_factory, encodings, toy):
    folder = tmp_path_factory.mktemp("exports")
    for server, spec in SERVERS.items():
        corpus = ("--corpus", toy / "corpus.jsonl")
        result = run_in_process("export", "--to", spec, "--encodings", encodings, *corpus, "--output", folder / server)
        assert result.code == 0, result.stderr
    return {server: folder / server for server in SERVERS}


def read_documents(export):
    return [json.loads(line) for file in sorted(export.rglob("documents-*.jsonl")) for line in file.read_text().splitlines()]


def test_points_hold_what_the_encodings_hold(exports, encodings, came_checkpoint):
    points, ids = read_documents(exports["qdrant"]), manifests.read_lines(encodings / "ids.txt")
    assert [point["payload"]["id"] for point in points] == ids and [point["id"] for point in points] == list(range(len(ids)))
    dense, local, sparse = (kind.open(encodings / name) for kind, name in ((Dense, "global"), (MultiVector, "local"), (Sparse, "lexical")))
    for row, point in enumerate(points):
        assert (np.array(point["vector"]["global"], np.float32) == dense.vectors[row].float().numpy()).all()
        span = slice(int(local.starts[row]), int(local.starts[row + 1]))
        assert (np.array(point["vector"]["local"], np.float32) == local.vectors[span].float().numpy()).all()
        terms = slice(int(sparse.starts[row]), int(sparse.starts[row + 1]))
        assert point["vector"]["lexical"]["indices"] == sparse.terms[terms].tolist()
        assert (np.array(point["vector"]["lexical"]["values"], np.float32) == sparse.weights[terms].numpy()).all()
    tokenizer = package.open_checkpoint(came_checkpoint).tokenizer
    names = (exports["qdrant"] / "terms.txt").read_text().splitlines()
    assert names == [tokenizer.id_to_token(number) for number in range(tokenizer.vocabulary_size)]
    by_name = read_documents(exports["vespa"])[3]["fields"]["lexical_terms"]["cells"]
    assert list(by_name) == [names[number] for number in points[3]["vector"]["lexical"]["indices"]]


@pytest.mark.parametrize("server", ["qdrant", "vespa"])
def test_parts_are_exported_as_the_whole_is(server, exports, encodings, toy, tmp_path):
    ids = manifests.read_lines(encodings / "ids.txt")
    cuts = {"first": range(7), "second": range(7, 12)}
    halves = [write_encodings(encodings, tmp_path / name, rows, [ids[row] for row in rows]) for name, rows in cuts.items()]
    flags = [word for half in halves for word in ("--encodings", half)]
    result = run_in_process("export", "--to", SERVERS[server], *flags, "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "out")
    assert result.code == 0, result.stderr
    assert read_documents(tmp_path / "out") == read_documents(exports[server])
    again = run_in_process("export", "--to", SERVERS[server], *flags, "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "out")
    assert again.code == 0 and "already made" in again.stderr
    twice = run_in_process("export", "--to", SERVERS[server], *flags, *flags[:2], "--output", tmp_path / "twice")
    assert twice.code == 4 and "as those before it have; name each once" in twice.stderr and not (tmp_path / "twice").exists()


def test_texts_are_not_needed(encodings, tmp_path, moeir):
    result = moeir("export", "--to", "qdrant", "--encodings", encodings, "--output", tmp_path / "out")
    assert result.code == 0 and read_documents(tmp_path / "out")[0]["payload"] == {"id": "owl"}


def test_a_representation_that_no_server_has_is_refused(encodings, tmp_path, moeir):
    part = split_encodings(encodings, tmp_path / "cut", 2)[0]
    manifest = json.loads((part / "manifest.json").read_text())
    manifest["counts"]["experts"]["lexical"] = "exact-match"
    (part / "manifest.json").write_text(manifests.serialize_manifest(manifest))
    result = moeir("export", "--to", "milvus", "--encodings", part, "--output", tmp_path / "out")
    assert result.code == 2 and "lexical is exact-match, which no engine but moeir's serves" in result.stderr
