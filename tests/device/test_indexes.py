"""Engines on the device find the bytes of the CPU, also where their vectors do not fit on it."""

import pytest

from tests.indexes.engine_checks import ENGINES, near_ties, same_bytes


@pytest.mark.parametrize("available", [None, 3000], ids=["vectors on the device", "vectors on the host"])
@pytest.mark.parametrize("engine", ["flat", "maxsim", "exact-match"])
def test_the_device_and_the_cpu_give_the_same_bytes(engine, available, tmp_path, monkeypatch):
    for module in ("two_step", "token_store", "vector_store") if available else ():
        monkeypatch.setattr(f"moeir.indexes.{module}.available_bytes", lambda device: available)
    queries, documents = near_ties(engine, 4, count=100)
    index = ENGINES[engine].type()
    index.add(documents)
    index.save(tmp_path)
    here, there = (ENGINES[engine].type.open(tmp_path, device=on).search(queries, 40) for on in ("cpu", "cuda"))
    assert same_bytes(here, there)
