"""Weights for all tests of training."""

from pathlib import Path

import pytest

from tests.conftest import write_tiny_bert


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with an MLM head, and two layers: for trainings whose depth is not the point."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "two-layers", head=True, layers=2)
