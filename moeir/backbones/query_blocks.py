"""Queries for blocks of passages: batches of similar length within a block, and an output file that an interruption leaves resumable."""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.artifacts.journals import AppendableText, JsonlJournal
from moeir.backbones.query_generator import Passage, Sampling, T5QueryGenerator
from moeir.errors import UsageError
from moeir.records import generated_queries, lines
from moeir.records.texts import Text

log = logging.getLogger(__name__)
Queries = dict[str, list[str]]
"""The queries of some passages, by id."""


class BlockGenerator:
    """Generates queries for the passages of a block in batches of similar length, and counts the results."""

    def __init__(self, model: T5QueryGenerator, sampling: Sampling, prefix: str, max_input: int, max_tokens: int) -> None:
        self._model, self._sampling, self._prefix, self._max_input, self._max_tokens = model, sampling, prefix, max_input, max_tokens
        self.counts = dict.fromkeys(("passages", "queries", "cut", "empty"), 0)
        [prefix_ids], _ = model.tokenize([prefix], max_input)
        if len(prefix_ids) == max_input:
            raise UsageError(f"--max-input {max_input}: the prefix and the end token leave no room for a passage")

    def generate_lines(self, block: Sequence[Text], finished: Queries, save: Callable[[Queries], None]) -> list[str]:
        """A line for each passage; `finished` queries are not generated again, new ones go to `save` batch by batch."""
        non_empty = [text for text in block if text.content]
        token_ids, truncated = self._model.tokenize([self._prefix + text.content for text in non_empty], self._max_input)
        queries_by_id: Queries = {text.id: [] for text in block} | finished
        for batch in self._make_batches([Passage(text.id, ids) for text, ids in zip(non_empty, token_ids, strict=True)]):
            if new_passages := [passage for passage in batch if passage.id not in finished]:
                generated = self._model.generate(new_passages, self._sampling)
                new_queries = {passage.id: queries for passage, queries in zip(new_passages, generated, strict=True)}
                save(new_queries)
                queries_by_id |= new_queries
        queries = sum(map(len, queries_by_id.values()))
        added = {"passages": len(block), "queries": queries, "cut": truncated, "empty": len(non_empty) * self._sampling.queries - queries}
        self.counts = {name: self.counts[name] + added[name] for name in added}
        return [generated_queries.format_line(text.id, queries_by_id[text.id]) for text in block]

    def _make_batches(self, passages: Sequence[Passage]) -> Iterator[list[Passage]]:
        """Batches, shortest passages first; each has as many as fit when padded to the longest, with all their queries."""
        batch: list[Passage] = []
        for passage in sorted(passages, key=lambda passage: len(passage.ids)):
            tokens_per_passage = self._sampling.queries * (len(passage.ids) + self._sampling.length)
            if batch and (len(batch) + 1) * tokens_per_passage > self._max_tokens:
                yield batch
                batch = []
            batch.append(passage)
        if batch:
            yield batch

    def report_counts(self) -> dict[str, Any]:
        """Warn about truncated passages and empty queries; the counts for the manifest."""
        counts = self.counts
        if counts["cut"]:
            log.warning("%d of %d passages were truncated to --max-input %d tokens", counts["cut"], counts["passages"], self._max_input)
        if counts["empty"]:
            log.warning("%d generated queries were empty and were dropped", counts["empty"])
        return dict(counts)


class ResumableQueryFile:
    """A growing file of finished blocks, and a journal of the current block: an interruption loses at most one batch."""

    def __init__(self, folder: Path, generator: BlockGenerator) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._generator = folder, generator
        self._journal = JsonlJournal(folder / "journal.jsonl")
        self._lines = AppendableText(folder / "lines.jsonl", self._journal.entries[-1]["bytes"] if self._journal.entries else 0)
        if self._journal.entries:
            generator.counts = self._journal.entries[-1]["tally"]

    @property
    def passages_done(self) -> int:
        """Number of finished passages."""
        return self._generator.counts["passages"]

    def add_block(self, block: Sequence[Text]) -> None:
        """Generate queries for a block and flush them to disk."""
        draft_path = self._folder / f"block-{self.passages_done}.jsonl"
        drafts = JsonlJournal(draft_path)
        finished = {passage: queries for entry in drafts.entries for passage, queries in entry.items()}
        self._lines.append(self._generator.generate_lines(block, finished, drafts.write))
        self._journal.write({"bytes": self._lines.flush(), "tally": self._generator.counts})
        drafts.close()
        draft_path.unlink()

    def close(self, output: Path) -> None:
        """Copy the lines to `output`."""
        self._lines.close()
        self._journal.close()
        with open(self._folder / "lines.jsonl", encoding="utf-8", newline="") as source_file, lines.open_writer(output) as file:
            shutil.copyfileobj(source_file, file)
