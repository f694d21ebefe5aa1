"""`moeir pretrain`: an encoder learns from texts alone, before any judgement."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import as_dict, option, product, source
from moeir.stages.base import Counts, Stage, source_digest
from moeir.stages.init import check_seed, first_texts

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import OpenCheckpoint
    from moeir.pretraining.base import Pretraining
    from moeir.pretraining.batches import Plan

log = logging.getLogger(__name__)
CONTEXTS = ("mixed", "random", "nearby", "overlap")
SCHEDULES = ("linear", "constant")


@dataclass(frozen=True, kw_only=True)
class Pretrain(Stage):
    """Pre-train an encoder on texts without judgements: hidden words, and decoders that have a text's vector to go by."""

    model: Path = source("weights", "Weights to start from: a folder, a checkpoint, or a hub id.", names=("--model-name-or-path",))
    corpus: Path = source("texts", "Documents.")
    queries: tuple[Path, ...] = source("texts", "Queries of the documents, as generate-queries writes them; repeat the flag.", ())
    query_qrels: Path | None = source("qrels", "Whose documents the queries are, if --queries holds queries by ids of their own.", None)
    arch: str = option("dense, or one with experts, as mote; see: moeir variants architectures.", "dense")
    objective: str = option("mlm, cotmae, cotmae-qc, mote, …; see: moeir variants pretraining.", "cotmae")
    from_scratch: bool = option("Take sizes and tokenizer from --model, and draw the weights.", False)
    context: str = option("Which span of the document is a span's context: mixed, random, nearby or overlap.", "mixed")
    short_spans: float = option("How often a span aims at fewer tokens than it may have.", 0.15)
    batch_size: int = option("Spans per step.", 64, names=("--per-device-train-batch-size",))
    epochs: int = option("Times over the spans.", 1, names=("--num-train-epochs",))
    steps: int | None = option("Steps in all; wins over --epochs.", None, names=("--max-steps",))
    learning_rate: float = option("Highest learning rate (AdamW).", 1e-4)
    warmup: float = option("Ratio of the steps over which the learning rate rises.", 0.1, names=("--warmup-ratio",))
    schedule: str = option("After the rise: linear (falls to 0) or constant.", "linear", names=("--lr-scheduler-type",))
    weight_decay: float = option("Weight decay of matrices.", 0.01)
    clip: float = option("Largest gradient norm; 0 does not clip.", 1.0, names=("--max-grad-norm",))
    query_length: int = option("Most tokens of a query.", 64)
    document_length: int = option("Most tokens of a span.", 128, names=("--max-seq-length",))
    seed: int = option("Seed of everything that is drawn.", 42)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    cache: Path | None = option("Folder of the tokens, read once [default: beside the unfinished product].", None, affects_result=False)
    save_minutes: float = option("Minutes between saves of the training state.", 5.0, affects_result=False)
    track: tuple[str, ...] = option(
        "tensorboard or wandb, told of every step; files go to OUTPUT.tensorboard, …", (), names=("--report-to",), affects_result=False
    )
    output: Path = product("checkpoint", "Folder to write.")

    def check(self) -> None:
        from moeir.learning import trackers

        variants.resolve("architectures", self.arch)
        variants.resolve("pretraining", self.objective)
        positive = {"--batch-size": self.batch_size, "--epochs": self.epochs, "--steps": self.steps, "--learning-rate": self.learning_rate}
        for flag, value in positive.items():
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value}: expected more than 0")
        for flag, value in {"--weight-decay": self.weight_decay, "--clip": self.clip}.items():
            if value < 0:
                raise UsageError(f"{flag} {value}: expected 0 or more")
        for flag, value in {"--warmup": self.warmup, "--short-spans": self.short_spans}.items():
            if not 0 <= value <= 1:
                raise UsageError(f"{flag} {value}: expected a ratio, 0 to 1")
        for flag, word, known in (("--schedule", self.schedule, SCHEDULES), ("--context", self.context, CONTEXTS)):
            if word not in known:
                raise UsageError(f"{flag} {word}: expected {', '.join(known)}")
        if self.query_qrels is not None and not self.queries:
            raise UsageError("--query-qrels: needs --queries, whose documents it names")
        check_seed(self.seed)
        trackers.named(self.track)

    def work(self) -> Counts:
        import torch

        from moeir.architectures.card import write_card
        from moeir.architectures.starting import start
        from moeir.backbones.precision import device_for, dtype_for
        from moeir.learning import loop, trackers
        from moeir.pretraining.task import Task

        device = device_for(self.device)
        lengths = {"query_length": self.query_length, "document_length": self.document_length}
        texts = [] if self.from_scratch else first_texts(self.corpus)
        checkpoint = start(self.model, self._arch(), lengths, texts, self.seed, scratch=self.from_scratch)
        torch.manual_seed(self.seed)
        objective: Pretraining = variants.bind("pretraining", self.objective)(checkpoint.architecture)
        plan = self._plan(checkpoint, objective)
        steps = self.steps or self.epochs * plan.steps_per_epoch
        plan.steps = steps
        schedule = loop.Schedule(
            steps,
            self.learning_rate,
            self.warmup,
            self.weight_decay,
            self.clip,
            self.seed,
            self.save_minutes,
            self.schedule,
        )
        task = Task(objective, plan, dtype_for(self.dtype, device))
        tracking = trackers.tracking(self.track, self.output, as_dict(self, results_only=True))
        done = loop.train(task, schedule, self.output, device=device, tracking=tracking)
        checkpoint.save(self.output)
        write_card(self.output, checkpoint, base=str(self.model), training={"objective": self.objective, **done})
        speed = task.speed()
        if speed:
            share = f"{speed['share_of_peak']:.1%} of the largest rate of matrix products measured here"
            log.info("%s tokens a second over all steps but the first, %s", f"{speed['tokens_per_second']:,.0f}", share)
        return {"parameters": checkpoint.architecture.parameter_count(), **done, **speed}

    def _arch(self) -> str:
        """The architecture with its vocabulary head, which a plain dense model would drop."""
        spec = variants.parse(self.arch)
        if spec.name != "dense" or "head" in dict(spec.options):
            return self.arch
        return str(variants.Spec("dense", (*spec.options, ("head", "true"))))

    def _plan(self, checkpoint: "OpenCheckpoint", objective: "Pretraining") -> "Plan":
        """What meets what at which step; texts are tokenised once, into the cache."""
        from moeir.artifacts.making import RESUME, TOKENS
        from moeir.pretraining import corpus, queries
        from moeir.pretraining.batches import Needs, Plan, Reading

        digests: dict[str, list[str]] = {}
        for setting, path in self.sources():
            digests.setdefault(setting.flag.removeprefix("--"), []).append(source_digest(path, setting))
        folder = self.cache or self.output / RESUME / TOKENS
        folder.mkdir(parents=True, exist_ok=True)
        reading = Reading.of(checkpoint)
        options: dict[str, Any] = {"short": self.short_spans, "seed": self.seed, "keep_empty": self.keep_empty}
        maximum = reading.room("document", checkpoint.rules.document_length)
        tokens = corpus.cached(folder, self.corpus, checkpoint.reader, digest=digests["corpus"][0], maximum=maximum, **options)
        asked = None
        if self.queries:
            named = {name: found for name, found in digests.items() if name in ("queries", "query-qrels")}
            asked = queries.cached(folder, tokens, self.queries, self.query_qrels, checkpoint.reader, digests=named)
        needs = Needs(self.context if objective.context == "span" else objective.context, objective.encoder_rate, objective.decoder_rate)
        return Plan(tokens, asked, reading, needs, size=self.batch_size, steps=1, seed=self.seed)
