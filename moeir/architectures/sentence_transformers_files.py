"""The files by which sentence-transformers and PyLate open a folder: its modules, their settings, the prompts and the length of texts.

A folder is read whole: a module or a setting that a checkpoint cannot keep is an error that names it.
"""

import json
import logging
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from moeir.architectures.input_config import DOCUMENT_PROMPTS, SIDES, InputConfig
from moeir.backbones import pair_text
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import POOLING_MODES, CheckedFields, read_json_object, read_sentence_settings
from moeir.backbones.tokenizer import CHAT_TEMPLATE, MARKERS, TextTokenizer, load_tokenizer, read_tokenizer_config
from moeir.errors import ArtifactError
from moeir.heads import lexical, pooling
from moeir.heads.pooling import PoolingHead

TRANSFORMER = "sentence_transformers.models.Transformer"
BASE, LOGIT_SCORE = "sentence_transformers.base.modules.transformer", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
CONFIG_FILE = "config_sentence_transformers.json"
ENCODERS = ("Transformer", "MLMTransformer")
QUERY_WEIGHTS = "SparseStaticEmbedding"  # of the tokens of queries that no encoder reads
MODULES = (*ENCODERS, "Pooling", "Dense", "Normalize", "SpladePooling", "MultiVectorMask", "LogitScore", "Dropout")
LOGITS = "causal_logits"  # what LogitScore takes
POOLINGS = {"lasttoken": "last", "weightedmean": "weighted_mean"}  # that have other names here
MAP_ACTIVATIONS = {f"{kind.__module__}.{kind.__name__}": name for name, kind in pooling.ACTIVATIONS.items()}
ACTIVATIONS = ("Identity", "Sigmoid", "Tanh")  # of a cross-encoder: they keep the order of its scores
ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
VECTOR, TOKEN_VECTORS = "sentence_embedding", "token_embeddings"  # what modules take and give
KNOWN_KEYS = {  # that are read, or have no effect on what moeir computes
    "config": {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name", "activation_fn", "truncate_dim"},
    "pylate": {"query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion", "attend_to_expansion_tokens"}
    | {"skiplist_words"},
    "encoder": {"max_seq_length", "do_lower_case", "query_length", "document_length", "transformer_task", "modality_config"}
    | {"module_output_name", "unpad_inputs", "backend", *ARGUMENTS},
    "arguments": {"model_max_length", "trust_remote_code", "add_pooling_layer", "attn_implementation", "torch_dtype", "dtype", "use_fast"},
    "Pooling": {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
    | {f"pooling_mode_{mode}" for mode in POOLING_MODES},
    "SpladePooling": {"word_embedding_dimension", "embedding_dimension", "pooling_strategy", "activation_function", "chunk_size"},
    "Dense": {"in_features", "out_features", "bias"},
    "MultiVectorMask": {"skiplist_words"},
    "LogitScore": {"true_token_id", "false_token_id"},
    "Normalize": set[str](),
    QUERY_WEIGHTS: {"frozen"},
    "expansion": {"attend", "length"},
    "router": {"default_route", "allow_empty_key"},
    "chat": {"chat_template"},
}
ENCODER_ALONE = "a copy of the folder without modules.json stands for its encoder alone"
log = logging.getLogger(__name__)
Modules = Sequence[tuple[str, Path]]  # name and folder of each


class FolderSettings(NamedTuple):
    """What a folder of foreign weights says: the encoder's folder, fields of `InputConfig`, options of an architecture, and the weights of
    its heads, by their names in the architecture."""

    encoder: Path
    fields: dict[str, Any]
    options: dict[str, str]
    weights: dict[str, Tensor]


def read_folder_settings(folder: Path, arch: str, requested: Mapping[str, str], *, trunk: Path | None = None) -> FolderSettings:
    """The settings of a folder of foreign weights for an architecture.

    ArtifactError for what a checkpoint cannot keep, unless an option that is `requested` replaces it. A folder without modules.json says
    nothing but the length of a cross-encoder's pairs. `trunk` has the weights of a folder with an adapter.
    """
    modules = _read_modules(folder)
    encoder = modules[0][1] if modules else folder
    if trunk is None and (encoder / "adapter_config.json").is_file():
        raise ArtifactError(f"{encoder}/adapter_config.json: weights of an adapter, below {folder}; merge them into their model (peft)")
    if not modules and not (arch == "cross-encoder" and has_classifier(trunk or folder)):
        return FolderSettings(trunk or folder, {}, {}, {})
    is_late = arch == "colbert" and (_is_pylate(_read_fields(folder / CONFIG_FILE)) or "MultiVectorMask" in dict(modules))
    config = _read_known(folder / CONFIG_FILE, *(["config", "pylate"] if is_late else ["config"]))
    reads_words = arch == "cross-encoder" and "LogitScore" in dict(modules) and requested.get("head", "yes-no") == "yes-no"
    fields: dict[str, Any] = _read_lengths(encoder, "yes-no" if reads_words else arch, trunk or encoder)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if reads_words:
        return _read_logit_score(folder, modules, fields["document_length"], prompts.get(default) or "")
    if arch == "cross-encoder":
        if default and prompts.get(default):
            _refuse(f"{folder}/{CONFIG_FILE}: moeir cannot keep the prompt {default!r} before every pair")
        return FolderSettings(trunk or encoder, {"document_length": fields["document_length"]}, {}, {})
    fields |= _read_prompts(folder, prompts, default or "")
    options, weights = dict[str, str](), dict[str, Tensor]()
    if is_late:
        options, weights = _read_late_interaction(modules, config, fields)
    elif arch == "splade" and "SpladePooling" in dict(modules):
        options, weights = _read_splade(modules, fields, requested)
    else:
        options = _read_one_vector(folder, modules, config, arch, requested)
        if arch == "dense" and "projections" not in requested and "Dense" in dict(modules):
            options["projections"], weights = _read_maps(modules, VECTOR, "heads.global.projections.{}.linear.")
    tokenizer = TextTokenizer(find_tokenizer(encoder, trunk or encoder))
    for prompt in (fields["query_prefix"], fields["document_prefix"], *fields["prompts"].values()):
        if token := next((token for number in tokenizer.special_ids if (token := tokenizer.id_to_token(number)) in prompt), ""):
            _refuse(f"{folder}: the prompt {prompt!r} has the special token {token}, which moeir reads as text")
    return FolderSettings(trunk or encoder, fields, options, weights)


def find_tokenizer(folder: Path, trunk: Path) -> Path:
    """The folder with the tokenizer of an adapter: its own, or that of its trunk."""
    return folder if (folder / "tokenizer.json").is_file() else trunk


def _read_logit_score(folder: Path, modules: Modules, length: int, instruction: str) -> FolderSettings:
    """The template and the words of a reranker by the logits of a decoder; its pairs have at most `length` tokens."""
    encoder, file = modules[0][1], dict(modules)["LogitScore"] / "config.json"
    tokenizer, settings = TextTokenizer(encoder), _read_module(modules, "LogitScore", module_input_name=[LOGITS])
    ids = [number for name in ("true_token_id", "false_token_id") if (number := settings.get(name)) is not None]
    words = [tokenizer.id_to_token(number) for number in ids]
    if list(map(tokenizer.find_word, words)) != ids or settings.get("true_token_id") is None or set("".join(words)) & set(":,+="):
        raise ArtifactError(f"{file}: the tokens {ids} are {', '.join(map(repr, words))}; expected two words of its tokenizer, or one")
    if (activation := read_activation(folder, weights_io.read_config(encoder))).rpartition(".")[2] not in ACTIVATIONS:
        _refuse(f"{folder}: its scores pass through {activation}; moeir's are logits, ranked as under {', '.join(ACTIVATIONS)}")
    sentence = read_sentence_settings(encoder)
    chat = _check_known(sentence.get("processing_kwargs") or {}, f"{encoder}: processing_kwargs", "chat").get("chat_template") or {}
    template = pair_text.QUERY + pair_text.DOCUMENT  # as without a chat template they are
    if "message" in (sentence.get("modality_config") or {}):
        template, instruction = pair_text.read_chat_template(tokenizer, words, instruction, dict(chat), has_roles=True)
    elif instruction:
        _refuse(f"{folder}/{CONFIG_FILE}: moeir cannot keep the prompt {instruction!r} before every pair")
    fields = {"document_length": length, "template": template, "instruction": instruction}
    return FolderSettings(encoder, fields, {"head": "yes-no", "words": "+".join(words)}, {})


def _refuse(message: str) -> NoReturn:
    """ArtifactError for what a checkpoint cannot keep."""
    raise ArtifactError(f"{message}; {ENCODER_ALONE}")


def _is_pylate(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "ColBERT" or config.get("query_prefix") is not None


def has_classifier(folder: Path) -> bool:
    """Whether a folder holds a model for sequence classification, as a cross-encoder is."""
    return "ForSequenceClassification" in str(weights_io.read_config(folder).get("architectures"))


def read_activation(folder: Path, config: Mapping[str, Any]) -> str:
    """The activation of a cross-encoder's scores, as one version or another writes it."""
    peer = config.get("sentence_transformers")
    names = (config.get("sbert_ce_default_activation_function"), peer.get("activation_fn") if isinstance(peer, dict) else None)
    return str(_read_fields(folder / CONFIG_FILE).get("activation_fn") or names[1] or names[0] or "Identity")


def _read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Name and folder of each module, the encoder first; empty for a folder without modules.json. Of a Router these are the modules of
    documents, and SparseStaticEmbedding if that alone reads queries."""
    if not (file := folder / "modules.json").is_file():
        return []
    query_modules: list[tuple[str, str]] = []
    try:
        entries = [(str.strip(part["type"]), str.strip(part.get("path", ""))) for part in json.loads(file.read_text(encoding="utf-8"))]
        if len(entries) == 1 and (router := folder / entries[0][1] / "router_config.json").is_file():
            file, route = router, read_json_object(router)
            _check_known(route.get("parameters") or {}, str(file), "router")
            query, document = ([(str.strip(route["types"][one]), one) for one in route["structure"][side]] for side in SIDES)
            query_modules, entries = [entry for entry in query if entry not in document], document
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        entries = []
    if not entries or any(Path(path).is_absolute() or ".." in Path(path).parts for _, path in [*entries, *query_modules]):
        raise ArtifactError(f"{file}: damaged: expected a list of objects, each with a type, and a path in the folder")
    modules = list[tuple[str, Path]]()
    for kind, path in [*entries, *query_modules]:
        name, expected = kind.rpartition(".")[2], MODULES if (kind, path) in entries else (QUERY_WEIGHTS,)
        if name not in expected or not kind.startswith(("sentence_transformers.", "pylate.models.")):
            _refuse(f"{folder}: moeir cannot keep its module {kind}")
        if name != "Dropout":  # it is for training
            modules.append((name, file.parent / path))
    names = [name for name, _ in modules]
    single = [name for name in names if name != "Dense"]
    if not names or names[0] not in ENCODERS or len(set(single)) < len(single):
        raise ArtifactError(f"{folder}: its modules are {', '.join(names)}; expected an encoder first, and each module but Dense once")
    return modules


def _read_fields(file: Path) -> CheckedFields:
    return CheckedFields(read_json_object(file) if file.is_file() else {}, file)


def _read_known(file: Path, *kinds: str, **values: Sequence[Any]) -> Mapping[str, Any]:
    """The fields of a file; keys that moeir does not know are refused, and other values than `values`."""
    return _check_known(_read_fields(file), str(file), *kinds, **values)


def _read_module(modules: Modules, name: str, **values: Sequence[Any]) -> Mapping[str, Any]:
    """The settings of a module, empty if there is none of this name."""
    return _read_known(dict(modules)[name] / "config.json", name, **values) if name in dict(modules) else {}


def _check_known(fields: Mapping[str, Any], source: str, *kinds: str, **values: Sequence[Any]) -> Mapping[str, Any]:
    known = {key for kind in kinds for key in KNOWN_KEYS[kind]}
    for key, value in fields.items():
        if value and (value not in values[key] if key in values else key not in known):
            _refuse(f"{source}: moeir cannot keep {key}, {json.dumps(value, default=dict)}")
    return fields


def _read_lengths(encoder: Path, arch: str, trunk: Path) -> dict[str, int]:
    """The maximum length of each side: that of the encoder's settings, else of its tokenizer, up to the encoder's positions."""
    settings, source = read_sentence_settings(encoder), f"{encoder}: the settings of its encoder"
    own_keys = {"colbert": "query_expansion", "yes-no": "processing_kwargs"}
    own = {key: settings[key] for key in settings if key != own_keys.get(arch)}
    settings = _check_known(own, source, "encoder")
    arguments: dict[str, Any] = {}
    for name in ARGUMENTS:
        arguments |= _check_known(settings.get(name) or {}, source, "arguments")
    for kind, modality in (settings.get("modality_config") or {}).items():
        states = (modality if isinstance(modality, dict) else {}).get("method_output_name")
        if kind == "text" and states != "last_hidden_state" and (states != "logits" or arch == "dense"):
            _refuse(f"{source}: its output is {states!r}; moeir reads 'last_hidden_state'")
        elif kind == "message" and arch != "yes-no":
            _refuse(f"{source}: each text becomes a message of a chat template; moeir reads it as it is")
    length = settings.get("max_seq_length") or arguments.get("model_max_length")
    if length is None:
        positions = weights_io.parse_encoder_config(weights_io.read_config(trunk), trunk).positions
        length = int(min(read_tokenizer_config(encoder).get("model_max_length") or positions, positions))
    return {f"{side}_length": settings.get(f"{side}_length") or length for side in SIDES}


def _read_prompts(folder: Path, prompts: Mapping[str, Any], default: str) -> dict[str, Any]:
    """The prefixes of both sides, and all other prompts by name."""
    document = next((name for name in DOCUMENT_PROMPTS if name in prompts), "document")
    if document != "document" and prompts[document]:
        advice = "none has the name 'document', so that encode_document of sentence-transformers 6 gives them none"
        log.warning("%s: documents get the prompt %r, unless --document-prefix sets theirs: %s", folder, document, advice)
    if default not in SIDES and prompts.get(default):
        log.warning("%s: the default prompt %r is for neither queries nor documents, and is left out", folder, default)
    if wrong := next((name for name in prompts if not isinstance(prompts[name], str | None)), None):
        raise ArtifactError(f"{folder}/{CONFIG_FILE}: the prompt {wrong} is {prompts[wrong]!r}; expected a string")
    fields = {"prompts": {name: prompts[name] or "" for name in prompts if name not in SIDES}, "default_prompt": default}
    return {"query_prefix": prompts.get("query") or "", "document_prefix": prompts.get(document) or "", **fields}


def _read_one_vector(folder: Path, modules: Modules, config: Mapping[str, Any], arch: str, requested: Mapping[str, str]) -> dict[str, str]:
    """Options of a dense head; for another architecture than dense no pooling is refused."""
    names = [name for name, _ in modules]
    expected = ["Transformer", "Pooling", *["Dense"] * names.count("Dense"), *(["Normalize"] if "Normalize" in names else [])]
    if arch == "dense" and names != expected:
        _refuse(f"{folder}: its modules are {', '.join(names)}; expected Transformer, Pooling, any Dense and at most Normalize")
    elif arch != "dense" and (other := next((name for name in ("Dense", "LogitScore") if name in names), "")):
        _refuse(f"{folder}: moeir cannot keep its module {other} in {arch}")
    pooling_file = dict(modules).get("Pooling", folder) / "config.json"
    options = _read_pooling(pooling_file, requested if arch == "dense" else None) if "Pooling" in names else {}
    _read_module(modules, "Normalize", module_input_name=[VECTOR], module_output_name=[VECTOR])
    similarity = config.get("similarity_fn_name") or "dot"
    if arch == "dense" and "normalise" not in requested and "Normalize" not in names and not config.get("similarity_fn_name"):
        log.warning("%s: names no similarity; here it is the inner product, in sentence-transformers the cosine: normalise=true", folder)
    if arch == "dense" and similarity not in ("cosine", "dot") and "normalise" not in requested:
        _refuse(f"{folder}/{CONFIG_FILE}: similarity_fn_name is {similarity!r}; moeir scores by cosine (normalise=true) or dot")
    if dimension := config.get("truncate_dim"):
        options["dimension"] = str(dimension)
        if "Normalize" in names and config.get("similarity_fn_name") == "dot":
            _refuse(f"{folder}/{CONFIG_FILE}: truncate_dim {dimension} cuts vectors that are normalised; moeir normalises them again")
    return options | {"normalise": "true" if "Normalize" in names or similarity == "cosine" else "false"}


def _read_pooling(file: Path, requested: Mapping[str, str] | None) -> dict[str, str]:
    """Options of the pooling; for another architecture (`requested` is None) no pooling is refused."""
    if not file.is_file():
        raise ArtifactError(f"{file}: missing, though modules.json names it; expected the whole folder")
    settings = _read_known(file, "Pooling")
    legacy = [name for key, name in POOLING_MODES.items() if settings.get(f"pooling_mode_{key}")]
    modes = settings.get("pooling_mode") or legacy or "mean"
    modes = [POOLINGS.get(str(mode), str(mode)) for mode in (modes if isinstance(modes, list) else [modes])]
    if requested is not None and not settings.get("include_prompt", True):
        _refuse(f"{file}: include_prompt is false; moeir pools over the prompt too")
    if len(modes) == 1 and modes[0] in pooling.POOLINGS:
        return {"pooling": modes[0]}
    if requested is not None and "pooling" not in requested:
        _refuse(f"{file}: pools by {' and '.join(modes)}; moeir by one of {', '.join(pooling.POOLINGS)}: set --arch dense:pooling=…")
    return {}


def _read_maps(modules: Modules, states: str, prefix: str) -> tuple[str, dict[str, Tensor]]:
    """The linear maps of the Dense modules, as `projections` has them, and their weights, named by `prefix` with the number of the map."""
    texts, weights = list[str](), dict[str, Tensor]()
    for folder in (folder for name, folder in modules if name == "Dense"):
        values = {"module_input_name": [states], "module_output_name": [states], "activation_function": list(MAP_ACTIVATIONS)}
        settings = _read_known(folder / "config.json", "Dense", **values)
        activation = MAP_ACTIVATIONS[settings.get("activation_function") or "torch.nn.modules.activation.Tanh"]
        words = [str(settings.get("out_features")), *(["bias"] if settings.get("bias", True) else []), activation]
        tensors = _read_tensors(folder)
        weights |= {prefix.format(len(texts)) + name.removeprefix("linear."): tensor for name, tensor in tensors.items()}
        texts.append("-".join(word for word in words if word != "identity"))
    return "+".join(texts), weights


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if not (file := folder / "model.safetensors").is_file():
        raise ArtifactError(f"{folder}: no model.safetensors; save_pretrained of sentence-transformers writes it from other files")
    return {name: tensor.float() for name, tensor in weights_io.read_tensors(file).items()}


def _read_late_interaction(modules: Modules, config: Mapping[str, Any], fields: dict[str, Any]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Options and weights of a ColBERT as PyLate (settings in `config`) or sentence-transformers 6 (in modules) writes it; `fields` get its
    lengths and prefixes. PyLate puts a token before each text, query_prefix or document_prefix; it may be in the prompts instead."""
    encoder, is_pylate = modules[0][1], _is_pylate(config)
    dim, weights = _read_maps(modules, TOKEN_VECTORS, "heads.local.projection.")
    if not dim.isdecimal():
        expected = f"moeir has one, without bias and activation; {ENCODER_ALONE}"
        raise ArtifactError(f"{encoder}: the maps of its tokens are {dim or 'none'}; {expected}")
    _check_known(config, str(encoder), "config", "pylate", similarity_fn_name=["maxsim", "MaxSim", "cosine", "dot"])
    _read_module(modules, "Normalize", module_input_name=[TOKEN_VECTORS], module_output_name=[TOKEN_VECTORS])
    mask = _read_module(modules, "MultiVectorMask", skiplist_tasks=[["document"]])
    expansion = read_sentence_settings(encoder).get("query_expansion") or {}
    expansion = _check_known(expansion, f"{encoder}: query_expansion", "expansion", strategy=["fixed"])
    if is_pylate and config.get("do_query_expansion") is not False:
        expansion = {"attend": config.get("attend_to_expansion_tokens"), "length": config.get("query_length") or 32}
    lengths = {"query": expansion.get("length") or config.get("query_length"), "document": config.get("document_length")}
    fields |= {f"{side}_length": length for side, length in lengths.items() if length}

    vocabulary, special = load_tokenizer(encoder)[1], TextTokenizer(encoder).special_tokens
    tokens = {side: config.get(f"{side}_prefix") or "" for side in SIDES}
    prefixes = {side: tokens[side] + fields[f"{side}_prefix"].removeprefix(tokens[side]) for side in SIDES}
    markers = {side: next((name for name in names if name in vocabulary), "") for side, names in MARKERS.items()}
    marked = [side for side in SIDES if markers[side] and prefixes[side].startswith(markers[side])]
    for token in (tokens[side] for side in SIDES if side not in marked):
        if not vocabulary.keys().isdisjoint((token, *token.split()[:1])):
            _refuse(f"{encoder}: a text begins with the token {token!r}; moeir has {' and '.join(map(repr, markers.values()))}")
    has_markers = len(marked) == len(SIDES)
    fields |= {f"{side}_prefix": prefixes[side].removeprefix(markers[side] if has_markers else "") for side in SIDES}

    words = mask.get("skiplist_words", config.get("skiplist_words"))
    words = list(string.punctuation) if words is None and is_pylate else list(map(str, words or []))
    skipped = {vocabulary[word] for word in words if word in vocabulary}
    sets = {"true": set[int](), "characters": {*special.punctuation_marks}, "false": {*special.punctuation}}
    if (punctuation := next((name for name, ids in sets.items() if ids == skipped), None)) is None:
        _refuse(f"{encoder}: documents skip {len(skipped)} tokens, such as {words[0]!r}; moeir skips punctuation, or nothing")
    options = {
        "normalise": is_pylate or "Normalize" in dict(modules),
        "markers": has_markers,
        "augmentation": bool(expansion),
        "attend_masks": bool(expansion.get("attend")),
    }
    return {name: str(value).lower() for name, value in options.items()} | {"dim": dim, "punctuation": punctuation}, weights


def _read_splade(modules: Modules, fields: dict[str, Any], requested: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Options of a SPLADE head, and the weights of the tokens of queries that no encoder reads; `fields` get their length."""
    folders, encoder = dict(modules), modules[0][1]
    settings = _read_module(modules, "SpladePooling")
    file, options, choices = folders["SpladePooling"] / "config.json", {}, lexical.ACTIVATIONS
    if (pooling_strategy := settings.get("pooling_strategy") or "max") != "max":
        _refuse(f"{file}: pooling_strategy is {pooling_strategy!r}; moeir reads 'max'")
    if (activation := settings.get("activation_function")) in choices:
        options["activation"] = activation
    elif activation and "activation" not in requested:
        _refuse(f"{file}: activation_function is {activation!r}; moeir reads {' and '.join(map(repr, choices))}")
    if QUERY_WEIGHTS not in folders:
        return options, {}
    static = folders[QUERY_WEIGHTS]
    _read_module(modules, QUERY_WEIGHTS)
    if load_tokenizer(static)[1] != load_tokenizer(encoder)[1]:
        raise ArtifactError(f"{static}: its vocabulary is not that of {encoder}; moeir reads queries and documents with one tokenizer")
    length = int(min(read_tokenizer_config(static).get("model_max_length") or fields["query_length"], fields["query_length"]))
    fields["query_length"] = min(length + 2, fields["query_length"])  # there, special tokens are not added
    weights = {f"heads.lexical.query_{name}s": tensor / lexical.WEIGHT_UNIT for name, tensor in _read_tensors(static).items()}
    if any(bool((tensor < 0).any()) for tensor in weights.values()):
        _refuse(f"{static}: tokens with negative weights; moeir leaves such tokens out of queries")
    return options | {"queries": "tokens"}, weights


def write_dense_files(
    folder: Path, input_config: InputConfig, hidden: int, head: PoolingHead, dimension: int | None = None, *, sides: bool = False
) -> None:
    """The files of a SentenceTransformer with one vector per text, cut to `dimension`. It has one length for both sides, the larger one, or
    that of each with `sides`, which sentence-transformers 6 reads."""
    modes = {f"pooling_mode_{key}": POOLINGS.get(mode, mode) == head.pooling for key, mode in POOLING_MODES.items()}
    settings = {"word_embedding_dimension": hidden, **modes}
    modules: dict[str, tuple[str, dict[str, Any]]] = {"1_Pooling": ("sentence_transformers.models.Pooling", settings)}
    names = {kind: name for name, kind in MAP_ACTIVATIONS.items()}
    for number, projection in enumerate(head.projections, 2):
        linear, activation = projection.linear, names[type(projection.activation).__name__.lower()]
        settings = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None}
        modules[f"{number}_Dense"] = ("sentence_transformers.models.Dense", settings | {"activation_function": activation})
        write_weights(folder / f"{number}_Dense", linear.state_dict(prefix="linear."))
    modules |= {f"{len(modules) + 1}_Normalize": ("sentence_transformers.models.Normalize", {})} if head.normalise else {}
    write_modules(folder, input_config, TRANSFORMER, modules, sides=sides)
    settings = {"model_type": "SentenceTransformer", "similarity_fn_name": "cosine" if head.normalise else "dot"}
    write_config(folder, input_config, settings | ({} if dimension is None else {"truncate_dim": dimension}))


def write_modules(
    folder: Path, input_config: InputConfig, transformer: str, modules: Mapping[str, tuple[str, Mapping[str, Any]]], *, sides: bool = False
) -> None:
    """Write modules.json and each module's folder; `modules` maps a folder to (type, settings), in order after the encoder."""
    all_modules = {"": (transformer, {}), **modules}
    types = enumerate((subfolder, module_type) for subfolder, (module_type, _) in all_modules.items())
    entries = [{"idx": index, "name": str(index), "path": subfolder, "type": module_type} for index, (subfolder, module_type) in types]
    write_json(folder / "modules.json", entries)
    for subfolder, (_, settings) in modules.items():
        write_json(folder / subfolder / "config.json", settings)
    lengths = {f"{side}_length": input_config.max_length(side) for side in SIDES}
    own = lengths if sides and len({*lengths.values()}) > 1 else {}
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max(lengths.values()), "do_lower_case": False, **own})


def write_logit_score(folder: Path, input_config: InputConfig, token_ids: Sequence[int]) -> None:
    """The files of a CrossEncoder by the logits of words, and the template of its pairs for the roles query and document."""
    tokens = dict(zip(("true_token_id", "false_token_id"), (*token_ids, None), strict=False))
    write_modules(folder, input_config, f"{BASE}.Transformer", {"1_LogitScore": (LOGIT_SCORE, tokens)})
    modality = {"method": "forward", "method_output_name": "logits"}
    settings = {"transformer_task": "text-generation", "module_output_name": LOGITS, "max_seq_length": input_config.document_length}
    modalities = {"text": modality, "message": {**modality, "format": "flat"}}
    write_json(folder / "sentence_bert_config.json", settings | {"modality_config": modalities})
    write_json(folder / CONFIG_FILE, {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"})

    content = '{{{{ messages | selectattr("role", "eq", "{}") | map(attribute="content") | first | {} }}}}'
    default = f"default({json.dumps(input_config.instruction, ensure_ascii=False)})"
    roles = {pair_text.QUERY: ("query", "trim"), pair_text.DOCUMENT: ("document", "trim"), pair_text.INSTRUCTION: ("system", default)}
    parts = filter(None, re.split(f"({'|'.join(map(re.escape, roles))})", input_config.template))
    texts = (content.format(*roles[part]) if part in roles else f"{{{{ {json.dumps(part, ensure_ascii=False)} }}}}" for part in parts)
    (folder / CHAT_TEMPLATE).write_text("".join(texts), encoding="utf-8")


def write_config(folder: Path, input_config: InputConfig, facts: Mapping[str, Any]) -> None:
    """Write the prompts and what else concerns the whole folder."""
    prompts = {"query": input_config.query_prefix, "document": input_config.document_prefix, **input_config.prompts}
    write_json(folder / CONFIG_FILE, {"prompts": prompts, "default_prompt_name": input_config.default_prompt or None, **facts})


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the weights of a module, and its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights_io.write_tensors({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / "model.safetensors")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
