"""Journal of scores on disk, so that a killed reranking resumes after the last saved score."""

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeir.artifacts.journals import HEADER, GrowingArray, Journal

SECONDS = 5.0  # between two writes to disk
Scores = npt.NDArray[np.float32]


class Ledger:
    """Score logs by name, each in the order in which its pairs are scored; in memory only without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._journal, self._kept = folder, None, time.monotonic()
        self._marks: dict[str, int] = {}
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._journal = Journal(folder / "journal.jsonl")
            for entry in self._journal.entries:
                self._marks |= entry

    @property
    def keeps(self) -> bool:
        """Whether scores are on disk; work of less than `FLUSH_SECONDS` is repeated instead."""
        return bool(self._marks)

    def opened(self, name: str, count: int) -> "Walk":
        """The log of that name for `count` pairs, with its saved scores."""
        return Walk(self, name, count)

    def _known(self, name: str) -> Scores:
        rows = self._marks.get(name, 0)
        if self._folder is None or not rows:
            return np.empty(0, dtype=np.float32)
        saved = (self._folder / f"{name}.npy").read_bytes()[HEADER : HEADER + 4 * rows]
        return np.frombuffer(saved, dtype=np.float32)

    def _due(self) -> bool:
        return self._folder is not None and time.monotonic() - self._kept >= SECONDS

    def _keep(self, name: str, scores: Scores) -> None:
        """Append the next scores of a log to its file."""
        assert self._folder is not None and self._journal is not None
        array = GrowingArray(self._folder / f"{name}.npy", np.float32, rows=self._marks.get(name, 0))
        array.append(scores)
        array.flush()
        array.close()
        self._marks[name] = array.rows
        self._journal.write({name: array.rows})
        self._kept = time.monotonic()

    def close(self) -> None:
        """Close the journal file."""
        if self._journal is not None:
            self._journal.close()


class Walk:
    """The scores of one log, of which `done` are known."""

    def __init__(self, journal: Ledger, name: str, count: int) -> None:
        saved = journal._known(name)
        self.scores, self.done, self._kept = np.empty(count, dtype=np.float32), len(saved), len(saved)
        self.scores[: self.done] = saved
        self._ledger, self._name = journal, name

    def add(self, scores: Scores) -> None:
        """Add the next scores; save them if a write is due."""
        self.scores[self.done : self.done + len(scores)] = scores
        self.done += len(scores)
        if self._ledger._due():
            self._ledger._keep(self._name, self.scores[self._kept : self.done])
            self._kept = self.done

    def close(self) -> Scores:
        """Return all scores; save the rest if earlier ones are on disk."""
        assert self.done == len(self.scores)
        if self._kept < self.done and self._ledger.keeps:
            self._ledger._keep(self._name, self.scores[self._kept :])
        return self.scores
