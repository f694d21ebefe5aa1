"""The result of an analysis."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AnalysisResult:
    """`columns` and rows of a table, and sentences about the whole."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()
