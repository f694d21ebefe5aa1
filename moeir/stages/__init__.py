"""The pipeline steps: one file per command, and the modules that commands share. Heavy imports happen in `work`."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeir.stages.base import Stage

STAGES = (
    "init", "generate-queries", "pretrain", "finetune", "mine-negatives", "encode", "index", "search", "calibrate", "fuse",
    "rerank", "evaluate", "analyze", "report", "serve", "check", "convert", "export", "push", "pull", "info", "variants",
)  # fmt: skip


def stage_class(name: str) -> "type[Stage]":
    """The dataclass behind a command: `mine-negatives` is MineNegatives in stages/mine_negatives.py."""
    module = importlib.import_module(f"moeir.stages.{name.replace('-', '_')}")
    stage: type[Stage] = getattr(module, "".join(word.capitalize() for word in name.split("-")))
    return stage
