"""`moeir encode`: one pass over a corpus, or a shard of it, one representation per expert, resumable.

A corpus is encoded in windows of `CHUNK` texts; within a window, batches hold texts of similar length. A shard is a range of whole
windows: the batches are the same in shards or at once, interrupted or not, on any number of threads. Windows are read ahead and written
in the background; on a CPU each thread runs batches of its own.
"""

import logging
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import manifests, shards
from moeir.console import format_count, meter, silence
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field, to_dict
from moeir.stages.base import DEVICE, INFERENCE_DTYPE, KEEP_EMPTY, Counts, Facts, Stage, checkpoint_reference
from moeir.stages.run_arguments import check_countable, count_corpus, read_shard_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from moeir.architectures.base import EncoderOutput
    from moeir.architectures.checkpoint import RetrievalModel, TokenBatches
    from moeir.distributed import ProcessGroup
    from moeir.representations.encodings import Pruning, ResumableEncodingWriter

CHUNK = 256  # texts of a window
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Encode(Stage):
    """Encode a corpus with every expert of a checkpoint, in one pass."""

    model: Path = input_field("checkpoint", "Checkpoint to encode with.", aliases=("--encoder",))
    corpus: Path = input_field("texts", "Documents.")
    shard: str | None = option("I/N: encode shard I of N, counted from 0, into a folder of --output; index reads all shards.", None)
    terms: int | None = option(
        "Sparse experts: keep the N terms of a document with the largest weights [default: all].", None, minimum=1, aliases=("--top-k",)
    )
    least_weight: float | None = option(
        "Sparse experts: keep terms of at least this weight [default: all].", None, above=0, aliases=("--threshold",)
    )
    pool_factor: int = option(
        "Multivector experts: pool similar token vectors, N into one on average; 1 does not pool.",
        1,
        minimum=1,
        aliases=("--token-pooling",),
    )
    max_tokens: int = option(
        "Maximum tokens per batch (on a CPU at most 2,048, one batch for each thread); lower it if memory runs out.",
        16384,
        minimum=1,
        affects_result=False,
    )
    dtype: str = option(**INFERENCE_DTYPE)
    device: str = option(**DEVICE)
    keep_empty: bool = option(**KEEP_EMPTY)
    output: Path = output_field("encodings", "Folder to write.")

    def check(self) -> None:
        if self.shard is None:
            return
        shard = shards.Shard.parse(self.shard)
        check_countable(self.corpus, "--shard")
        if manifests.manifest_path(self.output).is_file():
            raise UsageError(f"--output {self.output}: holds unsharded encodings; write elsewhere")
        if other := next((one for one in shards.finished_shards(self.output) if one.total != shard.total), None):
            raise UsageError(f"--shard {shard}: {self.output} holds shards of {other.total}; move those away or write elsewhere")

    def check_outputs(self, provenance: "Mapping[str, Any]", *, force: bool) -> None:
        if self.shard is None and (finished_shards := shards.finished_shards(self.output)):
            first = next(iter(finished_shards)).folder_name
            raise UsageError(f"--output {self.output}: holds shards, such as {first}; choose one with --shard, or write elsewhere")

    def execute(self, *, force: bool) -> None:
        """Encode in this process, or, under torchrun, the shard of this rank."""
        from moeir import distributed

        if self.shard is None and (process_group := distributed.init_process_group(self.device)).size > 1:
            self._run_distributed(process_group, force=force)
        else:
            super().execute(force=force)

    def _run_distributed(self, process_group: "ProcessGroup", *, force: bool) -> None:
        """One shard per process, at most one per window; an error during setup stops all processes, after that each runs on its own."""
        with process_group.error_barrier():
            count = count_corpus(self.corpus, f"{process_group.size} processes", keep_empty=self.keep_empty)
            process_group.check_same({"the number of texts": count} | to_dict(self, results_only=True))
            total, rank = min(process_group.size, -(-count // CHUNK)), process_group.rank
            shard = f"{rank}/{total}" if rank < total > 1 else None
            own_stage = replace(self, shard=shard, device=process_group.device)
            own_stage.check()
        if not process_group.is_main:
            silence()
        if own_stage.shard is not None or process_group.is_main:
            super(Encode, own_stage).execute(force=force)

    def prepare(self) -> None:
        from moeir.backbones.device import select_device

        read_shard_range(self.shard, self.corpus, CHUNK, keep_empty=self.keep_empty)
        self._open_checkpoint(select_device(self.device))

    def product(self) -> tuple[Path, str]:
        """The folder of all encodings, or the shard's folder in it."""
        return (self.output if self.shard is None else self.output / shards.Shard.parse(self.shard).folder_name), "encodings"

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['texts'], 'text')} in {counts['dtype'].removeprefix('torch.')}, {', '.join(counts['experts'])}"

    def next_command(self) -> str | None:
        return "index --encodings OUTPUT --output idx" if self.shard is None else None

    def work(self) -> Counts:
        from moeir.architectures.base import copy_to_host
        from moeir.backbones.device import autocast, select_device, select_dtype
        from moeir.backbones.prefetch import background_writer, prefetch
        from moeir.records import texts
        from moeir.representations.encodings import ResumableEncodingWriter

        first, last = read_shard_range(self.shard, self.corpus, CHUNK, keep_empty=self.keep_empty)
        device = select_device(self.device)
        dtype = select_dtype(self.dtype, device, inference=True)
        checkpoint, pruning = self._open_checkpoint(device)
        checkpoint.pack_for_inference(dtype)
        tokenize = partial(checkpoint.tokenize_batches, side="document", max_tokens=self.max_tokens)
        writer = ResumableEncodingWriter(self.output, checkpoint.architecture.representation_kinds, pruning)
        if writer.text_count:
            log.info("continuing after %s texts", f"{writer.text_count:,}")
        documents = islice(texts.read_texts(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("encoding", None if last is None else last - first) as counter, autocast(dtype, device), background_writer() as submit:
            for _ in islice(documents, writer.text_count):
                counter.advance()
            truncation = checkpoint.truncation["document"]
            truncation.update(writer.truncation)
            windows = (
                (window, tokenize([text.content for text in window]), dict(truncation)) for window in texts.split_chunks(documents, CHUNK)
            )
            window_ids: deque[tuple[list[str], dict[str, int]]] = deque()  # of the windows that are being encoded, with `truncation` so far

            def iterate_batches() -> "Iterator[TokenBatches]":
                for window, batches, truncated in prefetch(windows):
                    window_ids.append(([text.id for text in window], truncated))
                    yield batches

            for encoded in checkpoint.iterate_encoded(iterate_batches()):
                ids, truncated = window_ids.popleft()
                submit(partial(_write_window, writer, ids, truncated, copy_to_host(encoded)))
                counter.advance(len(ids))
        writer.close()
        checkpoint.log_truncation()
        facts = {"texts": writer.text_count, "dtype": str(dtype), "experts": checkpoint.architecture.representation_kinds}
        facts |= {"truncation": dict(truncation), "prompt": checkpoint.input_config.document_prompt}
        if pruning.active_options():
            facts["shortened"] = pruning.active_options()
        if self.shard is not None:
            facts["corpus"] = str(self.corpus)
        return facts | checkpoint_reference(self.model, self.output, manifests.checkpoint_digests(manifests.read_manifest(self.model)))

    def _open_checkpoint(self, device: str) -> "tuple[RetrievalModel, Pruning]":
        """The checkpoint, and how its representations are shortened; UsageError if it has none, or none of that kind."""
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.representations.encodings import Pruning

        checkpoint, pruning = open_checkpoint(self.model, device), Pruning(self.terms, self.least_weight, self.pool_factor)
        checkpoint.check_is_bi_encoder(self.model)
        pruning.check_kinds(checkpoint.architecture.representation_kinds)
        return checkpoint, pruning


def _write_window(
    writer: "ResumableEncodingWriter", ids: list[str], truncation: dict[str, int], fetch_output: "Callable[[], EncoderOutput]"
) -> None:
    """Write a window to disk, after its copy from the device."""
    output = fetch_output().check_finite(lambda text: f"document {ids[text]!r}")
    writer.add(ids, output.representations, truncation)
