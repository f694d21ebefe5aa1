"""Releasing memory-mapped pages while an engine reads them changes neither the index nor the results."""

import filecmp

import numpy as np
import pytest
import torch

from moeir import variants
from moeir.artifacts import memmap
from moeir.representations.base import representation_class
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse

TEXTS, QUERIES, WIDTH = 300, 20, 32


def random_texts(kind, count, generator):
    """Representations of `count` random texts."""
    if kind == "dense":
        return Dense(torch.randn(count, WIDTH, generator=generator))
    if kind == "sparse":
        return Sparse.from_matrix(torch.relu(torch.randn(count, 100, generator=generator) - 1))
    lengths = torch.randint(1, 9, (count,), generator=generator)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return MultiVector(torch.nn.functional.normalize(torch.randn(int(starts[-1]), WIDTH, generator=generator), dim=1), starts)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [("flat", "dense"), ("inverted", "sparse"), ("inverted:quantise=8", "sparse"), ("maxsim", "multivector")],
)
def test_what_is_built_and_found_is_the_same(spec, kind, tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    random_texts(kind, TEXTS, generator).save(tmp_path / "encodings")
    queries, engine = random_texts(kind, QUERIES, generator), variants.bind_variant("indexes", spec)
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
