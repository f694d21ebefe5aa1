"""Toy training data: texts tokenized in memory instead of a cache on disk, and examples of short texts."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.layers import set_attention_dropout
from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.records.examples import Example
from moeir.training import trainer
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import make_sampler
from moeir.training.text_stream import RowIndex
from moeir.training.token_cache import ShardedTexts, TokenCache, TrainingTexts
from moeir.training.trainer import metrics_to_floats
from tests.processes import TIMINGS, read_metrics, run_captured, run_processes

ANIMALS = ("owl", "bat", "bee", "fox", "cat", "hen", "oak", "eel")


def tokenize_in_memory(
    checkpoint: RetrievalModel, queries: Mapping[str, str], documents: Mapping[str, str], datasets: int = 1
) -> TrainingTexts:
    """Queries, then documents; `datasets` data sets that all have the same texts."""
    ids, silent = [], []
    for side, texts in (("query", queries), ("document", documents)):
        for text in texts.values():
            token_ids, silent_counts = checkpoint.token_ids([text], side)
            ids.append(token_ids[0])
            silent.append(silent_counts[0] if silent_counts else 0)
    rows = RowIndex({name: row for row, name in enumerate(queries)}, {name: row for row, name in enumerate(documents, len(queries))})
    starts = np.cumsum([0, *map(len, ids)])
    return TrainingTexts(TokenCache(np.concatenate(ids).astype(np.uint16), starts, np.array(silent)), [rows] * datasets)


def animal_text(row: int) -> str:
    """A text of 1 to 13 animals and some verbs."""
    return " ".join(ANIMALS[(row + number) % 8] + " hunts" * (number % 2) for number in range(1 + row % 13))


def write_collection(folder: Path, name: str, count: int, shift: int = 0) -> tuple[Path, dict[str, str]]:
    """Write a collection of such texts; returns its path and the texts by id."""
    texts_by_id = {f"{name[0]}{row}": animal_text(row + shift) for row in range(count)}
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{text_id}\t{text}\n" for text_id, text in texts_by_id.items()))
    return path, texts_by_id


def make_examples(count: int, negatives: int = 4) -> list[Example]:
    """Queries q0, … over documents d0, …: two positives each."""
    pools = [tuple(f"d{(n + 2 + more) % (count + 1)}" for more in range(negatives)) for n in range(count)]
    return [Example(f"q{n}", (f"d{n}", f"d{n + 1}"), pool) for n, pool in enumerate(pools)]


def write_training_files(folder: Path, **scores: Callable[[int], list[float]]) -> Path:
    """Texts of 1 to 13 words, examples of them with a teacher's scores by number, and a development set with a run."""
    write_collection(folder, "queries", 20, shift=3)
    write_collection(folder, "documents", 30)
    with open(folder / "train.jsonl", "w") as file:
        for number, one in enumerate(make_examples(20)):
            record = {"query_id": one.query_id, "positive_ids": one.positive_ids, "negative_ids": one.negative_ids}
            file.write(json.dumps(record | {name: score(number) for name, score in scores.items()}) + "\n")
    (folder / "dev.qrels").write_text("".join(f"q{number} 0 d{number + 3} 1\n" for number in range(10)))
    lines = (f"q{query} Q0 d{(query + rank) % 30} {rank + 1} {9 - rank} toy\n" for query in range(12) for rank in range(7))
    (folder / "dev.trec").write_text("".join(lines))
    return folder


def finetune_by(size: int, folder: Path, *flags: object, output: Path) -> list[dict[str, object]]:
    """`moeir finetune` on the files of `write_training_files` by so many processes -> the result of each."""
    sources = ("--train", folder / "train.jsonl", "--corpus", folder / "documents.tsv", "--queries", folder / "queries.tsv")
    sizes = ("--batch-size", 2, "--negatives", 3, "--steps", 4, "--learning-rate", 2e-4, "--query-length", 12, "--document-length", 28)
    command = ("finetune", *sources, *sizes, "--dtype", "float32", "--device", "cpu", *flags, "--output", output)
    return [run_captured(*command)] if size == 1 else run_processes(size, lambda rank: run_captured(*command))


def single_part(texts: PackedTokens | ShardedTexts) -> PackedTokens:
    """The tokens of a batch that is neither shared nor split."""
    if isinstance(texts, PackedTokens):
        return texts
    (part,) = texts.parts
    assert texts.restore_order is None and texts.total_tokens == len(part.ids)
    return part


def assert_same_tokens(actual: Iterable[PackedTokens | ShardedTexts], expected: Iterable[PackedTokens | ShardedTexts]) -> None:
    """Batches are equal token by token, sorted by length."""
    for one, other in zip(map(single_part, actual), map(single_part, expected), strict=True):
        other = other.sort_by_length()
        assert (one.order is None) == (other.order is None) and (one.order is None or torch.equal(one.order, other.order))
        assert one.side == other.side and one.lengths == other.lengths and one.segments is other.segments is None
        assert one.ids.dtype == other.ids.dtype and one.starts.dtype == other.starts.dtype
        assert torch.equal(one.ids, other.ids) and torch.equal(one.starts, other.starts)
        assert (one.no_attend_mask is None) == (other.no_attend_mask is None) and (
            one.no_attend_mask is None or torch.equal(one.no_attend_mask, other.no_attend_mask)
        )


def take_step(checkpoint, objective, *, batch_size, at_once=None, recompute=False, seed=5, random=True, device="cpu", dtype=torch.float32):
    """One batch of eight queries: its loss, its metrics, its number of tokens, every gradient, and the task."""
    queries, documents = (
        {f"{side}{n}": animal_text(n + shift) for n in range(count)} for side, count, shift in (("q", 8, 3), ("d", 12, 0))
    )
    texts = tokenize_in_memory(checkpoint, queries, documents)
    if checkpoint.architecture.reads_pairs:
        texts = TrainingTexts(texts.cache, texts.rows, checkpoint.pair_tokenizer)
    sampler = make_sampler(make_examples(8), batch_size=batch_size, negatives=3, seed=1, source="toy")
    task = RetrievalTask(checkpoint, sampler, texts, objective, 2, dtype, max_tokens=at_once)
    model = checkpoint.architecture.to(device).train()
    model.set_gradient_checkpointing(recompute)
    if not random:
        disable_dropout(model)
    torch.manual_seed(seed)
    loss, metrics, tokens = task.compute_loss(0)
    loss.backward()
    gradients = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
    return loss.item(), metrics_to_floats([metrics])[0], tokens, gradients, task


def assert_same_gradients(actual, expected):
    """The same parameters have a gradient, nearly the same one."""
    assert actual.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    for name, one in expected.items():
        torch.testing.assert_close(actual[name], one, atol=1e-6 * largest, rtol=1e-4, msg=name)


class Killed(Exception):
    """Stands for a kill of the process."""


def kill_at(step, objective):
    """An objective that kills the training before its step `step` is done."""

    def killed(batch):
        if batch.step == step:
            raise Killed
        return objective(batch)

    return killed


def interrupt_before_step(patch, number):
    """Let a training be interrupted, as by Ctrl-C, before its step `number`, counted from 0."""
    step = trainer._Trainer.step

    def interrupted(run, current):
        if current == number:
            raise KeyboardInterrupt
        step(run, current)

    patch.setattr(trainer._Trainer, "step", interrupted)


def identical(first, second):
    """Whether two state dictionaries have the same bytes."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def untimed_metrics(folder):
    """The metrics of each step without what a clock says."""
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in read_metrics(folder)]


def disable_dropout(model: nn.Module) -> None:
    """No dropout, and no noise in an embedding mixture's gate."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, EmbeddingMixture) and module.noise is not None:
            nn.init.zeros_(module.noise.weight)
            nn.init.constant_(module.noise.bias, -1e4)  # whose softplus is 0
    set_attention_dropout(model, 0.0)
