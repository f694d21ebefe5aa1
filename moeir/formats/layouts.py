"""What the layouts of other libraries have in common: an encoder as `transformers` reads it, and modules behind it in folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeir import variants
from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.checkpoints import files
from moeir.errors import UsageError
from moeir.formats.base import Conversion

TRANSFORMER = "sentence_transformers.models.Transformer"
SIDES = ("query", "document")


def options_of(opened: OpenCheckpoint, names: Sequence[str], target: str) -> tuple[str, dict[str, Any]]:
    """The architecture and its options; UsageError unless it is one of `names`."""
    name = variants.parse(opened.spec).name
    if name not in names:
        raise UsageError(f"--to {target}: holds {' and '.join(names)}; {name} has experts that its layout has no place for")
    return name, variants.resolve("architectures", opened.spec)[1]


def lose_scale(opened: OpenCheckpoint, conversion: Conversion) -> None:
    """A factor on scores orders nothing anew, and no layout has it."""
    for expert, scale in opened.architecture.scales.items():
        if scale != 1.0:
            conversion.lose(f"expert {expert}", f"the scale of its scores, {scale:g},")


def refuse(options: Mapping[str, Any], wanted: Mapping[str, Any], target: str) -> None:
    """UsageError for options whose numbers would be others there."""
    for name, value in wanted.items():
        if options.get(name, value) != value:
            shown = str(options[name]).lower() if isinstance(options[name], bool) else options[name]
            raise UsageError(f"--to {target}: {name}={shown} has no place there; it computes as with {name}={str(value).lower()}")


def write_encoder(folder: Path, opened: OpenCheckpoint) -> None:
    """config.json, model.safetensors and the tokenizer, which `transformers` reads."""
    files.write(folder, opened.config, opened.architecture.encoder.state_dict(), plain=True)
    opened.reader.copy_to(folder)


def write_json(place: Path, content: Any) -> None:
    """A small file, its folder made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_modules(folder: Path, opened: OpenCheckpoint, transformer: str, modules: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """modules.json and each module's folder; `modules` are types and settings by folder, behind the encoder."""
    every = {"": (transformer, {}), **modules}
    listed = [{"idx": place, "name": str(place), "path": path, "type": kind} for place, (path, (kind, _)) in enumerate(every.items())]
    write_json(folder / "modules.json", listed)
    for path, (_, settings) in modules.items():
        write_json(folder / path / "config.json", settings)
    length = max(opened.rules.length(side) for side in SIDES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


def prompts(opened: OpenCheckpoint) -> dict[str, str]:
    """What stands before the texts of each side."""
    return {"query": opened.rules.query_prefix, "document": opened.rules.document_prefix}


def lose_lengths(opened: OpenCheckpoint, conversion: Conversion) -> None:
    """Where there is one length for both sides."""
    query, document = (opened.rules.length(side) for side in SIDES)
    if query != document:
        shorter = min(query, document)
        side = "queries" if query == shorter else "documents"
        conversion.lose(f"length {shorter}", f"the length of {side} apart from that of the other side, {max(query, document)},")
