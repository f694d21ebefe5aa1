"""ColBERT checkpoints in PyLate's layout, which sentence-transformers 6 reads too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.families.weights_io import write_tensors
from moeir.errors import UsageError
from moeir.formats import hf_layouts
from moeir.formats.base import Conversion, Format

REQUIRED_OPTIONS = {"normalise": True, "markers": True, "separator": True, "padding": "neginf"}


class Pylate(Format):
    """A folder that PyLate and sentence-transformers 6 open, from a colbert checkpoint with markers and unit vectors."""

    kind: ClassVar[str] = "checkpoint"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        raise UsageError(
            f"{path}: moeir init --model {path} --arch colbert makes a checkpoint of its encoder; its Dense module is not read"
        )

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        model = next(items)
        options = colbert_options(model, "pylate", conversion)
        hf_layouts.write_encoder(path, model)
        head: Any = model.architecture.heads["local"]
        weight = head.projection.weight
        settings = {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        hf_layouts.write_modules(path, model, hf_layouts.TRANSFORMER, {"1_Dense": ("pylate.models.Dense.Dense", settings)})
        write_tensors({"linear.weight": weight.detach().cpu().contiguous()}, path / "1_Dense" / "model.safetensors")
        config = {
            "model_type": "ColBERT",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": model.tokenizer.id_to_token(model.architecture.special_tokens.query_marker or 0),
            "document_prefix": model.tokenizer.id_to_token(model.architecture.special_tokens.document_marker or 0),
            "query_length": model.input_config.query_length,
            "document_length": model.input_config.document_length,
            "attend_to_expansion_tokens": options["attend_masks"],
            "do_query_expansion": options["augmentation"],
            "skiplist_words": []
            if options["punctuation"]
            else [model.tokenizer.id_to_token(token) for token in model.architecture.special_tokens.punctuation],
        }
        hf_layouts.write_json(path / "config_sentence_transformers.json", config)
        return 1


def colbert_options(model: RetrievalModel, target: str, conversion: Conversion) -> dict[str, Any]:
    """The options of a ColBERT checkpoint that other libraries can reproduce; UsageError for others."""
    _, options = hf_layouts.architecture_options(model, ("colbert",), target)
    hf_layouts.require_options(options, REQUIRED_OPTIONS, target)
    hf_layouts.drop_scale(model, conversion)
    for side, prefix in hf_layouts.prompts_by_side(model).items():
        if prefix:
            conversion.drop_or_refuse(f"{side} prefix {prefix!r}", "the prefix of texts")
    return options
