"""The interface of an export target: documents written one by one, in bounded memory, with schema and loader.

A target is one file here, which says what is written, and one of the same name in `loaders/`, the script that is exported as `load.py`.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moeir.errors import UsageError
from moeir.records.texts import Text

MAX_FILE_BYTES = 50 * 2**20  # after which a new file starts
# the shortest decimal of every float16 value, indexed by its 16 bits
FLOAT16_REPR = np.array([float(f"{value:.9g}") for value in np.arange(2**16, dtype=np.uint16).view(np.float16)])
LOADERS = Path(__file__).parent / "loaders"
LOADER_PACKAGE = "moeir.export_targets.loaders."  # in a loader's imports; an export has the modules side by side


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
    """What all documents share: experts and their kinds, vector widths, the vocabulary by number."""

    kinds: Mapping[str, str]
    widths: Mapping[str, int]
    terms: Sequence[str]

    def experts_of(self, kind: str) -> list[str]:
        """The experts of a kind."""
        return [name for name, expert_kind in self.kinds.items() if expert_kind == kind]


class ExportTarget:
    """Writes documents, a schema and a loader for one engine. The keyword-only parameters of a subclass are its options.

    By default a document is a point, {"id": number, "vector": {expert: …}, "payload": {"id", "title", "text"}}, and `load.py` is the file
    of `loaders/` with the target's name. `hnsw` asks for a graph over dense vectors in place of an exact search.
    """

    def __init__(self, schema: ExportSchema, name: str, hnsw: bool = False) -> None:
        if not name.isidentifier() or name != name.lower():
            raise UsageError(f"name={name}: expected lower-case letters, digits and _, the names that all engines allow")
        self.schema, self.name, self.hnsw = schema, name, hnsw

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

    def write(self, documents: Iterable[ExportedDocument], folder: Path) -> int:
        """Write everything into `folder` and return the number of documents; a new file starts after `MAX_FILE_BYTES`."""
        digest, remaining, count, numbers = hashlib.sha256(), iter(documents), 0, itertools.count()
        while (document := next(remaining, None)) is not None:
            with open(folder / f"documents-{next(numbers):05}.jsonl", "wb") as stream:
                while document is not None:
                    lines = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in self.lines(document)]
                    content = "".join(f"{line}\n" for line in lines).encode()
                    stream.write(content)
                    digest.update(content)
                    count += 1
                    document = next(remaining, None) if stream.tell() < MAX_FILE_BYTES else None
        experts = {name: {"kind": kind, "width": self.schema.widths.get(name)} for name, kind in self.schema.kinds.items()}
        schema = {"name": self.name, "experts": experts, "vocabulary": len(self.schema.terms), "hnsw": self.hnsw, "documents": count}
        digest.update(json.dumps(schema).encode())
        contents = {"schema.json": json.dumps(schema | {"digest": digest.hexdigest()}, indent=1) + "\n", **self.files()}
        if self.schema.experts_of("sparse"):
            contents["terms.txt"] = "".join(f"{term}\n" for term in self.schema.terms)
        for name, text in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for script in folder.glob("load.*"):
            script.chmod(0o755)
        return count


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
