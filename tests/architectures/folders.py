"""Folders of checkpoints and of published weights, as the tests here write and change them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeir.architectures.checkpoint import RetrievalModel

ST = "sentence_transformers.models"


def save(checkpoint: RetrievalModel, folder: Path) -> Path:
    """Write a checkpoint into a new folder."""
    folder.mkdir(parents=True)
    checkpoint.save(folder)
    return folder


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
