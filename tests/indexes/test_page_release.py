"""Releasing memory-mapped pages while an engine reads them changes neither the index nor the results."""

import filecmp

import numpy as np
import pytest
import torch

from moeir import variants
from moeir.artifacts import memmap
from moeir.representations.base import representation_class
from tests.representations.test_representations import random_texts


@pytest.mark.parametrize(
    ("spec", "kind"),
    [("flat", "dense"), ("inverted", "sparse"), ("maxsim", "multivector")],
)
def test_what_is_built_and_found_is_the_same(spec, kind, tmp_path, monkeypatch):
    documents, queries = (random_texts(kind, count, 3, width=32, vocabulary=100, fewest=0) for count in (300, 20))
    documents.save(tmp_path / "encodings")
    engine = variants.bind_variant("indexes", spec)
    released = []

    def build_and_search(name):
        index = engine()
        index.add(representation_class(kind).open(tmp_path / "encodings"))
        index.save(tmp_path / name)
        opened = type(index).open(tmp_path / name)
        few = [opened.search(queries.select(torch.tensor([row])), 15) for row in range(3)]
        return [part for result in (opened.search(queries, 15), *few) for part in result]

    before = build_and_search("left")
    monkeypatch.setattr(memmap, "MAX_RESIDENT_BYTES", 0)
    monkeypatch.setattr(memmap, "RELEASE_INTERVAL_BYTES", 1)
    monkeypatch.setattr(memmap, "ROW_READ_BYTES", 1)
    read = memmap.note_pages_read
    monkeypatch.setattr(memmap, "note_pages_read", lambda size: released.append(size) or read(size))
    after = build_and_search("given-up")
    assert sum(size > 0 for size in released) > 3
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    names = [path.name for path in (tmp_path / "left").iterdir()]
    assert filecmp.cmpfiles(tmp_path / "left", tmp_path / "given-up", names, shallow=False) == (names, [], [])
