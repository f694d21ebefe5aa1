"""sentence-transformers' trainers on the weights, texts and order of the other ways."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sentence_transformer.trainer import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from sentence_transformers.sparse_encoder import SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.callbacks import SpladeRegularizerWeightSchedulerCallback
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import dot_score

FLOPS, RAMP_RATIO = 0.01, 1e-6  # weight of the FLOPS penalty, as ours; part of the steps of its ramp: it is full from the second step on


class InOrder(DefaultBatchSampler):
    """Batches in the order of the rows."""

    def __init__(self, rows: Any, batch_size: int, drop_last: bool, **others: Any) -> None:
        super().__init__(range(len(rows)), batch_size=batch_size, drop_last=drop_last, **others)


def dense(folder: Path, length: int) -> tuple[Any, Any, Any, type, list[Any]]:
    """A bi-encoder, first token, inner product."""
    body = Transformer(str(folder), max_seq_length=length)
    model = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "cls")], device="cuda")
    loss = MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=dot_score)
    return model, loss, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, []


def splade(folder: Path, length: int) -> tuple[Any, Any, Any, type, list[Any]]:
    """SPLADE-max with FLOPS on both sides."""
    body = Transformer(str(folder), transformer_task="fill-mask", max_seq_length=length)
    model = SparseEncoder(modules=[body, SpladePooling("max")], device="cuda")
    ranking = SparseMultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=dot_score)
    loss = SpladeLoss(model, ranking, document_regularizer_weight=FLOPS, query_regularizer_weight=FLOPS)
    growing = SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=RAMP_RATIO)
    return model, loss, SparseEncoderTrainer, SparseEncoderTrainingArguments, [growing]


KINDS: dict[str, Callable[[Path, int], tuple[Any, Any, Any, type, list[Any]]]] = {"dense": dense, "splade": splade}


def train(kind: str, weights: Path, steps: list[list[list[str]]], folder: Path, *, length: int, rate: float) -> None:
    """Train on the card in bfloat16. A row of a step is a query, its positive and its negatives."""
    model, loss, trainer, settings, callbacks = KINDS[kind](weights, length)
    rows = [row for step in steps for row in step]
    names = ["anchor", "positive", *(f"negative_{number}" for number in range(1, len(rows[0]) - 1))]
    table = datasets.Dataset.from_dict({name: [row[column] for row in rows] for column, name in enumerate(names)})
    arguments = settings(
        str(folder), max_steps=len(steps), per_device_train_batch_size=len(steps[0]), learning_rate=rate, weight_decay=0.0,
        lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=1.0, bf16=True, report_to=[],
        save_strategy="no", logging_steps=len(steps), disable_tqdm=True, batch_sampler=InOrder,
    )  # fmt: skip
    trainer(model=model, args=arguments, train_dataset=table, loss=loss, callbacks=callbacks).train()
