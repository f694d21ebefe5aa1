"""moeir: mixture-of-experts retrieval. Every stage of the command line is also a Python function with the names of its flags."""

import importlib
from typing import TYPE_CHECKING, Any

from moeir.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.architectures.checkpoint import open_checkpoint as open_checkpoint
    from moeir.fusion.files import SavedFusion
    from moeir.records.examples import Example
    from moeir.records.examples import read_examples as read_examples
    from moeir.records.generated_queries import GeneratedQueries
    from moeir.records.qrels import read_qrels as read_qrels
    from moeir.records.runs import Run
    from moeir.records.runs import read_run as read_run
    from moeir.records.runs import write_run as write_run
    from moeir.records.texts import read_texts as read_texts
    from moeir.representations.encodings import OpenedEncodings
    from moeir.representations.encodings import open_encodings as open_encodings
    from moeir.retrieval.searcher import Searcher
    from moeir.retrieval.searcher import open_index as open_index

    init: Callable[..., RetrievalModel]
    generate_queries: Callable[..., list[GeneratedQueries]]
    pretrain: Callable[..., RetrievalModel]
    finetune: Callable[..., RetrievalModel]
    mine_negatives: Callable[..., list[Example]]
    encode: Callable[..., OpenedEncodings]
    index: Callable[..., Searcher]
    search: Callable[..., Run | dict[str, Run]]
    calibrate: Callable[..., RetrievalModel | SavedFusion]
    fuse: Callable[..., Run]
    rerank: Callable[..., Run]
    evaluate: Callable[..., Any]
    analyze: Callable[..., Any]
    report: Callable[..., str | Path]
    serve: Callable[..., str]
    check: Callable[..., str]
    convert: Callable[..., str | Path]
    export: Callable[..., Path]
    push: Callable[..., str]
    pull: Callable[..., Any]
    info: Callable[..., Any]

__version__ = "0.1.0"
_READERS = {
    "open_checkpoint": "moeir.architectures.checkpoint",
    "open_encodings": "moeir.representations.encodings",
    "open_index": "moeir.retrieval.searcher",
    "read_examples": "moeir.records.examples",
    "read_qrels": "moeir.records.qrels",
    "read_run": "moeir.records.runs",
    "read_texts": "moeir.records.texts",
    "write_run": "moeir.records.runs",
}
_PUBLIC = _READERS | {name.replace("-", "_"): "moeir.functions" for name in STAGES if name != "variants"}  # moeir.variants is a module
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"moeir has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
