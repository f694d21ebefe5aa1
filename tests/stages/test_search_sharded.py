"""Parts of a collection searched as one: the same runs as one index, bit for bit, including ties."""

import json
import shutil
from pathlib import Path

import pytest

from moeir.artifacts import manifests
from tests.conftest import run_moeir
from tests.split_encodings import build_index, duplicate_documents, split_encodings, write_encodings

SEARCH = "search --queries toy/test-queries.tsv"
pytestmark = pytest.mark.usefixtures("work_folder")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, encodings):
    """Encodings in which every document has a twin that ties with it."""
    return duplicate_documents(encodings, tmp_path_factory.mktemp("parts") / "whole")


@pytest.fixture(scope="module")
def indexes(whole):
    """The indexes of the parts, by number of parts."""
    parts = {count: split_encodings(whole, whole.parent / f"in{count}", count) for count in (3, 7)}
    return {1: [build_index(whole)]} | {count: [build_index(part) for part in own] for count, own in parts.items()}


@pytest.mark.parametrize(("fuse", "depth"), [("came-sum", 3), ("came-sum", 100), ("rrf", 3), ("exact-sum", 3)])
def test_parts_are_searched_as_one_index_is(indexes, fuse, depth):
    runs = {}
    for count, parts in indexes.items():
        run_moeir(*SEARCH.split(), "--index", *parts, "--dtype", "float32", "--fuse", fuse, "--depth", depth, "--output", str(count))
        runs[count] = {path.stem: path.read_text() for path in Path(str(count)).glob("*.trec")}
    assert sorted(runs[1]) == ["fused", "global", "lexical", "local"]
    assert runs[1] == runs[3] == runs[7]
    first, second = (line.split() for line in runs[7]["global"].splitlines()[:2])
    assert first[4] == second[4] and first[2] == second[2] + "2", "of twins the later id stands first"


@pytest.mark.parametrize(("change", "words"), [
    ({"checkpoint": {"path": "elsewhere", "digest": "another"}}, "made with another checkpoint than"),
    ({"experts": {"lexical": "inverted"}}, "index all parts with the same --engine"),
])  # fmt: skip
def test_parts_that_were_not_made_alike_are_refused(indexes, refuse, change, words):
    shutil.copytree(indexes[3][1], "other")
    manifest = json.loads(Path("other/manifest.json").read_text())
    Path("other/manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": manifest["counts"] | change}))
    assert "other" in refuse(4, words, f"{SEARCH} --index {indexes[3][0]} --index other --output o.trec").stderr


def test_a_document_in_two_parts_and_parts_of_bm25_are_refused(whole, indexes, run, refuse):
    again = build_index(write_encodings(whole, Path("again").resolve(), [0, 1], ["new", "owl"]))
    run("index --corpus toy/train-queries.jsonl --engine bm25 --output other")
    refuse(4, "document 'owl' is in", f"{SEARCH} --index {indexes[1][0]} --index {again} --output o.trec")
    refuse(2, "index it in one piece", f"{SEARCH} --index bm25 --index other --output o.trec")
