"""The device of these tests: a real CUDA device if there is one, else the fake one; skipped if neither is available.

The fake device must be loaded before torch is imported, so `pytest tests/device` is a separate run.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moeir.errors import MoeirError
from tests.conftest import CommandResult, run_in_process, write_tiny_bert
from tests.device import guard

REAL = guard.real_cards() > 0
REASON = ""
TIMING_KEYS = ("seconds", "tokens_per_second", "peak_memory_bytes")
if not REAL:
    try:
        guard.load()
    except guard.Unavailable as problem:
        REASON = str(problem)
if guard.loaded_library() is None:
    collect_ignore = [
        "fake_attention.py",
        "fused_regions.py",
        "fake_torch_cuda.py",
        "fake_cuda.py",
        "test_cards.py",
        "test_costs.py",
        "test_fake_cuda.py",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all tests with the reason why no device is available."""
    if REASON:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no device: {REASON}"))


def pytest_report_header() -> str:
    """Report the device in the header."""
    return f"device: {'CUDA' if REAL else REASON or 'pretended'}"


@pytest.fixture(autouse=True)
def machine() -> Iterator[Any]:
    """The fake cards, fresh for each test; None on a real device."""
    if REAL:
        yield None
        return
    import torch

    from tests.device import fake_cuda

    with fake_cuda.activate() as cards:
        torch.manual_seed(0)
        yield cards


@pytest.fixture
def device() -> str:
    """torch's name of the device."""
    return "cuda"


@pytest.fixture
def moeir_on(device: str) -> Callable[..., CommandResult]:
    """`moeir_on("finetune", …)`: run a command in this process, on the device unless `on` names another; its exit code and output.

    Of several cards it is the second, and the command must leave the first alone.
    """
    import torch

    def run(*arguments: object, on: str = device, stdin: str = "") -> CommandResult:
        if on != device or torch.cuda.device_count() < 2:
            return run_in_process(*arguments, "--device", on, stdin=stdin)
        torch.cuda.reset_peak_memory_stats("cuda:0")
        before = torch.cuda.max_memory_allocated("cuda:0")
        result = run_in_process(*arguments, "--device", "cuda:1", stdin=stdin)
        assert torch.cuda.max_memory_allocated("cuda:0") == before
        return result

    return run


@pytest.fixture(autouse=True)
def determinism(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a stage says of deterministic algorithms holds for its process: afterwards it is as before."""
    import torch

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture(scope="session")
def tiny_model_with_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeded layers with an MLM head: as many as architectures of shared and private layers need."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "tiny-with-head", head=True, layers=2)


@pytest.fixture(scope="session")
def tiny_model_without_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "tiny-without-dropout", head=True, layers=2, **rates)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 1 to 13 words, examples of them with a teacher's scores, and a development set with a run."""
    from tests.training.toy_examples import write_training_files

    scores = {"positive_scores": lambda number: [9.0, 8.0 - number % 3], "negative_scores": lambda number: [number % 5, 1.5, 3.25, -2.0]}
    return write_training_files(tmp_path_factory.mktemp("shop"), **scores)


@pytest.fixture
def learn(
    moeir_on: Callable[..., CommandResult], shop: Path, tiny_model_with_head: Path, tiny_model_without_dropout: Path, tmp_path: Path
) -> Callable[..., Path]:
    """`learn(arch, objective, *options)`: train on the device, unless `on` names another, and return the folder; no dropout by default.

    `name` is the folder's name; `fails` the expected error of a failing training.
    """

    def learned(
        arch: str,
        objective: str = "contrastive",
        *options: object,
        on: str = "cuda",
        name: str | None = None,
        dtype: str = "float32",
        dropout: bool = False,
        weights: Path | None = None,
        fails: str | None = None,
    ) -> Path:
        output = tmp_path / (name or on)
        model = weights or (tiny_model_with_head if dropout else tiny_model_without_dropout)
        model_options = ("--model", model, "--arch", arch, "--objective", objective, "--query-length", 12, "--document-length", 24)
        sources = ("--train", shop / "train.jsonl", "--corpus", shop / "documents.tsv", "--queries", shop / "queries.tsv")
        sizes = ("--batch-size", 4, "--negatives", 2, "--steps", 2, "--learning-rate", 2e-4, "--dtype", dtype)
        result = moeir_on("finetune", *model_options, *sources, *sizes, *options, "--output", output, on=on)
        if fails is None:
            assert result.code == 0, result.stderr
        else:
            assert result.code and fails in result.stderr, result.stderr
        return output

    return learned


@pytest.fixture
def kill_at_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, int], list[int]]:
    """`kill_at_batch(RetrievalTask, 4)`: a training ends at its fourth batch, and another goes on; the batches of both, as they come."""

    def kill_at(task: Any, count: int) -> list[int]:
        compute_loss, batches = task.compute_loss, []

        def compute_or_fail(self: Any, batch: int) -> Any:
            batches.append(batch)
            if len(batches) == count:
                raise MoeirError("killed here")
            return compute_loss(self, batch)

        monkeypatch.setattr(task, "compute_loss", compute_or_fail)
        return batches

    return kill_at


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of each step of a training, without timings and memory."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in TIMING_KEYS} for line in lines]


def read_weights(folder: Path) -> Any:
    """All weights of a checkpoint, concatenated."""
    import torch
    from safetensors.torch import load_file

    return torch.cat([value.flatten() for _, value in sorted(load_file(folder / "model.safetensors").items())])


def assert_same_training(folder: Path, other: Path, *, loss: float = 1e-4) -> None:
    """Assert that metrics of every step and weights agree up to a different order of summation.

    AdamW moves a weight by the sign of its first gradient, and some gradients are pure rounding: those of biases that cancel in a softmax.
    The number of terms changes with a weight near 0.
    """
    one, two = read_metrics(folder), read_metrics(other)
    assert len(one) == len(two) and [step["loss"] for step in one] == pytest.approx([step["loss"] for step in two], abs=loss, rel=loss)
    for step, again in zip(one, two, strict=True):
        terms = {name: step.pop(name) for name in list(step) if name.startswith("terms.")}
        assert terms == pytest.approx({name: again.pop(name) for name in terms}, rel=0.02)
        assert step == pytest.approx(again, abs=10 * loss, rel=10 * loss)
    ours, theirs = read_weights(folder), read_weights(other)
    assert ours.shape == theirs.shape and ((ours - theirs).abs() > 5e-5).float().mean() < 5e-3


def assert_similar_losses(steps: list[dict[str, float]], others: list[dict[str, float]]) -> None:
    """Assert similar losses in half precision: every layer rounds to three digits, in its own order of summation."""
    assert [step["loss"] for step in steps] == pytest.approx([step["loss"] for step in others], rel=0.05, abs=0.05)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the noise of routers and gates by constants: no randomness is left, given weights without dropout."""
    import torch

    from moeir.mixtures import router

    monkeypatch.setattr(router, "uniform_like", lambda logits: torch.full_like(logits, 0.5))
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
