"""What the stages that make a checkpoint from plain weights share: reading rules as flags, and texts to fit a head on."""

from itertools import islice
from pathlib import Path
from typing import Any


def collect_input_options(stage: Any) -> dict[str, Any]:
    """The prefixes and lengths that are given as flags."""
    names = ("query_prefix", "document_prefix", "query_length", "document_length")
    return {name: value for name in names if (value := vars(stage)[name]) is not None}


def read_first_texts(corpus: Path | None, count: int = 4000) -> list[str]:
    """The non-empty ones of the first `count` texts of a corpus; none without a corpus."""
    from moeir.records import texts

    return [text.content for text in islice(texts.read_texts(corpus, keep_empty=True), count) if text.content] if corpus else []
