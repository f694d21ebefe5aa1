"""Journal of scores on disk, so that a killed reranking resumes after the last saved score."""

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeir.artifacts.journals import HEADER_BYTES, AppendableNpy, JsonlJournal

FLUSH_SECONDS = 5.0  # between two writes to disk
Scores = npt.NDArray[np.float32]


class ScoreJournal:
    """Score logs by name, each in the order in which its pairs are scored; in memory only without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._journal, self._flushed_at = folder, None, time.monotonic()
        self._saved_rows: dict[str, int] = {}
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._journal = JsonlJournal(folder / "journal.jsonl")
            for entry in self._journal.entries:
                self._saved_rows |= entry

    @property
    def has_saved(self) -> bool:
        """Whether scores are on disk; work of less than `FLUSH_SECONDS` is repeated instead."""
        return bool(self._saved_rows)

    def open_log(self, name: str, count: int) -> "ScoreLog":
        """The log of that name for `count` pairs, with its saved scores."""
        return ScoreLog(self, name, count)

    def _load(self, name: str) -> Scores:
        rows = self._saved_rows.get(name, 0)
        if self._folder is None or not rows:
            return np.empty(0, dtype=np.float32)
        saved = (self._folder / f"{name}.npy").read_bytes()[HEADER_BYTES : HEADER_BYTES + 4 * rows]
        return np.frombuffer(saved, dtype=np.float32)

    def _is_due(self) -> bool:
        return self._folder is not None and time.monotonic() - self._flushed_at >= FLUSH_SECONDS

    def _save(self, name: str, scores: Scores) -> None:
        """Append the next scores of a log to its file."""
        assert self._folder is not None and self._journal is not None
        array = AppendableNpy(self._folder / f"{name}.npy", np.float32, rows=self._saved_rows.get(name, 0))
        array.append(scores)
        array.flush()
        array.close()
        self._saved_rows[name] = array.rows
        self._journal.write({name: array.rows})
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        """Close the journal file."""
        if self._journal is not None:
            self._journal.close()


class ScoreLog:
    """The scores of one log, of which `done` are known."""

    def __init__(self, journal: ScoreJournal, name: str, count: int) -> None:
        saved = journal._load(name)
        self.scores, self.done, self._saved = np.empty(count, dtype=np.float32), len(saved), len(saved)
        self.scores[: self.done] = saved
        self._owner, self._name = journal, name

    def add(self, scores: Scores) -> None:
        """Add the next scores; save them if a write is due."""
        self.scores[self.done : self.done + len(scores)] = scores
        self.done += len(scores)
        if self._owner._is_due():
            self._owner._save(self._name, self.scores[self._saved : self.done])
            self._saved = self.done

    def close(self) -> Scores:
        """Return all scores; save the rest if earlier ones are on disk."""
        assert self.done == len(self.scores)
        if self._saved < self.done and self._owner.has_saved:
            self._owner._save(self._name, self.scores[self._saved :])
        return self.scores
