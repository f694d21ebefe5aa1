"""Shared parts of other libraries' checkpoint layouts: an encoder in `transformers` files, and folders of modules after it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.families import weights_io
from moeir.errors import UsageError
from moeir.formats.base import Conversion

TRANSFORMER = "sentence_transformers.models.Transformer"
SIDES = ("query", "document")


def architecture_options(model: RetrievalModel, names: Sequence[str], target: str) -> tuple[str, dict[str, Any]]:
    """The architecture and its options; UsageError unless it is one of `names`."""
    name = variants.parse_spec(model.spec).name
    if name not in names:
        raise UsageError(f"--to {target}: supports {' and '.join(names)}; its layout cannot hold the experts of {name}")
    return name, variants.resolve_spec("architectures", model.spec)[1]


def drop_scale(model: RetrievalModel, conversion: Conversion) -> None:
    """Drop or refuse score scales: they do not change the ranking, and no layout stores them."""
    for expert, scale in model.architecture.scales.items():
        if scale != 1.0:
            conversion.drop_or_refuse(f"expert {expert}", f"the scale of its scores, {scale:g},")


def require_options(options: Mapping[str, Any], required: Mapping[str, Any], target: str) -> None:
    """UsageError for options with which the other library would compute other numbers."""
    for name, value in required.items():
        if options.get(name, value) != value:
            value_text = str(options[name]).lower() if isinstance(options[name], bool) else options[name]
            raise UsageError(f"--to {target}: {name}={value_text} is not supported there; it computes with {name}={str(value).lower()}")


def write_encoder(folder: Path, model: RetrievalModel) -> None:
    """Write config.json, model.safetensors and the tokenizer as `transformers` reads them."""
    weights_io.write_model(folder, model.config, model.architecture.encoder.state_dict(), hf_compatible=True)
    model.tokenizer.copy_files(folder)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_modules(folder: Path, model: RetrievalModel, transformer: str, modules: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Write modules.json and each module's folder; `modules` maps a folder to (type, settings), in order after the encoder."""
    all_modules = {"": (transformer, {}), **modules}
    entries = [
        {"idx": index, "name": str(index), "path": subfolder, "type": module_type}
        for index, (subfolder, (module_type, _)) in enumerate(all_modules.items())
    ]
    write_json(folder / "modules.json", entries)
    for subfolder, (_, settings) in modules.items():
        write_json(folder / subfolder / "config.json", settings)
    length = max(model.input_config.max_length(side) for side in SIDES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


def prompts_by_side(model: RetrievalModel) -> dict[str, str]:
    """The prefix of each side's texts."""
    return {"query": model.input_config.query_prefix, "document": model.input_config.document_prefix}


def drop_length_difference(model: RetrievalModel, conversion: Conversion) -> None:
    """Drop or refuse different lengths of the two sides, where a layout has one length for both."""
    query, document = (model.input_config.max_length(side) for side in SIDES)
    if query != document:
        shorter = min(query, document)
        side = "queries" if query == shorter else "documents"
        conversion.drop_or_refuse(f"length {shorter}", f"the separate length of {side} (the other side has {max(query, document)})")
