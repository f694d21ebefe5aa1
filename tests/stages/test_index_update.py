"""Updates of an index: documents added and deleted, with the results of a rebuild; nothing that exists is changed."""

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.errors import DataError, UsageError
from moeir.records import texts
from tests.conftest import CommandResult, run_moeir
from tests.index_sequences import Collection, check_sequence, list_seeds, read_files
from tests.split_encodings import write_encodings

Moeir = Callable[..., CommandResult]
KINDS = ["came", "came", "coil", "bm25", "scan"]


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory, came_checkpoint: Path, tiny_model: Path, toy: Path) -> dict[str, Collection]:
    """Texts of a few words each, some of them equal, as CAME and COIL encode them, and as they are."""
    folder, rng = tmp_path_factory.mktemp("collection"), random.Random(5)
    words = [word for text in texts.read_texts(toy / "corpus.jsonl") for word in text.content.split()]
    contents = [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(50)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(contents)))
    lengths = ("--query-length", 16, "--document-length", 32)
    run_moeir("init", "--model", tiny_model, "--arch", "coil:dim=8,cls_dim=16", *lengths, "--output", folder / "coil-checkpoint")
    for name, model in {"came": came_checkpoint, "coil": folder / "coil-checkpoint"}.items():
        run_moeir("encode", "--model", model, "--corpus", folder / "corpus.jsonl", "--dtype", "float32", "--output", folder / name)
    rows = list(range(len(contents)))
    return {
        "came": Collection(rows, folder / "came"),
        "coil": Collection(rows, folder / "coil"),
        "scan": Collection(rows, folder / "came", ("lexical=scan", "local=scan")),
        "bm25": Collection(contents, None, ("bm25:k1=1.2",)),
    }


@pytest.mark.parametrize(("kind", "seed"), list_seeds(10, KINDS))
def test_an_updated_index_has_the_results_of_a_rebuild(collections: dict[str, Collection], kind: str, seed: int, tmp_path: Path) -> None:
    assert check_sequence(collections[kind], seed, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_a_thousand_sequences_have_the_results_of_a_rebuild(collections: dict[str, Collection], kind: str, tmp_path: Path) -> None:
    for number, seed in list_seeds(1000, KINDS):
        if number == kind:
            (tmp_path / str(seed)).mkdir()
            check_sequence(collections[kind], 1000 + seed, tmp_path / str(seed), compare_always=True)


def test_a_wrong_update_would_be_noticed(collections: dict[str, Collection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeir.indexes.segments.IndexFolder.delete", lambda folder, ids: folder)
    with pytest.raises((AssertionError, DataError)):
        for seed in range(5):
            (tmp_path / str(seed)).mkdir()
            check_sequence(collections["bm25"], seed, tmp_path / str(seed))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, encodings: Path, index: Path, toy: Path) -> Path:
    """The toy encodings in two parts with an index of the first, the same of texts, and files of ids."""
    folder = tmp_path_factory.mktemp("update")
    ids = manifests.read_lines(encodings / "ids.txt")
    write_encodings(encodings, folder / "old", range(8), ids[:8])
    write_encodings(encodings, folder / "new", range(8, 12), ids[8:])
    write_encodings(encodings, folder / "again", [3, 8], [ids[0], ids[9]])
    lines = (toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "old.jsonl").write_text("".join(lines[:8]), encoding="utf-8")
    (folder / "new.jsonl").write_text("".join(lines[8:]), encoding="utf-8")
    (folder / "ids.txt").write_text(f"{ids[1]}\n{ids[5]}\n")
    run_moeir("index", "--encodings", folder / "old", "--output", folder / "index")
    run_moeir("index", "--corpus", folder / "old.jsonl", "--engine", "bm25", "--output", folder / "bm25")
    return folder


def run_search(index: Path, toy: Path, output: Path, *more: object) -> dict[str, str]:
    run_moeir("search", "--dtype", "float32", "--index", index, "--queries", toy / "test-queries.tsv", "--output", output, *more)
    return {path.name: path.read_text() for path in output.glob("*.trec")}


@pytest.mark.parametrize(("name", "added", "runs"), [("index", "new", "runs"), ("bm25", "new.jsonl", "run.trec")])
def test_an_update_leaves_the_old_index_and_is_made_once(
    parts: Path, name: str, added: str, runs: str, tmp_path: Path, moeir: Moeir
) -> None:
    before = read_files(parts / name), (parts / name / "manifest.json").read_bytes()
    command = ("index", "--index", parts / name, "--add", parts / added, "--delete", parts / "ids.txt", "--output", tmp_path / "updated")
    made = run_moeir(*command).stderr.splitlines()
    assert "10 texts" in made[-2] and made[-1] == f"next: moeir search --index {tmp_path}/updated --queries QUERIES --output {runs}"
    assert (read_files(parts / name), (parts / name / "manifest.json").read_bytes()) == before
    assert "already made" in moeir(*command).stderr
    assert json.loads((tmp_path / "updated" / "manifest.json").read_text())["sources"].keys() == {"index", "add", "delete"}


def test_expanded_texts_are_added_as_they_are_indexed(parts: Path, tmp_path: Path) -> None:
    records = [{"_id": name, "queries": ["glowing embers"]} for name in [*manifests.read_lines(parts / "old/ids.txt"), "oak", "ice"]]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    expansion = ("--expansion", tmp_path / "queries.jsonl")
    run_moeir("index", "--corpus", parts / "old.jsonl", "--engine", "bm25", *expansion, "--output", tmp_path / "old")
    run_moeir("index", "--index", tmp_path / "old", "--add", parts / "new.jsonl", *expansion, "--output", tmp_path / "updated")
    (tmp_path / "all.jsonl").write_text((parts / "old.jsonl").read_text() + (parts / "new.jsonl").read_text())
    run_moeir("index", "--corpus", tmp_path / "all.jsonl", "--engine", "bm25", *expansion, "--output", tmp_path / "rebuilt")
    assert read_files(tmp_path / "updated") == read_files(tmp_path / "rebuilt")


def test_segments_are_links_and_an_update_of_an_update_has_them_too(parts: Path, tmp_path: Path) -> None:
    run_moeir("index", "--index", parts / "index", "--add", parts / "new", "--output", tmp_path / "one")
    run_moeir("index", "--index", tmp_path / "one", "--delete", parts / "ids.txt", "--output", tmp_path / "two")
    for old, new in {"index/global/vectors.npy": "one/segment-0", "index/ids.txt": "one/segment-0"}.items():
        assert os.path.samefile(parts / old, tmp_path / new / old.removeprefix("index/"))
    for file in ("segment-0/local/vectors.npy", "segment-1/ids.txt", "segment-1/lexical/terms.npy"):
        assert os.path.samefile(tmp_path / "one" / file, tmp_path / "two" / file)
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["deleted.npy", "manifest.json", "segment-0", "segment-1"]


def test_a_document_in_both_is_replaced(parts: Path, toy: Path, encodings: Path, tmp_path: Path, moeir: Moeir) -> None:
    ids = manifests.read_lines(parts / "old/ids.txt")
    common = ("index", "--index", parts / "index", "--add", parts / "again", "--output", tmp_path / "updated")
    refused = moeir(*common)
    assert refused.code == 3 and f"document {ids[0]!r} is in {parts / 'index'} already" in refused.stderr
    result = moeir(*common, "--delete", parts / "again" / "ids.txt")
    assert result.code == 0 and "1 of 2 ids are not in" in result.stderr
    remaining = [*ids[1:], *manifests.read_lines(parts / "again/ids.txt")]
    rebuilt = write_encodings(encodings, tmp_path / "rebuilt", [*range(1, 8), 3, 8], remaining)
    run_moeir("index", "--encodings", rebuilt, "--output", tmp_path / "index")
    assert run_search(tmp_path / "updated", toy, tmp_path / "a") == run_search(tmp_path / "index", toy, tmp_path / "b")


def test_a_filter_is_the_head_of_the_ranking_of_its_documents(
    parts: Path, index: Path, bm25_index: Path, toy: Path, tmp_path: Path
) -> None:
    ids = set(manifests.read_lines(parts / "ids.txt"))
    for name, searched in {"came": index, "bm25": bm25_index}.items():
        full = run_search(searched, toy, tmp_path / f"{name}-full")
        filtered = run_search(searched, toy, tmp_path / f"{name}-filtered", "--filter-ids", parts / "ids.txt", "--depth", 1)
        for run in filtered.keys() - {"fused.trec"}:
            columns = [line.split() for line in full[run].splitlines() if line.split()[2] in ids]
            first = {line[0]: (line[2], line[4]) for line in reversed(columns)}
            assert {line.split()[0]: (line.split()[2], line.split()[4]) for line in filtered[run].splitlines()} == first


def test_python_updates_and_filters(parts: Path, toy: Path, tmp_path: Path) -> None:
    ids = manifests.read_lines(parts / "ids.txt")
    updated = package.index(index=parts / "index", add=parts / "new", delete=ids, output=tmp_path / "updated")
    assert len(updated.ids) == 10 and not {*ids}.intersection(updated.ids)
    hits = updated.filter_ids(updated.ids[:2]).search(["who hunts mice"], 5)[0]
    assert {name for name, _ in hits} <= {*updated.ids[:2]}
    (tmp_path / "two.txt").write_text("\n".join(updated.ids[:2]))
    for path in (tmp_path / "two.txt", str(tmp_path / "two.txt")):
        assert updated.filter_ids(path).search(["who hunts mice"], 5)[0] == hits
    texts_added = package.index(index=parts / "bm25", add={"x": "an owl hunts mice"}, output=tmp_path / "bm25")
    assert "x" in dict(texts_added.search(["who hunts mice"], 5)[0])
    run = package.search(index=parts / "index", query="mice", filter_ids=ids, dtype="float32")
    assert sorted(run.documents_of("q1")) == sorted(ids)
    with pytest.raises(DataError, match=r"none of its ids is in .*updated, such as 'nobody'"):
        updated.filter_ids(["nobody"])
    with pytest.raises(UsageError, match="delete: expected a path or ids, found int"):
        package.index(index=parts / "index", delete=3, output=tmp_path / "none")


def test_shards_are_added_as_whole_encodings_are(parts: Path, came_checkpoint: Path, toy: Path, tmp_path: Path) -> None:
    texts_of_toy = list(texts.read_texts(toy / "corpus.jsonl"))
    copies = (texts.Text(f"{text.id}-{number}", text.text) for number in range(30) for text in texts_of_toy)
    texts.write_texts(copies, tmp_path / "corpus.jsonl")
    encode = ("encode", "--model", came_checkpoint, "--corpus", tmp_path / "corpus.jsonl", "--dtype", "float32", "--output")
    run_moeir(*encode, tmp_path / "whole")
    for shard in ("0/2", "1/2"):
        run_moeir(*encode, tmp_path / "shards", "--shard", shard)
    for name in ("whole", "shards"):
        run_moeir("index", "--index", parts / "index", "--add", tmp_path / name, "--output", tmp_path / f"{name}-index")
    assert read_files(tmp_path / "whole-index") == read_files(tmp_path / "shards-index")


def test_other_stages_take_an_updated_index(parts: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    updated = tmp_path / "updated"
    run_moeir("index", "--index", parts / "index", "--add", parts / "new", "--delete", parts / "ids.txt", "--output", updated)
    run_moeir("index", "--index", updated, "--compact", "--output", tmp_path / "compact")
    counts = json.loads(run_moeir("info", updated, "--format", "json").stdout)["counts"]
    assert (counts["texts"], counts["segments"], counts["deleted"]) == (10, 2, 2)
    both = {}
    for name in ("updated", "compact"):
        explained = ("--explain", tmp_path / f"{name}.jsonl", "--corpus", toy / "corpus.jsonl")
        runs = run_search(tmp_path / name, toy, tmp_path / f"runs-{name}", *explained)
        judged = ("--queries", toy / "test-queries.tsv", "--qrels", toy / "test-qrels.tsv", "--dtype", "float32")
        run_moeir("calibrate", "--index", tmp_path / name, *judged, "--output", tmp_path / f"scaled-{name}")
        scaled = run_search(tmp_path / name, toy, tmp_path / f"scaled-runs-{name}", "--model", tmp_path / f"scaled-{name}")
        fitted = manifests.read_manifest(tmp_path / f"scaled-{name}")["counts"]["fitted"]
        both[name] = runs, (tmp_path / f"{name}.jsonl").read_text(), scaled, fitted
    assert both["updated"] == both["compact"]
    assert len(set(both["updated"][3].values())) == 3


def test_an_updated_index_is_a_part_of_a_collection(parts: Path, index: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    run_moeir("index", "--index", parts / "index", "--delete", parts / "ids.txt", "--output", tmp_path / "part")
    run_moeir("index", "--encodings", parts / "new", "--output", tmp_path / "other")
    run_moeir("index", "--index", index, "--delete", parts / "ids.txt", "--output", tmp_path / "whole")
    together = run_search(tmp_path / "part", toy, tmp_path / "a", "--index", tmp_path / "other", "--depth", 4)
    assert together == run_search(tmp_path / "whole", toy, tmp_path / "b", "--depth", 4)


def test_engines_that_are_rebuilt_instead_say_so(encodings: Path, tmp_path: Path, moeir: Moeir) -> None:
    for spec in ("lexical=inverted:quantise=8", "global=faiss:factory=Flat"):
        expert, _, engine = spec.partition("=")
        run_moeir("index", "--encodings", encodings, "--engine", spec, "--output", tmp_path / expert)
        result = moeir("index", "--index", tmp_path / expert, "--compact", "--output", tmp_path / "out")
        expected = f"{tmp_path / expert}: {expert} is searched by {engine}, which takes no updates; index all documents again"
        assert result.code == 2 and expected in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": {"path": "elsewhere", "digest": "another"}}, "made with another checkpoint than"),
        ({"experts": {"lexical": "sparse"}}, "has lexical; "),
        ({"shortened": {"terms": 3}}, "expected no option, found --terms 3; encode them again"),
        ({"dtype": "torch.bfloat16"}, "were encoded in torch.bfloat16 and torch.float32; encode with --dtype to have one"),
    ],
)
def test_documents_encoded_otherwise_are_refused_or_warned_of(
    parts: Path, encodings: Path, tmp_path: Path, moeir: Moeir, change: dict[str, object], words: str
) -> None:
    added = write_encodings(encodings, tmp_path / "added", [8], ["new"])
    manifest = json.loads((added / "manifest.json").read_text())
    (added / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": manifest["counts"] | change}))
    result = moeir("index", "--index", parts / "index", "--add", added, "--output", tmp_path / "updated")
    assert words in result.stderr and result.code == (0 if "dtype" in change else 4)
    if "dtype" in change:
        assert json.loads((tmp_path / "updated/manifest.json").read_text())["counts"]["dtype"] == "torch.bfloat16, torch.float32"


DELETED = [
    (np.array([1, 5], np.int32), "expected int64 [2] by manifest.json, found int32 [2]"),
    (np.array([1], np.int64), "expected int64 [2] by manifest.json, found int64 [1]"),
    (np.array([1, 12], np.int64), "expected numbers from 0 to 11 by manifest.json, found 1 to 12"),
    (np.array([-1, 2], np.int64), "expected numbers from 0 to 11 by manifest.json, found -1 to 2"),
    (np.array([5, 5], np.int64), "expected 2 different rows, found 1"),
]
SEGMENTS = [
    (10**12, "segment-2/ids.txt: the file is missing"),
    (0, "manifest.json: segments is 0, expected a whole number from 1 on"),
    ("2", "manifest.json: segments is '2', expected a whole number from 1 on"),
]


def test_deleted_rows_or_a_number_of_segments_that_do_not_fit_are_refused(parts: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    updated = tmp_path / "updated"
    run_moeir("index", "--index", parts / "index", "--add", parts / "new", "--delete", parts / "ids.txt", "--output", updated)

    def check(words: str) -> None:
        for command in (("search", "--queries", toy / "test-queries.tsv", "--index", updated), ("index", "--compact", "--index", updated)):
            result = moeir(*command, "--output", tmp_path / "out")
            assert result.code == 4 and f"{updated}/{words}" in result.stderr

    manifest = manifests.read_manifest(updated)
    for segments, words in SEGMENTS:
        counts = manifest["counts"] | {"segments": segments}
        (updated / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": counts}))
        check(words)
    for deleted, words in DELETED:
        file = io.BytesIO()
        np.lib.format.write_array(file, deleted, allow_pickle=False)
        (updated / "deleted.npy").write_bytes(file.getvalue())
        files = manifest["files"] | {"deleted.npy": manifests.compute_checksums([updated / "deleted.npy"])[0]}
        (updated / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"files": files}))
        check(f"deleted.npy: damaged: {words}; run moeir index again")
