"""Artifacts and downloaded weights for the fuzzer: one file of a whole folder is mutated, and a manifest is made to match it.

A case is the path of the file in a first line, then its content. The folders are made once in a process, of seeded tiny encoders and
toy texts; each batch of cases works in a copy.
"""

import contextlib
import functools
import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.errors import MoeirError
from moeir.stages.index import Index
from moeir.stages.search import Search
from tests.backbones import tiny_tokenizers as tokenizers
from tests.conftest import BERT_CONFIG, TOY, run_moeir, write_tiny_bert
from tests.tiny_t5 import write_tiny_t5

FOLDER, QUERIES = "artifacts", TOY / "test-queries.tsv"
HEADER = "header.json"  # stands for the header of the model.safetensors beside it, whose length is made right
LARGEST = 20_000  # bytes of a file that is mutated
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "electra": {"embedding_size": 10},
    "distilbert": {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "activation": "gelu"},
    "modernbert": {"local_attention": 6, "hidden_activation": "gelu", "cls_token_id": 2, "sep_token_id": 3},
}
SMALL = {"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
SMALL |= {"max_position_embeddings": 16}
TEXTS = ("An owl hunts, at night.", "who hunts mice?")


class FileSeeds(Sequence[bytes]):
    """Files of `make_artifacts` as cases; they are made when the first is needed."""

    def __init__(self, *patterns: str) -> None:
        self._patterns = patterns

    @functools.cached_property
    def _cases(self) -> list[bytes]:
        files = sorted(path for pattern in self._patterns for path in make_artifacts().glob(pattern))
        chosen = [path for path in files if path.is_file() and path.stat().st_size <= LARGEST]
        return [b"%s\n%s" % (str(path.relative_to(make_artifacts())).encode(), path.read_bytes()) for path in chosen]

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, position: Any) -> Any:
        return self._cases[position]


@functools.cache
def make_artifacts() -> Path:
    """A folder with a checkpoint, encodings and indexes of each kind, and the weights and tokenizers of each family."""
    root = Path(tempfile.mkdtemp())
    corpus, lengths = TOY / "corpus.jsonl", ("--query-length", 12, "--document-length", 20)
    write_tiny_bert(root / "tiny", head=True, layers=2)
    for name, arch in {"came": "came:shared_layers=1,local_dim=8", "dense": "dense"}.items():
        run_moeir("init", "--model", root / "tiny", "--arch", arch, *lengths, "--output", root / name)
    run_moeir("encode", "--model", root / "came", "--corpus", corpus, "--dtype", "float32", "--output", root / "encodings")
    run_moeir("index", "--encodings", root / "encodings", "--engine", "lexical=scan", "--output", root / "index")
    _write_weights(root / "weights")
    shutil.copytree(root / "dense", root / "weights" / "sentence", ignore=shutil.ignore_patterns("moeir.json", manifests.MANIFEST))
    for write in (tokenizers.write_bert, tokenizers.write_roberta, tokenizers.write_modernbert, tokenizers.write_xlm_roberta):
        write(root / "tokenizers" / write.__name__.removeprefix("write_"))
    write_tiny_t5(root / "t5", corpus)
    return root


def _write_weights(folder: Path) -> None:
    """Seeded weights of each family with a tokenizer; one of them once more in a file that an index names."""
    import torch

    from moeir.backbones.encoder import Encoder
    from moeir.backbones.families import weights_io

    for name, changes in FAMILIES.items():
        (folder / name).mkdir(parents=True)
        config = BERT_CONFIG | SMALL | {"model_type": name} | changes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            encoder = Encoder(weights_io.parse_encoder_config(config, folder / name))
        weights_io.write_model(folder / name, config, encoder.state_dict(), hf_compatible=True)
        tokenizers.write_bert(folder / name)
    content = (folder / "bert" / "model.safetensors").read_bytes()
    (folder / "bert" / HEADER).write_bytes(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    shutil.copytree(folder / "roberta", folder / "parts")
    (folder / "parts" / "model.safetensors").rename(folder / "parts" / "first.safetensors")
    weight_map = {"roberta.embeddings.word_embeddings.weight": "first.safetensors"}
    (folder / "parts" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def read_case(path: Path, read: Callable[[Path], object]) -> None:
    """Read the artifact or the weights of a case in a copy of `make_artifacts` beside it."""
    root = path.parent / FOLDER
    if not root.exists():
        shutil.copytree(make_artifacts(), root)
    name, _, content = path.read_bytes().partition(b"\n")
    original = make_artifacts() / name.decode(errors="replace").replace("\0", "")
    is_own = original.is_relative_to(make_artifacts()) and original.is_file()  # a changed name may be another's
    file = root / original.relative_to(make_artifacts()) if is_own else None
    if file is None or ".." in file.parts:
        raise MoeirError("of no file")
    depth = len(root.parts) + (2 if file.is_relative_to(root / "weights") or file.is_relative_to(root / "tokenizers") else 1)
    folder = Path(*file.parts[:depth])
    with changed_file(folder, file, content):
        read(folder)


@contextlib.contextmanager
def changed_file(folder: Path, file: Path, content: bytes) -> Iterator[None]:
    """The folder with a changed file, and with checksums that match it if there is a manifest."""
    manifest, weights = folder / manifests.MANIFEST, folder / "model.safetensors"
    before = {path: path.read_bytes() for path in (file, manifest, weights) if path.exists()}
    file.write_bytes(content)
    if file.name == HEADER:
        size = struct.unpack("<Q", before[weights][:8])[0]
        weights.write_bytes(struct.pack("<Q", len(content)) + content + before[weights][8 + size :])
    if manifest in before and file != manifest:
        facts = json.loads(before[manifest])
        facts["files"][str(file.relative_to(folder))] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(manifests.serialize_manifest(facts), encoding="utf-8")
    try:
        yield
    finally:
        for path, original in before.items():
            path.write_bytes(original)


def read_index(folder: Path) -> None:
    """Search an index whose checksums are right."""
    manifests.verify_artifact(folder, "index")
    with tempfile.TemporaryDirectory() as output:
        Search(index=(folder,), queries=QUERIES, depth=5, dtype="float32", output=Path(output)).work()


def read_encodings(folder: Path) -> None:
    """Index encodings whose checksums are right."""
    manifests.verify_artifact(folder, "encodings")
    with tempfile.TemporaryDirectory() as output:
        Index(encodings=(folder,), output=Path(output)).work()


def _read_checkpoint(folder: Path) -> None:
    from moeir.architectures.checkpoint import open_checkpoint

    manifests.verify_artifact(folder, "checkpoint")
    open_checkpoint(folder).encode(TEXTS)


def _read_weights(folder: Path) -> None:
    from moeir.architectures.initialize import build_checkpoint

    build_checkpoint(folder, "dense", {}).encode(TEXTS)


def _read_tokenizer(folder: Path) -> None:
    from moeir.backbones.tokenizer import TextTokenizer

    tokenizer = TextTokenizer(folder)
    tokenizer.encode(TEXTS)
    tokenizer.encode_with_offsets(TEXTS)
    tokenizer.pair_template()
    list(tokenizer.vocabulary_pieces())


def _read_t5(folder: Path) -> None:
    import torch

    from moeir.backbones.query_generator import QueryGenerator, Sampling
    from moeir.records.texts import Text

    generator = QueryGenerator(folder, "cpu", torch.float32, Sampling(queries=1, length=3), max_input=12)
    generator.generate_lines([Text(str(number), content) for number, content in enumerate(TEXTS)])


READERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {  # of each target: how it is read, and its files
    "encodings": (read_encodings, ("encodings/manifest.json", "encodings/ids.txt", "encodings/*/*.npy")),
    "index": (read_index, ("index/manifest.json", "index/ids.txt", "index/*/engine.json", "index/*/*.npy")),
    "checkpoint": (_read_checkpoint, ("came/*.json", "dense/*.json")),
    "configurations": (_read_weights, ("weights/*/*.json", "weights/*/1_Pooling/*.json")),
    "weights": (_read_weights, ("weights/*/*.safetensors", f"weights/*/{HEADER}")),
    "tokenizers": (_read_tokenizer, ("tokenizers/*/*",)),
    "t5": (_read_t5, ("t5/*.json",)),
}
