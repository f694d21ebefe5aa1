"""JSON file of a learned fusion: its method, the runs it needs, and how it was learned."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir import variants
from moeir.errors import DataError, UsageError

FORMAT = 1
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedFusion:
    """A fusion: a spec of `moeir.fusion.formulas`; the runs it was learned on, in order; and how."""

    method: str
    runs: tuple[str, ...]
    details: Mapping[str, Any]

    def check_runs(self, path: Path, names: Sequence[str]) -> None:
        """UsageError unless `names` has as many runs as the fusion was learned on, in the same order as far as file names show."""
        expected, actual = ", ".join(self.runs), ", ".join(names)
        if len(names) != len(self.runs):
            problem = f"learned on {len(self.runs)} runs ({expected}), found {len(names)} ({actual})"
            raise UsageError(f"{path}: {problem}; give one --run for each")
        own, others = ([name.rpartition("/")[2].partition(".")[0] for name in side] for side in (self.runs, names))
        if own != others and sorted(own) == sorted(others):
            raise UsageError(f"{path}: learned on runs in the order {expected}, found {actual}; give --run in that order")
        if own != others:
            log.info("%s: learned on the runs %s; now used with %s", path, expected, actual)


def write_fusion(fusion: SavedFusion, path: Path) -> None:
    """Write the file; the same fusion gives the same bytes."""
    content = {"moeir_fusion": FORMAT, "method": fusion.method, "runs": list(fusion.runs), "found": dict(fusion.details)}
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_fusion(path: Path) -> SavedFusion:
    """Read what `write_fusion` writes; DataError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, method, runs, details = (content[key] for key in ("moeir_fusion", "method", "runs", "found"))
        fusion = SavedFusion(str(method), tuple(map(str, runs)), dict(details))
        variants.resolve_spec("fusion", fusion.method)
        if version != FORMAT:
            raise ValueError(f"format {version!r}")
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as problem:
        raise DataError(f"{path}: not a fusion of format {FORMAT} ({problem}); expected what moeir calibrate writes") from None
    return fusion
