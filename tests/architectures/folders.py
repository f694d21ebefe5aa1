"""Folders of checkpoints and of published weights, as the tests here write, change and compare them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint

ST = "sentence_transformers.models"


def save(checkpoint: RetrievalModel, folder: Path) -> Path:
    """Write a checkpoint into a new folder."""
    folder.mkdir(parents=True)
    checkpoint.save(folder)
    return folder


def reopen(checkpoint: RetrievalModel, folder: Path) -> RetrievalModel:
    """A checkpoint, saved into a new folder and opened from there: the same weights, specification and input configuration."""
    again = open_checkpoint(save(checkpoint, folder))
    before, after = checkpoint.architecture.state_dict(), again.architecture.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert (again.spec, again.input_config) == (checkpoint.spec, checkpoint.input_config)
    return again


def check_same(actual: EncoderOutput, expected: EncoderOutput, tolerance: float = 0.0) -> None:
    """Columns of all experts are finite and equal, or differ by a share of the largest number."""
    assert set(actual.representations) == set(expected.representations)
    for expert in expected.representations:
        for column, values in expected[expert].columns().items():
            values, others = torch.as_tensor(values).float(), torch.as_tensor(actual[expert].columns()[column]).float()
            assert bool(values.isfinite().all()) and float((others - values).abs().max()) <= tolerance * float(values.abs().max())


def assert_refused(
    error: type[Exception] | tuple[type[Exception], ...], words: str, function: Callable[..., object], *arguments: Any, **options: Any
) -> None:
    """`function(*arguments, **options)` is an error of one line that matches `words`."""
    with pytest.raises(error, match=words) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)


def list_modules(*entries: tuple[str, str]) -> list[dict[str, Any]]:
    """modules.json of (type, path)."""
    return [{"idx": number, "name": str(number), "path": path, "type": kind} for number, (kind, path) in enumerate(entries)]


def write_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write files of JSON, by their names in a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def change_json(file: Path, *keys: str, **values: Any) -> None:
    """Change values of the object in a file of JSON, under some keys; a file that there is not is made."""
    content = json.loads(file.read_text()) if file.exists() else {}
    part = content
    for key in keys:
        part = part[key]
    part.update(values)
    file.write_text(json.dumps(content))
