"""Checkpoints in sentence-transformers' layouts: SentenceTransformer for dense, SparseEncoder for SPLADE."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.architectures.checkpoint import RetrievalModel
from moeir.errors import UsageError
from moeir.formats import hf_layouts
from moeir.formats.base import Conversion, Format

_POOLING_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_UNUSED_POOLING_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


class SentenceTransformers(Format):
    """A folder that sentence-transformers opens: SentenceTransformer from a dense checkpoint, SparseEncoder from SPLADE."""

    kind: ClassVar[str] = "checkpoint"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        raise UsageError(f"{path}: moeir init --model {path} --arch dense makes a checkpoint from it, with its prefixes and lengths")

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        model = next(items)
        name, options = hf_layouts.architecture_options(model, ("dense", "splade"), "sentence-transformers")
        hf_layouts.require_options(options, {"encoders": "siamese"}, "sentence-transformers")
        hf_layouts.drop_scale(model, conversion)
        hf_layouts.drop_length_difference(model, conversion)
        if name == "dense" and model.architecture.encoder.vocabulary_head is not None:
            conversion.drop_or_refuse("head=true", "the vocabulary head")
            model.architecture.encoder.vocabulary_head = None
        hf_layouts.write_encoder(path, model)
        normalise = name == "dense" and bool(options.get("normalise"))
        config: dict[str, Any] = {"prompts": hf_layouts.prompts_by_side(model), "default_prompt_name": None}
        if name == "dense":
            hf_layouts.write_modules(
                path, model, hf_layouts.TRANSFORMER, _dense_modules(model, str(options.get("pooling", "cls")), normalise)
            )
            config |= {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine" if normalise else "dot"}
        else:
            package = "sentence_transformers.sparse_encoder.models"
            pooling = {
                "pooling_strategy": options.get("pooling", "max"),
                "activation_function": "relu",
                "word_embedding_dimension": model.architecture.encoder.config.vocabulary,
            }
            hf_layouts.write_modules(path, model, f"{package}.MLMTransformer", {"1_SpladePooling": (f"{package}.SpladePooling", pooling)})
            config |= {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
        hf_layouts.write_json(path / "config_sentence_transformers.json", config)
        return 1


def _dense_modules(model: RetrievalModel, pooling: str, normalise: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    modes = {mode: strategy == pooling for mode, strategy in _POOLING_MODES.items()} | {
        f"pooling_mode_{mode}": False for mode in _UNUSED_POOLING_MODES
    }
    width = model.architecture.encoder.config.hidden
    settings = {"word_embedding_dimension": width, **modes, "include_prompt": True}
    modules: dict[str, tuple[str, dict[str, Any]]] = {"1_Pooling": ("sentence_transformers.models.Pooling", settings)}
    return modules | ({"2_Normalize": ("sentence_transformers.models.Normalize", {})} if normalise else {})
