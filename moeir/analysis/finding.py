"""What an analysis found: rows for files and tables, and the marks of a picture of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Mark = tuple[Any, ...]


@dataclass(frozen=True)
class Picture:
    """Marks of one `kind`; each begins with its panel and its label, which is its colour; `across` and `up` name the axes.

    bars (panel, label, group, height) · steps (panel, label, from, to, height) · lines (panel, label, step, value) ·
    points (panel, label, x, y) or with z · matrix (panel, row, column, value)
    """

    kind: str
    marks: Sequence[Mark]
    across: str = ""
    up: str = ""


@dataclass(frozen=True)
class Finding:
    """`names` of columns, and rows; how a table for people writes numbers, and its header if another."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    picture: Picture
    number: str = ".4f"
    header: Sequence[str] = ()
