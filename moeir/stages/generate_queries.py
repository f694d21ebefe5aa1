"""`moeir generate-queries`: a T5 checkpoint writes queries for every passage, continued where it stopped.

A corpus is walked in blocks of passages; a block's passages are computed sorted by length and written in their order. Batches are made
within a block, and a shard is a run of whole blocks: whether in shards or at once, killed or not, the same batches are computed.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage
from moeir.stages.init import check_seed

if TYPE_CHECKING:
    import torch

    from moeir.backbones.t5 import Passage
    from moeir.records.texts import Text

BLOCK = 512
log = logging.getLogger(__name__)
Queries = dict[str, list[str]]
"""The queries of some passages, by id."""


@dataclass(frozen=True, kw_only=True)
class GenerateQueries(Stage):
    """Write queries for every passage with a T5 checkpoint: for pretrain --queries, and for index --expansion (docT5query)."""

    model: Path = source("weights", "T5 checkpoint: a folder or a hub id, e.g. doc2query/all-with_prefix-t5-base-v1.")
    corpus: Path = source("texts", "Passages.")
    prefix: str = option("Text put before every passage, as the checkpoint was trained, e.g. 'text2query: '.", "")
    queries_per_passage: int = option("Queries drawn for each passage; repeated ones are kept, empty ones left out.", 5)
    top_k: int = option("Draw among so many of the likeliest tokens; 0 for all.", 25)
    top_p: float = option("Of these among the fewest that hold this share of their probability; 1 for all.", 0.95)
    temperature: float = option("What the logits are divided by.", 1.0)
    max_input: int = option("Most tokens read of a passage, prefix and end sign included.", 512)
    max_output: int = option("Most tokens of a query, end sign included.", 64)
    max_tokens: int = option("Tokens of passages and queries computed at once; lower it if memory runs out.", 16384, affects_result=False)
    seed: int = option("Seed of the draws; each query's are its own.", 42)
    shard: str | None = option(f"I/N: the I-th of N parts, counted from 0; parts are runs of whole blocks of {BLOCK} passages.", None)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    keep_empty: bool = option("Accept passages without text; they get no queries.", False)
    output: Path = product("texts", "JSON lines of _id and queries to write, in the order of the corpus; - is stdout.")

    def check(self) -> None:
        positive = {"--queries-per-passage": self.queries_per_passage, "--max-output": self.max_output, "--max-tokens": self.max_tokens}
        for flag, value in positive.items():
            if value < 1:
                raise UsageError(f"{flag} {value}: expected at least 1")
        if self.max_input < 2:
            raise UsageError(f"--max-input {self.max_input}: expected at least 2, a token and the end sign")
        if self.top_k < 0:
            raise UsageError(f"--top-k {self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: expected more than 0, at most 1 (all tokens)")
        if self.temperature <= 0:
            raise UsageError(f"--temperature {self.temperature}: expected more than 0; --top-k 1 takes the likeliest token")
        check_seed(self.seed)
        if self.shard is not None and _shard(self.shard) and self.corpus == STREAM:
            raise UsageError("--shard: needs a corpus whose passages can be counted before they are read; --corpus - is a pipe")

    def cost(self) -> list[str]:
        if self.corpus == STREAM:
            return []
        first, last = self._range()
        passages = (self._passages() if last is None else last) - first
        return [f"{passages:,} passages, {passages * self.queries_per_passage:,} queries of at most {self.max_output} tokens"]

    def work(self) -> Counts:
        from moeir.artifacts import making
        from moeir.backbones.precision import device_for, dtype_for
        from moeir.console import meter
        from moeir.records import lines, texts

        device = device_for(self.device)
        generator = Author(self, device, dtype_for(self.dtype, device))
        first, last = self._range()
        documents = islice(texts.read(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("writing queries for passages", None if last is None else last - first) as counter:
            if self.output == STREAM:
                with lines.writer(STREAM) as stream:
                    for block in _blocks(documents):
                        stream.writelines(f"{line}\n" for line in generator.lines(block, {}, lambda queries: None))
                        counter.advance(len(block))
                return generator.report(last)
            output_file = Desk(making.resume_place(self.output), generator)
            for _ in islice(documents, output_file.passages):
                counter.advance()
            for block in _blocks(documents):
                output_file.add(block)
                counter.advance(len(block))
        output_file.close(self.output)
        return generator.report(last)

    def _range(self) -> tuple[int, int | None]:
        """The passages of the shard, first and behind the last; the whole corpus without one."""
        if self.shard is None:
            return 0, None
        (number, parts), passages = _shard(self.shard), self._passages()
        blocks = -(-passages // BLOCK)
        first, last = (min(index * blocks // parts * BLOCK, passages) for index in (number, number + 1))
        if first == last:
            log.warning("--shard %s: no passages for it, %d make only %d blocks of %d", self.shard, passages, blocks, BLOCK)
        return first, last

    def _passages(self) -> int:
        from moeir.records import texts

        return sum(1 for _ in texts.read(self.corpus, keep_empty=self.keep_empty))


def _shard(text: str) -> tuple[int, int]:
    """3/8 is the fourth of eight."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise UsageError(f"--shard {text}: expected I/N, the I-th of N parts counted from 0, such as 0/8 … 7/8")
    return int(number), int(parts)


def _blocks(documents: Iterable["Text"]) -> Iterator[list["Text"]]:
    remaining = iter(documents)
    while block := list(islice(remaining, BLOCK)):
        yield block


class Author:
    """A model at work: passages of a block in batches of like length, and a count of what came of them."""

    def __init__(self, stage: GenerateQueries, device: str, dtype: "torch.dtype") -> None:
        from moeir.backbones.t5 import QueryWriter, Sampling

        self._stage = stage
        self._writer = QueryWriter(stage.model, device, dtype)
        self._sampling = Sampling(
            stage.queries_per_passage, stage.top_k, stage.top_p, stage.temperature, length=stage.max_output, seed=stage.seed
        )
        self.tally = dict.fromkeys(("passages", "queries", "cut", "empty"), 0)
        self._dtype = dtype
        [prefix], _ = self._writer.read([stage.prefix], stage.max_input)
        if len(prefix) == stage.max_input:
            raise UsageError(f"--max-input {stage.max_input}: the prefix and the end sign leave no room for a passage")

    def lines(self, block: Sequence["Text"], finished: Queries, save: Callable[[Queries], None]) -> list[str]:
        """A line for each passage; what is `known` is not written again, and what is new goes to `keep` batch by batch."""
        from moeir.backbones.t5 import Passage
        from moeir.records import generated

        non_empty = [text for text in block if text.content]
        token_ids, truncated = self._writer.read([self._stage.prefix + text.content for text in non_empty], self._stage.max_input)
        queries_by_id: Queries = {text.id: [] for text in block} | finished
        for batch in self._batches([Passage(text.id, ids) for text, ids in zip(non_empty, token_ids, strict=True)]):
            if new_passages := [passage for passage in batch if passage.id not in finished]:
                new_queries = dict(
                    zip((passage.id for passage in new_passages), self._writer.write(new_passages, self._sampling), strict=True)
                )
                save(new_queries)
                queries_by_id |= new_queries
        queries = sum(map(len, queries_by_id.values()))
        added = {"passages": len(block), "queries": queries, "cut": truncated, "empty": len(non_empty) * self._sampling.queries - queries}
        self.tally = {name: self.tally[name] + added[name] for name in added}
        return [generated.line(text.id, queries_by_id[text.id]) for text in block]

    def _batches(self, passages: Sequence["Passage"]) -> Iterator[list["Passage"]]:
        """Shortest first; each as many as fit, padded to the longest of them and with all their queries."""
        batch: list[Passage] = []
        for passage in sorted(passages, key=lambda passage: len(passage.ids)):
            tokens_per_passage = self._sampling.queries * (len(passage.ids) + self._sampling.length)
            if batch and (len(batch) + 1) * tokens_per_passage > self._stage.max_tokens:
                yield batch
                batch = []
            batch.append(passage)
        if batch:
            yield batch

    def report(self, last: int | None) -> Counts:
        """Warn of what was cut or came out empty; the counts for the manifest."""
        counts = self.tally
        if counts["cut"]:
            log.warning("%d of %d passages were cut to --max-input %d tokens", counts["cut"], counts["passages"], self._stage.max_input)
        if counts["empty"]:
            log.warning("%d queries came out empty and were left out", counts["empty"])
        return {**counts, "dtype": str(self._dtype)}


class Desk:
    """Growing lines of whole blocks, and a journal of each block under way: a kill loses no more than one batch."""

    def __init__(self, folder: Path, generator: Author) -> None:
        from moeir.artifacts.journals import GrowingLines, Journal

        folder.mkdir(exist_ok=True)
        self._folder, self._author = folder, generator
        self._journal = Journal(folder / "journal.jsonl")
        self._lines = GrowingLines(folder / "lines.jsonl", self._journal.entries[-1]["bytes"] if self._journal.entries else 0)
        if self._journal.entries:
            generator.tally = self._journal.entries[-1]["tally"]

    @property
    def passages(self) -> int:
        """How many passages are done."""
        return self._author.tally["passages"]

    def add(self, block: Sequence["Text"]) -> None:
        """Write queries for a block and bring them to disk."""
        from moeir.artifacts.journals import Journal

        draft_path = self._folder / f"block-{self.passages}.jsonl"
        drafts = Journal(draft_path)
        finished = {passage: queries for entry in drafts.entries for passage, queries in entry.items()}
        self._lines.append(self._author.lines(block, finished, drafts.write))
        self._journal.write({"bytes": self._lines.flush(), "tally": self._author.tally})
        drafts.close()
        draft_path.unlink()

    def close(self, output: Path) -> None:
        """Put the lines where they are wanted."""
        from moeir.records import lines

        self._lines.close()
        self._journal.close()
        with open(self._folder / "lines.jsonl", encoding="utf-8", newline="") as source_file, lines.writer(output) as file:
            shutil.copyfileobj(source_file, file)
