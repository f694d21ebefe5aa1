"""`moeir encode`: one pass over a corpus, or a shard of it, one representation per expert, resumable.

A corpus is encoded in windows of `CHUNK` texts; within a window, batches hold texts of similar length. A shard is a range of whole
windows: the batches are the same in shards or at once, interrupted or not. Windows are read ahead and written in the background.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import manifests, shards
from moeir.console import hush
from moeir.errors import UsageError
from moeir.settings import as_dict, option, product, source
from moeir.stages.base import STREAM, Counts, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from moeir.architectures.base import Encoded
    from moeir.architectures.checkpoint import OpenCheckpoint, TokenBatches
    from moeir.learning.distributed import World
    from moeir.records.texts import Text
    from moeir.representations.growing import GrowingEncodings
    from moeir.stages import sharing

CHUNK = 256  # texts of a window
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Encode(Stage):
    """Encode a corpus with every expert of a checkpoint, in one pass."""

    model: Path = source("checkpoint", "Checkpoint to encode with.", names=("--encoder",))
    corpus: Path = source("texts", "Documents.")
    shard: str | None = option("I/N: encode shard I of N, counted from 0, into a folder of --output; index reads all shards.", None)
    processes: int = option(
        "Worker processes on this machine, one shard each; 0: one per GPU. Or use torchrun -m moeir encode.", 1, affects_result=False
    )
    stuck_minutes: float = option("Timeout in minutes for a process without progress.", 30.0, affects_result=False)
    terms: int | None = option(
        "Sparse experts: keep the N terms of a document with the largest weights [default: all].", None, names=("--top-k",)
    )
    least_weight: float | None = option("Sparse experts: keep terms of at least this weight [default: all].", None, names=("--threshold",))
    pool_factor: int = option(
        "Multivector experts: pool similar token vectors, N into one on average; 1 does not pool.", 1, names=("--token-pooling",)
    )
    max_tokens: int = option("Maximum tokens per batch; lower it if memory runs out.", 16384, affects_result=False)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = product("encodings", "Folder to write.")

    def check(self) -> None:
        if self.terms is not None and self.terms < 1:
            raise UsageError(f"--terms {self.terms}: expected at least 1")
        if self.least_weight is not None and not 0 < self.least_weight < float("inf"):
            raise UsageError(f"--least-weight {self.least_weight:g}: expected more than 0")
        if self.pool_factor < 1:
            raise UsageError(f"--pool-factor {self.pool_factor}: expected at least 1 (no pooling)")
        if self.processes < 0:
            raise UsageError(f"--processes {self.processes}: expected 1 or more, or 0 for as many as GPUs")
        if self.stuck_minutes <= 0:
            raise UsageError(f"--stuck-minutes {self.stuck_minutes:g}: expected more than 0")
        if self.output == STREAM:
            raise UsageError("--output -: encodings are a folder; name one")
        if self.shard is not None:
            self._check_shard(shards.Shard.parsed(self.shard))
        elif self.processes > 1:
            self._check_counted(f"--processes {self.processes}")

    def _check_shard(self, shard: shards.Shard) -> None:
        if self.processes > 1:
            raise UsageError(f"--shard {shard}: is made by one process, found --processes {self.processes}; leave one of them out")
        self._check_counted("--shard")
        if manifests.manifest_path(self.output).is_file():
            raise UsageError(f"--output {self.output}: holds unsharded encodings; write elsewhere")
        if other := next((one for one in shards.finished(self.output) if one.of != shard.of), None):
            raise UsageError(f"--shard {shard}: {self.output} holds shards of {other.of}; move those away or write elsewhere")

    def _check_counted(self, flag: str) -> None:
        if self.corpus == STREAM:
            raise UsageError(f"{flag}: needs a corpus whose texts can be counted before they are read; --corpus - is a pipe")

    def begin(self, *, force: bool) -> None:
        """Encode in this process, in worker processes with a shard each, or, under torchrun, the shard of this rank."""
        if self.shard is not None:
            super().begin(force=force)
            return
        from moeir.learning import distributed
        from moeir.stages import sharing

        process_group = distributed.joined(self.device)
        if process_group.size > 1:
            self._begin_among(process_group, force=force)
        elif jobs := self._parts():
            log.info("%s: %d processes, each with a shard", self.output, len(jobs))
            sharing.carry_out(jobs, "encoding", force=force, minutes=self.stuck_minutes)
            log.info("%s: %d shards, %s texts", self.output, len(jobs), f"{sum(job.texts for job in jobs):,}")
        else:
            self._begin_whole(force=force)

    def _begin_whole(self, *, force: bool) -> None:
        if finished_shards := shards.finished(self.output):
            first = next(iter(finished_shards)).folder
            raise UsageError(f"--output {self.output}: holds shards, such as {first}; choose one with --shard, or write elsewhere")
        super().begin(force=force)

    def _begin_among(self, process_group: "World", *, force: bool) -> None:
        """An error during setup stops all processes; after that, each runs on its own."""
        with process_group.together():
            if self.processes != 1:
                raise UsageError(f"--processes {self.processes}: {process_group.size} processes are started already; leave it out")
            self._check_counted(f"{process_group.size} processes")
            count = self._count()
            process_group.agreed({"the number of texts": count} | as_dict(self, results_only=True))
            stages = self._divided(count, process_group.size)
            own_stage = replace(stages[process_group.rank] if process_group.rank < len(stages) else self, device=process_group.device)
            own_stage.check()
        if not process_group.main:
            hush()
        if own_stage.shard is not None:
            own_stage.begin(force=force)
        elif process_group.main:
            own_stage._begin_whole(force=force)

    def _parts(self) -> "list[sharing.Share]":
        """The job of each worker process; empty if this process encodes everything."""
        if self.processes == 1:
            return []
        import torch

        from moeir.backbones.precision import devices_for
        from moeir.stages import sharing

        devices = devices_for(self.device)
        size = self.processes or len(devices)
        if size == 1:
            return []
        self._check_counted(f"--processes {self.processes}")
        count, threads = self._count(), max(1, torch.get_num_threads() // size)
        numbered_stages = enumerate(self._divided(count, size))
        device_stages = [replace(stage, device=devices[number % len(devices)]) for number, stage in numbered_stages]
        sizes = [last - first for first, last in (stage._bounds(count) for stage in device_stages)]
        return [
            sharing.Share(stage, str(stage.shard), stage.device, text_count, threads)
            for stage, text_count in zip(device_stages, sizes, strict=True)
        ]

    def _divided(self, count: int, size: int) -> list["Encode"]:
        """One shard per process, at most one per window; empty if that makes only one shard."""
        size = min(size, -(-count // CHUNK))
        return [replace(self, shard=f"{number}/{size}", processes=1) for number in range(size)] if size > 1 else []

    def cost(self) -> list[str]:
        """The worker processes and their shards."""
        return [f"a process on {job.device} for shard {job.name}: {job.texts:,} texts" for job in self._parts()]

    def product(self) -> tuple[Path, str]:
        """The folder of all encodings, or the shard's folder in it."""
        return (self.output if self.shard is None else self.output / shards.Shard.parsed(self.shard).folder), "encodings"

    def work(self) -> Counts:
        from moeir.architectures.base import copy_to_host
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.ahead import behind, walked_ahead
        from moeir.backbones.precision import autocast, device_for, dtype_for
        from moeir.console import meter
        from moeir.records import texts
        from moeir.representations.growing import GrowingEncodings
        from moeir.representations.shortening import Shortening

        device = device_for(self.device)
        dtype = dtype_for(self.dtype, device)
        checkpoint = open_checkpoint(self.model, device)
        checkpoint.check_encodes(self.model)
        pruning = Shortening(self.terms, self.least_weight, self.pool_factor)
        pruning.check_kinds(checkpoint.architecture.kinds)
        first, last = self._range()
        writer = GrowingEncodings(self.output, checkpoint.architecture.kinds, pruning)
        documents = islice(texts.read(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("encoding", None if last is None else last - first) as counter, autocast(dtype, device), behind() as submit:
            for _ in islice(documents, writer.texts):
                counter.advance()
            for window, batches in walked_ahead(_read(documents, checkpoint, self.max_tokens)):
                submit(partial(_write, writer, [text.id for text in window], copy_to_host(checkpoint.encode_batches(batches))))
                counter.advance(len(window))
        writer.close()
        corpus_entry = {} if self.shard is None else {"corpus": str(self.corpus)}
        kinds, pruning_entry = checkpoint.architecture.kinds, {"shortened": pruning.facts()} if pruning.facts() else {}
        return {
            "texts": writer.texts,
            "dtype": str(dtype),
            "experts": kinds,
            **pruning_entry,
            **corpus_entry,
            **origin(self.model, self.output),
        }

    def _range(self) -> tuple[int, int | None]:
        """The texts of the shard as (first, last + 1); the whole corpus without --shard."""
        return (0, None) if self.shard is None else self._bounds(self._count())

    def _count(self) -> int:
        from moeir.records import texts

        return sum(1 for _ in texts.read(self.corpus, keep_empty=self.keep_empty))

    def _bounds(self, count: int) -> tuple[int, int]:
        """The texts of the shard, in a corpus of `count` texts."""
        shard, windows = shards.Shard.parsed(str(self.shard)), -(-count // CHUNK)
        if windows < shard.of:
            description = f"{self.corpus} has {count:,} texts, {windows} windows of {CHUNK:,}"
            raise UsageError(f"--shard {shard}: {description}; expected at most {windows} shards")
        first, last = (min(number * windows // shard.of * CHUNK, count) for number in (shard.number, shard.number + 1))
        return first, last


def origin(model: Path, product: Path) -> dict[str, Any]:
    """The checkpoint's path, relative to the artifact, and its digest."""
    return {"checkpoint": {"path": os.path.relpath(model.resolve(), product.resolve()), "digest": manifests.digest(model)}}


def _read(documents: Iterable["Text"], checkpoint: "OpenCheckpoint", max_tokens: int) -> Iterator[tuple[list["Text"], "TokenBatches"]]:
    """Windows of texts, each with its batches of tokens."""
    remaining = iter(documents)
    while window := list(islice(remaining, CHUNK)):
        yield window, checkpoint.read_batches([text.content for text in window], "document", max_tokens=max_tokens)


def _write(writer: "GrowingEncodings", ids: list[str], fetch_output: "Callable[[], Encoded]") -> None:
    """Write a window to disk, after its copy from the device."""
    writer.add(ids, fetch_output().representations)
