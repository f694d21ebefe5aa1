"""Baselines: the same trainings with transformers' BertModel and with sentence-transformers' trainer."""

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from tests.benchmarks.gpu import texts

RATE, CLIP, FLOPS = 1e-5, 1.0, 0.01
Ids = list[list[int]]


def dense_loss(model: Any, queries: dict[str, Tensor], documents: dict[str, Tensor], group: int) -> Tensor:
    """First tokens, inner products, in-batch negatives."""
    left, right = (model(**side).last_hidden_state[:, 0] for side in (queries, documents))
    return contrast(left, right, group)


def splade_loss(model: Any, queries: dict[str, Tensor], documents: dict[str, Tensor], group: int) -> Tensor:
    """The largest logit of each term, saturated; inner products, in-batch negatives, FLOPS of both sides."""

    def encode(side: dict[str, Tensor]) -> Tensor:
        saturated = torch.log1p(torch.relu(model(**side).logits)) * side["attention_mask"][..., None]  # [B, L, V]
        return saturated.amax(1).float()

    left, right = encode(queries), encode(documents)
    return contrast(left, right, group) + FLOPS * sum((side.mean(0) ** 2).sum() for side in (left, right))


def pair_loss(model: Any, pairs: dict[str, Tensor], group: int) -> Tensor:
    """A query's positive against its own negatives."""
    scores = model(**pairs).logits.float().view(-1, group)
    return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device))


def contrast(queries: Tensor, documents: Tensor, group: int) -> Tensor:
    """The contrastive loss, where each query's positive is the first of its group of documents."""
    scores = queries.float() @ documents.float().T
    positives = torch.arange(0, len(documents), group, device=scores.device)
    return torch.nn.functional.cross_entropy(scores, positives)


BERT_ARCHITECTURES: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "dense": (partial(BertModel, add_pooling_layer=False), dense_loss),
    "splade": (BertForMaskedLM, splade_loss),
    "cross-encoder": (BertForSequenceClassification, pair_loss),
}
TRAINER_ARCHITECTURES = ("dense", "splade")


def train_bert(architecture: str, folder: Path, batches: list[tuple[Ids, Ids]], *, group: int, attention_dropout: float | None) -> None:
    """One step a batch; batches are padded to their longest text and pinned before the first step."""
    make, loss_of = BERT_ARCHITECTURES[architecture]
    options = {} if attention_dropout is None else {"attention_probs_dropout_prob": attention_dropout}
    model = make(bert_config(folder, **options)).to("cuda").train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    padded = [pad_pairs(*batch, group) if architecture == "cross-encoder" else tuple(map(pad, batch)) for batch in batches]
    for sides in padded:
        moved = [{name: tensor.to("cuda", non_blocking=True) for name, tensor in side.items()} for side in sides]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, *moved, group)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


def bert_config(folder: Path, **options: Any) -> BertConfig:
    """The sizes of a folder's weights; baselines use random weights of these sizes."""
    return BertConfig.from_pretrained(folder, attn_implementation="sdpa", num_labels=1, **options)


def pad(rows: Ids, segments: Ids | None = None) -> dict[str, Tensor]:
    """Token ids, mask and segments [B, L], in pinned memory."""
    longest = max(map(len, rows))
    sides = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
    sides |= {} if segments is None else {"token_type_ids": segments}
    return {name: torch.tensor([row + [0] * (longest - len(row)) for row in side]).pin_memory() for name, side in sides.items()}


def pad_pairs(queries: Ids, documents: Ids, group: int) -> tuple[dict[str, Tensor]]:
    """Each query with each document of its group, as one text."""
    both = [(queries[number // group], document[1:]) for number, document in enumerate(documents)]
    return (pad([left + right for left, right in both], [[0] * len(left) + [1] * len(right) for left, right in both]),)


def has_sentence_transformers() -> bool:
    """Whether it is installed, with accelerate, which its trainer needs."""
    return all(importlib.util.find_spec(name) is not None for name in ("sentence_transformers", "accelerate"))


def train_sentence_transformer(architecture: str, folder: Path, batches: list[tuple[Ids, Ids]], output: Path, sizes: texts.Sizes) -> None:
    """The trainer that users of sentence-transformers call."""
    from tests.benchmarks.gpu.sentence_transformer import train

    steps = []
    for queries, documents in batches:
        words = [[" ".join(f"w{token - texts.FIRST}" for token in row[1:-1]) for row in side] for side in (queries, documents)]
        group = len(documents) // len(queries)
        steps.append([[query, *words[1][first * group : (first + 1) * group]] for first, query in enumerate(words[0])])
    length = min(sizes.document_words[1] + 2, sizes.positions)
    train(architecture, folder, steps, output, length=length, rate=RATE)
