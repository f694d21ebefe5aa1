"""ColBERT checkpoints in PyLate's layout, which sentence-transformers 6 reads too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.checkpoints.files import write_tensors
from moeir.errors import UsageError
from moeir.formats import layouts
from moeir.formats.base import Conversion, Format

WANTED = {"normalise": True, "markers": True, "separator": True, "padding": "neginf"}


class Pylate(Format):
    """A folder that PyLate and sentence-transformers 6 open, from a colbert checkpoint with markers and unit vectors."""

    kind: ClassVar[str] = "checkpoint"
    folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[OpenCheckpoint]:
        raise UsageError(
            f"{path}: moeir init --model {path} --arch colbert makes a checkpoint of its encoder; its Dense module is not read"
        )

    def write(self, items: Iterator[OpenCheckpoint], path: Path, conversion: Conversion) -> int:
        model = next(items)
        options = chosen(model, "pylate", conversion)
        layouts.write_encoder(path, model)
        head: Any = model.architecture.heads["local"]
        weight = head.projection.weight
        settings = {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        layouts.write_modules(path, model, layouts.TRANSFORMER, {"1_Dense": ("pylate.models.Dense.Dense", settings)})
        write_tensors({"linear.weight": weight.detach().cpu().contiguous()}, path / "1_Dense" / "model.safetensors")
        config = {
            "model_type": "ColBERT",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            "query_prefix": model.reader.token(model.architecture.signs.query_marker or 0),
            "document_prefix": model.reader.token(model.architecture.signs.document_marker or 0),
            "query_length": model.rules.query_length,
            "document_length": model.rules.document_length,
            "attend_to_expansion_tokens": options["attend_masks"],
            "do_query_expansion": options["augmentation"],
            "skiplist_words": []
            if options["punctuation"]
            else [model.reader.token(token) for token in model.architecture.signs.punctuation],
        }
        layouts.write_json(path / "config_sentence_transformers.json", config)
        return 1


def chosen(model: OpenCheckpoint, target: str, conversion: Conversion) -> dict[str, Any]:
    """The options of a ColBERT checkpoint that other libraries can reproduce; UsageError for others."""
    _, options = layouts.options_of(model, ("colbert",), target)
    layouts.refuse(options, WANTED, target)
    layouts.lose_scale(model, conversion)
    for side, prefix in layouts.prompts(model).items():
        if prefix:
            conversion.lose(f"{side} prefix {prefix!r}", "the prefix of texts")
    return options
