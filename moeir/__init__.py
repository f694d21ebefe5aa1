"""moeir: mixture-of-experts retrieval. Every stage of the command line is also a Python function with the names of its flags."""

import importlib
from typing import Any

__version__ = "0.1.0"
_PUBLIC = {
    "open_checkpoint": "moeir.architectures.checkpoint",
    "open_encodings": "moeir.representations.encodings",
    "open_index": "moeir.retrieval.searcher",
    "read_examples": "moeir.records.examples",
    "read_qrels": "moeir.records.qrels",
    "read_run": "moeir.records.runs",
    "read_texts": "moeir.records.texts",
    "write_run": "moeir.records.runs",
    **dict.fromkeys(
        ("init", "generate_queries", "pretrain", "finetune", "mine_negatives", "encode", "index", "search", "calibrate", "fuse",
         "rerank", "evaluate", "analyze", "report", "check", "convert", "export", "push", "pull", "info"),
        "moeir.functions",
    ),
}  # fmt: skip
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"moeir has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
