"""`moeir generate-queries`: generate queries for every passage with a T5 or another sequence-to-sequence model, resumable.

A corpus is processed in blocks of `BLOCK` passages; a block is computed sorted by length and written in corpus order. Batches stay
within a block, and a shard is a range of whole blocks: the queries are the same in shards or at once, interrupted or not.
"""

import logging
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from moeir.artifacts import atomic_write
from moeir.console import format_count, meter
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEVICE, DTYPE, MAX_SEED, STREAM, Counts, Facts, Stage
from moeir.stages.run_arguments import check_countable, count_corpus, read_shard_range

BLOCK = 512
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GenerateQueries(Stage):
    """Generate queries for every passage with a T5 checkpoint, for pretrain --queries and index --expansion (docT5query)."""

    prepare_reads_texts = True
    model: Path = input_field("weights", "T5 checkpoint: a folder or a hub id, e.g. doc2query/all-with_prefix-t5-base-v1.")
    corpus: Path = input_field("texts", "Passages.")
    prefix: str = option("Text prepended to every passage, as in the checkpoint's training, e.g. 'text2query: '.", "")
    queries_per_passage: int = option("Queries sampled per passage; duplicates are kept, empty ones dropped.", 5, minimum=1)
    top_k: int = option("Sample from the K most likely tokens; 0 for all.", 25, minimum=0)
    top_p: float = option(
        "Nucleus sampling: of these, the fewest tokens that hold this share of their probability; 1 for all.", 0.95, above=0, maximum=1
    )
    temperature: float = option("Sampling temperature: the logits are divided by it; --top-k 1 takes the most likely token.", 1.0, above=0)
    max_input: int = option("Maximum tokens of a passage, with prefix and end token.", 512, minimum=2)
    max_output: int = option("Maximum tokens of a query, with the end token.", 64, minimum=1, maximum=1_000_000)
    max_tokens: int = option(
        "Maximum tokens of passages and queries per batch; lower it if memory runs out. Other batches draw other queries.", 16384, minimum=1
    )
    seed: int = option("Random seed.", 42, minimum=0, maximum=MAX_SEED)
    shard: str | None = option(f"I/N: process shard I of N, counted from 0; shards are ranges of whole blocks of {BLOCK} passages.", None)
    dtype: str = option(**DTYPE)
    device: str = option(**DEVICE)
    keep_empty: bool = option("Accept passages without text; they get no queries.", False)
    output: Path = output_field("texts", "Output file: JSON lines with _id and queries, in corpus order; - is stdout.")

    def check(self) -> None:
        if self.shard is not None:
            check_countable(self.corpus, "--shard")

    def prepare(self) -> int:
        first, last = read_shard_range(self.shard, self.corpus, BLOCK, keep_empty=self.keep_empty)
        return (count_corpus(self.corpus, "--dry-run", keep_empty=self.keep_empty) if last is None else last) - first

    def estimate(self, passages: int) -> list[str]:
        return [f"{passages:,} passages, {passages * self.queries_per_passage:,} queries of at most {self.max_output} tokens"]

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['queries'], 'query')} of {format_count(counts['passages'], 'passage')}"

    def next_command(self) -> str | None:
        return "index --corpus CORPUS --engine bm25 --expansion OUTPUT --output idx" if self.shard is None else None

    def work(self) -> Counts:
        from moeir.backbones.device import select_device, select_dtype
        from moeir.backbones.query_generator import QueryGenerator, ResumableQueryFile, Sampling
        from moeir.records import lines, texts

        first, last = read_shard_range(self.shard, self.corpus, BLOCK, keep_empty=self.keep_empty)
        device = select_device(self.device)
        dtype = select_dtype(self.dtype, device)
        sampling = Sampling(self.queries_per_passage, self.top_k, self.top_p, self.temperature, length=self.max_output, seed=self.seed)
        generator = QueryGenerator(
            self.model, device, dtype, sampling, prefix=self.prefix, max_input=self.max_input, max_tokens=self.max_tokens
        )
        documents = islice(texts.read_texts(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("generating queries", None if last is None else last - first) as counter:
            if self.output == STREAM:
                with lines.open_writer(STREAM) as stream:
                    for block in texts.split_chunks(documents, BLOCK):
                        stream.writelines(f"{line}\n" for line in generator.generate_lines(block))
                        counter.advance(len(block))
                return generator.report_counts() | {"dtype": str(dtype)}
            output_file = ResumableQueryFile(atomic_write.resume_path(self.output), generator)
            if output_file.passages_done:
                log.info("continuing after %s passages", f"{output_file.passages_done:,}")
            for _ in islice(documents, output_file.passages_done):
                counter.advance()
            for block in texts.split_chunks(documents, BLOCK):
                output_file.add_block(block)
                counter.advance(len(block))
        output_file.close(self.output)
        return generator.report_counts() | {"dtype": str(dtype)}
