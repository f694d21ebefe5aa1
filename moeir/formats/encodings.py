"""moeir's encodings, one expert at a time."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.architectures.base import KINDS
from moeir.architectures.checkpoint import facts_of
from moeir.artifacts import manifests, shards
from moeir.errors import DataError, UsageError
from moeir.formats.base import Conversion, Format
from moeir.formats.vectors import Vector, checkpoint_of, names_of
from moeir.representations.base import Representation, Writer
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse

TOGETHER = 4096  # texts per write
LARGEST_HALF = 65504.0


class Encodings(Format):
    """Output of `moeir encode`. `expert`: which one, if there are several of the kind. Writing needs --model, the checkpoint."""

    kind: ClassVar[str] = "vectors"
    folder: ClassVar[bool] = True

    def __init__(self, *, expert: str | None = None) -> None:
        self._expert = expert

    def read(self, path: Path, conversion: Conversion) -> Iterator[Vector]:
        parts = shards.parts(path)
        shards.verified(path)
        counts = manifests.read_manifest(parts[0])["counts"]
        expert = self._chosen(counts["experts"], str(path))
        for other in counts["experts"]:
            if other != expert:
                conversion.lose(str(path), f"expert {other}")
        names = names_of(checkpoint_of(parts[0], counts["checkpoint"], conversion.model)) if counts["experts"][expert] == "sparse" else []
        for part in parts:
            representation: Any = KINDS[counts["experts"][expert]].open(part / expert)
            for row, text_id in enumerate(manifests.read_lines(part / "ids.txt")):
                text = (conversion.corpus or {}).get(text_id)
                yield _vector(representation, row, text_id, names, "" if text is None else text.content)

    def write(self, items: Iterator[Vector], path: Path, conversion: Conversion) -> int:
        if conversion.model is None:
            raise UsageError("--to encodings: needs --model, the checkpoint that encodes queries for them")
        first = next(items, None)
        if first is None:
            raise DataError("the input has no vector")
        kind = "dense" if first.terms is None else "sparse"
        manifest = manifests.verify(conversion.model, "checkpoint")
        kinds = {name: entry["representation"] for name, entry in facts_of(conversion.model)["experts"].items()}
        expert = self._chosen(
            {name: representation for name, representation in kinds.items() if representation == kind}, f"--model {conversion.model}"
        )
        numbers = {name: number for number, name in enumerate(names_of(conversion.model))} if kind == "sparse" else {}
        writer, ids = Writer(path / expert), list[str]()
        vectors = _chained(first, items)
        while batch := list(islice(vectors, TOGETHER)):
            writer.append(_sparse(batch, numbers) if kind == "sparse" else _dense(batch, conversion))
            for vector in batch:
                if vector.contents and vector.id not in (conversion.corpus or {}):
                    conversion.lose(f"text {vector.id!r}", "the words of texts (name the corpus that has them with --corpus)")
                ids.append(vector.id)
        writer.close()
        (path / "ids.txt").write_text("".join(f"{text_id}\n" for text_id in ids), encoding="utf-8")
        conversion.facts = {"texts": len(ids), "dtype": "torch.float32", "experts": {expert: kind}}
        conversion.facts["digest"] = manifests.digest_of(manifest["files"])
        return len(ids)

    def _chosen(self, kinds: dict[str, str], where: str) -> str:
        """The expert named by the option, or the only one of a convertible kind."""
        candidates = {name: kind for name, kind in kinds.items() if kind in ("dense", "sparse")}
        if self._expert is not None and self._expert not in candidates:
            raise UsageError(f"expert={self._expert}: {where} has {', '.join(candidates) or 'no expert'} of one vector a text")
        if self._expert is None and len(candidates) != 1:
            problem = f"has {', '.join(candidates)}; choose one" if candidates else "has no expert of one vector a text"
            raise UsageError(f"{where}: {problem} with encodings:expert=…")
        return self._expert or next(iter(candidates))


def _chained(first: Vector, rest: Iterator[Vector]) -> Iterator[Vector]:
    seen_ids: set[str] = set()
    for vector in (candidate for part in ([first], rest) for candidate in part):
        if vector.id in seen_ids:
            raise DataError(f"text {vector.id!r}: has two vectors; ids must be unique")
        seen_ids.add(vector.id)
        yield vector


def _vector(representation: Any, row: int, text_id: str, terms_by_number: Sequence[str], contents: str) -> Vector:
    if isinstance(representation, Dense):
        return Vector(text_id, numbers=representation.vectors[row].float().tolist(), contents=contents)
    span = slice(int(representation.starts[row]), int(representation.starts[row + 1]))
    terms = zip(representation.terms[span].tolist(), representation.weights[span].tolist(), strict=True)
    return Vector(text_id, terms={terms_by_number[term]: weight for term, weight in terms}, contents=contents)


def _dense(batch: Sequence[Vector], conversion: Conversion) -> Representation:
    width = len(batch[0].numbers or ())
    for vector in batch:
        if vector.numbers is None or len(vector.numbers) != width:
            raise DataError(f"text {vector.id!r}: expected {width} numbers, as in the texts before")
    vectors = np.array([vector.numbers for vector in batch], dtype=np.float64)
    if not np.isfinite(vectors).all() or np.abs(vectors).max() > LARGEST_HALF:
        row = int(np.flatnonzero(~(np.abs(vectors) <= LARGEST_HALF).all(axis=1))[0])
        raise DataError(f"text {batch[row].id!r}: a number is not finite, or too large for float16")
    exact = vectors.astype(np.float32)
    inexact = np.flatnonzero((exact.astype(np.float16).astype(np.float32) != exact).any(axis=1))
    if len(inexact):
        conversion.lose(f"text {batch[int(inexact[0])].id!r}", "digits beyond float16, the precision of stored dense vectors,")
    return Dense(torch.from_numpy(exact))


def _sparse(batch: Sequence[Vector], numbers: dict[str, int]) -> Representation:
    rows, terms, weights = list[int](), list[int](), list[float]()
    for row, vector in enumerate(batch):
        if vector.terms is None:
            raise DataError(f"text {vector.id!r}: expected terms with weights, as in the texts before")
        if unknown := next((name for name in vector.terms if name not in numbers), None):
            raise DataError(f"text {vector.id!r}: {unknown!r} is not in the vocabulary of the checkpoint of --model")
        for term, weight in sorted((numbers[name], weight) for name, weight in vector.terms.items()):
            rows.append(row)
            terms.append(term)
            weights.append(weight)
    columns = (torch.tensor(rows, dtype=torch.int64), torch.tensor(terms, dtype=torch.int32), torch.tensor(weights, dtype=torch.float32))
    return Sparse.from_pairs(*columns, len(batch), len(numbers))
