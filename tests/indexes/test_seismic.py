"""Seismic; without its package, a one-line error."""

import importlib.util
import os

import numpy as np
import pytest
import torch

from moeir.errors import ArtifactError, UsageError
from moeir.indexes.base import read_settings
from moeir.indexes.inverted import Inverted
from moeir.indexes.seismic import Seismic, stdout_to_stderr
from moeir.representations.sparse import Sparse

IS_INSTALLED = importlib.util.find_spec("seismic") is not None
needs_seismic = pytest.mark.skipif(not IS_INSTALLED, reason="the extra `seismic` (pyseismic-lsr) is not installed")


def random_sparse(count, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(count, 60, generator=generator) * torch.rand(count, 60, generator=generator)
    return Sparse.from_matrix(torch.where(matrix > 0.3, matrix, torch.zeros(())))


@pytest.mark.skipif(IS_INSTALLED, reason="the extra `seismic` is installed")
def test_without_the_package_one_line_names_the_command():
    with pytest.raises(UsageError, match=r"seismic: the package pyseismic-lsr is not installed; pip install 'moeir\[seismic\]'"):
        Seismic()


@pytest.mark.parametrize("options", [{"postings": 0}, {"query_terms": 0}, {"caution": 0.0}, {"caution": 1.5}])
def test_wrong_options_are_refused(options):
    with pytest.raises(UsageError, match="postings and query_terms must be at least 1, caution above 0 and at most 1"):
        Seismic(**options)


def test_what_a_library_prints_goes_to_stderr_and_stdout_is_stdout_again(capfd):
    open_before = len(os.listdir("/dev/fd"))
    with stdout_to_stderr():
        os.write(1, b"building\n")
    os.write(1, b"data\n")
    assert capfd.readouterr() == ("data\n", "building\n")
    with pytest.raises(KeyError), stdout_to_stderr():
        raise KeyError
    os.write(1, b"more\n")
    assert capfd.readouterr() == ("more\n", "") and len(os.listdir("/dev/fd")) == open_before


@needs_seismic
def test_it_finds_nearly_what_inverted_finds(tmp_path):
    documents, queries, results = random_sparse(500, 0), random_sparse(6, 1), {}
    for name, index in (("ours", Inverted()), ("theirs", Seismic(query_terms=60, caution=0.5))):
        index.add(documents.select(torch.arange(200)))
        index.add(documents.select(torch.arange(200, 500)))
        first = index.search(queries, 10)
        index.save(tmp_path / name)
        results[name] = type(index).open(tmp_path / name).search(queries, 10)
        assert [array.tobytes() for array in first] == [array.tobytes() for array in results[name]]
    shared = [len(np.intersect1d(mine, other)) for mine, other in zip(results["ours"][0], results["theirs"][0], strict=True)]
    assert np.mean(shared) >= 9
    assert not read_settings(tmp_path / "theirs")["exact"]
    with pytest.raises(ArtifactError, match="takes no more documents"):
        Seismic.open(tmp_path / "theirs").add(documents)
    with pytest.raises(ArtifactError, match="vocabulary of 7"):
        Seismic.open(tmp_path / "theirs").search(Sparse(torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int64), torch.zeros(0), 7), 1)
