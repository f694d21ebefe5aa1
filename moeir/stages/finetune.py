"""`moeir finetune`: competitive or contrastive learning from queries, positives and negatives."""

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option
from moeir.stages.base import Counts, is_stream
from moeir.stages.checkpoint_options import InputOptions, TrainingStage, command_after_checkpoint

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
    arch: str | None = option("Architecture for plain weights, e.g. came:shared_layers=10.", None, package="architectures", group="Model")
    objective: str = option("contrastive, or competitive:temperature=0.5.", "contrastive", package="training.objectives", group="Training")
    temperature: float | None = option(
        "Temperature of a normalised expert's cosines, kept in the checkpoint as scale = 1 / temperature [default: 0.05, unless --arch, "
        "the checkpoint, or --objective kl or lce sets one].",
        None,
        minimum=1e-6,
        group="Training",
    )
    batch_size: int = option("Queries per batch, divided among all processes.", 8, minimum=1, group="Training")
    accumulate: int = option(
        "Batches per optimizer step; in-batch negatives come from one batch only.",
        1,
        minimum=1,
        aliases=("--gradient-accumulation-steps",),
        group="Training",
    )
    negatives: int = option("Negatives per query, sampled again in each epoch.", 7, minimum=0, maximum=10_000, group="Training")
    positives: str = option(
        "Positive of a query that has several: rotate (another in each epoch) or first (always the first of its list, as DPR).",
        "rotate",
        choices=("rotate", "first"),
        group="Training",
    )
    skip_queries: int = option(
        "Queries to skip in the shuffled order: those that an earlier training read with this --seed and examples of the same queries.",
        0,
        minimum=0,
        group="Training",
    )
    layer_decay: float = option(
        "Factor of the learning rate from each layer to the one below (TASER's release: 0.8); 1 for no decay.",
        1.0,
        above=0,
        maximum=1,
        group="Training",
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
        needs=("dev_qrels",),
        group="Evaluation while training",
    )
    dev_qrels: Path | None = input_field("qrels", "Relevance judgements of the development queries.", None, only_with=DEV_FLAGS, **DEV)
    dev_corpus: Path | None = input_field(
        "texts", "Corpus to search for the development queries [default: --corpus].", None, only_with=(), **DEV
    )
    dev_run: Path | None = input_field("run", "Cross-encoder: the run of the development queries to rerank.", None, **DEV)
    dev_measure: str = option(
        "Measure on the development set that selects the best weights, of several experts that of their fused run; or loss, the lowest of "
        "--objective.",
        "nDCG@10",
        aliases=("--metric-for-best-model",),
        group="Evaluation while training",
    )
    evaluate_every: int | None = option(
        "Steps between evaluations [default: an epoch].",
        None,
        minimum=1,
        aliases=("--eval-steps",),
        **DEV,
    )
    patience: int | None = option(
        "Stop after N evaluations without improvement.",
        None,
        minimum=1,
        aliases=("--early-stopping-patience",),
        **DEV,
    )
    keep: str | None = option(
        "Weights to save, best or last [default: best with --dev-queries, else last].",
        None,
        choices=("best", "last"),
        group="Evaluation while training",
    )

    def check(self) -> None:
        super().check()
        self._check_datasets()
        self._check_dev_flags()

    def _check_datasets(self) -> None:
        dataset_count = len(self.train)
        if self.sampling_rate and len(self.sampling_rate) != dataset_count:
            raise UsageError(f"--sampling-rate: expected one for each --train, {dataset_count}; found {len(self.sampling_rate)}")
        for flag, files in (("--corpus", self.corpus), ("--queries", self.queries)):
            if self.sampling_rate and len(files) not in (0, 1, dataset_count):
                raise UsageError(f"{flag}: expected one for all datasets, or one for each --train, {dataset_count}; found {len(files)}")

    def _check_dev_flags(self) -> None:
        if self.dev_queries is None and self.keep == "best":
            raise UsageError("--keep best: needs --dev-queries")
        if self.dev_queries is not None and self.dev_corpus is None and not self.corpus:
            raise UsageError("--dev-queries: needs --dev-corpus, the documents to search")
        if self.dev_queries is not None and self.dev_corpus is None and (stream := next(filter(is_stream, self.corpus), None)):
            advice = "name a file, or set --dev-corpus"
            raise UsageError(f"--corpus {stream}: a pipe can be read only once, and --dev-queries searches the corpus too; {advice}")
        if self.dev_queries is not None and not self._is_dev_loss:
            from moeir.evaluation import measures

            measures.parse_measure(self.dev_measure)

    def _check_model(self) -> None:
        """Refuse options that do not fit together or do not fit the weights, before texts are read and anything is fitted."""
        from moeir.architectures.initialize import check_options
        from moeir.training import objectives

        objective = variants.bind_variant("training.objectives", self.objective)
        objectives.validate_options(objective, self.negatives)
        if objective.keywords.get("permuted") and self.batch_size == 1:
            raise UsageError(f"--objective {self.objective}: a batch of one query has no other's shares; expected --batch-size 2 or more")
        checkpoint = check_options(self.model, self.arch, self.input_options())
        if checkpoint is not None:
            self._set_temperature(checkpoint)
            self.check_parameters(checkpoint.architecture)
            self._check_dev_run(pairs=checkpoint.architecture.reads_pairs)

    def _check_dev_run(self, *, pairs: bool) -> None:
        if pairs != (self.dev_run is not None) and self.dev_queries is not None:
            words = ("--dev-run", "is for a cross-encoder; a retriever searches --dev-corpus")
            flag, why = ("--dev-queries", "a cross-encoder reranks; name the run with --dev-run") if pairs else words
            raise UsageError(f"{flag}: {why}")
        self._check_dev_loss(pairs=pairs)

    @property
    def _is_dev_loss(self) -> bool:
        """Whether the loss is the measure on the development set."""
        from moeir.analysis.training_monitor import LOSS_MEASURE

        return self.dev_measure == LOSS_MEASURE

    def _check_dev_loss(self, *, pairs: bool) -> None:
        """UsageError for an objective or a model that has no loss on a development set."""
        from moeir.training import objectives

        if self.dev_queries is None or not self._is_dev_loss:
            return
        objective = variants.bind_variant("training.objectives", self.objective).func
        if objective in objectives.NEEDS_TEACHER:
            problem = f"--objective {self.objective} learns from teacher scores, which judgements lack"
        elif pairs:
            problem = "a cross-encoder is measured by what it reranks"
        elif objective in objectives.NEEDS_OWN_NEGATIVES:
            problem = f"--objective {self.objective} compares a query's own negatives, which judgements lack"
        elif self.batch_size == 1:
            problem = "the queries of a batch are each other's negatives, and --batch-size is 1"
        else:
            return
        raise UsageError(f"--dev-measure loss: {problem}; name a measure, such as nDCG@10")

    def _set_temperature(self, checkpoint: "RetrievalModel") -> list[str]:
        """Set the temperature of normalised experts, unless the objective divides all scores by one; returns their names."""
        from moeir.architectures.temperature import set_temperature
        from moeir.backbones.families import weights_io
        from moeir.training import objectives

        if self.temperature is None and objectives.divides_scores(variants.bind_variant("training.objectives", self.objective)):
            return []
        return set_temperature(checkpoint, weights_io.resolve_model(self.model), self.arch, self.temperature)

    def estimate(self) -> list[str]:
        from moeir.architectures.initialize import is_cross_encoder

        self._check_model()
        if any(is_stream(path) for _, path in self.sources()):
            return []
        pairs = is_cross_encoder(self.model, self.arch)
        sampler, text_stream = self._make_sampler(variants.bind_variant("training.objectives", self.objective).func, pairs=pairs)
        self._load_dev_set(text_stream, sampler.steps_per_epoch, pairs=pairs)
        steps = self.total_steps(sampler.steps_per_epoch)
        texts = steps * self.batch_size * self.accumulate
        text_counts = f"{texts:,} queries and {texts * (1 + self.negatives):,} documents"
        batches = f"{self.accumulate} batches of " if self.accumulate > 1 else ""
        return [f"{steps:,} steps of {batches}{self.batch_size} queries from {sampler.size:,} examples: {text_counts}"]

    def next_command(self) -> list[object]:
        from moeir.architectures.initialize import is_cross_encoder

        corpus = next(iter(self.corpus), None)
        return command_after_checkpoint(self, self.output, corpus, reads_pairs=is_cross_encoder(self.model, self.arch))

    def work(self) -> Counts:
        from moeir.architectures.initialize import build_checkpoint, is_cross_encoder
        from moeir.artifacts.atomic_write import RESUME, TOKEN_CACHE
        from moeir.backbones.device import select_dtype
        from moeir.kernels import heap
        from moeir.training import dev_sets, retrieval_task, token_cache, trainer

        process_group = self.process_group()
        self._check_model()
        objective = variants.bind_variant("training.objectives", self.objective)
        pairs = is_cross_encoder(self.model, self.arch)
        sampler, text_stream = self._make_sampler(objective.func, pairs=pairs)
        dev_set = self._load_dev_set(text_stream, sampler.steps_per_epoch, pairs=pairs)
        checkpoint = build_checkpoint(self.model, self.arch, self.input_options(), text_stream.first_documents, self.seed)
        for expert in self._set_temperature(checkpoint):
            scale = checkpoint.architecture.scales[expert]
            log.info("temperature %g: the cosines of the %s expert are scaled by %g", 1 / scale, expert, scale)
        checkpoint.architecture.set_gradient_checkpointing(self.recompute)
        self.prepare_layers(checkpoint.architecture)
        with process_group.main_process_first():
            texts = token_cache.build_token_cache(self.cache or self.output / RESUME / TOKEN_CACHE, text_stream, checkpoint)
        process_group.check_same({"the digest of the texts": text_stream.digest[:16]})
        del text_stream  # free the texts: the training needs only their tokens
        schedule, dtype = self.make_schedule(sampler.steps_per_epoch, self.layer_decay), select_dtype(self.dtype, process_group.device)
        process_group = process_group.with_timeout(self.stuck_minutes)
        log.info("%s", self._describe_reading(sampler, schedule.steps))
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
        )
        loss = dev_sets.DevLoss(objective, self.batch_size, schedule.steps) if self._is_dev_loss else None
        evaluator = None if dev_set is None else dev_sets.DevEvaluator(checkpoint, dev_set, dtype, process_group, loss)
        save = partial(self.save_checkpoint, checkpoint, self.model, self.objective)
        saves_memory = self.recompute or self.gradient_cache is not None
        with heap.tune_malloc(heap.RETURN_FREED if saves_memory else heap.KEEP_FREED):
            options = self.trainer_options(process_group, task.size, save)
            counts = trainer.train(task, schedule, self.output, evaluator=evaluator, **options)
        return save(self.output, counts) if process_group.is_main else None

    def _describe_reading(self, sampler: "BatchSampler", steps: int) -> str:
        """How many queries a training of so many steps reads, and how many epochs it has."""
        epochs = steps * self.accumulate / sampler.steps_per_epoch
        queries = f"{epochs:.2f} epochs of {format_count(sampler.size, 'query')}"
        skipped = f", after {self.skip_queries:,} skipped" if self.skip_queries else ""
        return f"{format_count(steps, 'step')} of {self.batch_size * self.accumulate} queries{skipped}: {queries}"

    def _make_sampler(self, objective: object, *, pairs: bool) -> "tuple[BatchSampler, TextStream]":
        """The batch sampler and the texts of its batches."""
        from moeir.formats.training_files import read_training_examples
        from moeir.records import examples
        from moeir.training import objectives, sampling
        from moeir.training.text_stream import collect_texts, without_texts

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
        text_stream = collect_texts(datasets, labels, queries=self.queries, corpora=self.corpus, keep_empty=self.keep_empty, fielded=pairs)
        for sampler, rows, label in zip(samplers, text_stream.rows, labels):
            teacher = self.objective if objective in objectives.NEEDS_TEACHER else None
            sampling.check_training_examples(sampler, rows.queries, rows.documents, label, teacher)
            sampling.drop_twins(sampler, rows.document_twins, label)
            sampling.check_batch_size(sampler, self.process_group().size, pairs=pairs)
        joint: BatchSampler = samplers[0]
        if self.sampling_rate:
            joint = sampling.MultiDatasetSampler(tuple(samplers), self.sampling_rate, self.seed)
        joint.skipped_batches = ceil(self.skip_queries / self.batch_size)
        return joint, text_stream

    def _load_dev_set(self, text_stream: "TextStream", batches_per_epoch: int, *, pairs: bool) -> "DevSet | None":
        """The development set, if there is one."""
        self._check_dev_run(pairs=pairs)
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
