"""moeir: mixture-of-experts retrieval. Every stage of the command line is also a Python function."""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "open_checkpoint", "open_index", "read_run"]

_PUBLIC = {
    "open_checkpoint": ("moeir.architectures.checkpoint", "open_checkpoint"),
    "open_index": ("moeir.retrieval.searcher", "open_index"),
    "read_run": ("moeir.records.runs", "read_run"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"moeir has no {name!r}; it has {', '.join(__all__)}")
    module, symbol = _PUBLIC[name]
    return getattr(importlib.import_module(module), symbol)


def __dir__() -> list[str]:
    return __all__
