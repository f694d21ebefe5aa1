"""Exports of the toy encodings hold what the encodings hold."""

import json
from pathlib import Path

import numpy as np
import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.split_encodings import split_encodings, write_encodings

VESPA = "examples.untried.vespa:Vespa"
pytestmark = pytest.mark.usefixtures("work_folder")


def read_documents(export):
    return [json.loads(line) for file in sorted(Path(export).rglob("documents-*.jsonl")) for line in file.read_text().splitlines()]


def test_points_hold_what_the_encodings_hold(run, encodings, came_checkpoint):
    for server in ("qdrant", "milvus", VESPA, "examples.untried.opensearch:Opensearch"):
        run(f"export --to {server} --encodings enc --corpus toy/corpus.jsonl --output {server.partition(':')[0]}")
    points, ids = read_documents("qdrant"), manifests.read_lines(encodings / "ids.txt")
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
    names = Path("qdrant/terms.txt").read_text().splitlines()
    assert names == [tokenizer.id_to_token(number) for number in range(tokenizer.vocabulary_size)]
    by_name = read_documents("examples.untried.vespa")[3]["fields"]["lexical_terms"]["cells"]
    assert list(by_name) == [names[number] for number in points[3]["vector"]["lexical"]["indices"]]


@pytest.mark.parametrize("server", ["qdrant", VESPA])
def test_parts_are_exported_as_the_whole_is(server, encodings, run, refuse):
    ids, export = manifests.read_lines(encodings / "ids.txt"), f"export --to {server} --corpus toy/corpus.jsonl"
    for name, rows in {"first": range(7), "second": range(7, 12)}.items():
        write_encodings(encodings, Path(name), rows, [ids[row] for row in rows])
    run(f"{export} --encodings enc --output whole")
    run(f"{export} --encodings first second --output parts")
    assert read_documents("parts") == read_documents("whole")
    assert "already made" in run(f"{export} --encodings first second --output parts").stderr
    refuse(4, "as those before it have; name each once", f"{export} --encodings first second first --output twice")
    assert not Path("twice").exists()


def test_texts_are_not_needed(run):
    run("export --to qdrant --encodings enc --output out")
    assert read_documents("out")[0]["payload"] == {"id": "owl"}


def test_a_representation_that_no_server_has_is_refused(encodings, refuse):
    part = split_encodings(encodings, Path("cut"), 2)[0]
    manifest = json.loads((part / "manifest.json").read_text())
    manifest["counts"]["experts"]["lexical"] = "exact-match"
    (part / "manifest.json").write_text(manifests.serialize_manifest(manifest))
    refuse(2, "lexical is exact-match, which no engine but moeir's serves", f"export --to milvus --encodings {part} --output out")
