"""The interface of an export target: documents written one by one, in bounded memory, with schema and loader."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from moeir.errors import UsageError
from moeir.records.texts import Text

MEGABYTE = 2**20
EXPORTED_KINDS = ("dense", "sparse", "multivector")
# the shortest decimal of every float16 value, indexed by its 16 bits
FLOAT16_REPR = np.array([float(f"{value:.9g}") for value in np.arange(2**16, dtype=np.uint16).view(np.float16)])

QUERY_ENCODING = """
Queries are encoded by the checkpoint that encoded the documents, in Python:

    import moeir
    query = moeir.open_checkpoint("{checkpoint}").encode(["…"], "query")
"""
QUERY_ENCODING_LINES = {
    "dense": '    query["{name}"].vectors[0].tolist()                        # {name}: one vector',
    "sparse": '    query["{name}"].terms.tolist(), query["{name}"].weights.tolist()    # {name}: lines of terms.txt, from 0; weights',
    "multivector": '    query["{name}"].vectors.tolist()                           # {name}: a vector for each token',
}


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
    """Writes documents, a schema and a loader for one engine. The keyword-only parameters of a subclass are its options."""

    supported_kinds: ClassVar[tuple[str, ...]] = EXPORTED_KINDS
    documents_folder: ClassVar[str] = "."  # folder of the documents, within the output folder

    def __init__(self, schema: ExportSchema, name: str, file_megabytes: int) -> None:
        if not name.isidentifier() or name != name.lower():
            raise UsageError(f"name={name}: expected lower-case letters, digits and _, the names that all engines allow")
        if file_megabytes < 1:
            raise UsageError(f"file_megabytes={file_megabytes}: expected at least 1")
        self.schema, self.name, self.file_megabytes = schema, name, file_megabytes

    @abstractmethod
    def lines(self, document: ExportedDocument) -> list[Any]:
        """The JSON values of one document, one per line."""

    @abstractmethod
    def files(self) -> dict[str, str]:
        """Schema, loader and other files the engine needs: contents by file name."""

    @abstractmethod
    def readme_section(self) -> str:
        """The engine's part of README.md."""

    def write(self, documents: Iterable[ExportedDocument], folder: Path) -> int:
        """Write everything into `folder` and return the number of documents; a new file starts after `file_megabytes`."""
        count = number = 0
        (folder / self.documents_folder).mkdir(exist_ok=True)
        output: IO[bytes] | None = None
        for document in documents:
            if output is None or output.tell() >= self.file_megabytes * MEGABYTE:
                if output is not None:
                    output.close()
                output = open(folder / self.documents_folder / f"documents-{number:05}.jsonl", "wb")  # noqa: SIM115 - closed when it is full, or below
                number += 1
            for line in self.lines(document):
                output.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            count += 1
        if output is not None:
            output.close()
        for name, content in (self.files() | {"README.md": self._readme()} | self._terms_file()).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        for script in folder.glob("load.*"):
            script.chmod(0o755)
        return count

    def _terms_file(self) -> dict[str, str]:
        return {"terms.txt": "".join(f"{term}\n" for term in self.schema.terms)} if self.schema.experts_of("sparse") else {}

    def _readme(self) -> str:
        experts = [name for name, kind in self.schema.kinds.items() if kind in self.supported_kinds]
        query_lines = "\n".join(QUERY_ENCODING_LINES[self.schema.kinds[name]].format(name=name) for name in experts)
        return (
            f"# {self.name}\n\n{self.readme_section().strip()}\n{QUERY_ENCODING.format(checkpoint=self.schema.checkpoint)}{query_lines}\n"
        )

    def term_weights(self, document: ExportedDocument, expert: str) -> dict[str, float]:
        """Terms of a document as strings, with their weights."""
        terms, weights = document.sparse[expert]
        return {self.schema.terms[term]: weight for term, weight in zip(terms.tolist(), to_nine_digits(weights), strict=True)}


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
