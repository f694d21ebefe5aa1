"""Checkpoints in other libraries' layouts: their files, and the numbers the libraries compute from them."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moeir as package
from tests.conftest import CommandResult, run_moeir

Moeir = Callable[..., CommandResult]
TEXTS = ["who hunts mice at night", "an owl hunts mice, and bats", "ants"]
MARKED = "colbert:dim=16,normalise=true,markers=true,punctuation=false"
ARCHS = {
    "dense": "dense:pooling=mean,normalise=true",
    "splade": "splade",
    "colbert": f"{MARKED},augmentation=true",
    "bare": f"{MARKED},augmentation=false",
}
needs_peer = pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is None, reason="needs sentence-transformers")


@pytest.fixture(scope="module")
def layouts_folder(tmp_path_factory: pytest.TempPathFactory, tiny_model_with_head: Path) -> Path:
    """A checkpoint of each kind, and its layout."""
    folder = tmp_path_factory.mktemp("layouts")
    for name, arch in ARCHS.items():
        rules = ("--query-length", 16 if "colbert" in arch else 24, "--document-length", 24)
        rules += ("--query-prefix", "owl: ") if name == "dense" else ()
        run_moeir("init", "--model", tiny_model_with_head, "--arch", arch, *rules, "--output", folder / name)
        if not arch.startswith("dense"):
            layout = "pylate" if "colbert" in arch else "sentence-transformers"
            run_moeir("convert", "--input", folder / name, "--to", layout, "--output", folder / f"{name}-out")
    return folder


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


@needs_peer
@pytest.mark.parametrize("name", ["splade", "colbert", "bare"])
def test_sentence_transformers_computes_our_weights_and_vectors(name: str, layouts_folder: Path) -> None:
    import sentence_transformers

    kind = sentence_transformers.SparseEncoder if name == "splade" else sentence_transformers.MultiVectorEncoder
    peer, opened = kind(str(layouts_folder / f"{name}-out"), device="cpu"), package.open_checkpoint(layouts_folder / name)
    for side, encode in (("query", peer.encode_query), ("document", peer.encode_document)):
        ours: Any = next(iter(opened.encode(TEXTS, side).values()))
        if name == "splade":
            assert torch.allclose(encode(TEXTS).to_dense().cpu(), ours.to_matrix(), atol=1e-5)
            continue
        for row, vectors in enumerate(encode(TEXTS)):
            expected = ours.vectors[int(ours.starts[row]) : int(ours.starts[row + 1])].numpy()
            assert np.allclose(np.asarray(vectors), expected, atol=1e-4), (side, row)


def test_a_damaged_checkpoint_is_not_converted(layouts_folder: Path, tmp_path: Path, moeir: Moeir) -> None:
    folder = shutil.copytree(layouts_folder / "splade", tmp_path / "splade")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    result = moeir("convert", "--input", folder, "--to", "sentence-transformers", "--output", tmp_path / "out")
    assert result.code == 4 and f"{folder / 'model.safetensors'}: damaged" in result.stderr and not (tmp_path / "out").exists()


def test_a_cross_encoder_opens_elsewhere_as_it_is(tiny_model: Path, tmp_path: Path, moeir: Moeir) -> None:
    folder = tmp_path / "ckpt"
    assert moeir("init", "--model", tiny_model, "--arch", "cross-encoder", "--output", folder).code == 0
    result = moeir("convert", "--input", folder, "--to", "sentence-transformers", "--output", tmp_path / "out")
    peers = "AutoModelForSequenceClassification of transformers and CrossEncoder of sentence-transformers"
    message = f"--to sentence-transformers: not for a cross-encoder: {peers} open it as it is"
    assert result == (2, "", f"error: {message}\n")
    library = pytest.importorskip("sentence_transformers")
    assert library.CrossEncoder(str(folder), device="cpu").predict([("who hunts", "an owl")]).shape == (1,)


REFUSED = [
    ("came", "sentence-transformers", "supports splade and dense; its layout cannot hold the experts of came"),
    ("dense", "pylate", "SentenceTransformer opens one with a single encoder as it is"),
    ("dense:encoders=separate", "sentence-transformers", "encoders=separate is not supported there"),
    ("cross-encoder:head=linear", "sentence-transformers", "one with head=hf as it is, and none with head=linear"),
    ("came", "pylate", "supports colbert; its layout cannot hold the experts of came"),
    ("colbert", "pylate", "normalise=false is not supported there; it computes with normalise=true"),
    ("dense", "checkpoint", "moeir init --model FOLDER --arch … makes a checkpoint"),
]


@pytest.mark.parametrize(("arch", "target", "words"), REFUSED)
def test_what_a_layout_has_no_place_for_is_refused(
    arch: str, target: str, words: str, tiny_model_with_head: Path, tmp_path: Path, moeir: Moeir
) -> None:
    arch += ":shared_layers=2" if arch == "came" else ""
    lengths = ("--query-length", 16, "--document-length", 24)
    assert moeir("init", "--model", tiny_model_with_head, "--arch", arch, *lengths, "--output", tmp_path / "ckpt").code == 0
    result = moeir("convert", "--input", tmp_path / "ckpt", "--to", target, "--output", tmp_path / "out")
    assert result.code == 2 and words in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "ckpt" / "modules.json").exists() == (arch == "dense"), "only one encoder is such a layout as it is"


def test_our_reader_of_sentence_transformers_reads_a_dense_checkpoint_back(layouts_folder: Path, tmp_path: Path, moeir: Moeir) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(layouts_folder / "dense", plain, ignore=shutil.ignore_patterns("moeir.json", "manifest.json", "settings.yaml"))
    facts = read_json(plain / "config_sentence_transformers.json")
    assert facts["prompts"] == {"query": "owl: ", "document": ""} and facts["similarity_fn_name"] == "cosine"
    listed = read_json(layouts_folder / "dense/manifest.json")["files"]
    assert {"modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"} <= listed.keys()
    assert moeir("init", "--model", plain, "--arch", "dense", "--output", tmp_path / "again").code == 0
    again, before = (package.open_checkpoint(folder) for folder in (tmp_path / "again", layouts_folder / "dense"))
    assert (again.spec, again.input_config) == (before.spec, before.input_config)
    for side in ("query", "document"):
        assert torch.equal(again.encode(TEXTS, side)["global"].vectors, before.encode(TEXTS, side)["global"].vectors)


@needs_peer
@pytest.mark.parametrize("arch", ["dense:pooling=mean,normalise=true,dimension=8", "dense:head=true", "dense"])
def test_sentence_transformers_opens_a_dense_checkpoint_as_it_is(
    arch: str, tiny_model_with_head: Path, tmp_path: Path, moeir: Moeir
) -> None:
    from sentence_transformers import SentenceTransformer

    prefixes = ("--query-prefix", "owl: ", "--document-prefix", "bat: ")
    assert moeir("init", "--model", tiny_model_with_head, "--arch", arch, *prefixes, "--output", tmp_path / "ckpt").code == 0
    peer, opened = SentenceTransformer(str(tmp_path / "ckpt"), device="cpu"), package.open_checkpoint(tmp_path / "ckpt")
    for side, encode in (("query", peer.encode_query), ("document", peer.encode_document)):
        theirs = encode(TEXTS, normalize_embeddings="dimension" in arch)  # it cuts vectors that it has normalised
        assert np.allclose(theirs, opened.encode(TEXTS, side)["global"].vectors.numpy(), atol=1e-5)
