"""Arrays of another dtype, shape, length or content under a manifest that matches them are refused when they are opened, never searched."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from moeir import open_encodings, open_index
from moeir.artifacts import manifests
from moeir.errors import ArtifactError
from tests.bad_arrays import Reading, read_all
from tests.conftest import CommandResult

ENGINES = {
    "exact": [],
    "approximate": ["lexical=inverted:quantise=8", "local=plaid:rescore=true,centroids=4", "global=faiss:factory=Flat,rescore=true"],
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
        "approximate": "global/vectors lexical/highest lexical/offsets lexical/weights "
        "local/centroids local/codes local/leading local/residuals local/rotation local/vectors local/words",
        "scan": "global/vectors lexical/terms lexical/weights local/vectors",
        "bm25": "bm25/counts bm25/highest bm25/offsets bm25/weights",
    },
    "maximum raised": {"coil-encodings": "exact/terms", "coil": "exact/terms", "approximate": "local/leading local/residuals"},
    "minimum -1": {"approximate": "lexical/weights local/leading local/residuals", "bm25": "bm25/steps"},
}


@pytest.fixture(scope="module", params=[40, pytest.param(1, marks=pytest.mark.torture)])
def readings(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    moeir: Callable[..., CommandResult],
    toy: Path,
    tiny_model: Path,
    encodings: Path,
    bm25_index: Path,
) -> list[Reading]:
    """Every change of every array of `ARTIFACTS`, read; one in 40 by the whole command, with `make torture` all."""
    folder = tmp_path_factory.mktemp("changed")

    def make(name: str, *arguments: object) -> None:
        result = moeir(*arguments, "--output", folder / name)
        assert result.code == 0, result.stderr

    lengths, corpus = ("--query-length", 16, "--document-length", 32), toy / "corpus.jsonl"
    make("checkpoint", "init", "--model", tiny_model, "--arch", "coil:dim=8,cls_dim=16", *lengths)
    make("coil-encodings", "encode", "--model", folder / "checkpoint", "--corpus", corpus, "--dtype", "float32")
    make("coil", "index", "--encodings", folder / "coil-encodings")
    for name, specs in ENGINES.items():
        available = [spec for spec in specs if "faiss" not in spec or find_spec("faiss") is not None]
        make(name, "index", "--encodings", encodings, *(word for spec in available for word in ("--engine", spec)))
    shutil.copytree(bm25_index, folder / "bm25")
    make("encodings", "encode", "--model", encodings.with_name("came"), "--corpus", corpus, "--dtype", "float32")
    return read_all([folder / name for name in ARTIFACTS], toy / "test-queries.tsv", request.param)


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_every_changed_array_is_refused_by_name(readings: list[Reading], artifact: str) -> None:
    own = [reading for reading in readings if reading.artifact == artifact]
    assert len(own) > 40
    for reading in own:
        if reading.file.removesuffix(".npy") in SOUND.get(reading.change, {}).get(artifact, "").split():
            assert reading.code == 0, reading
            continue
        assert reading.code == 4 and len(reading.errors) == 1, reading
        expert, name = reading.file.split("/")
        assert f"{artifact}/{expert}/" in reading.errors[0] and name in reading.errors[0], reading
        assert "again with --force" in reading.errors[0]


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
