"""ColBERT checkpoints in the layout of Stanford's ColBERT."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.families.weights_io import read_config, write_tensors
from moeir.errors import UsageError
from moeir.formats import hf_layouts
from moeir.formats.base import Conversion, Format
from moeir.formats.pylate import colbert_options


class StanfordColbert(Format):
    """A folder that Stanford's ColBERT opens (HF_ColBERT, artifact.metadata), from a BERT colbert checkpoint with published options."""

    kind: ClassVar[str] = "checkpoint"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        raise UsageError(f"{path}: moeir init --model {path} --arch colbert makes a checkpoint of its encoder; its projection is not read")

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        model = next(items)
        options = colbert_options(model, "stanford-colbert", conversion)
        hf_layouts.require_options(options, {"augmentation": True}, "stanford-colbert")
        hf_layouts.write_encoder(path, model)
        config = read_config(path)
        if config["model_type"] != "bert":
            raise UsageError(f"--to stanford-colbert: supports BERT only; this encoder is {config['model_type']}")
        hf_layouts.write_json(path / "config.json", config | {"architectures": ["HF_ColBERT"]})
        head: Any = model.architecture.heads["local"]
        weight = head.projection.weight
        weights = {f"bert.{name}": value for name, value in load_file(path / "model.safetensors").items()}
        write_tensors(weights | {"linear.weight": weight.detach().cpu().contiguous()}, path / "model.safetensors")
        signs = model.architecture.special_tokens
        metadata = {
            "query_token_id": model.tokenizer.id_to_token(signs.query_marker or 0),
            "doc_token_id": model.tokenizer.id_to_token(signs.document_marker or 0),
            "query_token": "[Q]",
            "doc_token": "[D]",
            "dim": weight.shape[0],
            "similarity": "cosine",
            "query_maxlen": model.input_config.query_length,
            "doc_maxlen": model.input_config.document_length,
            "mask_punctuation": not options["punctuation"],
            "attend_to_mask_tokens": options["attend_masks"],
        }
        hf_layouts.write_json(path / "artifact.metadata", metadata)
        return 1
