"""Masked language modelling by `moeir pretrain` and by transformers' Trainer: tokens a second, memory, and equality of the losses.

    python pretraining_speed.py MODEL_FOLDER CORPUS WORK_FOLDER [--steps 12 --batch 32 --rounds 5 --dtype bfloat16 --threads 2 ...]

Both start from the same random weights in MODEL_FOLDER's sizes and read the same spans in the same order; transformers uses its Trainer
with DataCollatorForLanguageModeling, in the given order (`theirs`) or grouped by length (`grouped`). Each runs in a process of its own, in
turns; tokens count without padding; the first step is not timed. Memory is the process's, before training and at its peak. With --same both
mask the same tokens, without dropout, in float32, and the losses are compared.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.device import DTYPES
from moeir.pretraining import span_cache
from moeir.pretraining.batches import BatchRequirements, InputTemplate, MaskedTexts, PretrainingBatch, SpanSampler
from moeir.pretraining.mlm import Mlm
from moeir.pretraining.task import PretrainingTask
from moeir.training import trainer as trainer_module

SEED, RATE, HIDDEN = 1, 1e-4, 0.15
WAYS = ("ours", "theirs", "grouped")


def prepare(arguments: argparse.Namespace) -> None:
    """Write the random weights."""
    lengths = {"query_length": 64, "document_length": arguments.length}
    checkpoint = arguments.work / "drawn"
    checkpoint.mkdir(parents=True, exist_ok=True)
    build_checkpoint(arguments.model, "dense:head=true", lengths, seed=SEED, random_weights=True).save(checkpoint)
    if arguments.same:  # the dropout of a checkpoint is in the family's own config file
        checkpoint = checkpoint / "config.json"
        checkpoint.write_text(
            json.dumps(json.loads(checkpoint.read_text()) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
        )


def make_sampler(arguments: argparse.Namespace) -> tuple[Any, SpanSampler]:
    """The checkpoint and the sampler."""
    checkpoint = open_checkpoint(arguments.work / "drawn")
    reading = InputTemplate.from_model(checkpoint)
    room = reading.content_budget("document", arguments.length)
    tokens = span_cache.build_span_cache(
        arguments.work / "cache", arguments.corpus, checkpoint.tokenizer, digest=str(arguments.corpus), maximum=room, keep_empty=True
    )
    return checkpoint, SpanSampler(
        tokens, None, reading, BatchRequirements("none", HIDDEN), size=arguments.batch, steps=arguments.steps, seed=SEED
    )


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Our loop."""
    checkpoint, sampler = make_sampler(arguments)
    times, tokens, losses = [], [], []

    class Watched(PretrainingTask):
        def outcome(self, step: int) -> tuple[torch.Tensor, dict[str, float], int]:
            times.append(time.monotonic())
            loss, facts, count = super().compute_loss(step)
            tokens.append(count)
            losses.append(facts["loss"])
            return loss, facts, count

    task = Watched(Mlm(checkpoint.architecture, rate=HIDDEN), sampler, DTYPES[arguments.dtype])
    before = peak()
    schedule = trainer_module.Schedule(arguments.steps, RATE, 0.0, 0.0, 1.0, SEED, save_minutes=1e9)
    (arguments.work / "ours").mkdir(exist_ok=True)
    trainer_module.train(task, schedule, arguments.work / "ours", device="cpu")
    return summarise(times, tokens, losses, before)


def theirs(options: argparse.Namespace, *, grouped: bool) -> dict[str, Any]:
    """transformers' loop."""
    import transformers

    _, sampler = make_sampler(options)
    model = transformers.AutoModelForMaskedLM.from_pretrained(options.work / "drawn")
    reader = transformers.AutoTokenizer.from_pretrained(options.model)
    times, tokens, losses = [], [], []

    class Watched(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, *more: Any, **named: Any) -> torch.Tensor:
            times.append(time.monotonic())
            tokens.append(int(inputs["attention_mask"].sum()))
            loss: torch.Tensor = super().training_step(model, inputs, *more, **named)
            losses.append(float(loss))
            return loss

    if options.same:
        data = [pad_batch(sampler.batch_at(step)) for step in range(options.steps)]
        size, together = 1, lambda batches: batches[0]
    else:
        spans = np.concatenate([sampler.anchors_at(step) for step in range(options.steps)])
        begins, ends = sampler.cache.boundaries.token_bounds(spans)
        around = [sampler.template.special_tokens.beginning], [sampler.template.special_tokens.separator]
        texts = (sampler.cache.ids[first:last].tolist() for first, last in zip(begins, ends, strict=True))
        data = [{"input_ids": around[0] + text + around[1]} for text in texts]
        size, together = options.batch, transformers.DataCollatorForLanguageModeling(reader, mlm_probability=HIDDEN)
    arguments = transformers.TrainingArguments(
        str(options.work / "theirs"), max_steps=options.steps, per_device_train_batch_size=size, learning_rate=RATE, weight_decay=0.0,
        lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=1.0, bf16=options.dtype == "bfloat16", use_cpu=True, report_to=[],
        save_strategy="no", logging_steps=options.steps, disable_tqdm=True, seed=SEED,
        train_sampling_strategy="group_by_length" if grouped else "sequential",
    )  # fmt: skip
    trainer = Watched(model=model, args=arguments, train_dataset=data, data_collator=together)
    before = peak()
    trainer.train()
    return summarise(times, tokens, losses, before)


def pad_batch(batch: PretrainingBatch) -> dict[str, torch.Tensor]:
    """One of our batches in transformers' format."""
    texts: MaskedTexts = batch.anchors
    rows, _, real = texts.tokens.layout.padding
    labels = torch.full_like(texts.original_ids, -100)
    labels[texts.masked_positions] = texts.original_ids[texts.masked_positions]
    inputs = {"input_ids": texts.tokens.ids[rows].masked_fill(~real, 0), "labels": labels[rows].masked_fill(~real, -100)}
    return inputs | {"attention_mask": real.long()}


def peak() -> float:
    """Peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def summarise(times: list[float], tokens: list[int], losses: list[float], before: float) -> dict[str, Any]:
    """The measurements of a run; steps are timed from the second one to the end."""
    rate = sum(tokens[1:]) / (time.monotonic() - times[1])
    return {"tokens_per_second": rate, "before": before, "peak": peak(), "losses": losses, "tokens": sum(tokens)}


def run(arguments: argparse.Namespace, way: str) -> dict[str, Any]:
    """One run, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measurements: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measurements


def main() -> None:
    """Run the ways in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "corpus", "work"):
        parser.add_argument(name, type=Path)
    for name, default in {"steps": 12, "batch": 32, "rounds": 5, "length": 128, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.way:
        rounds = ours(arguments) if arguments.way == "ours" else theirs(arguments, grouped=arguments.way == "grouped")
        print(json.dumps(rounds))
        return
    prepare(arguments)
    make_sampler(arguments)
    if arguments.same:
        one, other = (run(arguments, way)["losses"] for way in ("ours", "theirs"))
        difference = max(abs(first - second) for first, second in zip(one, other, strict=True))
        print(f"losses of {arguments.steps} steps: {one[0]:.4f} -> {one[-1]:.4f}; largest difference {difference:.1e}")
        return
    rounds = [{way: run(arguments, way) for way in WAYS} for _ in range(arguments.rounds)]
    print("way\ttokens/s\tratio of ours (least, most)\tMiB before\tpeak MiB")
    for way in WAYS:
        rates = [one[way]["tokens_per_second"] for one in rounds]
        ratios = sorted(one["ours"]["tokens_per_second"] / one[way]["tokens_per_second"] for one in rounds)
        memory = (statistics.median(one[way][key] for one in rounds) for key in ("before", "peak"))
        shown = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{way}\t{statistics.median(rates):.0f}\t{shown}", *(f"{value:.0f}" for value in memory), sep="\t")


if __name__ == "__main__":
    main()
