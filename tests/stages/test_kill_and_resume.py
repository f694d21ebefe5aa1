"""Index and search killed at a disk event and run again: the bytes of an undisturbed run, and no partial output under the final name."""

from pathlib import Path

import pytest

from moeir.artifacts import manifests
from tests.conftest import run_in_process
from tests.kill_points import each_disk_call, kill_command

ENGINES = {
    "exact": ("lexical=inverted", "local=maxsim", "global=flat"),
    "approximate": ("lexical=inverted:quantise=8", "local=plaid:rescore=true,centroids=4", "global=faiss:factory=Flat,rescore=true"),
}


def read_files(product: Path) -> dict[str, bytes]:
    """The bytes of a product without its manifest, which holds times."""
    paths = [path for path in product.rglob("*") if path.is_file()] if product.is_dir() else [product]
    return {str(path.relative_to(product)): path.read_bytes() for path in paths if path.name != manifests.MANIFEST}


def assert_resume_is_identical(folder: Path, every: int, suffix: str, *arguments: object) -> int:
    """Kill, check, run again and compare; returns the number of kills."""
    whole = folder / f"whole{suffix}"
    assert run_in_process(*arguments, "--output", whole).code == 0
    products = kill_command(folder / "killed", every, *arguments, suffix=suffix)
    for product in products:
        finished = product.exists()  # killed after the last rename: the output is complete
        assert not finished or read_files(product) == read_files(whole)
        result = run_in_process(*arguments, "--output", product)
        assert result.code == 0 and ("already made" in result.stderr) == finished, result.stderr
        assert read_files(product) == read_files(whole), product
        assert finished or not list(product.parent.glob(f".{product.name}.*"))
    return len(products)


@pytest.mark.parametrize("engines", ENGINES)
@each_disk_call(4, sample=20)
def test_an_index_killed_and_made_again_has_the_same_bytes(encodings: Path, tmp_path: Path, engines: str, every: int) -> None:
    if engines == "approximate":
        pytest.importorskip("faiss", reason="needs faiss (moeir[cpu])")
    specs = (word for spec in ENGINES[engines] for word in ("--engine", spec))
    assert assert_resume_is_identical(tmp_path, every, "", "index", "--encodings", encodings, *specs) > 1


@each_disk_call(3, sample=14)
def test_a_bm25_index_killed_and_made_again_has_the_same_bytes(toy: Path, tmp_path: Path, every: int) -> None:
    assert assert_resume_is_identical(tmp_path, every, "", "index", "--corpus", toy / "corpus.jsonl", "--engine", "bm25") > 1


@pytest.mark.parametrize("suffix", ["", ".trec"])
@each_disk_call(1, sample=5)
def test_a_search_killed_and_run_again_gives_the_same_runs(index: Path, toy: Path, tmp_path: Path, suffix: str, every: int) -> None:
    command = ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 5)
    assert assert_resume_is_identical(tmp_path, every, suffix, *command) > 1


@each_disk_call(5, sample=20)
def test_an_index_replaced_by_force_is_whole_at_any_moment(encodings: Path, index: Path, tmp_path: Path, every: int) -> None:
    command = ("index", "--encodings", encodings, "--force")
    products = kill_command(tmp_path / "killed", every, *command)
    assert len(products) > 1
    for product in products:
        assert manifests.verify_artifact(product, "index") and read_files(product) == read_files(index)
        assert run_in_process(*command, "--output", product).code == 0
        assert read_files(product) == read_files(index) and not list(product.parent.glob(f".{product.name}.*"))
