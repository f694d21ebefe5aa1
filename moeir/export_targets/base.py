"""The interface of an export target: documents written one by one, in bounded memory, with schema and loader.

A target is one file here, which says what is written, and one of the same name in `loaders/`, the script that is exported as `load.py`.
"""

import hashlib
import json
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.errors import UsageError
from moeir.records.texts import Text

MEGABYTE = 2**20
# the shortest decimal of every float16 value, indexed by its 16 bits
FLOAT16_REPR = np.array([float(f"{value:.9g}") for value in np.arange(2**16, dtype=np.uint16).view(np.float16)])
LOADERS = Path(__file__).parent / "loaders"
LOADER_PACKAGE = "moeir.export_targets.loaders."  # in a loader's imports; an export has the modules side by side

README = """# {name}

{section}

## Load

    pip install {requirements}
    python load.py {location}

It may be interrupted: the same command goes on where it stopped. It refuses a collection of another export; `--replace` deletes that one.
`--option KEY=VALUE` is passed on, as a password is. `schema.json` names the experts, the files and the digest by which an export is known.

## Search

Queries are encoded by the checkpoint that encoded the documents. In this folder, in Python:

    import moeir
    from moeir.records.runs import Run
    from load import {loader}

    queries = {{"q1": "what do owls hunt"}}
    encoded = moeir.open_checkpoint("{checkpoint}", device="cpu").encode(list(queries.values()), "query")
    collection, runs, depth = {loader}("{location}"), {{}}, 1000
    for expert in {experts}:
        lists = collection.search(expert, [encoded[expert].export_row(row) for row in range(len(queries))], depth)
        runs[expert] = Run.from_hits(dict(zip(queries, lists)), expert)
        moeir.write_run(runs[expert], f"{{expert}}.trec")
    collection.close()
{fusion}
Queries are in float32 here: `moeir search --dtype float32` finds the same.
A query is an array of numbers for a dense expert, of vectors for a late-interaction expert; for a sparse one it is two arrays, terms (lines
of `terms.txt`, from 0) and weights.
"""
FUSION = """    moeir.write_run(moeir.fuse(run=runs, method="came-sum", run_depth=depth), "fused.trec")
"""


@dataclass(frozen=True)
class ExportedDocument:
    """One document's representations by expert: dense [D] and multivector [M, D] float16, sparse (terms [n], weights [n])."""

    number: int
    text: Text
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)
    sparse: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    multivector: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportSchema:
    """What all documents share: experts and their kinds, vector widths, the vocabulary by number, the checkpoint's path."""

    kinds: Mapping[str, str]
    widths: Mapping[str, int]
    terms: Sequence[str]
    checkpoint: str = "ckpt"

    def experts_of(self, kind: str) -> list[str]:
        """The experts of a kind."""
        return [name for name, expert_kind in self.kinds.items() if expert_kind == kind]


class ExportTarget(ABC):
    """Writes documents, a schema and a loader for one engine. The keyword-only parameters of a subclass are its options.

    By default a document is a point, {"id": number, "vector": {expert: …}, "payload": {"id", "title", "text"}}, and `load.py` is the file
    of `loaders/` with the target's name. `hnsw` asks for a graph over dense vectors in place of an exact search.
    """

    loader: ClassVar[str]  # the class of load.py
    location: ClassVar[str]  # an example of what it opens
    requirements: ClassVar[str]  # what pip installs for it
    section: str  # the engine's part of README.md

    def __init__(self, schema: ExportSchema, name: str, file_megabytes: int, hnsw: bool = False) -> None:
        if not name.isidentifier() or name != name.lower():
            raise UsageError(f"name={name}: expected lower-case letters, digits and _, the names that all engines allow")
        if file_megabytes < 1:
            raise UsageError(f"file_megabytes={file_megabytes}: expected at least 1")
        self.schema, self.name, self.file_megabytes, self.hnsw = schema, name, file_megabytes, hnsw

    def lines(self, document: ExportedDocument) -> list[Any]:
        """The JSON values of one document, one per line."""
        vectors: dict[str, Any] = {name: float16_to_lists(vector) for name, vector in document.dense.items()}
        for name, (terms, weights) in document.sparse.items():
            vectors[name] = {"indices": terms.tolist(), "values": to_nine_digits(weights)}
        vectors |= {name: float16_to_lists(tokens) for name, tokens in document.multivector.items() if len(tokens)}
        return [{"id": document.number, "vector": vectors, "payload": text_payload(document.text)}]

    def files(self) -> dict[str, str]:
        """Loader and other files the engine needs, contents by file name; the loaders share a module."""
        sources = {"load.py": f"{type(self).__module__.rpartition('.')[2]}.py", "documents.py": "documents.py"}
        return {name: (LOADERS / source).read_text(encoding="utf-8").replace(LOADER_PACKAGE, "") for name, source in sources.items()}

    def readme(self) -> str:
        """README.md: what was written, how it is loaded and searched, and what the engine does not do."""
        facts = {"name": self.name, "checkpoint": self.schema.checkpoint, "experts": list(self.schema.kinds), "loader": self.loader}
        facts["fusion"] = FUSION if len(self.schema.kinds) > 1 else ""
        return README.format(section=self.section.strip(), location=self.location, requirements=self.requirements, **facts)

    def write(self, documents: Iterable[ExportedDocument], folder: Path) -> int:
        """Write everything into `folder` and return the number of documents; a new file starts after `file_megabytes`."""
        digest, files = hashlib.sha256(), dict[str, dict[str, Any]]()
        remaining = iter(documents)
        while (document := next(remaining, None)) is not None:
            name, count, file_digest = f"documents-{len(files):05}.jsonl", 0, hashlib.sha256()
            with open(folder / name, "wb") as stream:
                while document is not None:
                    content = b"".join(
                        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for value in self.lines(document)
                    )
                    stream.write(content)
                    digest.update(content)
                    file_digest.update(content)
                    count += 1
                    document = next(remaining, None) if stream.tell() < self.file_megabytes * MEGABYTE else None
            files[name] = {"documents": count, "sha256": file_digest.hexdigest()}
        kinds, widths = self.schema.kinds, self.schema.widths
        experts = {name: {"kind": kind, "width": widths.get(name)} for name, kind in kinds.items()}
        schema = {"name": self.name, "experts": experts, "vocabulary": len(self.schema.terms), "hnsw": self.hnsw}
        digest.update(json.dumps(schema, sort_keys=True).encode())
        total: int = sum(entry["documents"] for entry in files.values())
        schema |= {"documents": total, "files": files, "digest": digest.hexdigest()}
        contents = {"schema.json": json.dumps(schema, indent=1) + "\n", "README.md": self.readme(), **self.files()}
        if self.schema.experts_of("sparse"):
            contents["terms.txt"] = "".join(f"{term}\n" for term in self.schema.terms)
        for name, text in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for script in folder.glob("load.*"):
            script.chmod(0o755)
        return total


def float16_to_lists(vectors: np.ndarray) -> Any:
    """float16 numbers as lists of the shortest decimals that float32 reads back unchanged.

    >>> float16_to_lists(np.array([0.1, -2.0], dtype=np.float16))
    [0.0999755859, -2.0]
    """
    return FLOAT16_REPR[np.ascontiguousarray(vectors, dtype=np.float16).view(np.uint16)].tolist()


def to_nine_digits(weights: np.ndarray) -> list[float]:
    """float32 numbers with nine significant digits, which float32 reads back unchanged."""
    return [float(f"{weight:.9g}") for weight in weights.tolist()]


def text_payload(text: Text) -> dict[str, str]:
    """The exported fields of a text: its id, and title and text where not empty."""
    fields = {"id": text.id, "title": text.title, "text": text.text}
    return {name: value for name, value in fields.items() if value}
