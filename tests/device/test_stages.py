"""What is done with a checkpoint, on the device: the encodings, runs, queries and analyses of the CPU."""

import json
import re

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.records import runs
from moeir.representations.base import representation_class
from moeir.stages import encode as encoding
from tests.conftest import run_in_process
from tests.device.test_finetune import CAME, COLBERT, modernbert  # noqa: F401 - a fixture

SEARCH = ("search", "--dtype", "float32")  # as the documents
LENGTHS = ("--query-length", 12, "--document-length", 24)
ARCHITECTURES = [
    CAME, COLBERT, "coil:dim=8,cls_dim=16", "mote:similarity=sparse",
    "taser:routing=token,gates=per_layer,every=1", "sbmoe:experts=3,inference=all", "bge-m3:fresh_heads=true",
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_model_with_head):
    """`checkpoint(arch)`: one that has learned nothing."""
    root = tmp_path_factory.mktemp("checkpoints")

    def build(arch, weights=tiny_model_with_head):
        folder = root / re.sub(r"\W", "-", f"{weights.name}-{arch}")
        if not folder.exists():
            result = run_in_process("init", "--model", weights, "--arch", arch, *LENGTHS, "--output", folder)
            assert result.code == 0, result.stderr
        return folder

    return build


@pytest.fixture
def run(moeir_on):
    """A stage that ends well, on the device unless `on` names another; what it has written to stdout."""

    def run_stage(*arguments, **where):
        result = moeir_on(*arguments, **where)
        assert result.code == 0, result.stderr
        return result.stdout

    return run_stage


@pytest.fixture
def both(run, tmp_path):
    """`both(name, …)`: what a stage makes on the device, and what on the CPU."""

    def run_both(name, *arguments):
        paths = [tmp_path / f"{on}-{name}" for on in ("cuda", "cpu")]
        for on, path in zip(("cuda", "cpu"), paths, strict=True):
            run(*arguments, "--output", path, on=on)
        return paths

    return run_both


def tensors(folder):
    """expert -> its numbers as arrays; of sparse vectors all terms of all texts."""
    arrays = {}
    for name, kind in json.loads((folder / "manifest.json").read_text())["counts"]["experts"].items():
        representation = representation_class(kind).open(folder / name)
        columns = (
            {"weights": representation.to_matrix()}
            if kind == "sparse"
            else representation.columns() | {"starts": representation.text_starts()}
        )
        arrays |= {f"{name}.{column}": value.float().numpy() for column, value in columns.items() if value is not None}
    return arrays


def close(folder, other, *, share, most=0.0):
    """Encodings of which at most a ratio `most` of the numbers are apart by more than a share of the largest of their kind, and of
    themselves."""
    one, two = tensors(folder), tensors(other)
    assert one.keys() == two.keys() and one
    for name, value in one.items():
        assert value.shape == two[name].shape and np.isfinite(value).all()
        expected = np.abs(two[name])
        assert (np.abs(value - two[name]) > share * (expected + expected.max())).mean() <= most, name


def same(output, other):
    """Runs, one or a folder of them, with the same documents of every query, and the same scores, which are their order."""
    names = [path.name for path in sorted(other.glob("*.trec"))] if other.is_dir() else [""]
    assert names
    for name in names:
        one, two = runs.read_run(output / name), runs.read_run(other / name)
        assert one.queries == two.queries and len(one.scores) == len(two.scores) > 0
        for query in two.queries:
            assert dict(one.hits(query)) == pytest.approx(dict(two.hits(query)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("arch, weights", [*((arch, "tiny_model_with_head") for arch in ARCHITECTURES), (CAME, "modernbert")])
def test_texts_are_encoded_and_found_as_on_the_cpu(arch, weights, both, checkpoint, shop, tmp_path, monkeypatch, request):
    monkeypatch.setattr(encoding, "CHUNK", 16)  # two windows
    model = checkpoint(arch, request.getfixturevalue(weights))
    command = ("encode", "--model", model, "--corpus", shop / "documents.tsv", "--max-tokens", 100)
    folders = both("enc", *command, "--dtype", "float32")
    close(*folders, share=1e-3)
    close(*both("half", *command, "--dtype", "bfloat16"), share=0.05, most=0.01)  # a router may choose otherwise
    assert run_in_process("index", "--encodings", folders[1], "--output", tmp_path / "idx").code == 0
    same(*both("runs", *SEARCH, "--index", tmp_path / "idx", "--queries", shop / "queries.tsv", "--depth", 8, "--batch-size", 7))


def test_a_killed_encoding_goes_on_to_the_same_bytes(moeir_on, checkpoint, shop, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 4)
    monkeypatch.setattr("moeir.representations.encodings.FLUSH_SECONDS", 0.0)
    command = ("encode", "--model", checkpoint(CAME), "--corpus", shop / "documents.tsv", "--output")
    assert moeir_on(*command, tmp_path / "whole").code == 0
    plain, windows = encoding._write_window, []

    def fail(growing, ids, truncated, copied):
        windows.append(ids[0])
        if len(windows) == 4:
            raise DataError("gone")
        plain(growing, ids, truncated, copied)

    monkeypatch.setattr(encoding, "_write_window", fail)
    assert "gone" in moeir_on(*command, tmp_path / "killed").stderr
    windows.append("again")
    assert moeir_on(*command, tmp_path / "killed").code == 0
    assert windows[4:6] == ["again", "d8"]  # what came to disk last is encoded again
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.npy")]
    assert names and all((tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)


@pytest.fixture(scope="module")
def came(checkpoint, shop, tmp_path_factory):
    """A checkpoint of three experts and its encodings of the documents."""
    model, encodings = checkpoint(CAME), tmp_path_factory.mktemp("came") / "enc"
    options = ("--model", model, "--corpus", shop / "documents.tsv", "--dtype", "float32", "--device", "cpu")
    assert run_in_process("encode", *options, "--output", encodings).code == 0
    return model, encodings


@pytest.mark.parametrize("engine", ["lexical=inverted", "global=faiss:factory=SQ8,rescore=true"])
def test_an_engine_of_the_processor_answers_queries_of_the_device(engine, came, both, shop, tmp_path):
    if "faiss" in engine:
        pytest.importorskip("faiss")
    result = run_in_process("index", "--encodings", came[1], "--engine", engine, "--output", tmp_path / "idx")
    assert result.code == 0, result.stderr
    same(*both("runs", *SEARCH, "--index", tmp_path / "idx", "--queries", shop / "queries.tsv", "--depth", 6))


@pytest.fixture(scope="module")
def exact(came, tmp_path_factory):
    """The exact index of each expert."""
    path = tmp_path_factory.mktemp("index") / "idx"
    assert run_in_process("index", "--encodings", came[1], "--output", path).code == 0
    return path


@pytest.mark.parametrize("fuse", ["came-sum", "exact-sum"])
def test_experts_are_fused_and_explained_as_on_the_cpu(fuse, exact, run, shop, tmp_path):
    texts = ("--queries", shop / "queries.tsv", "--corpus", shop / "documents.tsv")
    command = (*SEARCH, "--index", exact, *texts, "--depth", 5, "--fuse", fuse)
    explanations = []
    for on in ("cuda", "cpu"):
        run(*command, "--explain", tmp_path / f"{on}.jsonl", "--output", tmp_path / f"{on}.trec", on=on)
        explanations.append([json.loads(line) for line in (tmp_path / f"{on}.jsonl").read_text().splitlines()])
    same(tmp_path / "cuda.trec", tmp_path / "cpu.trec")
    assert explanations[0] and numbers_apart(*explanations) < 1e-3


def numbers_apart(one, other):
    """The largest difference of two numbers at the same place of two objects, of which everything else is the same."""
    if isinstance(one, float):
        return abs(one - other) / max(1.0, abs(other))
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max((numbers_apart(value, other[name]) for name, value in one.items()), default=0.0)
    if isinstance(one, list):
        return max((numbers_apart(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    assert one == other
    return 0.0


@pytest.mark.parametrize("arch, options", [
    ("cross-encoder", ("--depth", 5, "--max-tokens", 60)),
    ("cross-encoder", ("--model", "OTHER", "--ensemble", "mean")),
    (CAME, ()),
    ("coil:dim=8,cls_dim=16", ()),
], ids=str)  # fmt: skip
def test_texts_are_reranked_as_on_the_cpu_and_in_half_precision(arch, options, both, run, checkpoint, shop, tmp_path):
    other, half = checkpoint("cross-encoder:head=linear,fields=text"), tmp_path / "half.trec"
    texts = ("--run", shop / "dev.trec", "--queries", shop / "queries.tsv", "--corpus", shop / "documents.tsv")
    command = ("rerank", "--model", checkpoint(arch), *texts, *(other if option == "OTHER" else option for option in options))
    results = both("out.trec", *command, "--dtype", "float32")
    same(*results)
    run(*command, "--dtype", "bfloat16", "--output", half)
    assert len(runs.read_run(half).scores) == len(runs.read_run(results[1]).scores) > 0


def test_queries_are_written_on_both(both, t5_model, toy, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join((toy / "corpus.jsonl").read_text().splitlines(keepends=True)[:3]))
    arguments = ("--model", t5_model, "--corpus", corpus, "--max-output", 4, "--dtype", "float32", "--max-tokens", 60)
    one, two = both("queries.jsonl", "generate-queries", *arguments)
    assert len(one.read_text().splitlines()) == len(two.read_text().splitlines()) == 3


@pytest.mark.parametrize("arch, options", [("taser:routing=sequence,experts=3,every=1", ("--max-tokens", 60)), ("sbmoe:experts=3", ())])
def test_an_analysis_is_that_of_the_cpu(arch, options, run, checkpoint, shop):
    texts = ("--queries", shop / "queries.tsv", "--corpus", shop / "documents.tsv")
    command = ("analyze", "usage", "--model", checkpoint(arch), *texts, *options, "--form", "jsonl")
    actual, expected = ([json.loads(line) for line in run(*command, "--dtype", "float32", on=on).splitlines()] for on in ("cuda", "cpu"))
    assert actual and numbers_apart(actual, expected) < 1e-3
    run(*command, "--dtype", "bfloat16")
