"""Trackers: every step is logged once, a resumed training continues its curves, and the checkpoint does not change."""

import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from moeir.analysis import training_monitor
from moeir.training import trackers
from tests.conftest import run_in_process
from tests.processes import read_metrics
from tests.training.toy_examples import interrupt_before_step


class FakeWandb(types.ModuleType):
    """Runs by id, and the values logged to them."""

    Error = type("Error", (Exception,), {})

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.init_options, self.logged, self.finished, self.is_failing = [], {}, [], False

    def init(self, **options):
        if self.is_failing:
            raise self.Error("api_key not configured\n(no-tty)")
        self.init_options.append(options)
        steps = self.logged.setdefault(options["id"], [])
        return types.SimpleNamespace(log=lambda values, step: steps.append((step, values)), finish=lambda: self.finished.append(options))


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture(scope="module")
def sources(tmp_path_factory, toy, two_layers):
    path = tmp_path_factory.mktemp("tracked") / "train.jsonl"
    path.write_text('{"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["cat", "bat"]}\n')
    texts = ("--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl", "--query-length", 16, "--document-length", 32)
    sizes = ("--steps", 4, "--batch-size", 1, "--negatives", 1, "--dtype", "float32", "--save-minutes", 0)
    arch = ("--arch", "came:shared_layers=1,local_dim=8", "--objective", "competitive")
    return ("finetune", "--model", two_layers, *arch, "--train", path, *texts, *sizes)


def run_finetune(sources, output, *flags):
    result = run_in_process(*sources, *flags, "--output", output)
    assert result.code == 0, result.stderr
    return (output / "model.safetensors").read_bytes()


def test_the_steps_of_a_killed_training_go_on_in_the_same_run_and_the_product_is_the_same(sources, wandb, tmp_path, monkeypatch):
    plain = run_finetune(sources, tmp_path / "plain")
    with monkeypatch.context() as patch:
        interrupt_before_step(patch, 2)
        assert run_in_process(*sources, "--track", "wandb", "--output", tmp_path / "out").code == 130
    assert run_finetune(sources, tmp_path / "out", "--report-to", "wandb") == plain
    first, second = wandb.init_options
    assert first["project"] == "moeir" and first["name"] == "out" and first["dir"] == str(tmp_path / "out.wandb")
    assert first["id"] == second["id"] and second["resume"] == "allow" and first["config"]["steps"] == 4
    (logged,) = wandb.logged.values()
    lines = read_metrics(tmp_path / "out")
    assert [step for step, _ in logged] == [1, 2, 3, 4] and len(wandb.finished) == 2
    grouped = [{name.replace(".", "/", 1): value for name, value in line.items() if name != "step"} for line in lines[2:]]
    assert [values for _, values in logged][2:] == grouped
    assert logged[0][1].keys() > {"loss", "loss/lexical", "share/global", "entropy/shares", "tokens_per_second"}
    files = json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]
    assert not [name for name in files if "wandb" in name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.wandb", "plain"]
    assert "already made" in run_in_process(*sources, "--output", tmp_path / "out").stderr
    run_finetune(sources, tmp_path / "out", "--track", "wandb", "--force")
    assert len(wandb.logged) == 2, "starting over begins another run"


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, trackers.PACKAGES["tensorboard"])), reason="neither tensorboard nor tensorboardX is installed"
)
def test_tensorboard_has_every_step_and_forgets_what_a_kill_has_taken_back(sources, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_before_step(patch, 3)
        assert run_in_process(*sources, "--track", "tensorboard", "--output", tmp_path / "out").code == 130
    run_finetune(sources, tmp_path / "out", "--track", "tensorboard")
    files = sorted((tmp_path / "out.tensorboard" / "moeir").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 2 and not list((tmp_path / "out").rglob("*tfevents*"))
    assert [b"share/lexical" in path.read_bytes() for path in files] == [True, True]
    steps, starts = zip(*map(read_event_steps, files), strict=True)
    assert steps == ([1, 2, 3], [4]) and starts == ([1], [4]), "the second file purges the steps from 4 on"


def test_an_alarm_comes_at_its_step_whatever_was_killed_before(sources, tmp_path, monkeypatch):
    for name, value in {"WINDOW": 3, "COLLAPSE_ABOVE": -1.0}.items():
        monkeypatch.setattr(training_monitor, name, value)
    with monkeypatch.context() as patch:
        interrupt_before_step(patch, 2)
        assert "largest share" not in run_in_process(*sources, "--output", tmp_path / "out").stderr
    log_lines = run_in_process(*sources, "--output", tmp_path / "out").stderr.splitlines()
    alarms = [line.split(" had")[0] for line in log_lines if "largest share" in line]
    assert alarms == [f"step 3: {name}" for name in ("lexical", "local", "global")]


def read_event_steps(path):
    """Steps of the loss in an event file, and of its session starts."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    content, steps, starts, offset = path.read_bytes(), [], [], 0
    while offset < len(content):
        size = int.from_bytes(content[offset : offset + 8], "little")
        event = event_pb2.Event.FromString(content[offset + 12 : offset + 12 + size])
        steps += [event.step for value in event.summary.value if value.tag == "loss"]
        starts += [event.step] if event.HasField("session_log") else []
        offset += 12 + size + 4
    return steps, starts


def test_what_cannot_be_tracked_is_refused_in_a_line_before_any_work(sources, wandb, tmp_path, monkeypatch):
    wandb.is_failing = True
    result = run_in_process(*sources, "--track", "wandb", "--output", tmp_path / "out")
    assert (result.code, result.stderr.splitlines()[-1]) == (
        2, "error: --track wandb: api_key not configured (no-tty); wandb login, or WANDB_MODE=offline without an account",
    )  # fmt: skip
    assert not (tmp_path / "out").exists()
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name.startswith("tensorboard") else original(name, *more))
    for stage in (sources, ("pretrain", "--model", "absent", "--corpus", "absent")):
        result = run_in_process(*stage, "--track", "tensorboard", "--output", tmp_path / "out")
        message = "error: --track tensorboard: the package tensorboard is not installed; pip install 'moeir[track]'\n"
        assert (result.code, result.stderr) == (2, message)
