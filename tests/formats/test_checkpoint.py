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
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import moeir as package
from moeir.architectures.initialize import build_checkpoint
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


@torch.no_grad()
def test_transformers_reads_the_weights(layouts_folder: Path) -> None:
    opened, out = package.open_checkpoint(layouts_folder / "dense"), layouts_folder / "dense"
    model, tokenizer = AutoModel.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    states = model(**tokenizer(["owl: " + TEXTS[0]], return_tensors="pt")).last_hidden_state[0]
    mean = torch.nn.functional.normalize(states.mean(0), dim=0)
    assert torch.allclose(mean, opened.encode(TEXTS[:1], "query")["global"].vectors[0], atol=1e-5)
    opened, out = package.open_checkpoint(layouts_folder / "splade"), layouts_folder / "splade-out"
    logits = AutoModelForMaskedLM.from_pretrained(out).eval()(**tokenizer(TEXTS[:1], return_tensors="pt")).logits[0]
    lexical: Any = opened.encode(TEXTS[:1])["lexical"]
    assert torch.allclose(torch.log1p(logits.relu()).amax(0), lexical.to_matrix()[0], atol=1e-5)


@needs_peer
def test_its_sparse_encoder_comes_to_our_weights(layouts_folder: Path) -> None:
    from sentence_transformers import SparseEncoder

    peer, opened = SparseEncoder(str(layouts_folder / "splade-out"), device="cpu"), package.open_checkpoint(layouts_folder / "splade")
    lexical: Any = opened.encode(TEXTS)["lexical"]
    assert torch.allclose(peer.encode_document(TEXTS).to_dense().cpu(), lexical.to_matrix(), atol=1e-5)


@needs_peer
@pytest.mark.parametrize("name", ["colbert", "bare"])
def test_its_multi_vector_encoder_comes_to_our_vectors(name: str, layouts_folder: Path) -> None:
    from sentence_transformers import MultiVectorEncoder

    peer, opened = MultiVectorEncoder(str(layouts_folder / f"{name}-out"), device="cpu"), package.open_checkpoint(layouts_folder / name)
    for side, encode in (("query", peer.encode_query), ("document", peer.encode_document)):
        local: Any = opened.encode(TEXTS, side)["local"]
        for row, vectors in enumerate(encode(TEXTS)):
            expected = local.vectors[int(local.starts[row]) : int(local.starts[row + 1])].numpy()
            assert np.allclose(np.asarray(vectors), expected, atol=1e-4), (side, row)


def write_multi_vector_layout(pylate: Path, folder: Path) -> None:
    """A folder of PyLate as sentence-transformers 6.2 saves it again: settings in modules, markers in prompts."""
    shutil.copytree(pylate, folder)
    (folder / "manifest.json").unlink()
    facts, package = read_json(pylate / "config_sentence_transformers.json"), "sentence_transformers"
    kinds = {
        "": f"{package}.base.modules.transformer.Transformer",
        "1_Dense": f"{package}.base.modules.dense.Dense",
        "2_MultiVectorMask": f"{package}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
        "3_Normalize": f"{package}.base.modules.normalize.Normalize",
    }
    states = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    expansion = {"strategy": "fixed", "attend": False, "token": None, "length": facts["query_length"]}
    queries = {"query_expansion": expansion} if facts["do_query_expansion"] else {"query_length": facts["query_length"]}
    for name, content in {
        "modules.json": [{"idx": number, "name": str(number), "path": path, "type": kinds[path]} for number, path in enumerate(kinds)],
        "1_Dense/config.json": read_json(pylate / "1_Dense/config.json") | states,
        "2_MultiVectorMask/config.json": {
            "skiplist_words": facts["skiplist_words"], "skiplist_tasks": ["document"], "keep_only_token_ids": None,
        },
        "3_Normalize/config.json": states,
        "sentence_bert_config.json": {"document_length": facts["document_length"], "module_output_name": "token_embeddings", **queries},
        "config_sentence_transformers.json": {
            "model_type": "MultiVectorEncoder", "similarity_fn_name": None,
            "prompts": {side: facts[f"{side}_prefix"] for side in ("query", "document")},
        },
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["colbert", "bare"])
def test_a_late_interaction_model_is_the_same_in_the_layout_of_sentence_transformers_6(
    name: str, layouts_folder: Path, tmp_path: Path
) -> None:
    write_multi_vector_layout(layouts_folder / f"{name}-out", tmp_path / "folder")
    again, pylate = (build_checkpoint(folder, "colbert", {}) for folder in (tmp_path / "folder", layouts_folder / f"{name}-out"))
    assert (again.spec, again.input_config) == (pylate.spec, pylate.input_config)
    before = package.open_checkpoint(layouts_folder / name)
    for side in ("query", "document"):
        ours, theirs = (one.encode(TEXTS, side)["local"].columns() for one in (again, before))
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)


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
