"""moeir's checkpoints, and the layouts of other libraries that they convert to."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.architectures.input_config import SIDES
from moeir.architectures.sentence_transformers_files import (
    TRANSFORMER,
    write_config,
    write_dense_files,
    write_json,
    write_logit_score,
    write_modules,
    write_weights,
)
from moeir.artifacts import manifests
from moeir.backbones.families import weights_io
from moeir.backbones.torch_files import write_torch_file
from moeir.errors import UsageError
from moeir.formats import base
from moeir.formats.base import Conversion, Format
from moeir.heads.classification import ClassificationHead, WordLogitHead
from moeir.heads.lexical import WEIGHT_UNIT
from moeir.parsing import format_value

_IDENTITY = "torch.nn.modules.linear.Identity"
SPARSE = "sentence_transformers.sparse_encoder.models"
ROUTED = ("SparseStaticEmbedding", "MLMTransformer", "SpladePooling")


class ForeignCheckpoint(base.Format):
    """A folder of another library, which `moeir init` reads and `convert` writes."""

    kind = "checkpoint"
    is_folder = True
    arch: ClassVar[str]  # of the checkpoint that `init` makes from it

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        """UsageError that names the command which reads the folder."""
        raise UsageError(f"{path}: moeir init --model {path} --arch {self.arch} makes a checkpoint from it")


class Checkpoint(Format):
    """A moeir checkpoint, read only; `moeir init` makes one from another library's weights."""

    kind = "checkpoint"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        manifests.verify_artifact(path, "checkpoint")
        yield open_checkpoint(path)

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        raise UsageError("--to checkpoint: moeir init --model FOLDER --arch … makes a checkpoint from the weights of other libraries")


class SentenceTransformers(ForeignCheckpoint, Format):
    """A folder that sentence-transformers opens, from a SPLADE or a dense checkpoint, or a cross-encoder with head=yes-no."""

    arch = "dense"

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        items = iter([model := next(items)])
        if isinstance(word_head := dict(model.architecture.heads.items()).get("relevance"), WordLogitHead):
            _drop_prefixes(model, conversion)
            model.architecture.merge_adapters()
            _write_encoder(path, model)
            write_logit_score(path, model.input_config, word_head.token_ids)
            return 1
        model, options = _take_checkpoint(items, conversion, ("splade", "dense"), {"encoders": "siamese"}, keeps=("prefixes",))
        config = model.architecture.encoder.config
        if "global" in model.architecture.heads:
            _write_encoder(path, model)
            head: Any = model.architecture.heads["global"]
            write_dense_files(path, model.input_config, config.hidden, head, model.architecture.dimension, sides=True)
            return 1
        pooling = {"pooling_strategy": "max", "activation_function": options["activation"]}
        pooling["word_embedding_dimension"] = config.vocabulary
        if options["queries"] == "tokens":
            _write_routes(path, model, pooling)
        else:
            _write_encoder(path, model)
            modules = {"1_SpladePooling": (f"{SPARSE}.SpladePooling", pooling)}
            write_modules(path, model.input_config, f"{SPARSE}.MLMTransformer", modules, sides=True)
        write_config(path, model.input_config, {"model_type": "SparseEncoder", "similarity_fn_name": "dot"})
        return 1


def _write_routes(path: Path, model: RetrievalModel, pooling: Mapping[str, Any]) -> None:
    """The weights of the tokens of queries, the encoder of documents, and the Router between them."""
    query, *document = types = {f"{number}_{name}": f"{SPARSE}.{name}" for number, name in enumerate(ROUTED)}
    for name, settings in zip(types, ({"frozen": False}, {}, pooling), strict=True):
        write_json(path / name / "config.json", settings)
    head: Any = model.architecture.heads["lexical"]
    write_weights(path / query, {"weight": head.query_weights.relu() * WEIGHT_UNIT})
    special_tokens = model.tokenizer.special_tokens  # that module adds none
    model.tokenizer.copy_files(path / query, model.input_config.query_length - special_tokens.leading - special_tokens.trailing)
    _write_encoder(path / document[0], model)
    write_json(path / document[0] / "sentence_bert_config.json", {"max_seq_length": model.input_config.document_length})
    routes = {"structure": {"query": [query], "document": document}, "parameters": {"default_route": "document"}}
    write_json(path / "router_config.json", {"types": types, **routes})
    write_json(path / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}])


class Pylate(ForeignCheckpoint, Format):
    """A folder that PyLate and sentence-transformers 6 open, from a colbert checkpoint with markers and unit vectors."""

    arch = "colbert"

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        model, options = _take_checkpoint(items, conversion, ("colbert",), {"normalise": True, "markers": True})
        _write_encoder(path, model)
        head: Any = model.architecture.heads["local"]
        weight = head.projection.weight
        settings = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False, "activation_function": _IDENTITY}
        write_modules(path, model.input_config, TRANSFORMER, {"1_Dense": ("pylate.models.Dense.Dense", settings)})
        write_weights(path / "1_Dense", {"linear.weight": weight})
        special_tokens, name_of = model.architecture.special_tokens, model.tokenizer.id_to_token
        skipped_tokens = {"true": (), "false": special_tokens.punctuation, "characters": special_tokens.punctuation_marks}
        config = {
            "model_type": "ColBERT",
            "similarity_fn_name": "MaxSim",
            "query_prefix": name_of(special_tokens.query_marker or 0),
            "document_prefix": name_of(special_tokens.document_marker or 0),
            "query_length": model.input_config.query_length,
            "document_length": model.input_config.document_length,
            "attend_to_expansion_tokens": options["attend_masks"],
            "do_query_expansion": options["augmentation"],
            "skiplist_words": list(map(name_of, skipped_tokens[options["punctuation"]])),
        }
        write_config(path, model.input_config, config)
        return 1


class BgeM3(ForeignCheckpoint, Format):
    """A folder that FlagEmbedding opens as BGEM3FlagModel, and sentence-transformers for its vectors, from a bge-m3 checkpoint."""

    arch = "bge-m3"

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        model, _ = _take_checkpoint(items, conversion, ("bge-m3",), {"experts": ("global", "lexical", "local")}, keeps=("scales",))
        _write_encoder(path, model)
        heads: Any = model.architecture.heads
        for expert, name in type(model.architecture).head_files.items():
            write_torch_file(heads[expert].projection.state_dict(), path / name)
        write_dense_files(path, model.input_config, model.architecture.encoder.config.hidden, heads["global"])
        return 1


def _take_checkpoint(
    items: Iterator[RetrievalModel], conversion: Conversion, supported: tuple[str, ...], required: Mapping[str, Any],
    *, keeps: tuple[str, ...] = (),
) -> tuple[RetrievalModel, dict[str, Any]]:  # fmt: skip
    """The checkpoint and the options of its architecture; UsageError unless it is a supported one, with options that the other library
    computes with. Score scales, which do not change the ranking, and prefixes are dropped or refused, unless the layout keeps them;
    adapters are merged."""
    model, target = next(items), conversion.target
    name = variants.parse_spec(model.spec).name
    if name == "cross-encoder":
        is_classifier = model.architecture.is_hf_compatible and isinstance(model.architecture.heads["relevance"], ClassificationHead)
        way = "it as it is" if is_classifier else "one with head=hf as it is, and none with head=linear"
        peers = "AutoModelForSequenceClassification of transformers and CrossEncoder of sentence-transformers"
        raise UsageError(f"--to {target}: not for a cross-encoder: {peers} open {way}")
    if name == "dense" and name not in supported:
        raise UsageError(f"--to {target}: not for a dense checkpoint: SentenceTransformer opens one with a single encoder as it is")
    if name not in supported:
        raise UsageError(f"--to {target}: supports {' and '.join(supported)}; its layout cannot hold the experts of {name}")
    options = variants.resolve_spec("architectures", model.spec)[1]
    for option, value in required.items():
        if options.get(option, value) != value:
            found, expected = (format_value(one) for one in (options[option], value))
            raise UsageError(f"--to {target}: {option}={found} is not supported there; it computes with {option}={expected}")
    for expert, scale in {} if "scales" in keeps else model.architecture.scales.items():
        if scale != 1.0:
            conversion.drop_or_refuse(f"expert {expert}", f"the scale of its scores, {scale:g},")
    if "prefixes" not in keeps:
        _drop_prefixes(model, conversion)
    model.architecture.merge_adapters()
    return model, options


def _drop_prefixes(model: RetrievalModel, conversion: Conversion) -> None:
    for side in SIDES:
        if prefix := model.input_config.add_prefix([""], side)[0]:
            conversion.drop_or_refuse(f"{side} prefix {prefix!r}", "the prefix of texts")


def _write_encoder(folder: Path, model: RetrievalModel) -> None:
    """Write config.json, model.safetensors and the tokenizer as `transformers` reads them."""
    encoder = model.architecture.encoder
    names: dict[str, Any] = {"file_names": encoder.file_names, "has_head": encoder.vocabulary_head is not None}
    weights_io.write_model(folder, model.config, encoder.state_dict(), hf_compatible=True, **names)
    model.tokenizer.copy_files(folder)
