"""Scores on disk while a reranking runs, so that a killed one goes on after the last saved score."""

import logging
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeir.artifacts.atomic_write import make_folder
from moeir.artifacts.journals import JsonlJournal

log = logging.getLogger(__name__)
FLUSH_SECONDS = 5.0  # between two writes to disk; shorter work is repeated instead
Scores = npt.NDArray[np.float32]


class ScoreJournal:
    """The scores of `count` pairs in the order in which they are scored, of which `done` are known; in memory only without a path."""

    def __init__(self, path: Path | None, count: int) -> None:
        self.scores, self.done, self._saved, self._saved_at = np.empty(count, dtype=np.float32), 0, 0, time.monotonic()
        self._journal = None
        if path is not None:
            make_folder(path.parent)
            self._journal = JsonlJournal(path)
            for entry in self._journal.entries:
                self._append(entry["scores"])
            self._saved = self.done
            if self.done:
                log.info("continuing after %s of %s pairs", f"{self.done:,}", f"{count:,}")

    def add(self, scores: Scores) -> None:
        """Add the next scores; save them if a write is due."""
        self._append(scores)
        if time.monotonic() - self._saved_at >= FLUSH_SECONDS:
            self._save()

    def close(self) -> Scores:
        """Return all scores; save the rest if earlier ones are on disk."""
        assert self.done == len(self.scores)
        if self._saved:
            self._save()
        if self._journal is not None:
            self._journal.close()
        return self.scores

    def _append(self, scores: npt.ArrayLike) -> None:
        self.scores[self.done : self.done + np.size(scores)] = scores
        self.done += np.size(scores)

    def _save(self) -> None:
        if self._journal is not None and self._saved < self.done:
            self._journal.write({"scores": self.scores[self._saved : self.done].tolist()})
            self._saved, self._saved_at = self.done, time.monotonic()
