"""An index of several encodings, with documents left out or replaced: the bytes of an index of what remains."""

import json
from pathlib import Path

import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.errors import DataError, UsageError
from moeir.records.runs import read_run
from tests.split_encodings import read_files, write_encodings


@pytest.fixture(autouse=True)
def room(work_folder, encodings):
    """The toy encodings in two parts, encodings of a document of each under the ids of others, and a file of ids."""
    ids = manifests.read_lines(encodings / "ids.txt")
    write_rows(encodings, "old", range(8))
    write_rows(encodings, "new", range(8, 12))
    write_encodings(encodings, Path("again"), [3, 8], [ids[0], ids[9]])
    Path("ids.txt").write_text(f"{ids[1]}\n{ids[5]}\n")


def write_rows(encodings, name, rows):
    """Encodings of some documents under their own ids."""
    ids = manifests.read_lines(encodings / "ids.txt")
    write_encodings(encodings, Path(name), rows, [ids[row] for row in rows])


@pytest.fixture
def index_files(run):
    """`index_files(encodings, output, flags)`: the files of an index of several encodings."""

    def index(encodings, output, flags=""):
        run(f"index --encodings {encodings} {flags} --output {output}")
        return read_files(Path(output))

    return index


def test_two_encodings_have_the_index_of_all_documents(index_files, index):
    assert index_files("old new", "both") == read_files(index)
    assert len(manifests.read_manifest(Path("both"))["sources"]["encodings"]) == 2


@pytest.mark.parametrize(("sources", "rows"), [("old", [*range(1), *range(2, 5), 6, 7]), ("old new", [0, *range(2, 5), *range(6, 12)])])
def test_documents_are_left_out_of_all_encodings_but_the_last_of_several(sources, rows, index_files, encodings):
    write_rows(encodings, "remaining", rows)
    assert index_files(sources, "smaller", "--delete ids.txt") == index_files("remaining", "expected")


def test_a_document_in_both_is_refused_or_replaced(encodings, index_files, run, refuse):
    ids = manifests.read_lines(Path("old/ids.txt"))
    update = "index --encodings old again --output updated"
    refuse(3, f"again: document {ids[0]!r} is in the encodings before it, too", update)
    assert "1 of 2 ids are not in" in run(f"{update} --delete again/ids.txt").stderr
    remaining = [*ids[1:], *manifests.read_lines(Path("again/ids.txt"))]
    write_encodings(encodings, Path("rebuilt"), [*range(1, 8), 3, 8], remaining)
    assert read_files(Path("updated")) == index_files("rebuilt", "expected")


def test_python_updates_and_filters():
    ids = manifests.read_lines(Path("ids.txt"))
    updated = package.index(encodings=["old", "new"], delete=ids, output="updated")
    assert len(updated.ids) == 10 and not {*ids}.intersection(updated.ids)
    hits = updated.filter_ids(updated.ids[:2]).search(["who hunts mice"], 5)[0]
    assert {name for name, _ in hits} <= {*updated.ids[:2]}
    Path("two.txt").write_text("\n".join(updated.ids[:2]))
    for path in (Path("two.txt"), "two.txt"):
        assert updated.filter_ids(path).search(["who hunts mice"], 5)[0] == hits
    run = package.search(index="idx", query="mice", filter_ids=ids, dtype="float32")
    assert sorted(run.documents_of("q1")) == sorted(ids)
    with pytest.raises(DataError, match=r"none of its ids is in .*updated, such as 'nobody'"):
        updated.filter_ids(["nobody"])
    with pytest.raises(UsageError, match="delete: expected a path or ids, found int"):
        package.index(encodings="old", delete=3, output="none")


@pytest.mark.parametrize(("change", "words"), [
    ({"checkpoint": {"path": "elsewhere", "digest": "another"}}, "made with another checkpoint than"),
    ({"shortened": {"terms": 3}}, "expected None, found {'terms': 3}; encode them again"),
    ({"dtype": "torch.bfloat16"}, "were encoded in torch.bfloat16 and torch.float32; encode with --dtype to have one"),
])  # fmt: skip
def test_documents_encoded_otherwise_are_refused_or_warned_of(encodings, run, refuse, change, words):
    manifest_file = write_encodings(encodings, Path("added"), [8], ["other"]) / "manifest.json"
    manifest, command = json.loads(manifest_file.read_text()), "index --encodings old added --output updated"
    manifest_file.write_text(manifests.serialize_manifest(manifest | {"counts": manifest["counts"] | change}))
    if "dtype" not in change:
        refuse(4, words, command)
        return
    assert words in run(command).stderr
    assert manifests.read_counts(Path("updated"))["dtype"] == "torch.bfloat16, torch.float32"


@pytest.mark.parametrize("searched", ["idx", "bm25"])
def test_a_filter_is_the_head_of_the_ranking_of_its_documents(searched, run):
    ids, search = manifests.read_lines(Path("ids.txt")), f"search --dtype float32 --index {searched} --queries toy/test-queries.tsv"
    run(f"{search} --output full")
    run(f"{search} --filter-ids ids.txt --depth 1 --output filtered")
    for file in Path("filtered").glob("*.trec"):
        if file.name != "fused.trec":
            full, filtered = (read_run(Path(folder, file.name)) for folder in ("full", "filtered"))
            heads = {query: [hit for hit in full.hits(query) if hit[0] in ids][:1] for query in full.queries}
            assert {query: filtered.hits(query) for query in filtered.queries} == {query: hits for query, hits in heads.items() if hits}
