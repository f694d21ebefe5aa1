"""Encodings that grow window by window: what is written is brought to disk now and then, and a kill costs what came since."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moeir.artifacts.journals import GrowingLines, Journal
from moeir.artifacts.making import RESUME
from moeir.representations.base import Representation, Writer
from moeir.representations.shortening import Shortening

SECONDS = 5.0  # between two times that everything is brought to disk


def _before_the_last(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What came to disk last is encoded again, so that every writer has seen what it writes."""
    earlier = [entry for entry in entries if entry["texts"] < entries[-1]["texts"]]
    return earlier[-1] if earlier else {"texts": 0, "ids": 0, "experts": {}}


class GrowingEncodings:
    """The growing encodings of a corpus: ids and, for each expert, its arrays; a journal says what is whole."""

    def __init__(self, folder: Path, kinds: Iterable[str], shortening: Shortening) -> None:
        (folder / RESUME).mkdir(exist_ok=True)
        self._shortening, self._kept = shortening, time.monotonic()
        self._journal = Journal(folder / RESUME / "journal.jsonl")
        marks = _before_the_last(self._journal.entries)
        self.texts: int = marks["texts"]
        self._writers = {name: Writer(folder / name, marks["experts"].get(name)) for name in kinds}
        self._ids = GrowingLines(folder / "ids.txt", marks["ids"])

    def add(self, ids: list[str], made: Mapping[str, Representation]) -> None:
        """Write a window, and bring what is written to disk if that was not done just before."""
        for name, writer in self._writers.items():
            writer.append(self._shortening(made[name]))
        self._ids.append(ids)
        self.texts += len(ids)
        if time.monotonic() - self._kept < SECONDS:
            return
        marks = {name: writer.flush() for name, writer in self._writers.items()}
        self._journal.write({"texts": self.texts, "ids": self._ids.flush(), "experts": marks})
        self._kept = time.monotonic()

    def close(self) -> None:
        """Settle the arrays' headers."""
        for writer in self._writers.values():
            writer.close()
        self._ids.close()
        self._journal.close()
