"""What a step and a window of texts cost a GPU, counted at the depth of BERT-base: no more operations, waits and copies than is promised.

Texts, vocabulary and steps are fewer and widths smaller here than in `tests/benchmarks/device_costs.py`, whose counts these are.
"""

import dataclasses

import pytest
import torch
import transformers

from moeir.stages import encode
from tests.benchmarks import device_costs
from tests.device import fake_torch_cuda
from tests.device.fused_regions import compile_for_counts
from tests.device.operation_counts import BLOCKING, LAUNCH, SYNC

COMPILED = (500, 2)  # of a training step of `dense` as CUDA clips gradients, with each compiled region counted as one launch
CEILINGS = {  # launches, waits of the host; nothing is copied to the device while the host waits
    "dense": (2000, 2),
    "came": (4200, 3),
    "came, adapters": (2300, 3),
    "splade max": (3300, 3),
    "taser token": (4000, 4),
    "encode came": (430, 3),
    "encode dense": (180, 3),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Texts, examples and weights."""
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        changes = {"hidden": 32, "intermediate": 64, "vocabulary": 3000, "document_words": (4, 20), "query_words": (4, 8)}
        sizes = {"SIZES": dataclasses.replace(device_costs.SIZES, **changes), "QUERIES": 2, "NEGATIVES": 1, "WINDOW": 8}
        for name, value in (sizes | {"STEPS": 2, "MEASURED": 1}).items():
            patch.setattr(device_costs, name, value)
        patch.setattr(encode, "CHUNK", 8)
        device_costs.write_texts(folder)
        yield folder


@pytest.mark.parametrize("name", CEILINGS)
def test_it_costs_no_more_than_is_promised(name, work, machine):
    fake_torch_cuda.offer_foreach(machine, False)  # as the promises were counted: gradients are clipped tensor by tensor
    launches, syncs = CEILINGS[name]
    counts = device_costs.measure_row(machine, work, name, "--log-every", "1")
    assert 100 < counts.launches <= launches and counts.syncs <= syncs, counts.source_lines(SYNC)
    assert not counts.blocking, counts.source_lines(BLOCKING)


def test_a_compiled_step_costs_no_more_than_is_promised(work, machine, monkeypatch):
    monkeypatch.setattr(torch, "compile", compile_for_counts)
    counts = device_costs.measure_row(machine, work, "dense", "--log-every", "1", "--compile")
    launches, syncs = COMPILED
    assert 200 < counts.launches <= launches and counts.syncs <= syncs, counts.source_lines(SYNC)
    regions = {name: counts.count(LAUNCH, name) for name in ("_project", "_project backward", "transform", "transform backward")}
    assert set(regions.values()) == {24}, "a region for each of 12 layers, for queries and for documents"
