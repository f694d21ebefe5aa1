"""`moeir pretrain`: pre-train an encoder on texts without judgements."""

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.artifacts.atomic_write import RESUME, TOKEN_CACHE
from moeir.errors import UsageError
from moeir.settings import input_field, option
from moeir.stages.base import Counts, Facts, digest_sources
from moeir.stages.checkpoint_options import TrainingStage, read_first_texts, training_option

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.pretraining.base import Pretraining
    from moeir.pretraining.batches import SpanSampler

OBJECTIVE_OF_MOTE = "mote"  # also the name of its architecture
log = logging.getLogger(__name__)
CONTEXTS = ("mixed", "random", "nearby", "overlap")
EVALUATIONS, HEAD_SPANS = 20, 16  # of held-out documents in a training; spans on which the scale of the vocabulary head is chosen


@dataclass(frozen=True, kw_only=True)
class Pretrain(TrainingStage):
    """Pre-train an encoder on texts without judgements: masked words, and decoders that reconstruct texts from a text's vector."""

    default_split: ClassVar[str] = "train"
    model: Path = input_field("weights", "Weights to start from: a folder, a checkpoint, or a hub id.", aliases=("--model-name-or-path",))
    corpus: Path = input_field("texts", "Documents.")
    queries: tuple[Path, ...] = input_field(
        "texts", "Queries of documents or of spans, as generate-queries writes them; repeat the flag.", (), only_with=()
    )
    arch: str = option(
        "An architecture, e.g. dense or mote:encoders=siamese [default: dense; mote with --objective mote].",
        "",
        package="architectures",
        group="Model",
    )
    objective: str = training_option("mlm, cotmae, cotmae-qc, mote, ….", "cotmae", package="pretraining")
    from_scratch: bool = option("Take only sizes and tokenizer from --model, and initialize the weights at random.", False, group="Model")
    context: str = training_option("Which other span of its document a span is paired with.", "mixed", choices=CONTEXTS)
    draw: str | None = training_option(
        "An epoch's anchors: a random span of each document, or all spans [default: documents if contexts are spans, else spans].",
        None,
        choices=("documents", "spans"),
    )
    held_out: float | None = option(
        "Fraction of the documents that are never trained on, nor their queries: the loss on them is dev.loss in metrics.jsonl.",
        None,
        above=0,
        below=1,
        group="Evaluation while training",
    )
    evaluate_every: int | None = option(
        "Steps between evaluations of --held-out [default: a twentieth of all].",
        None,
        minimum=1,
        aliases=("--eval-steps",),
        needs=("held_out",),
        group="Evaluation while training",
    )
    short_spans: float = training_option("Fraction of spans with a target length below the maximum.", 0.15, minimum=0, maximum=1)
    batch_size: int = training_option("Spans per batch, divided among all processes.", 64, minimum=1)
    epochs: int = training_option("Passes over the spans or documents (--draw).", 1, minimum=1, aliases=("--num-train-epochs",))
    learning_rate: float = training_option("Peak learning rate (AdamW).", 1e-4, above=0)
    weight_decay: float = training_option("Weight decay of weight matrices.", 0.01, minimum=0)
    query_length: int = option("Maximum tokens of a query.", 64, group="Model")
    document_length: int = option("Maximum tokens of a span.", 128, aliases=("--max-seq-length",), group="Model")

    def __post_init__(self) -> None:
        if not self.arch:
            is_mote = variants.parse_spec(self.objective).name == OBJECTIVE_OF_MOTE
            object.__setattr__(self, "arch", OBJECTIVE_OF_MOTE if is_mote else "dense")

    def check(self) -> None:
        super().check()
        arch = variants.find_variant("architectures", variants.parse_spec(self.arch).name).name
        if arch == "cross-encoder":
            raise UsageError("--arch cross-encoder: pre-train dense, and start finetune --arch cross-encoder from that")
        if variants.find_variant("pretraining", variants.parse_spec(self.objective).name).name == OBJECTIVE_OF_MOTE != arch:
            advice = "leave --arch out, or type --arch mote:encoders=siamese for a single encoder"
            raise UsageError(f"--arch {self.arch}: --objective mote trains the experts of --arch mote; {advice}")

    def prepare(self) -> "RetrievalModel":
        """The weights to start from, opened before texts are read; options that do not fit together or do not fit them are refused."""
        from moeir.architectures.initialize import open_weights

        objective = variants.bind_variant("pretraining", self.objective)
        kind: Any = objective.func
        if (kind.context == "query") != bool(self.queries):
            needs = "given, but the objective uses none" if self.queries else "missing; moeir generate-queries writes them"
            raise UsageError(f"--queries: {needs} (--objective {self.objective})")
        if kind.context != "span" and self.context != "mixed":
            raise UsageError(f"--context {self.context}: --objective {self.objective} pairs no spans; leave it out")
        lengths = {"query_length": self.query_length, "document_length": self.document_length}
        return open_weights(self.model, self._arch_with_head(), lengths, self.seed, random_weights=self.from_scratch)

    def summary(self, counts: Facts) -> str:
        from moeir.analysis import training_monitor

        parts = [super().summary(counts)]
        if held_out := counts.get("held_out"):
            parts.append(
                f"on held-out documents {counts['last']['dev.loss']:.3f}, least {held_out['value']:.3f} after step {held_out['step']}"
            )
        if "bottleneck_gain" in counts["last"]:
            unused = any(gain < training_monitor.GAIN_BELOW for gain in training_monitor.bottleneck_gains(counts["last"]).values())
            words = " (a decoder hardly uses it: train longer or raise its rate, --group-rate decoder=RATE)" if unused else ""
            parts.append(f"the bottleneck is worth {counts['last']['bottleneck_gain']:.3f} nats per token{words}")
        parts.append(f"{counts['last']['tokens_per_second']:,.0f} tokens a second")
        return ", ".join(parts)

    def next_command(self) -> str:
        return "finetune --model OUTPUT --train TRAIN --queries QUERIES@ --corpus CORPUS --output finetuned"

    def work(self) -> Counts:
        import torch

        from moeir.architectures.initialize import fit_fresh_parts
        from moeir.backbones.device import select_dtype
        from moeir.pretraining.base import scale_heads
        from moeir.pretraining.task import HeldOutLoss, PretrainingTask
        from moeir.training import trainer

        process_group = self.process_group()
        checkpoint = self.prepare()
        fit_fresh_parts(checkpoint, [] if self.from_scratch else read_first_texts(self.corpus), self.seed)
        self.compare_trunks(process_group, checkpoint)
        checkpoint.architecture.set_gradient_checkpointing(self.recompute)
        torch.manual_seed(self.seed)
        objective: Pretraining = variants.bind_variant("pretraining", self.objective)(checkpoint.architecture)
        self.check_parameters(objective)
        self.prepare_layers(objective)
        with process_group.main_process_first():
            sampler, held_out = self._make_samplers(checkpoint, objective)
        if not self.from_scratch:
            scale_heads(objective, sampler.batch_at(0, 0, ceil(sampler.batch_size / HEAD_SPANS)))
        schedule, process_group = self.make_schedule(sampler.steps_per_epoch), process_group.with_timeout(self.stuck_minutes)
        sampler.steps = schedule.steps * self.accumulate
        task = PretrainingTask(
            objective, sampler, select_dtype(self.dtype, process_group.device), process_group, accumulate=self.accumulate
        )
        save = partial(self.save_checkpoint, checkpoint, self.model, self.objective)
        every = self.evaluate_every or max(1, schedule.steps // EVALUATIONS)
        evaluator = None if held_out is None else HeldOutLoss(task, held_out, every)
        counts = trainer.train(task, schedule, self.output, evaluator=evaluator, **self.trainer_options(process_group, task.size, save))
        if held_out is not None:
            counts["held_out"] = counts.pop("development")
        return save(self.output, counts) if process_group.is_main else None

    def _arch_with_head(self) -> str:
        """The architecture with a vocabulary head, which dense drops by default."""
        spec = variants.parse_spec(self.arch)
        if spec.name != "dense" or "head" in dict(spec.options):
            return self.arch
        return str(variants.Spec("dense", (*spec.options, ("head", "true"))))

    def _make_samplers(self, checkpoint: "RetrievalModel", objective: "Pretraining") -> "tuple[SpanSampler, SpanSampler | None]":
        """The batch sampler, and that of held-out documents; texts are tokenised once, into the cache."""
        import numpy as np

        from moeir.architectures.checkpoint import log_truncation
        from moeir.data_checks.truncation import count_truncation
        from moeir.pretraining import span_cache
        from moeir.pretraining.batches import BatchRequirements, InputTemplate, SpanSampler, hold_out_documents

        digests = digest_sources(self)
        folder = self.cache or self.output / RESUME / TOKEN_CACHE
        folder.mkdir(parents=True, exist_ok=True)
        reading = InputTemplate.from_model(checkpoint)
        options: dict[str, Any] = {"short": self.short_spans, "seed": self.seed, "keep_empty": self.keep_empty}
        maximum = reading.content_budget("document", checkpoint.input_config.document_length)
        tokens = span_cache.build_span_cache(
            folder, self.corpus, checkpoint.tokenizer, digest=digests["corpus"][0], maximum=maximum, **options
        )
        query_tokens = None
        if self.queries:
            query_tokens = span_cache.build_query_cache(folder, tokens, self.queries, checkpoint.tokenizer, digests=digests["queries"])
            query_length = reading.content_budget("query", checkpoint.input_config.query_length)
            log_truncation(checkpoint.input_config, {"query": count_truncation(np.diff(query_tokens.starts), query_length)})
        needs = BatchRequirements(
            self.context if objective.context == "span" else objective.context, objective.encoder_rate, objective.decoder_rate
        )
        draw = self.draw or ("documents" if objective.context == "span" else "spans")
        sample = partial(SpanSampler, tokens, query_tokens, reading, needs, size=self.batch_size, steps=1, seed=self.seed, draw=draw)
        is_held_out = hold_out_documents(len(tokens.boundaries.documents) - 1, self.held_out or 0.0, self.seed)
        sampler = sample(documents=~is_held_out)
        if sampler.batch_size < self.batch_size:
            log.warning("--batch-size %d: an epoch has %d %s, and so has a batch", self.batch_size, sampler.batch_size, draw)
        held_out = None if self.held_out is None else sample(documents=is_held_out)
        if held_out is not None and held_out.batch_size < sampler.batch_size:
            words = "--held-out: a batch has %d %s, fewer than %d in training; a contrastive loss is lower for that"
            log.warning(words, held_out.batch_size, draw, sampler.batch_size)
        return sampler, held_out
