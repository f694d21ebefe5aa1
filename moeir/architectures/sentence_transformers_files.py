"""The files by which sentence-transformers opens a folder: its modules, their settings, the prompts and the length of texts.

A folder is read whole: a module or a setting that a checkpoint cannot keep is an error that names it.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeir.architectures.input_config import InputConfig
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import POOLING_MODES, CheckedFields, read_json_object, read_sentence_settings
from moeir.backbones.tokenizer import read_tokenizer_config
from moeir.errors import ArtifactError
from moeir.heads.pooling import PoolingHead

SIDES = ("query", "document")
TRANSFORMER = "sentence_transformers.models.Transformer"
CONFIG_FILE = "config_sentence_transformers.json"
ENCODERS = ("Transformer", "MLMTransformer")
MODULES = (*ENCODERS, "Pooling", "Normalize", "SpladePooling", "Dropout")  # without effect: Dropout, which is for training
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the first that is there counts, even if it is empty
ACTIVATIONS = ("Identity", "Sigmoid", "Tanh")  # of a cross-encoder: they keep the order of its scores
ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
KNOWN_KEYS = {  # that are read, or have no effect on what moeir computes
    "config": {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name", "activation_fn"},
    "encoder": {"max_seq_length", "do_lower_case", "query_length", "document_length", "transformer_task", "modality_config"}
    | {"module_output_name", "unpad_inputs", "backend", *ARGUMENTS},
    "arguments": {"model_max_length", "trust_remote_code", "add_pooling_layer", "attn_implementation", "torch_dtype", "dtype", "use_fast"},
    "pooling": {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
    | {f"pooling_mode_{mode}" for mode in POOLING_MODES},
    "splade": {"word_embedding_dimension", "embedding_dimension", "pooling_strategy", "activation_function", "chunk_size"},
}
ADVICE = "a copy of the folder without modules.json stands for its encoder alone"
log = logging.getLogger(__name__)


def read_folder_settings(folder: Path, arch: str, requested: Mapping[str, str]) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The encoder's folder in one of foreign weights, fields of `InputConfig` and options for an architecture.

    ArtifactError for what a checkpoint cannot keep, unless an option that is `requested` replaces it. A folder without modules.json says
    nothing but the length of a cross-encoder's pairs.
    """
    modules = _read_modules(folder)
    encoder = folder / modules[0][1] if modules else folder
    if (encoder / "adapter_config.json").is_file():
        raise ArtifactError(f"{encoder}/adapter_config.json: weights of an adapter; merge them into their model (peft) and save that")
    if not modules and not (arch == "cross-encoder" and has_classifier(folder)):
        return folder, {}, {}
    config, names = _read_known(folder / CONFIG_FILE, "config"), [name for name, _ in modules if name != "Dropout"]
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    fields: dict[str, Any] = _read_lengths(encoder, arch)
    if arch == "cross-encoder":
        if default and prompts.get(default):
            raise ArtifactError(f"{folder}/{CONFIG_FILE}: moeir cannot keep the prompt {default!r} before every pair; {ADVICE}")
        return encoder, {"document_length": fields["document_length"]}, {}
    document = next((name for name in DOCUMENT_PROMPTS if name in prompts), "document")
    fields |= {"query_prefix": prompts.get("query") or "", "document_prefix": prompts.get(document) or ""}
    if document != "document" and prompts[document]:
        advice = "--document-prefix '' leaves it out"
        log.warning("%s: documents get the prompt %r, as none has the name 'document'; %s", folder, document, advice)
    if default not in ("query", document) and prompts.get(default):
        log.warning("%s: the default prompt %r is for neither queries nor documents, and is left out", folder, default)
    paths = {name: folder / path / "config.json" for name, path in modules}
    if arch == "splade" and "SpladePooling" in paths:
        return encoder, fields, _read_splade_pooling(paths["SpladePooling"], requested)
    if arch == "dense" and not (names[0] == "Transformer" and names[1:] in (["Pooling"], ["Pooling", "Normalize"])):
        raise ArtifactError(f"{folder}: its modules are {', '.join(names)}; expected Transformer, Pooling and at most Normalize; {ADVICE}")
    options = _read_pooling(paths["Pooling"], requested if arch == "dense" else None) if "Pooling" in paths else {}
    normalize = _read_fields(paths["Normalize"]) if "Normalize" in paths else {}
    if (key := normalize.get("module_input_name") or "sentence_embedding") != "sentence_embedding":
        raise ArtifactError(f"{paths['Normalize']}: normalises {key}; moeir normalises the vector of a text; {ADVICE}")
    similarity = config.get("similarity_fn_name") or "dot"
    if arch == "dense" and similarity not in ("cosine", "dot") and "normalise" not in requested:
        raise ArtifactError(f"{folder}/{CONFIG_FILE}: similarity_fn_name is {similarity!r}; moeir scores by cosine (normalise=true) or dot")
    return encoder, fields, options | {"normalise": "true" if "Normalize" in names or similarity == "cosine" else "false"}


def has_classifier(folder: Path) -> bool:
    """Whether a folder holds a model for sequence classification, as a cross-encoder is."""
    return "ForSequenceClassification" in str(weights_io.read_config(folder).get("architectures"))


def read_activation(folder: Path, config: Mapping[str, Any]) -> str:
    """The activation of a cross-encoder's scores, as one version or another writes it."""
    peer = config.get("sentence_transformers")
    names = (config.get("sbert_ce_default_activation_function"), peer.get("activation_fn") if isinstance(peer, dict) else None)
    return str(_read_known(folder / CONFIG_FILE, "config").get("activation_fn") or names[1] or names[0] or "Identity")


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Name and subfolder of each module; empty for a folder without modules.json."""
    if not (file := folder / "modules.json").is_file():
        return []
    try:
        entries = [(str.strip(part["type"]), str.strip(part.get("path", ""))) for part in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        entries = []
    if not entries or any(Path(path).is_absolute() or ".." in Path(path).parts for _, path in entries):
        raise ArtifactError(f"{file}: damaged: expected a list of objects, each with a type, and a path in the folder")
    for kind, _ in entries:
        if kind.rpartition(".")[2] not in MODULES or not kind.startswith("sentence_transformers."):
            raise ArtifactError(f"{folder}: moeir cannot keep its module {kind}; {ADVICE}")
    modules = [(kind.rpartition(".")[2], path) for kind, path in entries]
    if modules[0][0] not in ENCODERS or len({name for name, _ in modules}) < len(modules):
        names = ", ".join(name for name, _ in modules)
        raise ArtifactError(f"{folder}: its modules are {names}; expected an encoder first, and each module once")
    return modules


def _read_known(file: Path, kind: str) -> Mapping[str, Any]:
    """The fields of a file; ArtifactError for one that has an effect and that moeir does not know."""
    return _check_known(_read_fields(file), str(file), kind)


def _read_fields(file: Path) -> CheckedFields:
    return CheckedFields(read_json_object(file) if file.is_file() else {}, file)


def _check_known(fields: Mapping[str, Any], source: str, kind: str) -> Mapping[str, Any]:
    for key in fields:
        if fields[key] and key not in KNOWN_KEYS[kind]:
            raise ArtifactError(f"{source}: moeir cannot keep {key}, {json.dumps(fields[key])}; {ADVICE}")
    return fields


def _read_lengths(encoder: Path, arch: str) -> dict[str, int]:
    """The maximum length of each side: that of the encoder's settings, else of its tokenizer, up to the encoder's positions."""
    settings, source = read_sentence_settings(encoder), f"{encoder}: the settings of its encoder"
    _check_known(settings, source, "encoder")
    arguments: dict[str, Any] = {}
    for name in ARGUMENTS:
        arguments |= _check_known(settings.get(name) or {}, source, "arguments")
    for kind, modality in (settings.get("modality_config") or {}).items():
        states = (modality if isinstance(modality, dict) else {}).get("method_output_name")
        if kind == "text" and states != "last_hidden_state" and (states != "logits" or arch == "dense"):
            raise ArtifactError(f"{source}: its output is {states!r}; moeir reads 'last_hidden_state'; {ADVICE}")
    length = settings.get("max_seq_length") or arguments.get("model_max_length")
    if length is None:
        positions = weights_io.parse_encoder_config(weights_io.read_config(encoder), encoder).positions
        length = int(min(read_tokenizer_config(encoder).get("model_max_length") or positions, positions))
    return {f"{side}_length": settings.get(f"{side}_length") or length for side in SIDES}


def _read_pooling(file: Path, requested: Mapping[str, str] | None) -> dict[str, str]:
    """Options of a dense head; for another architecture (`requested` is None) no pooling is refused."""
    if not file.is_file():
        raise ArtifactError(f"{file}: missing, though modules.json names it; expected the whole folder")
    settings = _read_known(file, "pooling")
    legacy = [name for key, name in POOLING_MODES.items() if settings.get(f"pooling_mode_{key}")]
    pooling = settings.get("pooling_mode") or legacy or "mean"
    modes = pooling if isinstance(pooling, list) else [pooling]
    options = {} if settings.get("include_prompt", True) else {"pool_prefix": "false"}
    if modes in (["cls"], ["mean"]):
        options["pooling"] = modes[0]
    if requested is not None and "pooling" not in requested:
        if "pooling" not in options:
            raise ArtifactError(f"{file}: pools by {' and '.join(map(str, modes))}; moeir by cls or mean: set --arch dense:pooling=…")
        if modes == ["cls"] and options.keys() - requested == {"pooling", "pool_prefix"}:
            raise ArtifactError(f"{file}: include_prompt is false with cls; moeir leaves prompts out of the mean only; {ADVICE}")
    return options


def _read_splade_pooling(file: Path, requested: Mapping[str, str]) -> dict[str, str]:
    """Options of a SPLADE head."""
    settings = _read_known(file, "splade")
    activation, pooling = settings.get("activation_function") or "relu", settings.get("pooling_strategy") or "max"
    if activation != "relu":
        raise ArtifactError(f"{file}: activation_function is {activation!r}; moeir reads 'relu'; {ADVICE}")
    if pooling not in ("max", "sum") and "pooling" not in requested:
        raise ArtifactError(f"{file}: pooling_strategy is {pooling!r}; moeir reads 'max' and 'sum'")
    return {"pooling": pooling}


def write_dense_files(folder: Path, input_config: InputConfig, hidden: int, head: PoolingHead) -> None:
    """The files of a SentenceTransformer with one vector per text. It has one length for both sides, the larger one."""
    modes = {f"pooling_mode_{key}": mode == head.pooling for key, mode in POOLING_MODES.items()}
    settings = {"word_embedding_dimension": hidden, **modes, "include_prompt": head.pool_prefix}
    modules: dict[str, tuple[str, dict[str, Any]]] = {"1_Pooling": ("sentence_transformers.models.Pooling", settings)}
    modules |= {"2_Normalize": ("sentence_transformers.models.Normalize", {})} if head.normalise else {}
    write_modules(folder, input_config, TRANSFORMER, modules)
    similarity = "cosine" if head.normalise else "dot"
    config = {"prompts": prompts_by_side(input_config), "default_prompt_name": None, "model_type": "SentenceTransformer"}
    write_json(folder / CONFIG_FILE, config | {"similarity_fn_name": similarity})


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
