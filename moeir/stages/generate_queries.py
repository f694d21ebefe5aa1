"""`moeir generate-queries`: generate queries for every passage with a T5 checkpoint, resumable.

A corpus is processed in blocks of `BLOCK` passages; a block is computed sorted by length and written in corpus order. Batches stay
within a block, and a shard is a range of whole blocks: the batches are the same in shards or at once, interrupted or not.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import STREAM, Counts, Stage
from moeir.stages.checks import check_seed

if TYPE_CHECKING:
    import torch

    from moeir.backbones.query_generator import Passage
    from moeir.records.texts import Text

BLOCK = 512
log = logging.getLogger(__name__)
Queries = dict[str, list[str]]
"""The queries of some passages, by id."""


@dataclass(frozen=True, kw_only=True)
class GenerateQueries(Stage):
    """Generate queries for every passage with a T5 checkpoint, for pretrain --queries and index --expansion (docT5query)."""

    model: Path = input_field("weights", "T5 checkpoint: a folder or a hub id, e.g. doc2query/all-with_prefix-t5-base-v1.")
    corpus: Path = input_field("texts", "Passages.")
    prefix: str = option("Text prepended to every passage, as in the checkpoint's training, e.g. 'text2query: '.", "")
    queries_per_passage: int = option("Queries sampled per passage; duplicates are kept, empty ones dropped.", 5)
    top_k: int = option("Sample from the K most likely tokens; 0 for all.", 25)
    top_p: float = option("Nucleus sampling: of these, the fewest tokens that hold this share of their probability; 1 for all.", 0.95)
    temperature: float = option("Sampling temperature: the logits are divided by it.", 1.0)
    max_input: int = option("Maximum tokens of a passage, with prefix and end token.", 512)
    max_output: int = option("Maximum tokens of a query, with the end token.", 64)
    max_tokens: int = option("Maximum tokens of passages and queries per batch; lower it if memory runs out.", 16384, affects_result=False)
    seed: int = option("Random seed; each query has random numbers of its own.", 42)
    shard: str | None = option(f"I/N: process shard I of N, counted from 0; shards are ranges of whole blocks of {BLOCK} passages.", None)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    keep_empty: bool = option("Accept passages without text; they get no queries.", False)
    output: Path = output_field("texts", "Output file: JSON lines with _id and queries, in corpus order; - is stdout.")

    def check(self) -> None:
        positive = {"--queries-per-passage": self.queries_per_passage, "--max-output": self.max_output, "--max-tokens": self.max_tokens}
        for flag, value in positive.items():
            if value < 1:
                raise UsageError(f"{flag} {value}: expected at least 1")
        if self.max_input < 2:
            raise UsageError(f"--max-input {self.max_input}: expected at least 2, a token and the end token")
        if self.top_k < 0:
            raise UsageError(f"--top-k {self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: expected more than 0, at most 1 (all tokens)")
        if self.temperature <= 0:
            raise UsageError(f"--temperature {self.temperature}: expected more than 0; --top-k 1 takes the most likely token")
        check_seed(self.seed)
        if self.shard is not None and _parse_shard(self.shard) and self.corpus == STREAM:
            raise UsageError("--shard: needs a corpus whose passages can be counted before they are read; --corpus - is a pipe")

    def estimate(self) -> list[str]:
        if self.corpus == STREAM:
            return []
        first, last = self._shard_range()
        passages = (self._count_passages() if last is None else last) - first
        return [f"{passages:,} passages, {passages * self.queries_per_passage:,} queries of at most {self.max_output} tokens"]

    def work(self) -> Counts:
        from moeir.artifacts import atomic_write
        from moeir.backbones.device import select_device, select_dtype
        from moeir.console import meter
        from moeir.records import lines, texts

        device = select_device(self.device)
        generator = BlockGenerator(self, device, select_dtype(self.dtype, device))
        first, last = self._shard_range()
        documents = islice(texts.read_texts(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("generating queries", None if last is None else last - first) as counter:
            if self.output == STREAM:
                with lines.open_writer(STREAM) as stream:
                    for block in _split_into_blocks(documents):
                        stream.writelines(f"{line}\n" for line in generator.generate_lines(block, {}, lambda queries: None))
                        counter.advance(len(block))
                return generator.report_counts(last)
            output_file = ResumableQueryFile(atomic_write.resume_path(self.output), generator)
            for _ in islice(documents, output_file.passages_done):
                counter.advance()
            for block in _split_into_blocks(documents):
                output_file.add_block(block)
                counter.advance(len(block))
        output_file.close(self.output)
        return generator.report_counts(last)

    def _shard_range(self) -> tuple[int, int | None]:
        """The passages of the shard as (first, last + 1); the whole corpus without --shard."""
        if self.shard is None:
            return 0, None
        (number, parts), passages = _parse_shard(self.shard), self._count_passages()
        blocks = -(-passages // BLOCK)
        first, last = (min(index * blocks // parts * BLOCK, passages) for index in (number, number + 1))
        if first == last:
            log.warning("--shard %s: no passages for it, %d make only %d blocks of %d", self.shard, passages, blocks, BLOCK)
        return first, last

    def _count_passages(self) -> int:
        from moeir.records import texts

        return sum(1 for _ in texts.read_texts(self.corpus, keep_empty=self.keep_empty))


def _parse_shard(text: str) -> tuple[int, int]:
    """The number and count of shards: 3/8 is the fourth of eight."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise UsageError(f"--shard {text}: expected I/N, shard I of N counted from 0, such as 0/8 … 7/8")
    return int(number), int(parts)


def _split_into_blocks(documents: Iterable["Text"]) -> Iterator[list["Text"]]:
    remaining = iter(documents)
    while block := list(islice(remaining, BLOCK)):
        yield block


class BlockGenerator:
    """Generates queries for the passages of a block in batches of similar length, and counts the results."""

    def __init__(self, stage: GenerateQueries, device: str, dtype: "torch.dtype") -> None:
        from moeir.backbones.query_generator import Sampling, T5QueryGenerator

        self._stage = stage
        self._model = T5QueryGenerator(stage.model, device, dtype)
        self._sampling = Sampling(
            stage.queries_per_passage, stage.top_k, stage.top_p, stage.temperature, length=stage.max_output, seed=stage.seed
        )
        self.counts = dict.fromkeys(("passages", "queries", "cut", "empty"), 0)
        self._dtype = dtype
        [prefix], _ = self._model.tokenize([stage.prefix], stage.max_input)
        if len(prefix) == stage.max_input:
            raise UsageError(f"--max-input {stage.max_input}: the prefix and the end token leave no room for a passage")

    def generate_lines(self, block: Sequence["Text"], finished: Queries, save: Callable[[Queries], None]) -> list[str]:
        """A line for each passage; `finished` queries are not generated again, new ones go to `save` batch by batch."""
        from moeir.backbones.query_generator import Passage
        from moeir.records import generated_queries

        non_empty = [text for text in block if text.content]
        token_ids, truncated = self._model.tokenize([self._stage.prefix + text.content for text in non_empty], self._stage.max_input)
        queries_by_id: Queries = {text.id: [] for text in block} | finished
        for batch in self._make_batches([Passage(text.id, ids) for text, ids in zip(non_empty, token_ids, strict=True)]):
            if new_passages := [passage for passage in batch if passage.id not in finished]:
                new_queries = dict(
                    zip((passage.id for passage in new_passages), self._model.generate(new_passages, self._sampling), strict=True)
                )
                save(new_queries)
                queries_by_id |= new_queries
        queries = sum(map(len, queries_by_id.values()))
        added = {"passages": len(block), "queries": queries, "cut": truncated, "empty": len(non_empty) * self._sampling.queries - queries}
        self.counts = {name: self.counts[name] + added[name] for name in added}
        return [generated_queries.format_line(text.id, queries_by_id[text.id]) for text in block]

    def _make_batches(self, passages: Sequence["Passage"]) -> Iterator[list["Passage"]]:
        """Batches, shortest passages first; each has as many as fit when padded to the longest, with all their queries."""
        batch: list[Passage] = []
        for passage in sorted(passages, key=lambda passage: len(passage.ids)):
            tokens_per_passage = self._sampling.queries * (len(passage.ids) + self._sampling.length)
            if batch and (len(batch) + 1) * tokens_per_passage > self._stage.max_tokens:
                yield batch
                batch = []
            batch.append(passage)
        if batch:
            yield batch

    def report_counts(self, last: int | None) -> Counts:
        """Warn about truncated passages and empty queries; the counts for the manifest."""
        counts = self.counts
        if counts["cut"]:
            log.warning(
                "%d of %d passages were truncated to --max-input %d tokens", counts["cut"], counts["passages"], self._stage.max_input
            )
        if counts["empty"]:
            log.warning("%d generated queries were empty and were dropped", counts["empty"])
        return {**counts, "dtype": str(self._dtype)}


class ResumableQueryFile:
    """A growing file of finished blocks, and a journal of the current block: an interruption loses at most one batch."""

    def __init__(self, folder: Path, generator: BlockGenerator) -> None:
        from moeir.artifacts.journals import AppendableText, JsonlJournal

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

    def add_block(self, block: Sequence["Text"]) -> None:
        """Generate queries for a block and flush them to disk."""
        from moeir.artifacts.journals import JsonlJournal

        draft_path = self._folder / f"block-{self.passages_done}.jsonl"
        drafts = JsonlJournal(draft_path)
        finished = {passage: queries for entry in drafts.entries for passage, queries in entry.items()}
        self._lines.append(self._generator.generate_lines(block, finished, drafts.write))
        self._journal.write({"bytes": self._lines.flush(), "tally": self._generator.counts})
        drafts.close()
        draft_path.unlink()

    def close(self, output: Path) -> None:
        """Copy the lines to `output`."""
        from moeir.records import lines

        self._lines.close()
        self._journal.close()
        with open(self._folder / "lines.jsonl", encoding="utf-8", newline="") as source_file, lines.open_writer(output) as file:
            shutil.copyfileobj(source_file, file)
