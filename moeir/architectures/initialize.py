"""Build checkpoints from plain weights: input configuration and classification head of the folder, or a fitted vocabulary head."""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeir import variants
from moeir.architectures import adapter_files
from moeir.architectures.base import Architecture
from moeir.architectures.checkpoint import (
    RetrievalModel,
    build_architecture,
    canonical_spec,
    check_token_ids,
    is_checkpoint,
    load_with_spec,
    read_metadata,
)
from moeir.architectures.cross_encoder import PairTokenizer
from moeir.architectures.input_config import InputConfig
from moeir.architectures.sentence_transformers_files import ACTIVATIONS, find_tokenizer, read_activation, read_folder_settings
from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io
from moeir.backbones.layers import list_frozen
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.pair_text import DEFAULT_INSTRUCTION, INSTRUCTION, read_chat_template
from moeir.backbones.tokenizer import TextTokenizer
from moeir.backbones.torch_files import read_torch_file
from moeir.errors import ArtifactError, UsageError
from moeir.heads import mlm_head
from moeir.heads.classification import WordLogitHead, binary_to_single_logit
from moeir.heads.lexical import LexicalHead
from moeir.heads.pooling import PoolingHead
from moeir.kernels.token_budget import split_by_tokens
from moeir.mixtures.router import ExpertRouter

KEEPS_FOLDER_OPTIONS = ("dense", "splade", "colbert", "cross-encoder")  # that take over the options of a folder of sentence-transformers
MAX_HEAD_TEXTS, MAX_BIAS_TEXTS = 400, 64  # to fit a whole head, and to fit a bias
MAX_GATE_TEXTS = 100
MAX_BATCH_TOKENS = 8192
PUBLISHED_HEADS = ("classifier.", "score.")  # of sequence classification in transformers
CLASSIFIER_OUTPUT = f"{weights_io.CLASSIFIER_PREFIX}output."
log = logging.getLogger(__name__)


def build_checkpoint(
    model: Path,
    arch: str | None,
    overrides: dict[str, Any],
    texts: Sequence[str] = (),
    seed: int = 42,
    *,
    random_weights: bool = False,
    backbone: str | None = None,
) -> RetrievalModel:
    """`open_weights`, with what they lack fitted on `texts`, if any."""
    checkpoint = open_weights(model, arch, overrides, seed, random_weights=random_weights, backbone=backbone)
    fit_fresh_parts(checkpoint, texts, seed)
    return checkpoint


def open_weights(
    model: Path,
    arch: str | None,
    overrides: dict[str, Any],
    seed: int = 42,
    *,
    random_weights: bool = False,
    backbone: str | None = None,
) -> RetrievalModel:
    """A checkpoint from plain weights, or from a checkpoint under other options; `fit_fresh_parts` completes it.

    `overrides` holds the fields of `InputConfig` set by the user. `random_weights` takes only the sizes and the tokenizer of a folder.
    `backbone` says whose layers run plain weights, moeir's or transformers' (`bidirectional`: with attention to later tokens), None for
    those that moeir has.
    """
    head_files = {} if arch is None else variants.bind_variant("architectures", arch).func.head_files
    folder = weights_io.resolve_model(model, head_files.values())
    options: dict[str, Any] = {"random_weights": random_weights, "backbone": backbone}
    if not is_checkpoint(folder):
        if arch is None:
            raise UsageError(f"{model}: plain weights; name an architecture: --arch came, dense, …; see: moeir variants architectures")
        return _from_plain_weights(model, folder, arch, {}, overrides, seed, **options)
    metadata = read_metadata(folder)
    if "calibration" in metadata:
        log.info("%s: its calibration is left out: new weights need a new one; see moeir calibrate", model)
    old_spec, input_config = metadata["architecture"], InputConfig.from_dict(metadata["reading"], str(folder))
    same = arch is None or variants.parse_spec(arch).name == variants.parse_spec(old_spec).name
    is_compatible = "trunk" not in metadata and weights_io.read_config(folder).get("model_type") != "moeir"
    if is_compatible and (arch is not None or random_weights):  # Hugging Face compatible files
        arch = _merge_specs(old_spec, arch or old_spec) if same else arch or old_spec
        return _from_plain_weights(model, folder, arch, asdict(input_config), overrides, seed, **options)
    if backbone is not None:
        raise UsageError(f"{model}: --backbone {backbone} is for plain weights, from which its checkpoint is made")
    if random_weights:
        name = variants.parse_spec(old_spec).name
        raise UsageError(f"{model}: --from-scratch: a {name} checkpoint is no plain weights; name those that it was made from")
    if same:
        opened = load_with_spec(folder, _merge_specs(old_spec, arch or old_spec), input_config)
        return replace(opened, input_config=_override_input(input_config, overrides, opened.architecture, opened.tokenizer))
    reason = f"a {variants.parse_spec(old_spec).name} checkpoint cannot become {variants.parse_spec(arch).name}"
    raise ArtifactError(f"{model}: {reason}; start from its base weights")


def is_cross_encoder(model: Path, arch: str | None) -> bool:
    """Whether `build_checkpoint` would build a cross-encoder."""
    if arch is None and not is_checkpoint(folder := weights_io.resolve_model(model)):
        return False  # `build_checkpoint` refuses it
    spec = arch or read_metadata(folder)["architecture"]
    is_pair_model: bool = variants.bind_variant("architectures", spec).func.reads_pairs
    return is_pair_model


def _merge_specs(old: str, new: str) -> str:
    options = dict(variants.parse_spec(old).options) | dict(variants.parse_spec(new).options)
    return str(variants.Spec(variants.parse_spec(new).name, tuple(options.items())))


def _from_plain_weights(
    model: Path,
    folder: Path,
    arch: str,
    fields: dict[str, Any],
    overrides: dict[str, Any],
    seed: int,
    *,
    random_weights: bool,
    backbone: str | None,
) -> RetrievalModel:
    """`model` is what the user calls `folder`; `fields` are those of the `InputConfig` of a checkpoint, before the user's `overrides`."""
    torch.manual_seed(seed)
    name, requested = variants.parse_spec(arch).name, dict(variants.parse_spec(arch).options)
    adapters, settings_folder, trunk_folder = adapter_files.find_adapters(folder, name, requested), folder, None
    if own := adapters.get(adapter_files.OWN):
        model, trunk_folder = Path(own.base), weights_io.resolve_model(Path(own.base), revision=own.revision)
    if adapters:
        described = adapter_files.describe_options(next(iter(adapters.values())))
        arch = _merge_specs(arch, str(variants.Spec(name, tuple(described.items()))))
    folder, folder_config, options, head_weights = read_folder_settings(folder, name, requested, trunk=trunk_folder)
    tokenizer, config = TextTokenizer(find_tokenizer(settings_folder, folder)), weights_io.read_config(folder)
    weights_io.note_backbone(config, backbone)
    if name in KEEPS_FOLDER_OPTIONS and options.keys() <= dict(variants.parse_spec(canonical_spec(arch)).options).keys():
        arch = _merge_specs(str(variants.Spec(name, tuple(options.items()))), arch)
    else:
        _log_overridden_options(folder, arch, options)
    encoder = _read_encoder(folder, config, random_weights=random_weights, bidirectional=backbone == "bidirectional")
    check_token_ids(folder, tokenizer, encoder.config)
    architecture = build_architecture(arch, encoder, tokenizer.special_tokens)
    trunk = _open_trunk(architecture, model, folder, config, random_weights=random_weights)
    for expert, adapter in adapters.items():
        adapter_files.copy_adapter(adapter, architecture, expert)
    _warn_of_first_token(folder, architecture)
    query, document = (min(length, encoder.config.positions) for length in architecture.default_lengths)
    default = replace(InputConfig(query_length=query, document_length=document), **folder_config)
    if architecture.reads_pairs:
        default = replace(default, query_length=min(query, default.document_length // 2))
    input_config = _override_input(replace(default, **fields), overrides, architecture, tokenizer)
    if architecture.reads_pairs:
        PairTokenizer.from_architecture(tokenizer, input_config, architecture)  # raises for lengths that leave no room for a document
    if architecture.reads_pairs and not random_weights and not isinstance(architecture.heads["relevance"], WordLogitHead):
        load_classification_head(folder, architecture)
    if not random_weights:
        load_head_files(folder, architecture)
        _load_head_weights(folder, architecture, head_weights)
    model = RetrievalModel(architecture, tokenizer, input_config, canonical_spec(arch), config, trunk=trunk)
    if architecture.reads_pairs:
        return model
    has_head = random_weights or encoder.file_names is not None or weights_io.has_vocabulary_head(folder)
    fitted = {"gates": True, "head": not has_head, "query weights": random_weights or not head_weights}
    model.unfitted = {name for name, is_fitted in fitted.items() if is_fitted}
    return model


def fit_fresh_parts(model: RetrievalModel, texts: Sequence[str], seed: int) -> None:
    """Fit what plain weights do not have on texts: gates, the vocabulary head, the weights of tokens in queries."""
    architecture, unfitted, model.unfitted = model.architecture, model.unfitted, set()
    if not unfitted:
        return
    routers = [router for router in architecture.routers().values() if isinstance(router, ExpertRouter)]
    if centred := [router for router in routers if router.gate_start == "centred"]:
        _centre_gates(model, centred, list(texts) or _draw_vocabulary_texts(model.tokenizer, seed))
    lexical = [head for head in architecture.heads.values() if isinstance(head, LexicalHead)]
    if architecture.encoder.vocabulary_head is not None and ("head" in unfitted or any(head.bias is not None for head in lexical)):
        _fit_mlm_head(model, texts, seed)
    for head in lexical:
        if head.query_weights is not None and "query weights" in unfitted:
            head.set_query_weights(_start_query_weights(model, texts))


def _open_trunk(
    architecture: Architecture, model: Path, folder: Path, config: Mapping[str, Any], *, random_weights: bool
) -> adapter_files.Trunk | None:
    """The trunk under the adapters of an architecture, held in the dtype of its files from then on; None without adapters."""
    if not list_frozen(architecture):
        return None
    if random_weights:
        raise UsageError("--from-scratch: adapters need trained weights under them; leave one of the two out")
    dtype = "bfloat16" if str(config.get("dtype") or config.get("torch_dtype")) == "bfloat16" else "float32"
    by_transformers = "transformers" if config.get("is_causal", True) else "bidirectional"
    backbone = by_transformers if weights_io.uses_transformers(config) else "moeir"
    trunk = adapter_files.Trunk.from_folder(model, folder, backbone, dtype)
    adapter_files.hold_trunk(architecture, trunk)
    return trunk


def _read_encoder(folder: Path, config: dict[str, Any], *, random_weights: bool, bidirectional: bool) -> Encoder:
    """The encoder of plain weights with its vocabulary head, or with random weights."""
    if random_weights:
        encoder = weights_io.make_encoder(config, folder, vocabulary_head=True, initialize=True)
    else:
        encoder = weights_io.read_encoder(folder, config=config)
    if bidirectional:
        encoder.check_bidirectional()
    return encoder


def _warn_of_first_token(folder: Path, architecture: Architecture) -> None:
    pools_first = any(isinstance(head, PoolingHead) and head.pooling == "cls" for head in architecture.heads.values())
    if architecture.encoder.is_causal and pools_first:
        log.warning("%s: attends to earlier tokens alone, so that its first token reads nothing; set pooling=last or pooling=mean", folder)


def _override_input(
    input_config: InputConfig, overrides: dict[str, Any], architecture: Architecture, tokenizer: TextTokenizer
) -> InputConfig:
    """An input configuration with the user's fields; of a pair, the length that the user leaves out follows from the other: a query gets at
    most half of it, and a decoder's template is that of its chats. UsageError for lengths that the encoder cannot read."""
    overridden, positions = input_config.override(overrides), architecture.encoder.config.positions
    head = architecture.heads["relevance"] if architecture.reads_pairs else None
    if not isinstance(head, WordLogitHead):
        if flag := next((name for name in ("template", "instruction") if overrides.get(name)), None):
            raise UsageError(f"--{flag}: is for cross-encoder:head=yes-no")
        overridden = replace(overridden, template="", instruction="")
    elif not overridden.template:
        template, instruction = read_chat_template(tokenizer, head.words, overridden.instruction)
        overridden = replace(overridden, template=template, instruction=instruction)
    elif "template" in overrides and "instruction" not in overrides:
        instruction = (overridden.instruction or DEFAULT_INSTRUCTION) if INSTRUCTION in overridden.template else ""
        overridden = replace(overridden, instruction=instruction)
    if architecture.reads_pairs and "query_length" not in overrides and "document_length" in overrides:
        overridden = replace(overridden, query_length=max(3, min(overridden.query_length, overridden.document_length // 2)))
    elif architecture.reads_pairs and "query_length" in overrides and "document_length" not in overrides:
        overridden = replace(overridden, document_length=min(max(overridden.document_length, 2 * overridden.query_length), positions))
    overridden.check(positions)
    return overridden


@torch.no_grad()
def _centre_gates(model: RetrievalModel, routers: Sequence[ExpertRouter], texts: Sequence[str]) -> None:
    """Make fresh gates use all experts equally: centre each layer's gate on its mean input, queries and documents weighing the same."""
    side_means: dict[ExpertRouter, list[Tensor]] = {router: [] for router in routers}

    def note(router: ExpertRouter, inputs: tuple[Tensor, PackedTokens, Tensor]) -> None:
        gate_inputs = router.select_gate_input(*inputs).double()
        parts[router].append((gate_inputs.sum(0), len(gate_inputs)))

    hooks = [router.register_forward_pre_hook(note) for router in routers]
    for side in ("query", "document"):
        parts: dict[ExpertRouter, list[tuple[Tensor, int]]] = {router: [] for router in routers}
        model.encode(texts[:MAX_GATE_TEXTS], side)
        for router in routers:
            side_means[router].append(sum(total for total, _ in parts[router]) / sum(count for _, count in parts[router]))
    for hook in hooks:
        hook.remove()
    for router in routers:
        router.centre_gate(torch.stack(side_means[router]).mean(0))


def _log_overridden_options(folder: Path, arch: str, folder_options: dict[str, str]) -> None:
    """Log the options of the weights that an architecture overrides with those of its paper."""
    options = dict(variants.parse_spec(canonical_spec(arch)).options)
    requested = dict(variants.parse_spec(arch).options)
    overridden = [name for name, value in folder_options.items() if name in options and name not in requested and options[name] != value]
    if overridden:
        theirs, ours = (",".join(f"{name}={values[name]}" for name in overridden) for values in (folder_options, options))
        log.info("%s was trained with %s; %s uses %s unless --arch sets them", folder, theirs, variants.parse_spec(arch).name, ours)


@torch.no_grad()
def _fit_mlm_head(model: RetrievalModel, texts: Sequence[str], seed: int) -> None:
    """Fit the head, or of a decoder the bias of the lexical expert, on the states of that, which are still those of the plain weights."""
    architecture = model.architecture.eval()
    sample = list(texts) or _draw_vocabulary_texts(model.tokenizer, seed)
    is_lexical, head = "lexical" in architecture.representation_kinds, architecture.encoder.vocabulary_head
    lexical = architecture.heads["lexical"] if is_lexical else None
    bias = lexical.bias if isinstance(lexical, LexicalHead) and lexical.bias is not None else None
    sample = random.Random(seed).sample(sample, min(MAX_HEAD_TEXTS if bias is None else MAX_BIAS_TEXTS, len(sample)))
    ids, _ = model.token_ids(sample, "document")
    ids.sort(key=len)
    batches = split_by_tokens([len(text) for text in ids], MAX_BATCH_TOKENS)
    parts = [PackedTokens.from_lists(ids[first:last], "document") for first, last in batches]
    outputs = [architecture.encode_states(part, ["lexical"])["lexical"] if is_lexical else architecture.encoder(part) for part in parts]
    states, token_ids = torch.cat(outputs), torch.cat([part.ids for part in parts])
    special_tokens = architecture.special_tokens
    special_ids = [number for number in (special_tokens.beginning, special_tokens.separator) if number is not None]
    is_ordinary = ~torch.isin(token_ids, torch.tensor(special_ids))
    words, tokens = architecture.encoder.vocabulary_words, (states[is_ordinary], token_ids[is_ordinary])
    assert head is not None
    fitted = "no vocabulary head in the weights: fitted one"
    if bias is not None:
        fitted, report = "no bias in the vocabulary head: fitted one", mlm_head.fit_bias(bias, head, words, *tokens)
    else:
        report = mlm_head.fit_mlm_head(head, words, *tokens)
    if architecture.document_encoder is not None and architecture.document_encoder.vocabulary_head is not None:
        architecture.document_encoder.vocabulary_head.load_state_dict(head.state_dict())
    log.info(
        "%s on %d tokens of %d %s; its strongest term is the token's own word for %.0f %% of them, and %.4f %% of terms start above zero",
        *(fitted, report.token_count, len(sample), "texts" if texts else "lists of words"),
        *(100 * report.top1_share, 100 * report.positive_share),
    )


def _start_query_weights(model: RetrievalModel, texts: Sequence[str]) -> Tensor:
    """Weights of tokens in queries that no encoder reads: inverse document frequencies in the texts, ln((N + 1) / (n + 1)), divided by
    the mean over the texts' tokens, or 1 without texts; [V]. The tokens of the queries' prefix, which say nothing about a query, have 0.
    """
    weights = torch.ones(model.architecture.encoder.config.vocabulary)
    if texts:
        ids_by_text = [torch.tensor(ids).unique() for ids in model.token_ids(list(texts), "document")[0]]
        idf = torch.log((len(texts) + 1) / (torch.bincount(torch.cat(ids_by_text), minlength=len(weights)) + 1))
        weights = idf / torch.cat([idf[ids] for ids in ids_by_text]).mean()
    return weights.index_fill(0, torch.tensor(model.token_ids([""], "query")[0][0]), 0.0)


def _draw_vocabulary_texts(tokenizer: TextTokenizer, seed: int) -> list[str]:
    """Texts for use without a corpus: random lists of thirty whole words of the vocabulary."""
    words = [word for number in range(tokenizer.vocabulary_size) if (word := tokenizer.whole_word(number))]
    random.Random(seed).shuffle(words)
    return [" ".join(words[first : first + 30]) for first in range(0, len(words), 30)]


def _load_head_weights(folder: Path, architecture: Architecture, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights that a folder has for the heads."""
    parameters = dict(architecture.named_parameters())
    prefixes = {name.rpartition(".")[0] for name in weights}
    expected = {name: one for name, one in parameters.items() if name in weights or name.rpartition(".")[0] in prefixes}
    if differing := sorted(expected.keys() ^ weights.keys()):
        raise ArtifactError(f"{folder}: the weights of its modules are not those that their settings describe (first: {differing[0]})")
    weights_io.check_shapes(folder, expected, weights)
    architecture.load_state_dict(weights, strict=False)


@torch.no_grad()
def load_classification_head(folder: Path, architecture: Architecture) -> None:
    """Copy a folder's pooler and classification head into a cross-encoder; missing weights keep their random initialisation.

    Two classes are reduced to one logit; ArtifactError for more than two.
    """
    config = weights_io.read_config(folder)
    if architecture.encoder.file_names is not None:  # a model of transformers
        names = [name for file in weights_io.list_weight_files(folder) for name in weights_io.read_header(folder / file)]
        if name := next((name for name in names if name.startswith(PUBLISHED_HEADS)), None):
            log.warning("%s: its head (%s …) is not read, as moeir has no such family; another one is initialised at random", folder, name)
        return
    activation = read_activation(folder, config)
    if activation.rpartition(".")[2] not in ACTIVATIONS:
        raise ArtifactError(f"{folder}: its scores pass through {activation}; moeir's are logits, ranked as under {', '.join(ACTIVATIONS)}")
    weights = weights_io.read_weights(folder, config)
    parameters = {name.removeprefix("encoder."): value for name, value in architecture.state_dict().items()}
    parameters = {name: value for name, value in parameters.items() if name.startswith(("pooler.", weights_io.CLASSIFIER_PREFIX))}
    weight = weights.get(f"{CLASSIFIER_OUTPUT}weight")
    if weight is not None and weight.ndim == 2 and len(weight) == 2:
        weights[f"{CLASSIFIER_OUTPUT}weight"], bias = binary_to_single_logit(weight, weights.get(f"{CLASSIFIER_OUTPUT}bias"))
        if bias is not None:
            weights[f"{CLASSIFIER_OUTPUT}bias"] = bias
        log.info("%s: two classes; the score is the second logit minus the first", folder)
    elif weight is not None and weight.ndim == 2 and len(weight) > 2:
        raise ArtifactError(f"{folder}: the head has {len(weight)} classes; expected 1, or 2 (no and yes), to score pairs")
    if missing := {name for name in parameters if name.startswith(weights_io.CLASSIFIER_PREFIX)} - weights.keys():
        log.info("%s: has no classification head; %s is initialised at random", folder, ", ".join(sorted(missing)))
    if unread := sorted(name for name in weights if name.startswith(weights_io.CLASSIFIER_PREFIX) and name not in parameters):
        log.warning("%s: %d weights are not read, first %s: this cross-encoder's head has none", folder, len(unread), unread[0])
    weights_io.check_shapes(folder, parameters, weights)
    for name, parameter in parameters.items():
        if name in weights:
            parameter.copy_(weights[name])


def load_head_files(folder: Path, architecture: Architecture) -> None:
    """Copy the heads that `head_files` of an architecture names into it; ArtifactError for a file that is missing or of other sizes."""
    for expert, name in architecture.head_files.items():
        path, projection = folder / name, architecture.heads[expert].projection
        if not path.is_file():
            advice = "fresh_heads=true draws the heads at random, to train them"
            raise ArtifactError(f"{folder}: no {name}, the head of the {expert} expert; {advice}")
        tensors, parameters = read_torch_file(path), dict(projection.named_parameters())
        shapes, expected = ({key: list(one.shape) for key, one in values.items()} for values in (tensors, parameters))
        if shapes != expected:
            advice = ": local_dim sets the width of token vectors" if expert == "local" else ""
            raise ArtifactError(f"{path}: has the weights {shapes}; expected {expected}{advice}")
        weights_io.check_shapes(path, parameters, tensors)
        projection.load_state_dict(tensors)
