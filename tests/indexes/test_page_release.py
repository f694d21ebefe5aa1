"""Releasing memory-mapped pages while an engine reads them changes neither the index nor the results."""

import filecmp

import pytest
import torch

from moeir.artifacts import memmap
from moeir.representations.base import representation_class
from tests.indexes.engine_checks import ENGINES, same_bytes
from tests.representations.test_representations import random_texts


@pytest.mark.parametrize("engine", ["flat", "inverted", "maxsim"])
def test_what_is_built_and_found_is_the_same(engine, tmp_path, monkeypatch):
    kind, released, read = ENGINES[engine].type.kind, [], memmap.note_pages_read
    documents, queries = (random_texts(kind, count, 3, width=32, vocabulary=100, fewest=0) for count in (300, 20))
    documents.save(tmp_path / "encodings")

    def build_and_search(name):
        index = ENGINES[engine].type()
        index.add(representation_class(kind).open(tmp_path / "encodings"))
        index.save(tmp_path / name)
        opened = type(index).open(tmp_path / name)
        batches = [queries, *(queries.select(torch.tensor([row])) for row in range(3))]
        return [part for batch in batches for part in opened.search(batch, 15)]

    before = build_and_search("left")
    for limit, value in {"MAX_RESIDENT_BYTES": 0, "RELEASE_INTERVAL_BYTES": 1, "ROW_READ_BYTES": 1}.items():
        monkeypatch.setattr(memmap, limit, value)
    monkeypatch.setattr(memmap, "note_pages_read", lambda size: released.append(size) or read(size))
    assert same_bytes(build_and_search("given-up"), before)
    assert sum(size > 0 for size in released) > 3
    names = [path.name for path in (tmp_path / "left").iterdir()]
    assert filecmp.cmpfiles(tmp_path / "left", tmp_path / "given-up", names, shallow=False) == (names, [], [])
