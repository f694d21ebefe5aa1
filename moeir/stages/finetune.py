"""`moeir finetune`: competitive or contrastive learning from queries, positives and negatives."""

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.artifacts.atomic_write import RESUME, TOKEN_CACHE
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option
from moeir.stages.base import Counts, is_stream
from moeir.stages.checkpoint_options import InputOptions, TrainingStage, suggest_after_checkpoint, training_option
from moeir.stages.run_arguments import check_measures

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.records.examples import Example
    from moeir.training.dev_sets import DevSet
    from moeir.training.sampling import BatchSampler
    from moeir.training.text_stream import TextStream

log = logging.getLogger(__name__)


DEV_FLAGS = ("dev_run", "dev_measure", "evaluate_every", "patience", "keep")  # with which --dataset brings its development split
DEV: dict[str, Any] = {"needs": ("dev_queries",), "group": "Evaluation while training"}


@dataclass(frozen=True, kw_only=True)
class Finetune(TrainingStage, InputOptions):
    """Train a retriever or a reranker on examples: a mixture of experts competitively, or any architecture contrastively."""

    default_split: ClassVar[str] = "train"
    prepare_reads_texts = True
    model: Path = input_field("weights", "Weights to start from: a folder, a checkpoint, or a hub id.", aliases=("--model-name-or-path",))
    train: tuple[Path, ...] = input_field(
        "examples",
        "Training examples as mine-negatives or other tools write them (docs/data.md), or hf:NAME; several files are merged by query id.",
    )
    sampling_rate: tuple[float, ...] = option(
        "One per --train: treat each file as a separate dataset with this many passes per epoch.",
        (),
        minimum=0.001,
        maximum=1000,
        group="Inputs",
    )
    corpus: tuple[Path, ...] = input_field(
        "texts", "Documents of the examples, unless inline; with --sampling-rate one for all datasets or one for each.", ()
    )
    queries: tuple[Path, ...] = input_field(
        "texts",
        "Queries of the examples, unless inline; with --sampling-rate one for all datasets or one for each.",
        (),
        aliases=("--topics",),
    )
    query_prompt: tuple[str, ...] = option(
        "Name of the checkpoint's prompt (--prompt) before the queries of the examples [default: --query-prefix]; with --sampling-rate one "
        "for all datasets or one for each.",
        (),
        group="Model",
    )
    arch: str | None = option("Architecture for plain weights, e.g. came:shared_layers=10.", None, package="architectures", group="Model")
    objective: str = training_option("contrastive, or competitive:temperature=0.5.", "contrastive", package="training.objectives")
    temperature: float | None = training_option(
        "Temperature of a normalised expert's cosines, kept in the checkpoint as scale = 1 / temperature [default: 0.05, unless --arch, "
        "the checkpoint, or --objective kl or lce sets one].",
        None,
        minimum=1e-6,
    )
    matryoshka: str | None = training_option(
        "Train the dense expert also with the first N numbers of its vectors, for each N of a list as 512,256,128,64, so that init can cut "
        "them (dimension=N); 256:0.3,64:0.3 weighs their losses, that of the whole vector by 1. Of a mixture the others learn as before, "
        "and experts compete by whole vectors.",
        None,
    )
    batch_size: int = training_option("Queries per batch, divided among all processes.", 8, minimum=1)
    negatives: int = training_option("Negatives per query, sampled again in each epoch.", 7, minimum=0, maximum=10_000)
    positives: str = training_option(
        "Positive of a query with several: another in each epoch, or the first (DPR).", "rotate", choices=("rotate", "first")
    )
    skip_queries: int = training_option(
        "Queries to skip in the shuffled order: those that an earlier training read with this --seed and examples of the same queries.",
        0,
        minimum=0,
    )
    layer_decay: float = training_option(
        "Factor of the learning rate from each layer to the one below (TASER's release: 0.8); 1 for no decay.",
        1.0,
        above=0,
        maximum=1,
    )
    gradient_cache: int | None = option(
        "GradCache: maximum tokens encoded at a time, so that any batch fits into memory; same gradients in 4/3 of the time.",
        None,
        minimum=1,
        aliases=("--grad-cache",),
        affects_result=False,
    )
    dev_queries: Path | None = input_field(
        "texts",
        "Development queries, evaluated during training.",
        None,
        only_with=DEV_FLAGS,
        needs=("dev_qrels", "dev_corpus or corpus"),
        group="Evaluation while training",
    )
    dev_qrels: Path | None = input_field("qrels", "Relevance judgements of the development queries.", None, only_with=DEV_FLAGS, **DEV)
    dev_corpus: Path | None = input_field("texts", "Corpus to search for --dev-queries [default: --corpus].", None, only_with=(), **DEV)
    dev_run: Path | None = input_field("run", "Cross-encoder: the run of the development queries to rerank.", None, **DEV)
    dev_measure: str = option(
        "Measure on the development set that selects the best weights, of several experts that of their fused run; or loss, the lowest of "
        "--objective.",
        "nDCG@10",
        aliases=("--metric-for-best-model",),
        **DEV,
    )
    evaluate_every: int | None = option("Steps between evaluations [default: an epoch].", None, minimum=1, aliases=("--eval-steps",), **DEV)
    patience: int | None = option("Stop after N evaluations without gain.", None, minimum=1, aliases=("--early-stopping-patience",), **DEV)
    keep: str | None = option(
        "Weights to save [default: best with --dev-queries, else last].", None, choices=("best", "last"), group="Evaluation while training"
    )

    def check(self) -> None:
        super().check()
        for name in ("sampling_rate", "corpus", "queries", "query_prompt") if self.sampling_rate else ():
            count, one_for_all = len(getattr(self, name)), "" if name == "sampling_rate" else "one for all datasets, or "
            if count != len(self.train) and (count > 1 or not one_for_all):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: expected {one_for_all}one for each --train, {len(self.train)}; found {count}")
        if len(self.query_prompt) > 1 and not self.sampling_rate:
            raise UsageError("--query-prompt: several need --sampling-rate, which makes each --train a dataset of its own")
        if self.dev_queries is None and self.keep == "best":
            raise UsageError("--keep best: needs --dev-queries")
        if self.dev_queries is not None and self.dev_corpus is None and (stream := next(filter(is_stream, self.corpus), None)):
            advice = "name a file, or set --dev-corpus"
            raise UsageError(f"--corpus {stream}: a pipe can be read only once, and --dev-queries searches the corpus too; {advice}")
        if self.dev_queries is not None and not self._is_dev_loss:
            check_measures([self.dev_measure])

    @property
    def _is_dev_loss(self) -> bool:
        """Whether the loss is the measure on the development set."""
        from moeir.analysis.training_monitor import LOSS_MEASURE

        return self.dev_measure == LOSS_MEASURE

    def _open_model(self, objective: "partial[Any]") -> "RetrievalModel":
        """The weights to start from; options that do not fit together or do not fit the weights are refused."""
        from moeir.architectures.initialize import open_weights
        from moeir.training import objectives

        objectives.validate_options(objective, self.negatives)
        if objective.keywords.get("permuted") and self.batch_size == 1:
            raise UsageError(f"--objective {self.objective}: a batch of one query has no other's shares; expected --batch-size 2 or more")
        checkpoint = open_weights(self.model, self.arch, self.input_options(), self.seed)
        for name in self.query_prompt:
            checkpoint.check_training_prompt(name)
        for expert in self._set_temperature(checkpoint):
            scale = checkpoint.architecture.scales[expert]
            log.info("temperature %g: the cosines of the %s expert are scaled by %g", 1 / scale, expert, scale)
        if self.matryoshka is not None:
            objectives.nest_dimensions(objective, self.matryoshka, checkpoint)
        self.check_parameters(checkpoint.architecture)
        return checkpoint

    def _check_dev_set(self, objective: "partial[Any]", *, pairs: bool) -> None:
        """UsageError for a development set that the model cannot be measured on: cross-encoders rerank; some have no loss on it."""
        from moeir.training import objectives

        if self.dev_queries is None:
            return
        if pairs and self.dev_run is None:
            raise UsageError("--dev-queries: a cross-encoder reranks; name the run with --dev-run")
        if self.dev_run is not None and not pairs:
            raise UsageError("--dev-run: is for a cross-encoder; a retriever searches --dev-corpus")
        reasons = {
            "a cross-encoder is measured by what it reranks": pairs,
            f"--objective {self.objective} needs teacher scores or a query's own negatives, which judgements lack": (
                objective.func in objectives.NEEDS_OWN_NEGATIVES
            ),
            f"--objective {self.objective} goes by how fast losses fall in training": objectives.goes_by_speed(objective),
            "the queries of a batch are each other's negatives, and --batch-size is 1": self.batch_size == 1,
        }
        if self._is_dev_loss and (reason := next((words for words, holds in reasons.items() if holds), None)):
            raise UsageError(f"--dev-measure loss: {reason}; name a measure, such as nDCG@10")

    def _set_temperature(self, checkpoint: "RetrievalModel") -> list[str]:
        """Set the temperature of normalised experts, unless the objective divides all scores by one; returns their names."""
        from moeir.architectures.temperature import set_temperature
        from moeir.backbones.families import weights_io
        from moeir.training import objectives

        if self.temperature is None and objectives.divides_scores(variants.bind_variant("training.objectives", self.objective)):
            return []
        return set_temperature(checkpoint, weights_io.resolve_model(self.model), self.arch, self.temperature)

    def prepare(self) -> "tuple[BatchSampler, TextStream, DevSet | None, RetrievalModel]":
        """The batch sampler, the texts of its batches, the development set and the weights, which are opened before texts are read."""
        objective = variants.bind_variant("training.objectives", self.objective)
        checkpoint = self._open_model(objective)
        pairs = checkpoint.architecture.reads_pairs
        self._check_dev_set(objective, pairs=pairs)
        sampler, text_stream = self._make_sampler(objective.func, pairs=pairs)
        dev_set = self._load_dev_set(text_stream, sampler.steps_per_epoch)
        return sampler, text_stream, dev_set, checkpoint

    def estimate(self, prepared: "tuple[BatchSampler, TextStream, DevSet | None, RetrievalModel]") -> list[str]:
        return [self._describe_reading(prepared[0])]

    def _describe_reading(self, sampler: "BatchSampler") -> str:
        """The steps of the training, its epochs, and how many texts it reads."""
        steps = self.total_steps(sampler.steps_per_epoch)
        epochs, batch_size = steps * self.accumulate / sampler.steps_per_epoch, sampler.batch_size * self.accumulate
        skipped = f", after {self.skip_queries:,} skipped" if self.skip_queries else ""
        texts = f"{epochs:.2f} epochs of {format_count(sampler.size, 'query')}, {steps * batch_size * (1 + self.negatives):,} documents"
        return f"{format_count(steps, 'step')} of {format_count(batch_size, 'query')}{skipped}: {texts}"

    def next_command(self) -> str:
        return suggest_after_checkpoint(self.model, self.arch)

    def work(self) -> Counts:
        from moeir.architectures.initialize import fit_fresh_parts
        from moeir.backbones.device import select_dtype
        from moeir.reporting import training_curves
        from moeir.training import dev_sets, objectives, retrieval_task, token_cache, trainer
        from moeir.training.competition import LearningSpeed

        process_group = self.process_group()
        sampler, text_stream, dev_set, checkpoint = self.prepare()
        objective: Any = variants.bind_variant("training.objectives", self.objective)
        fit_fresh_parts(checkpoint, text_stream.first_documents, self.seed)
        self.compare_trunks(process_group, checkpoint)
        goes_by_speed, competes_from = objectives.goes_by_speed(objective), partial(objectives.competition_start, objective)
        if self.matryoshka is not None:
            objective = objectives.nest_dimensions(objective, self.matryoshka, checkpoint)
        checkpoint.architecture.set_gradient_checkpointing(self.recompute)
        self.prepare_layers(checkpoint.architecture)
        with process_group.main_process_first():
            texts = token_cache.build_token_cache(self.cache or self.output / RESUME / TOKEN_CACHE, text_stream, checkpoint)
        process_group.check_same({"the digest of the texts": text_stream.digest[:16]})
        del text_stream  # free the texts: the training needs only their tokens
        schedule, dtype = self.make_schedule(sampler.steps_per_epoch, self.layer_decay), select_dtype(self.dtype, process_group.device)
        process_group = process_group.with_timeout(self.stuck_minutes)
        log.info("%s", self._describe_reading(sampler))
        experts = checkpoint.architecture.summed_experts or checkpoint.architecture.representation_kinds
        speed = LearningSpeed(texts.kind_count, len(experts)) if goes_by_speed else None
        task = retrieval_task.RetrievalTask(
            checkpoint,
            sampler,
            texts,
            objective,
            schedule.steps,
            dtype,
            process_group=process_group,
            accumulate=self.accumulate,
            max_tokens=self.gradient_cache,
            speed=speed,
        )
        loss = dev_sets.DevLoss(objective, self.batch_size, schedule.steps) if self._is_dev_loss else None
        watch = None
        if dev_set is not None and (start := competes_from(schedule.steps)) is not None:
            watch = dev_sets.CompetitionWatch(self.output / RESUME, dev_set.every, start)
        evaluator = None if dev_set is None else dev_sets.DevEvaluator(checkpoint, dev_set, dtype, process_group, loss, watch)
        save = partial(self.save_checkpoint, checkpoint, self.model, self.objective)
        options = self.trainer_options(process_group, task.size, save)
        state = {} if speed is None else speed.tensors
        counts = trainer.train(task, schedule, self.output, evaluator=evaluator, objective_state=state, **options)
        if watch is not None and process_group.is_main:
            log.info("%s", training_curves.describe_gains(training_curves.load_trainings([self.output])[0].monitor))
        return save(self.output, counts) if process_group.is_main else None

    def _make_sampler(self, objective: object, *, pairs: bool) -> "tuple[BatchSampler, TextStream]":
        """The batch sampler and the texts of its batches."""
        from moeir.formats.training_files import read_training_examples
        from moeir.records import examples
        from moeir.training import objectives, sampling
        from moeir.training.text_stream import TextStream, without_texts

        files = [read_training_examples(path) for path in self.train]
        labels = [str(path) for path in self.train]
        datasets: list[list[Example]] = [list(file) for file in files] if self.sampling_rate else [examples.merge_examples(files, labels)]
        labels = labels if self.sampling_rate else [", ".join(labels)]
        samplers = [
            sampling.make_sampler(
                without_texts(dataset),
                batch_size=self.batch_size,
                negatives=self.negatives,
                seed=self.seed,
                source=label,
                positives=self.positives,
            )
            for dataset, label in zip(datasets, labels)
        ]
        prompts = self.query_prompt * (len(datasets) if len(self.query_prompt) == 1 else 1)
        sources: dict[str, Any] = {"queries": self.queries, "corpora": self.corpus, "prompts": prompts}
        text_stream = TextStream(datasets, labels, **sources, keep_empty=self.keep_empty, fielded=pairs)
        for sampler, rows, label in zip(samplers, text_stream.rows, labels):
            teacher = self.objective if objective in objectives.NEEDS_TEACHER else None
            sampling.check_training_examples(sampler, rows.queries, rows.documents, label, teacher)
            sampling.drop_duplicate_negatives(sampler, rows.document_duplicates, label)
            sampling.check_batch_size(sampler, self.process_group().size, pairs=pairs)
        joint: BatchSampler = samplers[0]
        if self.sampling_rate:
            joint = sampling.MultiDatasetSampler(tuple(samplers), self.sampling_rate, self.seed)
        joint.skipped_batches = ceil(self.skip_queries / joint.batch_size)
        return joint, text_stream

    def _load_dev_set(self, text_stream: "TextStream", batches_per_epoch: int) -> "DevSet | None":
        """The development set, if there is one."""
        if self.dev_queries is None or self.dev_qrels is None:
            return None
        from moeir.training.dev_sets import load_dev_set

        corpora = self.corpus if self.dev_corpus is None else (self.dev_corpus,)
        training = {name: text for queries in text_stream.queries for name, text in queries.items()}
        return load_dev_set(
            self.dev_queries,
            self.dev_qrels,
            corpora,
            training_queries=training,
            measure=self.dev_measure,
            every=self.evaluate_every or max(1, batches_per_epoch // self.accumulate),
            patience=self.patience,
            keep=self.keep or "best",
            keep_empty=self.keep_empty,
            run=self.dev_run,
        )
