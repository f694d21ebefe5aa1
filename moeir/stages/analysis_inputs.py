"""Texts into arrays for `moeir analyze`: vectors of an expert, usage of routers."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.stages.base import split_run_name

if TYPE_CHECKING:
    import numpy as np
    import torch

    from moeir.analysis.projection import ProjectedText
    from moeir.analysis.router_usage import RouterUsage
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.records.texts import Text

CHUNK = 1024


@dataclass(frozen=True)
class TextEncoder:
    """A checkpoint on its device, the dtype to compute in, and the size of its batches."""

    path: Path
    checkpoint: "RetrievalModel"
    dtype: "torch.dtype"
    max_tokens: int

    @classmethod
    def open(cls, path: Path, device: str, dtype: str, max_tokens: int) -> Self:
        """Open a checkpoint."""
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.device import select_device, select_dtype

        device = select_device(device)
        return cls(path, open_checkpoint(path, device), select_dtype(dtype, device), max_tokens)

    def select_dense_expert(self, name: str | None) -> str:
        """The dense expert called `name`, or the only one."""
        dense = [expert for expert, kind in self.checkpoint.architecture.representation_kinds.items() if kind == "dense"]
        if name is None and len(dense) == 1:
            return dense[0]
        if name in dense:
            return str(name)
        expectation = "--expert: expected one of" if name is None else f"--expert {name}: expected"
        raise UsageError(f"{expectation} {', '.join(dense) or 'the dense experts, but there is none'} ({self.path})")

    def encode_dense(self, contents: Sequence[str], side: str, expert: str) -> "tuple[np.ndarray[Any, Any], list[str | None]]":
        """The vectors of texts [N, D], and each text's expert in the first router that routes whole texts, or None.

        The scale and the calibration of scores, which multiply queries only, are left out: they would part queries from documents.
        """
        import numpy as np

        from moeir.backbones.device import autocast
        from moeir.representations.dense import Dense

        vectors, choices = [], list[str | None]()
        factors = (self.checkpoint.architecture.scales, self.checkpoint.calibration) if side == "query" else ()
        factor = math.prod(each.get(expert, 1.0) for each in factors)
        for first in range(0, len(contents), CHUNK):
            chunk = contents[first : first + CHUNK]
            with autocast(self.dtype, str(self.checkpoint.device)):
                encoded = self.checkpoint.encode(chunk, side, max_tokens=self.max_tokens)
            representation = encoded[expert]
            assert isinstance(representation, Dense)
            vectors.append(representation.vectors.float().cpu().numpy() / factor)
            router = next((output for output in encoded.routing.values() if len(output.probabilities) == len(chunk)), None)
            choices += [f"expert {number}" for number in router.probabilities.argmax(1).tolist()] if router else [None] * len(chunk)
        return np.concatenate(vectors), choices

    def encode_projected(self, texts: "Sequence[ProjectedText]", expert: str) -> "tuple[np.ndarray[Any, Any], list[str | None]]":
        """The vectors [N, D] and the experts of texts, queries before documents."""
        import numpy as np

        vectors, choices = [], list[str | None]()
        for side in dict.fromkeys(text.side for text in texts):
            side_vectors, side_choices = self.encode_dense([text.content for text in texts if text.side == side], side, expert)
            vectors.append(side_vectors)
            choices += side_choices
        return np.concatenate(vectors), choices

    @contextmanager
    def without_mixture(self, expert: str) -> Iterator[None]:
        """Encode without the gated block over the vector of `expert` inside the block; UsageError if there is none."""
        architecture = self.checkpoint.architecture
        if architecture.mixture is None or expert != "global":
            name = variants.parse_spec(self.checkpoint.spec).name
            raise UsageError(f"--before-mixture: {self.path}: {name} has no gated block over its {expert} vector; sbmoe has")
        mixture, architecture.mixture = architecture.mixture, None
        try:
            yield
        finally:
            architecture.mixture = mixture

    def check_routers(self) -> None:
        """UsageError if the checkpoint has no router output."""
        if not self.checkpoint.encode(["?"]).routing:
            name = variants.parse_spec(self.checkpoint.spec).name
            raise UsageError(f"{self.path}: {name} has no learned router; there is no usage to count")

    def count_usage(self, chunks: Iterable[list[str]], side: str) -> "dict[str, RouterUsage]":
        """Each router's usage over the texts of all chunks."""
        from moeir.analysis.router_usage import RouterUsage
        from moeir.backbones.device import autocast

        usage: dict[str, RouterUsage] = {}
        with autocast(self.dtype, str(self.checkpoint.device)):
            for chunk in chunks:
                for router, output in self.checkpoint.encode(chunk, side, max_tokens=self.max_tokens).routing.items():
                    chunk_usage = RouterUsage.from_probabilities(output.probabilities.float().cpu().numpy(), len(output))
                    usage[router] = usage[router] + chunk_usage if router in usage else chunk_usage
        return usage


def read_chunks(path: Path) -> Iterator[list[str]]:
    """The texts of a file in chunks of `CHUNK`."""
    from moeir import console
    from moeir.records import texts

    contents = (text.content for text in console.progress(texts.read_texts(path, keep_empty=True), "routing"))
    return texts.split_chunks(contents, CHUNK)


def sample_texts(path: Path, size: int, seed: int) -> "list[Text]":
    """A random sample of the texts of a file, in file order."""
    from moeir.records import texts

    all_texts = list(texts.read_texts(path))
    if len(all_texts) <= size:
        return all_texts
    return [all_texts[index] for index in sorted(random.Random(seed).sample(range(len(all_texts)), size))]


def read_hits(run: Path, query: str, queries: Path, corpus: Path, depth: int) -> "tuple[Text, list[Text]]":
    """A query, and its first `depth` hits in a run, best first; DataError for an id that the queries, the run or the corpus lack."""
    from moeir.records import runs, texts

    if (text := next((text for text in texts.read_texts(queries) if text.id == query), None)) is None:
        raise DataError(f"{queries}: has no query {query!r} (--query)")
    run = split_run_name(run)[1]
    if not (documents := runs.read_run(run).documents_of(query)[:depth]):
        raise DataError(f"{run}: has no hit of the query {query!r} (--query)")
    rows = {document: row for row, document in enumerate(documents)}
    hits = [hit for hit in texts.read_texts(corpus, keep_empty=True) if hit.id in rows]
    if missing := rows.keys() - {hit.id for hit in hits}:
        raise DataError(f"{corpus}: has no document {min(missing, key=rows.__getitem__)!r}, a hit in {run}")
    return text, sorted(hits, key=lambda hit: rows[hit.id])
