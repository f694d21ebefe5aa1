"""Journal of scores on disk, so that a killed reranking resumes after the last saved score."""

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeir.artifacts.atomic_write import make_folder
from moeir.artifacts.journals import HEADER_BYTES, AppendableNpy, JsonlJournal

FLUSH_SECONDS = 5.0  # between two writes to disk; shorter work is repeated instead
Scores = npt.NDArray[np.float32]


class ScoreJournal:
    """Score logs by name, each in the order in which its pairs are scored; in memory only without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._journal, self._flushed_at = folder, None, time.monotonic()
        self._saved_rows: dict[str, int] = {}
        if folder is not None:
            make_folder(folder)
            self._journal = JsonlJournal(folder / "journal.jsonl")
            for entry in self._journal.entries:
                self._saved_rows |= entry

    def open_log(self, name: str, count: int) -> "ScoreLog":
        """The log of that name for `count` pairs, with its saved scores."""
        rows, scores = self._saved_rows.get(name, 0), np.empty(count, dtype=np.float32)
        if self._folder is not None and rows:
            saved = (self._folder / f"{name}.npy").read_bytes()[HEADER_BYTES : HEADER_BYTES + 4 * rows]
            scores[:rows] = np.frombuffer(saved, dtype=np.float32)
        return ScoreLog(self, name, scores, rows)

    def save(self, log: "ScoreLog", *, last: bool = False) -> None:
        """Append the new scores of a log to its file if a write is due, or after the last score if earlier ones are on disk."""
        is_due = bool(self._saved_rows) if last else time.monotonic() - self._flushed_at >= FLUSH_SECONDS
        rows = self._saved_rows.get(log.name, 0)
        if self._folder is None or self._journal is None or not is_due or rows == log.done:
            return
        array = AppendableNpy(self._folder / f"{log.name}.npy", np.float32, rows=rows)
        array.append(log.scores[rows : log.done])
        array.flush()
        array.close()
        self._saved_rows[log.name] = array.rows
        self._journal.write({log.name: array.rows})
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        """Close the journal file."""
        if self._journal is not None:
            self._journal.close()


class ScoreLog:
    """The scores of one log, of which `done` are known."""

    def __init__(self, journal: ScoreJournal, name: str, scores: Scores, done: int) -> None:
        self.name, self.scores, self.done, self._journal = name, scores, done, journal

    def add(self, scores: Scores) -> None:
        """Add the next scores; save them if a write is due."""
        self.scores[self.done : self.done + len(scores)] = scores
        self.done += len(scores)
        self._journal.save(self)

    def close(self) -> Scores:
        """Return all scores; save the rest if earlier ones are on disk."""
        assert self.done == len(self.scores)
        self._journal.save(self, last=True)
        return self.scores
