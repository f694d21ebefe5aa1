"""Files of runs that grow by blocks of queries: memory holds one block, and a killed search goes on after the last block that was saved."""

import shutil
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TextIO

from moeir.artifacts.atomic_write import link_file, make_folder
from moeir.artifacts.journals import AppendableText, JsonlJournal
from moeir.records import lines
from moeir.records.runs import Run, format_lists

JOURNAL = "journal.jsonl"
SECONDS_BETWEEN_SAVES = 5.0  # what takes less is searched again instead


class RunFiles:
    """A file for each run, whose lines carry its tag: `paths` and `tags` by name. `counts` are sums over the blocks that are written.

    With a folder `resume` the files grow there, with a journal, and `finish` links or compresses them to their paths; without, they are
    written once.
    """

    def __init__(self, paths: Mapping[str, Path], tags: Mapping[str, str], resume: Path | None) -> None:
        self._paths, self._tags, self._resume = paths, tags, resume
        self._stack, self._streams = ExitStack(), dict[str, TextIO]()
        self._growing: dict[str, AppendableText] = {}
        self.counts = Counter[str]()
        self._saved_at, self._is_saved = time.monotonic(), False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._resume is None:
                self._streams = {name: stack.enter_context(lines.open_writer(path)) for name, path in self._paths.items()}
            else:
                self._open_growing(self._resume, stack)
            self._stack = stack.pop_all()
        return self

    def _open_growing(self, folder: Path, stack: ExitStack) -> None:
        make_folder(folder)
        self._journal = JsonlJournal(folder / JOURNAL)
        stack.callback(self._journal.close)
        self._is_saved = bool(self._journal.entries)
        saved = self._journal.entries[-1] if self._is_saved else {"bytes": {}, "counts": {}}
        self.counts.update(saved["counts"])
        for name in self._paths:
            self._growing[name] = AppendableText(folder / f"{name}.trec", saved["bytes"].get(name, 0))
            stack.callback(self._growing[name].close)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self._stack.close()
        finally:
            if kind is not None and self._resume is not None and not self._is_saved:  # nothing to go on from
                for name in (JOURNAL, *(f"{name}.trec" for name in self._paths)):  # the journal first: it may have what was not synced
                    (self._resume / name).unlink(missing_ok=True)

    def add_block(self, runs: Mapping[str, Run], counts: Mapping[str, int]) -> None:
        """Write the lists of a block of queries, and save what is written if the last time is long enough ago."""
        for name, path in self._paths.items():
            for text in format_lists(runs[name], self._tags[name], lines.source_name(path, "standard output")):
                if self._resume is None:
                    self._streams[name].write(f"{text}\n")
                else:
                    self._growing[name].append([text])
        self.counts.update(counts)
        if self._resume is not None and time.monotonic() - self._saved_at >= SECONDS_BETWEEN_SAVES:
            self._journal.write({"bytes": {name: file.flush() for name, file in self._growing.items()}, "counts": self.counts})
            self._saved_at, self._is_saved = time.monotonic(), True

    def finish(self) -> None:
        """Give the files their content."""
        self._stack.close()
        if self._resume is None:
            return
        for name, path in self._paths.items():
            grown = self._resume / f"{name}.trec"
            if lines.is_compressed(path):
                with open(grown, encoding="utf-8", newline="") as source, lines.open_writer(path) as output:
                    shutil.copyfileobj(source, output)
            else:
                link_file(grown, path)
