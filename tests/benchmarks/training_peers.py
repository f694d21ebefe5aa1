"""Baselines of the training benchmark: sentence-transformers' trainers on the same weights, texts and order."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.losses.merged_forward import column_merging_disabled
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.base.trainer import BaseTrainer
from sentence_transformers.multi_vector_encoder import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sentence_transformer.trainer import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from sentence_transformers.sparse_encoder import SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.callbacks import SpladeRegularizerWeightSchedulerCallback
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import dot_score

FLOPS, RAMP_RATIO = (
    0.01,
    1e-6,
)  # weight of the FLOPS penalty, as ours; ratio of the steps of its ramp, so that it is full from the second step on
COLUMNS = ("anchor", "positive", "negative")


class InOrder(DefaultBatchSampler):
    """Batches in the order of the rows."""

    def __init__(self, rows: Any, batch_size: int, drop_last: bool, **others: Any) -> None:
        super().__init__(range(len(rows)), batch_size=batch_size, drop_last=drop_last, **others)


def dense(folder: Path, length: int, _: torch.Tensor | None, device: str) -> tuple[Any, Any, Any, type, list[Any]]:
    """A bi-encoder, first token, inner product."""
    body = Transformer(str(folder), max_seq_length=length)
    model = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "cls")], device=device)
    loss = MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=dot_score)
    return model, loss, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, []


def splade(folder: Path, length: int, _: torch.Tensor | None, device: str) -> tuple[Any, Any, Any, type, list[Any]]:
    """SPLADE-max with FLOPS on both sides."""
    body = Transformer(str(folder), transformer_task="fill-mask", max_seq_length=length)
    model = SparseEncoder(modules=[body, SpladePooling("max")], device=device)
    ranking = SparseMultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=dot_score)
    loss = SpladeLoss(model, ranking, document_regularizer_weight=FLOPS, query_regularizer_weight=FLOPS)
    growing = SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=RAMP_RATIO)
    return model, loss, SparseEncoderTrainer, SparseEncoderTrainingArguments, [growing]


def colbert(folder: Path, length: int, projection: torch.Tensor | None, device: str) -> tuple[Any, Any, Any, type, list[Any]]:
    """Late interaction of unit vectors, no [MASK] tokens added, every token counts."""
    assert projection is not None
    body = Transformer(str(folder), document_length=length, query_length=length)
    down = Dense(projection.shape[1], len(projection), bias=False, activation_function=None, module_input_name="token_embeddings")
    with torch.no_grad():
        down.linear.weight.copy_(projection)
    model = MultiVectorEncoder(modules=[body, down, Normalize("token_embeddings"), MultiVectorMask()], device=device)
    loss = MultiVectorMultipleNegativesRankingLoss(model)
    return model, loss, MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments, []


KINDS: dict[str, Callable[..., tuple[Any, Any, Any, type, list[Any]]]] = {"dense": dense, "splade": splade, "colbert": colbert}


def trained(
    kind: str,
    weights: tuple[Path, torch.Tensor | None],
    steps: list[list[list[str]]],
    folder: Path,
    *,
    length: int,
    rate: float,
    bfloat16: bool,
    merged: bool,
    ready: Callable[[], None],
    device: str = "cpu",
) -> tuple[list[float], list[float], list[float]]:
    """Start time of each step, processor time by then, and its loss. A row of a step is a query, its positive and its negatives."""
    model, loss, trainer, settings, callbacks = KINDS[kind](weights[0], length, weights[1], device)
    rows = [row for step in steps for row in step]
    names = [*COLUMNS[:2], *(f"{COLUMNS[2]}_{number}" for number in range(1, len(rows[0]) - 1))]
    table = datasets.Dataset.from_dict({name: [row[column] for row in rows] for column, name in enumerate(names)})
    arguments = settings(
        str(folder), max_steps=len(steps), per_device_train_batch_size=len(steps[0]), learning_rate=rate, weight_decay=0.0,
        lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=1.0, bf16=bfloat16, use_cpu=device == "cpu", report_to=[],
        save_strategy="no", logging_steps=len(steps), disable_tqdm=True, batch_sampler=InOrder,
    )  # fmt: skip
    instance = watch_steps(trainer)(model=model, args=arguments, train_dataset=table, loss=loss, callbacks=callbacks)
    ready()
    if merged:
        instance.train()
    else:
        with column_merging_disabled():
            instance.train()
    return instance.times, instance.clock, instance.losses


def watch_steps(trainer: type[BaseTrainer]) -> Any:
    """A subclass of the trainer that records the start and the loss of each step."""

    class Watched(trainer):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.times: list[float] = []
            self.clock: list[float] = []
            self.losses: list[float] = []

        def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
            self.times.append(time.monotonic())
            self.clock.append(time.process_time())
            loss: torch.Tensor = super().training_step(*given, **named)
            self.losses.append(float(loss))
            return loss

    return Watched
