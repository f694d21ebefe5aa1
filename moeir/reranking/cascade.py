"""What a person says of a cascade: rounds of falling depth, each with the checkpoints that score; and how long documents are cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from moeir.errors import UsageError

PASSAGES = ("firstp", "maxp", "sump")


@dataclass(frozen=True)
class Round:
    """How many documents of each query, and the checkpoints that score them.

    >>> Round.parsed("100:ckpt/bert+ckpt/electra").models
    (PosixPath('ckpt/bert'), PosixPath('ckpt/electra'))
    """

    depth: int
    models: tuple[Path, ...]

    @classmethod
    def parsed(cls, text: str) -> "Round":
        """From DEPTH:CHECKPOINT, + between several."""
        depth, colon, models = text.partition(":")
        if not (colon and depth.isdecimal() and int(depth) and all(models.split("+"))):
            raise UsageError(f"--then {text}: expected DEPTH:CHECKPOINT, as in 100:ckpt/lce, with + between several checkpoints")
        return cls(int(depth), tuple(map(Path, models.split("+"))))


def check_falling(rounds: Sequence[Round]) -> None:
    """UsageError unless every round looks at fewer documents than the one before."""
    for before, after in pairwise(rounds):
        if after.depth >= before.depth:
            raise UsageError(f"--then {after.depth}:…: expected less than the depth before it, {before.depth}")
