"""Parts of a collection searched as one: the same runs as one index, bit for bit, including ties."""

import json
import shutil

import pytest

from moeir.artifacts import manifests
from tests.conftest import run_in_process
from tests.split_encodings import build_index, duplicate_documents, split_encodings, write_encodings

RUNS = ("lexical", "local", "global", "fused")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, encodings):
    """Encodings in which every document has a twin that ties with it."""
    return duplicate_documents(encodings, tmp_path_factory.mktemp("parts") / "whole")


@pytest.fixture(scope="module")
def indexes(whole):
    """The indexes of the parts, by number of parts."""
    parts = {count: split_encodings(whole, whole.parent / f"in{count}", count) for count in (3, 7)}
    return {1: [build_index(whole)]} | {count: [build_index(part) for part in own] for count, own in parts.items()}


def search(indexes, toy, output, *more):
    flags = [word for one in indexes for word in ("--index", one)]
    result = run_in_process("search", "--dtype", "float32", *flags, "--queries", toy / "test-queries.tsv", *more, "--output", output)
    assert result.code == 0, result.stderr
    return {path.name: path.read_text() for path in output.glob("*.trec")}


@pytest.mark.parametrize(("fuse", "depth"), [("came-sum", 3), ("came-sum", 100), ("rrf", 3), ("exact-sum", 3)])
def test_parts_are_searched_as_one_index_is(indexes, toy, tmp_path, fuse, depth):
    runs = {count: search(own, toy, tmp_path / str(count), "--fuse", fuse, "--depth", depth) for count, own in indexes.items()}
    assert sorted(runs[1]) == sorted(f"{name}.trec" for name in RUNS)
    assert runs[1] == runs[3] == runs[7]
    first, second = (line.split() for line in runs[7]["global.trec"].splitlines()[:2])
    assert first[4] == second[4] and first[2] == second[2] + "2", "of twins the later id stands first"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"checkpoint": {"path": "elsewhere", "digest": "another"}}, "made with another checkpoint than"),
        ({"experts": {"lexical": "inverted"}}, "index all parts with the same --engine"),
    ],
)
def test_parts_that_were_not_made_alike_are_refused(indexes, toy, tmp_path, moeir, change, words):
    other = tmp_path / "other"
    shutil.copytree(indexes[3][1], other)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": manifest["counts"] | change}))
    both = ("--index", indexes[3][0], "--index", other)
    result = moeir("search", *both, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "o.trec")
    assert result.code == 4 and words in result.stderr and str(other) in result.stderr


def test_a_document_in_two_parts_and_parts_of_bm25_are_refused(whole, indexes, bm25_index, toy, tmp_path, moeir):
    again = build_index(write_encodings(whole, tmp_path / "again", [0, 1], ["new", "owl"]))
    assert moeir("index", "--corpus", toy / "train-queries.jsonl", "--engine", "bm25", "--output", tmp_path / "bm25").code == 0
    for one, other, code, words in (
        (indexes[1][0], again, 4, "document 'owl' is in"),
        (bm25_index, tmp_path / "bm25", 2, "index it in one piece"),
    ):
        both = ("--index", one, "--index", other)
        result = moeir("search", *both, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "o.trec")
        assert result.code == code and words in result.stderr
