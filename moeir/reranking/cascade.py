"""Settings of a reranking cascade: rounds of decreasing depth, each with its checkpoints; and passage modes of long documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from moeir.errors import UsageError
from moeir.parsing import is_count

PASSAGE_MODES = ("firstp", "maxp", "sump")


@dataclass(frozen=True)
class CascadeRound:
    """Number of documents per query, and the checkpoints that score them.

    >>> CascadeRound.parse("100:ckpt/bert+ckpt/electra").models
    (PosixPath('ckpt/bert'), PosixPath('ckpt/electra'))
    """

    depth: int
    models: tuple[Path, ...]

    @classmethod
    def parse(cls, text: str) -> "CascadeRound":
        """Parse DEPTH:CHECKPOINT, with + between several checkpoints."""
        depth, colon, models = text.partition(":")
        if not (colon and is_count(depth) and all(models.split("+"))):
            raise UsageError(f"--then {text}: expected DEPTH:CHECKPOINT, as in 100:ckpt/lce, with + between several checkpoints")
        return cls(int(depth), tuple(map(Path, models.split("+"))))


def check_decreasing(rounds: Sequence[CascadeRound]) -> None:
    """UsageError unless every round scores fewer documents than the one before."""
    for before, after in pairwise(rounds):
        if after.depth >= before.depth:
            raise UsageError(f"--then {after.depth}:…: expected less than the depth before it, {before.depth}")
