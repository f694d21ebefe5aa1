"""Engines on the device find the bytes of the CPU, also where their vectors do not fit on it: what tests/indexes skips without a card."""

import pytest

from tests.indexes import test_exact_engines


@pytest.mark.parametrize("available", [None, 3000], ids=["vectors on the device", "vectors on the host"])
@pytest.mark.parametrize("engine", test_exact_engines.TWO_STEP)
def test_the_device_and_the_cpu_give_the_same_bytes(engine, available, tmp_path, monkeypatch):
    test_exact_engines.test_cuda_and_cpu_give_the_same_bytes(engine, tmp_path, monkeypatch, available)
