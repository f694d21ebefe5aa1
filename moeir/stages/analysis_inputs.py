"""Texts into arrays for `moeir analyze`: vectors of an expert, usage of routers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moeir import variants
from moeir.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from moeir.analysis.router_usage import RouterUsage
    from moeir.architectures.checkpoint import RetrievalModel

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

    def count_usage(self, path: Path, side: str) -> "dict[str, RouterUsage]":
        """Each router's usage over the texts of a file; UsageError if the checkpoint has no router output."""
        from moeir import console
        from moeir.analysis.router_usage import RouterUsage
        from moeir.backbones.device import autocast
        from moeir.records import texts

        if not self.checkpoint.encode(["?"]).routing:
            name = variants.parse_spec(self.checkpoint.spec).name
            raise UsageError(f"{self.path}: {name} has no learned router; there is no usage to count")
        usage: dict[str, RouterUsage] = {}
        contents = (text.content for text in console.progress(texts.read_texts(path, keep_empty=True), "routing"))
        with autocast(self.dtype, str(self.checkpoint.device)):
            for chunk in texts.split_chunks(contents, CHUNK):
                for router, output in self.checkpoint.encode(chunk, side, max_tokens=self.max_tokens).routing.items():
                    probabilities = output.probabilities.float().cpu().numpy()
                    chunk_usage = RouterUsage.from_probabilities(probabilities, len(output), output.top_k or 1)
                    usage[router] = usage[router] + chunk_usage if router in usage else chunk_usage
        return usage
