"""A changed or missing byte of any file is refused, and so are other arrays under a manifest that matches them: never searched."""

import io
import itertools
import json
import random
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeir import open_encodings, open_index
from moeir.artifacts import manifests
from moeir.errors import ArtifactError
from tests.conftest import run_moeir
from tests.fuzz_artifacts import changed_file, read_encodings, read_index

ENGINES = {
    "exact": [],
    "approximate": ["global=faiss:factory=Flat,rescore=true"],
    "scan": ["lexical=scan", "local=scan", "global=scan"],
}
ARTIFACTS = ("encodings", "coil-encodings", "coil", *ENGINES, "bm25")
# What leaves an array as sound as another: numbers in range in another order, any value of a byte, any term where the vocabulary
# is unknown, the largest step at the head of a list.
SOUND = {
    "reversed": {
        "encodings": "global/vectors lexical/terms lexical/weights local/vectors",
        "coil-encodings": "exact/terms exact/vectors global/vectors",
        "coil": "exact/vectors global/vectors",
        "exact": "global/vectors lexical/highest lexical/offsets lexical/weights local/vectors",
        "approximate": "global/vectors",
        "scan": "global/vectors lexical/terms lexical/weights local/vectors",
        "bm25": "bm25/highest bm25/offsets bm25/weights",
    },
    "maximum raised": {"coil-encodings": "exact/terms", "coil": "exact/terms"},
    "minimum -1": {"bm25": "bm25/steps"},
}


def _set_first(array: np.ndarray, position: int, value: Any) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[position] = value
    return changed


def _is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu"


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float64": lambda array: array.astype(np.float64),
    "int8": lambda array: array.astype(np.int8),
    "other sign": lambda array: array.astype(f"{'i' if array.dtype.kind == 'u' else 'u'}{array.itemsize}"),
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "row short": lambda array: array[:-1],
    "row long": lambda array: np.concatenate([array, array[-1:]]),
    "empty": lambda array: array[:0],
    "dimension more": lambda array: array[..., None],
    "no dimension": lambda array: array.reshape(-1)[0],
    "columns first": np.asfortranarray,
    "reversed": lambda array: array[::-1],
    "maximum raised": lambda array: _set_first(array, array.argmax(), np.iinfo(array.dtype).max) if _is_whole(array) else array,
    "minimum -1": lambda array: _set_first(array, array.argmin(), np.array(-1).astype(array.dtype)) if _is_whole(array) else array,
}


def change_array(file: Path, change: str) -> bytes:
    """The changed array as the bytes of a file."""
    content = io.BytesIO()
    with np.errstate(invalid="ignore"):
        np.lib.format.write_array(content, np.asarray(CHANGES[change](np.load(file))), allow_pickle=False)
    return content.getvalue()


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory, toy: Path, tiny_model: Path, encodings: Path, bm25_index: Path) -> Path:
    """A folder with `ARTIFACTS`."""
    folder = tmp_path_factory.mktemp("changed")
    checkpoint, coil = folder / "checkpoint", folder / "coil-encodings"
    lengths = ("--query-length", 16, "--document-length", 32)
    run_moeir("init", "--model", tiny_model, "--arch", "coil:dim=8,cls_dim=16", *lengths, "--output", checkpoint)
    run_moeir("encode", "--model", checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", coil)
    run_moeir("index", "--encodings", coil, "--output", folder / "coil")
    for name, specs in ENGINES.items():
        available = [spec for spec in specs if "faiss" not in spec or find_spec("faiss") is not None]
        run_moeir("index", "--encodings", encodings, *(f"--engine={spec}" for spec in available), "--output", folder / name)
    shutil.copytree(bm25_index, folder / "bm25")
    shutil.copytree(encodings, folder / "encodings")
    return folder


@pytest.mark.parametrize("name", ARTIFACTS)
def test_every_changed_array_is_refused_by_name(artifacts: Path, name: str) -> None:
    """Of the approximate index those of its own engine; its other engines are those of the exact one."""
    artifact, cases = artifacts / name, 0
    read, work = (read_encodings, read_encodings) if name.endswith("encodings") else (open_index, read_index)
    for file, change in itertools.product(sorted(artifact.glob("global/*.npy" if name == "approximate" else "*/*.npy")), CHANGES):
        content, array = change_array(file, change), str(file.relative_to(artifact).with_suffix(""))
        if content == file.read_bytes():
            continue
        cases += 1
        with changed_file(artifact, file, content):
            if array in SOUND.get(change, {}).get(name, "").split():
                work(artifact)
                continue
            with pytest.raises(ArtifactError, match="again with --force") as refusal:
                read(artifact)
        expert, _, own = array.partition("/")
        assert f"{name}/{expert}/" in str(refusal.value) and own in str(refusal.value), (array, change)
    assert cases > (6 if name == "approximate" else 40)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", ARTIFACTS)
def test_every_damaged_file_is_refused_by_name(artifacts: Path, name: str, every: int) -> None:
    """Two flips and two cuts of each file; the plain run does one in seven."""
    files, generator = sorted(path for path in (artifacts / name).rglob("*") if path.is_file()), random.Random(1)
    for file, damage in list(itertools.product(files, ("flip", "other flip", "empty", "short")))[::every]:
        content = file.read_bytes()
        damaged = bytearray(content[: {"empty": 0, "short": len(content) - 1}.get(damage)])
        if "flip" in damage:
            damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"damaged.* again") as refusal:
            (open_encodings if name.endswith("encodings") else open_index)(artifacts / name)
        assert str(file) in str(refusal.value), damage
        file.write_bytes(content)


def test_ids_of_another_number_are_refused(encodings: Path, index: Path, tmp_path: Path) -> None:
    expected = {
        encodings: "ids.txt: damaged: expected 12 texts by manifest.json, found 11",
        index: "expected 11 documents by ids.txt, found 12",
    }
    for source, read in ((encodings, open_encodings), (index, open_index)):
        copy = tmp_path / source.name
        shutil.copytree(source, copy)
        ids = (copy / "ids.txt").read_text().splitlines(keepends=True)
        (copy / "ids.txt").write_text("".join(ids[1:]))
        facts = json.loads((copy / "manifest.json").read_text())
        facts["files"]["ids.txt"] = manifests.compute_checksums([copy / "ids.txt"])[0]
        (copy / "manifest.json").write_text(manifests.serialize_manifest(facts))
        with pytest.raises(ArtifactError, match=f"{expected[source]}; run .* again with --force"):
            read(copy)
