"""The trainer: the schedule, the same bytes after a kill, one line for NaN, and the metrics."""

import json
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from moeir.architectures.initialize import build_checkpoint
from moeir.artifacts import atomic_write
from moeir.artifacts.atomic_write import RESUME
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import MoeirError
from moeir.records.examples import Example
from moeir.records.texts import read_texts
from moeir.training import objectives, trainer
from moeir.training.competition import LearningSpeed
from moeir.training.regularizers import RegularizerWeights
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import make_sampler
from moeir.training.trainer import METRICS_FILE, Schedule, train
from tests.oracles import training as oracles
from tests.processes import read_metrics
from tests.training.toy_examples import Killed, identical, kill_at, tokenize_in_memory, untimed_metrics

STEPS = 5
CAME = "came:shared_layers=1,local_dim=8,normalise=true,global_scale=10"
COMPETITIVE = partial(objectives.competitive, standardised=0.4, regularizers=RegularizerWeights(flops_query=1e-4, flops_document=1e-4))


@pytest.fixture(scope="module")
def learning(toy, two_layers):
    """`learning(folder, …)` trains on the toy texts, each query's document against all others -> checkpoint and counts."""
    documents = {text.id: text.content for text in read_texts(toy / "corpus.jsonl")}
    queries = {name: text.split(".")[0] for name, text in documents.items()}
    examples = [Example(name, (name,), tuple(other for other in documents if other != name)) for name in documents]

    def learned(folder, *, spec=CAME, objective=COMPETITIVE, dtype=torch.float32, log_every=1, process_group=SINGLE_PROCESS, **options):
        folder.mkdir(exist_ok=True)
        checkpoint = build_checkpoint(two_layers, spec, {"query_length": 10, "document_length": 20})
        sampler = make_sampler(examples, batch_size=4, negatives=3, seed=1, source="toy")
        texts = tokenize_in_memory(checkpoint, queries, documents)
        speed = LearningSpeed(texts.kind_count, 3)
        task = RetrievalTask(checkpoint, sampler, texts, objective, STEPS, dtype, speed=speed)
        state = speed.tensors
        run = {"device": "cpu", "log_every": log_every, "objective_state": state, "process_group": process_group}
        counts = train(task, Schedule(STEPS, 1e-3, **options), folder, **run)
        return checkpoint, counts

    return learned


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("steps", [1, 10, 33])
def test_the_rate_rises_and_falls_linearly(steps, warmup):
    schedule = Schedule(steps, 2e-5, warmup)
    rates = [schedule.learning_rate_at(step) for step in range(steps)]
    assert rates == [pytest.approx(oracles.learning_rate_at(step, steps, 2e-5, warmup)) for step in range(steps)]
    assert [schedule.learning_rate_at(step, 1e-5) for step in range(steps)] == pytest.approx([rate / 2 for rate in rates])


def test_a_constant_rate_rises_and_stays():
    assert [Schedule(5, 1.0, 0.4, decay="constant").learning_rate_at(step) for step in range(5)] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert [Schedule(3, 2.0, 0.0, decay="constant").learning_rate_at(step) for step in range(3)] == [2.0, 2.0, 2.0]


@pytest.fixture(scope="module")
def undisturbed(learning, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, *learning(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": partial(COMPETITIVE, standardised=0.0, shares="learnability", temperature=0.01), "dtype": torch.bfloat16},
        {"spec": "taser:experts=24,gates=per_layer,every=0", "weight_decay": 0.1},
    ],
    ids=["learnability, bfloat16", "gates per layer"],
)
def test_trainings_of_every_kind_go_on_to_the_same_bytes(options, learning, tmp_path):
    """Even if some expert has met no text, and has no moments."""
    whole, _ = learning(tmp_path / "whole", **options)
    with pytest.raises(Killed):
        killed = {"objective": kill_at(3, options.get("objective", COMPETITIVE)), "save_minutes": 0.0, "log_every": 3}
        learning(tmp_path / "killed", **(options | killed))
    moments = load_file(tmp_path / "killed" / RESUME / "state" / "optimiser.safetensors")
    updated = len({key.split(".")[0] for key in moments} - {"objective"})
    assert (updated < len(list(whole.architecture.parameters()))) == ("experts=24" in options.get("spec", ""))
    resumed, _ = learning(tmp_path / "killed", **options)
    weights = whole.architecture.state_dict()
    assert identical(resumed.architecture.state_dict(), weights)
    assert untimed_metrics(tmp_path / "killed") == untimed_metrics(tmp_path / "whole")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("log_every", [1, 4])
def test_a_loss_that_is_no_number_ends_the_training_at_its_step_and_is_never_saved(log_every, learning, tmp_path):
    def objective(batch):
        outcome = COMPETITIVE(batch)
        return replace(outcome, metrics=outcome.metrics | {"loss": outcome.metrics["loss"] * float("nan")}) if batch.step == 2 else outcome

    with pytest.raises(MoeirError, match="step 3: the loss is nan"):
        learning(tmp_path, objective=objective, save_minutes=0.0, log_every=log_every)
    saved = tmp_path / RESUME / "state" / "state.json"
    assert json.loads(saved.read_text())["step"] == 2
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2], "earlier steps are logged"


def test_all_processes_wait_for_one_another_after_the_same_steps(learning, tmp_path, monkeypatch):
    """Though the main one alone saves: a process that waits alone would meet another's next exchange."""
    monkeypatch.setattr(trainer, "DataParallel", lambda loss, *_: SimpleNamespace(run_batch=partial(trainer.run_batch, loss)))
    waits = []

    class Watched(ProcessGroup):
        def wait_on_host(self, moment):
            waits[-1].append(moment)

        def check_same(self, facts):
            pass

    for rank in (0, 1):
        waits.append([])
        learning(tmp_path / str(rank), save_minutes=0.0, log_every=3, process_group=Watched(rank, 2, ("", "")))
    assert waits == [["step 3", "step 5"]] * 2


@pytest.mark.parametrize("moment", ["_fsync", "_swap_into_place"])
def test_a_kill_in_the_middle_of_a_save_loses_that_save_only(moment, learning, undisturbed, tmp_path, monkeypatch):
    calls = []

    def dying(*arguments):
        calls.append(arguments)
        if len(calls) == 12 or (moment == "_swap_into_place" and len(calls) == 3):
            raise Killed
        return original(*arguments)

    original = getattr(atomic_write, moment)
    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, moment, dying)
        with pytest.raises(Killed):
            learning(tmp_path, save_minutes=0.0)
    checkpoint, _ = learning(tmp_path)
    folder, whole, _ = undisturbed
    assert identical(checkpoint.architecture.state_dict(), whole.architecture.state_dict())
    assert untimed_metrics(tmp_path) == untimed_metrics(folder)
    assert {file.name for file in tmp_path.iterdir()} == {METRICS_FILE, RESUME}  # the remains of a kill are deleted with resume/


def test_metrics_hold_what_is_promised(undisturbed):
    folder, checkpoint, counts = undisturbed
    assert not checkpoint.architecture.training, "it encodes without dropout"
    metrics = read_metrics(folder)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5]
    names = {f"{word}.{expert}" for word in ("loss", "share", "spread", "rank", "wins") for expert in ("lexical", "local", "global")}
    names |= {f"{word}.lexical.{side}" for word in ("flops", "terms") for side in ("query", "document")}
    names |= {"step", "loss", "uniform_loss", "entropy.shares", "effective_experts", "gradient_norm", "competing"}
    names |= {"learning_rate", "tokens", "tokens_per_second", "seconds"}
    assert all(line.keys() == names for line in metrics)
    assert [line["competing"] for line in metrics] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert [line["learning_rate"] for line in metrics] == [Schedule(STEPS, 1e-3).learning_rate_at(step) for step in range(STEPS)]
    for line in metrics:
        assert sum(line[f"share.{expert}"] for expert in ("lexical", "local", "global")) == pytest.approx(1.0)
        assert line["tokens"] > 0 and line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
    assert counts["steps"] == STEPS and counts["last"]["loss"] == metrics[-1]["loss"] and "seconds" not in counts["last"]


def test_an_infinite_gradient_stops_the_training_with_one_line(learning, tmp_path):
    def infinite(batch):
        loss = (batch.queries["global"].vectors * 0.0).abs().sqrt().sum()
        return objectives.ObjectiveOutput(loss, {"loss": float(loss.detach())})

    with pytest.raises(MoeirError, match=r"step 1: the gradient norm is (nan|inf); start over with a lower --learning-rate") as caught:
        learning(tmp_path, objective=infinite)
    assert "\n" not in str(caught.value) and read_metrics(tmp_path) == []


def test_another_seed_drops_other_things(learning, undisturbed, tmp_path):
    learning(tmp_path, seed=2)
    assert read_metrics(tmp_path)[0]["loss"] != read_metrics(undisturbed[0])[0]["loss"]


class LeastSquares:
    """Batches of two rows of a linear regression without bias, as a training task; its gradients are known."""

    def __init__(self, rows, targets):
        self.model, self.rows, self.targets, self.size = torch.nn.Linear(rows.shape[1], 1, bias=False), rows, targets, len(rows)
        torch.nn.init.zeros_(self.model.weight)

    def compute_loss(self, batch):
        chosen = slice(2 * batch, 2 * batch + 2)
        loss = (self.model(self.rows[chosen])[:, 0] - self.targets[chosen]).square().mean()
        return loss, {"loss": loss.detach()}, 2


@pytest.mark.parametrize("clip", [0.3, 0.0])
def test_accumulated_batches_are_one_large_batch(clip, tmp_path):
    """The gradient of mean((x·w − y)²) is 2 Xᵀ(Xw − y) / n over all n rows of a step. Clipping shows its size, which Adam does not."""
    generator = torch.Generator().manual_seed(3)
    rows, targets = torch.randn(16, 3, generator=generator), torch.randn(16, generator=generator)
    task = LeastSquares(rows, targets)
    expected, weight, moment, square = [], torch.zeros(3, dtype=torch.float64), 0.0, 0.0
    for step in range(2):
        x, y = rows[8 * step : 8 * step + 8].double(), targets[8 * step : 8 * step + 8].double()
        loss, gradient = (x @ weight - y).square().mean(), 2 * x.T @ (x @ weight - y) / 8
        expected.append({"loss": float(loss), "gradient_norm": float(gradient.norm())})
        clipped = gradient * (min(1.0, clip / float(gradient.norm())) if clip else 1.0)
        moment, square = 0.9 * moment + 0.1 * clipped, 0.999 * square + 0.001 * clipped**2
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * (moment / (1 - 0.9 ** (step + 1))) / ((square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
    began = time.monotonic()
    train(task, Schedule(2, 0.1, 0.0, weight_decay=0.5, decay="constant", clip=clip, accumulate=4), tmp_path, device="cpu")
    for line, values in zip(read_metrics(tmp_path), expected, strict=True):
        assert {name: line[name] for name in values} == pytest.approx(values, rel=1e-5) and line["tokens"] == 8
    assert task.model.weight[0].tolist() == pytest.approx(weight.tolist(), rel=1e-5)
    assert 0 < sum(line["seconds"] for line in read_metrics(tmp_path)) <= time.monotonic() - began
