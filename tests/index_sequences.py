"""Random sequences of updates of an index, each compared with an index of the documents that remain, built from scratch."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.retrieval.searcher import Searcher, open_index
from moeir.stages.base import run_stage
from moeir.stages.index import Index
from tests.split_encodings import write_encodings

QUERIES = ["who hunts mice at night", "honey flowers", "cold water in the dark", "a fish that swims far", "zzz"]
Documents = dict[str, Any]  # in order of addition: what an id stands for


class Collection:
    """The documents that may be added, and how an index of some is built: encodings of rows, or texts."""

    def __init__(self, contents: list[Any], encodings: Path | None, engine: tuple[str, ...] = ()) -> None:
        self.contents, self.encodings, self.engine = contents, encodings, engine

    def write(self, documents: Documents, path: Path) -> Path:
        """Write what `moeir index` reads of documents: encodings or a corpus."""
        if self.encodings is not None:
            return write_encodings(self.encodings, path, list(documents.values()), list(documents))
        lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in documents.items()]
        path.with_suffix(".jsonl").write_text("".join(lines), encoding="utf-8")
        return path.with_suffix(".jsonl")

    def build(self, documents: Documents, path: Path) -> Path:
        """A new index of documents."""
        source = self.write(documents, path.with_name(f"{path.name}-source"))
        run_stage(Index(**{"corpus" if self.encodings is None else "encodings": source}, engine=self.engine, output=path))
        return path


def read_files(folder: Path) -> dict[str, bytes]:
    """The bytes of an index without its manifest, which holds times."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != manifests.MANIFEST)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def search(searcher: Searcher, depth: int, fuse: str) -> dict[str, Any]:
    """The hits of every query, expert and of the fused list."""
    fuse = fuse if len(searcher.engines) > 1 else "rrf"
    runs, _ = searcher.search_runs(list(map(str, range(len(QUERIES)))), QUERIES, depth, list(searcher.engines), fuse)
    return {name: [run.hits(query) for query in run.queries] for name, run in runs.items()}


def check_sequence(collection: Collection, seed: int, folder: Path, *, compare_always: bool = False) -> list[str]:
    """Update an index at random and compare; returns what was done."""
    rng, done = random.Random(seed), list[str]()
    documents = {f"d{number}": rng.choice(collection.contents) for number in range(rng.randint(1, 20))}
    index = collection.build(documents, folder / "index0")
    for step in range(1, rng.randint(2, 6)):
        deleted, added, compact = _choose_update(rng, documents, collection, step)
        documents = {name: row for name, row in documents.items() if name not in deleted} | added
        update: dict[str, Any] = {"index": index, "compact": compact, "output": folder / f"index{step}"}
        if added:
            update["add"] = collection.write(added, folder / f"added{step}")
        if deleted:
            update["delete"] = folder / f"deleted{step}.txt"
            update["delete"].write_text("".join(f"{name}\n" for name in deleted), encoding="utf-8")
        run_stage(Index(**update))
        index = folder / f"index{step}"
        done.append(f"{len(deleted)} deleted, {len(added)} added" + ", compact" * compact)
        if compare_always:
            _compare(collection, documents, index, rng, folder / f"rebuilt{step}", compact=compact)
    _compare(collection, documents, index, rng, folder / "rebuilt", compact=False)
    run_stage(Index(index=index, compact=True, output=folder / "compact"))
    assert read_files(folder / "compact") == read_files(folder / "rebuilt")
    return done


def _choose_update(rng: random.Random, documents: Documents, collection: Collection, step: int) -> tuple[list[str], Documents, bool]:
    """The ids to delete, among them those that are replaced, the documents to add, and whether to compact."""
    kind = rng.choice(("add", "delete", "replace", "both", "everything"))
    count = len(documents) if kind == "everything" else rng.randint(1, max(1, len(documents) - 1))
    deleted = [] if kind == "add" else rng.sample(list(documents), count)
    new = {f"n{step}-{number}": rng.choice(collection.contents) for number in range(rng.randint(1, 8))}
    replaced = {name: rng.choice(collection.contents) for name in deleted if rng.random() < 0.7}
    added = {"add": new, "delete": {}, "replace": replaced, "both": new | replaced, "everything": new}[kind]
    added = dict(rng.sample(list(added.items()), len(added)))
    if len(deleted) == len(documents) and not added:
        added = new
    return deleted, added, rng.random() < 0.2


def _compare(collection: Collection, documents: Documents, index: Path, rng: random.Random, path: Path, *, compact: bool) -> None:
    updated, rebuilt = (open_index(one, dtype="float32") for one in (index, collection.build(documents, path)))
    depth, fuse = rng.choice((1, 3, 10, len(documents), 1000)), rng.choice(("came-sum", "exact-sum", "exact-sum:deepen=true"))
    assert updated.ids == rebuilt.ids and search(updated, depth, fuse) == search(rebuilt, depth, fuse)
    some = rng.sample(list(documents), rng.randint(1, len(documents)))
    filtered = search(updated.filter_ids(some), depth, fuse)
    assert filtered == search(rebuilt.filter_ids(some), depth, fuse)
    full = search(rebuilt, len(documents), fuse)
    for name in filtered.keys() - {"fused"}:
        assert filtered[name] == [[hit for hit in hits if hit[0] in set(some)][:depth] for hits in full[name]]
    if compact:
        assert read_files(index) == read_files(path)


def list_seeds(count: int, kinds: list[str]) -> Iterator[tuple[str, int]]:
    """The kind of index and the seed of each of so many sequences."""
    return ((kinds[seed % len(kinds)], seed) for seed in range(count))
