"""`moeir finetune`: competitive or contrastive learning from queries, positives and negatives."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import as_dict, option, product, source
from moeir.stages.base import STREAM, Counts, Stage
from moeir.stages.init import check_seed, reading_rules
from moeir.values import convert

if TYPE_CHECKING:
    from moeir.learning.batches import Steps
    from moeir.learning.loop import Schedule
    from moeir.learning.texts import Needed
    from moeir.learning.validation import Development
    from moeir.records.examples import Example

SCHEDULES, KEPT = ("linear", "constant"), ("best", "last")
LEAST_RATE, LARGEST_RATE, MOST_NEGATIVES = 0.001, 1000.0, 10_000


@dataclass(frozen=True, kw_only=True)
class Finetune(Stage):
    """Train a retriever on examples: a mixture of experts competitively, or any architecture contrastively."""

    model: Path = source("weights", "Weights to start from: a folder, a checkpoint, or a hub id.", names=("--model-name-or-path",))
    train: tuple[Path, ...] = source("examples", "Examples, as mine-negatives writes them; several files are united by query id.")
    sampling_rate: tuple[float, ...] = option("One per --train, which are then sets of their own: how often an epoch walks each.", ())
    corpus: tuple[Path, ...] = source(
        "texts", "The documents the examples name, if they do not bring them; with sets one for all or each.", ()
    )
    queries: tuple[Path, ...] = source("texts", "The queries the examples name; with sets one for all or each.", (), names=("--topics",))
    arch: str | None = option("Architecture for plain weights, e.g. came:shared_layers=10; see: moeir variants architectures.", None)
    objective: str = option("contrastive, or competitive:temperature=0.5; see: moeir variants learning.objectives.", "contrastive")
    batch_size: int = option("Queries per step.", 8, names=("--per-device-train-batch-size",))
    negatives: int = option("Negatives per query, drawn anew each epoch.", 7)
    epochs: int = option("Times over the examples.", 1, names=("--num-train-epochs",))
    steps: int | None = option("Steps in all; wins over --epochs.", None, names=("--max-steps",))
    learning_rate: float = option("Highest learning rate (AdamW).", 1e-5)
    warmup: float = option("Ratio of the steps over which the learning rate rises.", 0.1, names=("--warmup-ratio",))
    schedule: str = option("After the rise: linear (falls to 0) or constant.", "linear", names=("--lr-scheduler-type",))
    group_rate: tuple[str, ...] = option("PATTERN=RATE: the highest rate of parameters with that in their names; repeat the flag.", ())
    layer_decay: float = option("What multiplies the rate from each layer to the one below (TASER's release: 0.8).", 1.0)
    weight_decay: float = option("Weight decay of matrices.", 0.0)
    clip: float = option("Largest gradient norm; 0 does not clip.", 1.0, names=("--max-grad-norm",))
    query_prefix: str | None = option("Text put before every query.", None)
    document_prefix: str | None = option("Text put before every document.", None)
    query_length: int | None = option("Most tokens of a query [default: what the weights bring, or 64].", None)
    document_length: int | None = option("Most tokens of a document [default: what the weights bring, or 256].", None)
    seed: int = option("Seed of everything that is drawn.", 42)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    dev_queries: Path | None = source("texts", "Development queries, searched while training.", None)
    dev_qrels: Path | None = source("qrels", "Their judgements.", None)
    dev_corpus: Path | None = source("texts", "What they are searched in, whole [default: --corpus].", None)
    dev_measure: str = option("What is best, of the fused list.", "nDCG@10", names=("--metric-for-best-model",))
    evaluate_every: int | None = option("Steps between evaluations [default: an epoch].", None, names=("--eval-steps",))
    patience: int | None = option("Stop after so many evaluations without a better one.", None, names=("--early-stopping-patience",))
    keep: str | None = option("Which weights become the checkpoint, best or last [default: best with --dev-queries].", None)
    cache: Path | None = option("Folder of the tokens, read once [default: beside the unfinished product].", None, affects_result=False)
    save_minutes: float = option("Minutes between saves of the training state.", 5.0, affects_result=False)
    track: tuple[str, ...] = option(
        "tensorboard or wandb, told of every step; files go to OUTPUT.tensorboard, …", (), names=("--report-to",), affects_result=False
    )
    output: Path = product("checkpoint", "Folder to write.")

    def check(self) -> None:
        from moeir.learning import trackers

        if self.arch is not None:
            variants.resolve("architectures", self.arch)
        variants.resolve("learning.objectives", self.objective)
        positive = {"--batch-size": self.batch_size, "--epochs": self.epochs, "--steps": self.steps, "--learning-rate": self.learning_rate}
        positive |= {"--evaluate-every": self.evaluate_every, "--patience": self.patience}
        for flag, value in positive.items():
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value}: expected more than 0")
        for flag, value in {"--weight-decay": self.weight_decay, "--clip": self.clip, "--negatives": self.negatives}.items():
            if value < 0:
                raise UsageError(f"{flag} {value}: expected 0 or more")
        if self.negatives > MOST_NEGATIVES:
            raise UsageError(f"--negatives {self.negatives}: expected at most {MOST_NEGATIVES}")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"--warmup {self.warmup}: expected a ratio of the steps, 0 to 1")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"--schedule {self.schedule}: expected {' or '.join(SCHEDULES)}")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"--layer-decay {self.layer_decay}: expected more than 0, at most 1 (no decay)")
        _group_rates(self.group_rate)
        check_seed(self.seed)
        trackers.named(self.track)
        self._check_sets()
        self._check_development()

    def _check_sets(self) -> None:
        sets = len(self.train)
        if self.sampling_rate and len(self.sampling_rate) != sets:
            raise UsageError(f"--sampling-rate: expected one for each --train, {sets}; found {len(self.sampling_rate)}")
        for rate in self.sampling_rate:
            if not LEAST_RATE <= rate <= LARGEST_RATE:
                raise UsageError(f"--sampling-rate {rate:g}: expected {LEAST_RATE:g} to {LARGEST_RATE:g}, how often an epoch walks the set")
        for flag, files in (("--corpus", self.corpus), ("--queries", self.queries)):
            if self.sampling_rate and len(files) not in (0, 1, sets):
                raise UsageError(f"{flag}: expected one for all sets, or one for each --train, {sets}; found {len(files)}")

    def _check_development(self) -> None:
        if self.keep not in (None, *KEPT):
            raise UsageError(f"--keep {self.keep}: expected {' or '.join(KEPT)}")
        if (self.dev_queries is None) != (self.dev_qrels is None):
            raise UsageError("--dev-queries and --dev-qrels go together, found only one of them")
        asked = {"--dev-corpus": self.dev_corpus, "--evaluate-every": self.evaluate_every, "--patience": self.patience, "--keep": self.keep}
        if self.dev_queries is None and (flags := [flag for flag, value in asked.items() if value not in (None, "last")]):
            raise UsageError(f"{flags[0]}: needs --dev-queries and --dev-qrels")
        if self.dev_queries is not None and self.dev_corpus is None and not self.corpus:
            raise UsageError("--dev-queries: needs --dev-corpus, the documents they are searched in")
        if self.dev_queries is not None and self.dev_corpus is None and STREAM in self.corpus:
            raise UsageError("--corpus -: the development queries are searched in it too, and standard input can be read once; name a file")
        if self.dev_queries is not None:
            from moeir.evaluation import measures

            measures.parse(self.dev_measure)

    def cost(self) -> list[str]:
        from moeir.records import examples

        asked = [[example.query_id for example in examples.read(path, provenance=False)] for path in self.train]
        counts = [len(ids) for ids in asked] if self.sampling_rate else [len({query for ids in asked for query in ids})]
        walks = [rate * max(1, count // self.batch_size) for rate, count in zip(self.sampling_rate or (1.0,), counts, strict=True)]
        steps = self.steps or self.epochs * sum(ceil(round(walk, 6)) for walk in walks)
        texts = steps * self.batch_size
        read = f"{texts:,} queries and {texts * (1 + self.negatives):,} documents"
        return [f"{steps:,} steps of {self.batch_size} queries from {sum(counts):,} examples: {read}"]

    def work(self) -> Counts:
        from moeir.architectures.card import write_card
        from moeir.architectures.starting import start
        from moeir.artifacts.making import RESUME, TOKENS
        from moeir.backbones.precision import device_for, dtype_for
        from moeir.learning import loop, objectives, retrieval, tokens, trackers

        device = device_for(self.device)
        objective = variants.bind("learning.objectives", self.objective)
        objectives.rehearse(objective, self.negatives)
        plan, needed = self._planned(objective.func)
        development = self._development(needed, plan.steps_per_epoch)
        checkpoint = start(self.model, self.arch, reading_rules(self), needed.first, self.seed)
        texts = tokens.cached(self.cache or self.output / RESUME / TOKENS, needed, checkpoint)
        del needed  # memory is for the training: it has the tokens, and the texts go
        schedule, dtype = self._schedule(self.steps or self.epochs * plan.steps_per_epoch), dtype_for(self.dtype, device)
        task = retrieval.Retrieval(checkpoint, plan, texts, objective, schedule.steps, dtype)
        judge = None if development is None else retrieval.Judge(checkpoint, development, dtype)
        tracking = trackers.tracking(self.track, self.output, as_dict(self, results_only=True))
        done = loop.train(task, schedule, self.output, device=device, judge=judge, tracking=tracking)
        checkpoint.save(self.output)
        write_card(self.output, checkpoint, base=str(self.model), training={"objective": self.objective, **done})
        return {"parameters": checkpoint.architecture.parameter_count(), **done}

    def _planned(self, objective: object) -> "tuple[Steps, Needed]":
        """What meets what at which step, and the texts of it."""
        from moeir.learning import batches, objectives
        from moeir.learning.texts import bare, gathered
        from moeir.records import examples

        files = [examples.read(path, provenance=False) for path in self.train]
        places = [str(path) for path in self.train]
        sets: list[list[Example]] = [list(file) for file in files] if self.sampling_rate else [examples.united(files, places)]
        places = places if self.sampling_rate else [", ".join(places)]
        plans = [
            batches.planned(bare(kept), queries=self.batch_size, negatives=self.negatives, seed=self.seed, place=place)
            for kept, place in zip(sets, places)
        ]
        needed = gathered(sets, places, queries=self.queries, corpora=self.corpus, keep_empty=self.keep_empty)
        for plan, rows, place in zip(plans, needed.rows, places):
            batches.check_texts(plan, rows.queries, rows.documents, place)
            if objective in objectives.TAUGHT:
                batches.check_taught(plan, place, self.objective)
        return (batches.Sets(tuple(plans), self.sampling_rate, self.seed) if self.sampling_rate else plans[0]), needed

    def _schedule(self, steps: int) -> "Schedule":
        from moeir.learning.loop import Schedule

        return Schedule(
            steps,
            self.learning_rate,
            self.warmup,
            self.weight_decay,
            self.clip,
            self.seed,
            self.save_minutes,
            self.schedule,
            self.layer_decay,
            _group_rates(self.group_rate),
        )

    def _development(self, needed: "Needed", epoch: int) -> "Development | None":
        """The development set, if there is one."""
        if self.dev_queries is None or self.dev_qrels is None:
            return None
        from moeir.learning.validation import development

        corpora = self.corpus if self.dev_corpus is None else (self.dev_corpus,)
        training = {name: text for queries in needed.queries for name, text in queries.items()}
        return development(
            self.dev_queries,
            self.dev_qrels,
            corpora,
            training=training,
            measure=self.dev_measure,
            every=self.evaluate_every or epoch,
            patience=self.patience,
            keep=self.keep or "best",
            keep_empty=self.keep_empty,
        )


def _group_rates(said: tuple[str, ...]) -> dict[str, float]:
    """Learning rates by pattern, from PATTERN=RATE."""
    rates = {}
    for text in said:
        pattern, equals, rate = text.rpartition("=")
        if not (pattern and equals):
            raise UsageError(f"--group-rate {text}: expected PATTERN=RATE, as in mixture=1e-4")
        rates[pattern] = convert(rate, "float", f"--group-rate {text}")
        if not 0 <= rates[pattern] < float("inf"):
            raise UsageError(f"--group-rate {text}: expected a rate of 0 or more")
    return rates
