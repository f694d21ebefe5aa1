"""Checks of encodings: values that are not finite, zero vectors and collapsed experts."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from moeir.artifacts import manifests
from moeir.data_checks.findings import Findings
from moeir.representations.base import Representation
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
IDS = [f"d{number}" for number in range(10)]


def findings_rows(findings: Findings) -> list[tuple[str, str, str]]:
    return [(where, group.kind, message) for group in findings.groups for where, message in group.lines]


def check_rows(representation: Representation) -> Findings:
    findings = Findings()
    representation.check_rows(partial(findings.add_row_fault, "enc/global", IDS))
    return findings


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(10, 16)).astype(np.float16)


def test_each_fault_of_a_vector_is_named_with_its_row(vectors: np.ndarray) -> None:
    assert findings_rows(check_rows(Dense(torch.from_numpy(vectors)))) == []
    vectors[3, 2], vectors[4], vectors[5, 0] = np.nan, 0, np.inf
    assert findings_rows(check_rows(Dense(torch.from_numpy(vectors)))) == [
        ("enc/global:4", "not-finite", "text 'd3': 1 of 16 numbers are not finite"),
        ("enc/global:6", "not-finite", "text 'd5': 1 of 16 numbers are not finite"),
        ("enc/global:5", "zero-vector", "text 'd4': has no number other than 0"),
    ]
    assert findings_rows(check_rows(MultiVector(torch.from_numpy(vectors), torch.tensor([0, 3, 3, 10])))) == [
        ("enc/global:2", "zero-vector", "text 'd1': has no number other than 0"),
        ("enc/global:3", "not-finite", "text 'd2': 2 of 112 numbers are not finite"),
    ]


def test_collapse_is_the_mean_cosine_of_all_pairs(vectors: np.ndarray) -> None:
    alike = (np.ones((10, 16)) + 0.05 * vectors).astype(np.float16)
    findings = check_rows(Dense(torch.from_numpy(alike)))
    units = alike.astype(np.float64) / np.linalg.norm(alike.astype(np.float64), axis=1, keepdims=True)
    assert findings_rows(findings) == [("enc/global", "collapsed", f"10 vectors, mean cosine of two {(units @ units.T).mean():.4f}")]


def test_weights_of_terms() -> None:
    weights = torch.tensor([1.0, 2.0, torch.inf, 1.0, 1.0])
    assert findings_rows(check_rows(Sparse(torch.tensor([0, 2, 2, 3, 4, 5]), torch.tensor([1, 5, 2, 2, 8]), weights, 9))) == [
        ("enc/global:2", "no-terms", "text 'd1': has no number other than 0"),
        ("enc/global:3", "not-finite", "text 'd2': 1 of 1 numbers are not finite"),
    ]
    for terms, kinds in ((torch.arange(20) % 2, ["collapsed"]), (torch.arange(20) % 7, [])):
        findings = check_rows(Sparse(torch.arange(0, 22, 2), terms, torch.ones(20), 9))
        assert [kind for _, kind, _ in findings_rows(findings)] == kinds


def test_encodings_are_checked_against_their_corpus(encodings: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    result = moeir("check", "--encodings", encodings, "--corpus", toy / "corpus.jsonl")
    assert result.code == 0, result.stdout
    other = tmp_path / "corpus.jsonl"
    lines = (toy / "corpus.jsonl").read_text().splitlines()
    other.write_text("\n".join([*lines[1:], '{"_id": "yak", "text": "A yak."}']) + "\n")
    result = moeir("check", "--encodings", encodings, "--corpus", other)
    assert result.code == 3 and "unknown-document, 1" in result.stdout and "missing-document, 1" in result.stdout
    assert f"    {encodings}/ids.txt:1: 'owl' is not in the corpus\n" in result.stdout
    assert f"    {encodings}/ids.txt: 'yak' of the corpus is not encoded\n" in result.stdout


def test_broken_encodings_are_found_though_their_manifest_agrees(encodings: Path, tmp_path: Path, moeir: Moeir) -> None:
    broken = tmp_path / "enc"
    shutil.copytree(encodings, broken)
    vectors = np.load(broken / "global" / "vectors.npy")
    vectors[2] = np.nan
    np.save(broken / "global" / "vectors.npy", vectors)
    manifest = json.loads((broken / "manifest.json").read_text())
    file = broken / "global" / "vectors.npy"
    manifest["files"]["global/vectors.npy"] = {"bytes": file.stat().st_size, "sha256": manifests.compute_sha256(file)}
    (broken / "manifest.json").write_text(manifests.serialize_manifest(manifest), encoding="utf-8")
    result = moeir("check", "--encodings", broken)
    assert result.code == 3 and f"{broken}/global: not-finite, 1: " in result.stdout
    assert f"    {broken}/global:3: text 'bee': 32 of 32 numbers" in result.stdout
