"""`moeir finetune`: competitive or contrastive learning from queries, positives and negatives."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage
from moeir.stages.init import check_seed, reading_rules

if TYPE_CHECKING:
    from moeir.learning.loop import Texts
    from moeir.records.examples import Example


@dataclass(frozen=True, kw_only=True)
class Finetune(Stage):
    """Train a retriever on examples: a mixture of experts competitively, or any architecture contrastively."""

    model: Path = source("weights", "Weights to start from: a folder, a checkpoint, or a hub id.", names=("--model-name-or-path",))
    train: Path = source("examples", "Examples, as mine-negatives writes them.")
    corpus: Path | None = source("texts", "The documents the examples name (not needed if they bring their texts).", None)
    queries: Path | None = source("texts", "The queries the examples name.", None, names=("--topics",))
    arch: str | None = option("Architecture for plain weights, e.g. came:shared_layers=10; see: moeir variants architectures.", None)
    objective: str = option("contrastive, or competitive:temperature=0.5; see: moeir variants learning.objectives.", "contrastive")
    batch_size: int = option("Queries per step.", 8, names=("--per-device-train-batch-size",))
    negatives: int = option("Negatives per query, drawn anew each epoch.", 7)
    epochs: int = option("Times over the examples.", 1, names=("--num-train-epochs",))
    steps: int | None = option("Steps in all; wins over --epochs.", None, names=("--max-steps",))
    learning_rate: float = option("Highest learning rate (AdamW).", 1e-5)
    warmup: float = option("Ratio of the steps over which the learning rate rises.", 0.1, names=("--warmup-ratio",))
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
    save_minutes: float = option("Minutes between saves of the training state.", 5.0, affects_result=False)
    output: Path = product("checkpoint", "Folder to write.")

    def check(self) -> None:
        if self.arch is not None:
            variants.resolve("architectures", self.arch)
        variants.resolve("learning.objectives", self.objective)
        positive = {"--batch-size": self.batch_size, "--epochs": self.epochs, "--steps": self.steps, "--learning-rate": self.learning_rate}
        for flag, value in positive.items():
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value}: expected more than 0")
        for flag, value in {"--weight-decay": self.weight_decay, "--clip": self.clip, "--negatives": self.negatives}.items():
            if value < 0:
                raise UsageError(f"{flag} {value}: expected 0 or more")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"--warmup {self.warmup}: expected a ratio of the steps, 0 to 1")
        check_seed(self.seed)

    def cost(self) -> list[str]:
        from moeir.records import examples

        count = sum(1 for _ in examples.read(self.train, provenance=False))
        steps = self.steps or self.epochs * max(1, count // self.batch_size)
        texts = steps * self.batch_size
        read = f"{texts:,} queries and {texts * (1 + self.negatives):,} documents"
        return [f"{steps:,} steps of {self.batch_size} queries from {count:,} examples: {read}"]

    def work(self) -> Counts:
        from moeir.architectures.card import write_card
        from moeir.architectures.starting import start
        from moeir.backbones.precision import device_for, dtype_for
        from moeir.learning import batches, loop
        from moeir.records import examples

        device = device_for(self.device)
        kept = list(examples.read(self.train, provenance=False))
        plan = batches.planned(kept, queries=self.batch_size, negatives=self.negatives, seed=self.seed, place=str(self.train))
        texts = self._texts(kept)
        batches.check_texts(plan, texts.queries, texts.documents, str(self.train))
        checkpoint = start(self.model, self.arch, reading_rules(self), list(texts.documents.values())[:4000], self.seed)
        steps = self.steps or self.epochs * plan.steps_per_epoch
        schedule = loop.Schedule(
            steps, self.learning_rate, self.warmup, self.weight_decay, self.clip, seed=self.seed, save_minutes=self.save_minutes
        )
        objective = variants.bind("learning.objectives", self.objective)
        done = loop.train(checkpoint, plan, texts, objective, schedule, self.output, dtype=dtype_for(self.dtype, device), device=device)
        checkpoint.save(self.output)
        write_card(self.output, checkpoint, base=str(self.model), training={"objective": self.objective, **done})
        return {"parameters": checkpoint.architecture.parameter_count(), **done}

    def _texts(self, kept: "Iterable[Example]") -> "Texts":
        """The texts the examples bring or name, and no others."""
        from moeir.learning.loop import Texts
        from moeir.records import texts

        queries: dict[str, str] = {}
        documents: dict[str, str] = {}
        named: set[str] = set()
        asked: set[str] = set()
        for example in kept:
            asked.add(example.query_id)
            named |= {*example.positive_ids, *example.negative_ids}
            documents |= {passage.id: passage.content for passage in example.passages}
            if example.query is not None:
                queries[example.query.id] = example.query.content
        for place, wanted, found, flag in ((self.queries, asked, queries, "--queries"), (self.corpus, named, documents, "--corpus")):
            if place is None and not wanted <= found.keys():
                raise UsageError(f"{self.train}: its examples name texts by id; say where they are with {flag}")
            if place is not None:
                found |= {text.id: text.content for text in texts.read(place, keep_empty=self.keep_empty) if text.id in wanted}
        return Texts(queries, documents)
