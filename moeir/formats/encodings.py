"""moeir's encodings, one expert at a time, and the checkpoint that names their terms."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from moeir.architectures.checkpoint import read_metadata
from moeir.artifacts import manifests, shards
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import DataError, UsageError
from moeir.formats.base import Conversion, Format, Vector
from moeir.representations.base import Representation, RepresentationWriter, representation_class
from moeir.representations.dense import Dense
from moeir.representations.encodings import open_expert, read_ids
from moeir.representations.sparse import Sparse


def load_terms(folder: Path) -> list[str]:
    """The vocabulary of a checkpoint: terms by number."""
    reader = TextTokenizer(folder)
    return [reader.id_to_token(number) for number in range(reader.vocabulary_size)]


BATCH_TEXTS = 4096  # texts per write
FLOAT16_MAX = 65504.0


class Encodings(Format):
    """Output of `moeir encode`. `expert`: which one, if there are several of the kind. Writing needs --model, the checkpoint."""

    kind = "vectors"
    is_folder = True

    def __init__(self, *, expert: str | None = None) -> None:
        self._expert = expert

    def read(self, path: Path, conversion: Conversion) -> Iterator[Vector]:
        parts = shards.shard_folders(path)
        shards.verify_encodings(path)
        counts = manifests.read_manifest(parts[0])["counts"]
        expert = self._select_expert(counts["experts"], str(path))
        for other in counts["experts"]:
            if other != expert:
                conversion.drop_or_refuse(str(path), f"expert {other}")
        is_sparse = representation_class(counts["experts"][expert]).exported_as == "sparse"
        names = load_terms(manifests.find_checkpoint(parts[0], counts["checkpoint"], conversion.model)) if is_sparse else []
        for part in parts:
            representation = open_expert(part, expert)
            for row, text_id in enumerate(read_ids(part)):
                text = (conversion.corpus or {}).get(text_id)
                contents, values = "" if text is None else text.content, representation.export_row(row)
                if is_sparse:
                    pairs = zip(*(column.tolist() for column in values), strict=True)
                    yield Vector(text_id, terms={names[term]: weight for term, weight in pairs}, contents=contents)
                else:
                    yield Vector(text_id, numbers=values.astype(np.float32).tolist(), contents=contents)

    def write(self, items: Iterator[Vector], path: Path, conversion: Conversion) -> int:
        if conversion.model is None:
            raise UsageError("--to encodings: needs --model, the checkpoint that encodes queries for them")
        first = next(items, None)
        if first is None:
            raise DataError("the input has no vector")
        kind = "dense" if first.terms is None else "sparse"
        manifest = manifests.verify_artifact(conversion.model, "checkpoint")
        kinds = {name: entry["representation"] for name, entry in read_metadata(conversion.model)["experts"].items()}
        candidates = {name: representation for name, representation in kinds.items() if representation == kind}
        expert = self._select_expert(candidates, f"--model {conversion.model}")
        numbers = {name: number for number, name in enumerate(load_terms(conversion.model))} if kind == "sparse" else {}
        writer, ids = RepresentationWriter(path / expert), list[str]()
        vectors = _unique_vectors(first, items)
        while batch := list(islice(vectors, BATCH_TEXTS)):
            writer.append(_build_sparse(batch, numbers) if kind == "sparse" else _build_dense(batch, conversion))
            for vector in batch:
                if vector.contents and vector.id not in (conversion.corpus or {}):
                    conversion.drop_or_refuse(f"text {vector.id!r}", "the words of texts (name the corpus that has them with --corpus)")
                ids.append(vector.id)
        writer.close()
        (path / "ids.txt").write_text("".join(f"{text_id}\n" for text_id in ids), encoding="utf-8")
        conversion.encodings_manifest = {"texts": len(ids), "dtype": "torch.float32", "experts": {expert: kind}}
        conversion.encodings_manifest["digest"] = manifests.digest_files(manifest["files"])
        return len(ids)

    def _select_expert(self, kinds: dict[str, str], where: str) -> str:
        """The expert named by the option, or the only one of a convertible kind."""
        candidates = [name for name, kind in kinds.items() if representation_class(kind).exported_as in ("dense", "sparse")]
        if self._expert is not None and self._expert not in candidates:
            raise UsageError(f"expert={self._expert}: {where} has {', '.join(candidates) or 'no expert'} of one vector a text")
        if self._expert is None and len(candidates) != 1:
            problem = f"has {', '.join(candidates)}; choose one" if candidates else "has no expert of one vector a text"
            raise UsageError(f"{where}: {problem} with encodings:expert=…")
        return self._expert or candidates[0]


def _unique_vectors(first: Vector, rest: Iterator[Vector]) -> Iterator[Vector]:
    seen_ids: set[str] = set()
    for vector in chain([first], rest):
        if vector.id in seen_ids:
            raise DataError(f"text {vector.id!r}: has two vectors; ids must be unique", code="duplicate-id")
        seen_ids.add(vector.id)
        yield vector


def _build_dense(batch: Sequence[Vector], conversion: Conversion) -> Representation:
    width = len(batch[0].numbers or ())
    for vector in batch:
        if vector.numbers is None or len(vector.numbers) != width:
            raise DataError(f"text {vector.id!r}: expected {width} numbers, as in the texts before", code="columns")
    vectors = np.array([vector.numbers for vector in batch], dtype=np.float64)
    if not np.isfinite(vectors).all() or np.abs(vectors).max() > FLOAT16_MAX:
        row = int(np.flatnonzero(~(np.abs(vectors) <= FLOAT16_MAX).all(axis=1))[0])
        raise DataError(f"text {batch[row].id!r}: a number is not finite, or too large for float16", code="not-finite")
    exact = vectors.astype(np.float32)
    inexact = np.flatnonzero((exact.astype(np.float16).astype(np.float32) != exact).any(axis=1))
    if len(inexact):
        conversion.drop_or_refuse(f"text {batch[int(inexact[0])].id!r}", "digits beyond float16, the precision of stored dense vectors,")
    return Dense(torch.from_numpy(exact))


def _build_sparse(batch: Sequence[Vector], numbers: dict[str, int]) -> Representation:
    rows, terms, weights = list[int](), list[int](), list[float]()
    for row, vector in enumerate(batch):
        if vector.terms is None:
            raise DataError(f"text {vector.id!r}: expected terms with weights, as in the texts before", code="columns")
        if unknown := next((name for name in vector.terms if name not in numbers), None):
            raise DataError(f"text {vector.id!r}: {unknown!r} is not in the vocabulary of the checkpoint of --model")
        for term, weight in sorted((numbers[name], weight) for name, weight in vector.terms.items()):
            rows.append(row)
            terms.append(term)
            weights.append(weight)
    columns = (torch.tensor(rows, dtype=torch.int64), torch.tensor(terms, dtype=torch.int32), torch.tensor(weights, dtype=torch.float32))
    return Sparse.from_pairs(*columns, len(batch), len(numbers))
