"""An index of several encodings, with documents left out or replaced: the bytes of an index of what remains."""

import json

import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.errors import DataError, UsageError
from tests.conftest import run_moeir
from tests.split_encodings import read_files, write_encodings


@pytest.fixture(scope="module")
def parts(tmp_path_factory, encodings):
    """The toy encodings in two parts, encodings of a document of each under the ids of others, and a file of ids."""
    folder = tmp_path_factory.mktemp("update")
    ids = manifests.read_lines(encodings / "ids.txt")
    write_encodings(encodings, folder / "old", range(8), ids[:8])
    write_encodings(encodings, folder / "new", range(8, 12), ids[8:])
    write_encodings(encodings, folder / "again", [3, 8], [ids[0], ids[9]])
    (folder / "ids.txt").write_text(f"{ids[1]}\n{ids[5]}\n")
    return folder


def index_files(output, encodings, *more):
    run_moeir("index", *(word for one in encodings for word in ("--encodings", one)), *more, "--output", output)
    return read_files(output)


def test_two_encodings_have_the_index_of_all_documents(parts, index, tmp_path):
    assert index_files(tmp_path / "both", [parts / "old", parts / "new"]) == read_files(index)
    assert len(manifests.read_manifest(tmp_path / "both")["sources"]["encodings"]) == 2


def test_documents_are_left_out_of_all_encodings_but_the_last_of_several(parts, encodings, tmp_path):
    delete = ("--delete", parts / "ids.txt")
    remaining = {"one": [*range(1), *range(2, 5), 6, 7], "whole": [0, *range(2, 5), *range(6, 12)]}
    ids = manifests.read_lines(encodings / "ids.txt")
    expected = {}
    for name, rows in remaining.items():
        source = write_encodings(encodings, tmp_path / f"{name}-source", rows, [ids[row] for row in rows])
        expected[name] = index_files(tmp_path / f"{name}-expected", [source])
    assert index_files(tmp_path / "one", [parts / "old"], *delete) == expected["one"]
    assert index_files(tmp_path / "whole", [parts / "old", parts / "new"], *delete) == expected["whole"]


def test_a_document_in_both_is_refused_or_replaced(parts, encodings, tmp_path, moeir):
    ids = manifests.read_lines(parts / "old/ids.txt")
    common = ("index", "--encodings", parts / "old", "--encodings", parts / "again", "--output", tmp_path / "updated")
    refused = moeir(*common)
    assert refused.code == 3 and f"{parts / 'again'}: document {ids[0]!r} is in the encodings before it, too" in refused.stderr
    result = moeir(*common, "--delete", parts / "again" / "ids.txt")
    assert result.code == 0 and "1 of 2 ids are not in" in result.stderr
    remaining = [*ids[1:], *manifests.read_lines(parts / "again/ids.txt")]
    rebuilt = write_encodings(encodings, tmp_path / "rebuilt", [*range(1, 8), 3, 8], remaining)
    assert read_files(tmp_path / "updated") == index_files(tmp_path / "index", [rebuilt])


def test_python_updates_and_filters(parts, index, tmp_path):
    ids = manifests.read_lines(parts / "ids.txt")
    updated = package.index(encodings=[parts / "old", parts / "new"], delete=ids, output=tmp_path / "updated")
    assert len(updated.ids) == 10 and not {*ids}.intersection(updated.ids)
    hits = updated.filter_ids(updated.ids[:2]).search(["who hunts mice"], 5)[0]
    assert {name for name, _ in hits} <= {*updated.ids[:2]}
    (tmp_path / "two.txt").write_text("\n".join(updated.ids[:2]))
    for path in (tmp_path / "two.txt", str(tmp_path / "two.txt")):
        assert updated.filter_ids(path).search(["who hunts mice"], 5)[0] == hits
    run = package.search(index=index, query="mice", filter_ids=ids, dtype="float32")
    assert sorted(run.documents_of("q1")) == sorted(ids)
    with pytest.raises(DataError, match=r"none of its ids is in .*updated, such as 'nobody'"):
        updated.filter_ids(["nobody"])
    with pytest.raises(UsageError, match="delete: expected a path or ids, found int"):
        package.index(encodings=parts / "old", delete=3, output=tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": {"path": "elsewhere", "digest": "another"}}, "made with another checkpoint than"),
        ({"shortened": {"terms": 3}}, "expected None, found {'terms': 3}; encode them again"),
        ({"dtype": "torch.bfloat16"}, "were encoded in torch.bfloat16 and torch.float32; encode with --dtype to have one"),
    ],
)
def test_documents_encoded_otherwise_are_refused_or_warned_of(parts, encodings, tmp_path, moeir, change, words):
    added = write_encodings(encodings, tmp_path / "added", [8], ["new"])
    manifest = json.loads((added / "manifest.json").read_text())
    (added / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": manifest["counts"] | change}))
    result = moeir("index", "--encodings", parts / "old", "--encodings", added, "--output", tmp_path / "updated")
    assert words in result.stderr and result.code == (0 if "dtype" in change else 4)
    if "dtype" in change:
        assert json.loads((tmp_path / "updated/manifest.json").read_text())["counts"]["dtype"] == "torch.bfloat16, torch.float32"


def test_a_filter_is_the_head_of_the_ranking_of_its_documents(parts, index, bm25_index, toy, tmp_path):
    ids = set(manifests.read_lines(parts / "ids.txt"))

    def search(searched, output, *more):
        run_moeir("search", "--dtype", "float32", "--index", searched, "--queries", toy / "test-queries.tsv", "--output", output, *more)
        return {path.name: path.read_text() for path in output.glob("*.trec")}

    for name, searched in {"came": index, "bm25": bm25_index}.items():
        full = search(searched, tmp_path / f"{name}-full")
        filtered = search(searched, tmp_path / f"{name}-filtered", "--filter-ids", parts / "ids.txt", "--depth", 1)
        for run in filtered.keys() - {"fused.trec"}:
            columns = [line.split() for line in full[run].splitlines() if line.split()[2] in ids]
            first = {line[0]: (line[2], line[4]) for line in reversed(columns)}
            assert {line.split()[0]: (line.split()[2], line.split()[4]) for line in filtered[run].splitlines()} == first
