"""The files by which sentence-transformers opens a folder: its modules, their settings, the prompts and the length of texts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeir.architectures.input_config import InputConfig

SIDES = ("query", "document")
TRANSFORMER = "sentence_transformers.models.Transformer"
CONFIG_FILE = "config_sentence_transformers.json"
_POOLING_MODES = {"cls": "cls_token", "mean": "mean_tokens"}
_UNUSED_POOLING_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_dense_files(folder: Path, input_config: InputConfig, hidden: int, *, pooling: str, normalise: bool) -> None:
    """The files of a SentenceTransformer with one vector per text. It has one length for both sides, the larger one."""
    modes = {f"pooling_mode_{mode}": mode == _POOLING_MODES[pooling] for mode in (*_POOLING_MODES.values(), *_UNUSED_POOLING_MODES)}
    settings = {"word_embedding_dimension": hidden, **modes, "include_prompt": True}
    modules: dict[str, tuple[str, dict[str, Any]]] = {"1_Pooling": ("sentence_transformers.models.Pooling", settings)}
    modules |= {"2_Normalize": ("sentence_transformers.models.Normalize", {})} if normalise else {}
    write_modules(folder, input_config, TRANSFORMER, modules)
    config = {"prompts": prompts_by_side(input_config), "default_prompt_name": None}
    write_json(folder / CONFIG_FILE, config | {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine" if normalise else "dot"})


def write_modules(folder: Path, input_config: InputConfig, transformer: str, modules: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Write modules.json and each module's folder; `modules` maps a folder to (type, settings), in order after the encoder."""
    all_modules = {"": (transformer, {}), **modules}
    types = enumerate((subfolder, module_type) for subfolder, (module_type, _) in all_modules.items())
    entries = [{"idx": index, "name": str(index), "path": subfolder, "type": module_type} for index, (subfolder, module_type) in types]
    write_json(folder / "modules.json", entries)
    for subfolder, (_, settings) in modules.items():
        write_json(folder / subfolder / "config.json", settings)
    length = max(input_config.max_length(side) for side in SIDES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


def prompts_by_side(input_config: InputConfig) -> dict[str, str]:
    """The prefix of each side, by the name of its prompt."""
    return {"query": input_config.query_prefix, "document": input_config.document_prefix}


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
