"""Folders as they are published, with tiny weights: the numbers are those of sentence-transformers, whether moeir reads the folder or
sentence-transformers reads what `moeir convert` makes of it."""

import functools
import json
import shutil
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, processors

from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.errors import ArtifactError
from tests.architectures.folders import ST, assert_refused, change_json, list_modules, write_files
from tests.backbones.tiny_models import TINY_MODELS, draw_model
from tests.backbones.tiny_tokenizers import ALL_WRITERS, write_bert, write_roberta, write_xlm_roberta
from tests.conftest import run_in_process, run_moeir

peer = pytest.importorskip("sentence_transformers")
QUERIES = ["the owl hunting at night", "the whale in the sea, " * 9, "mice"]
DOCUMENTS = ["An owl hunting mice (at night).", "bread! the end ... " * 12, "cat"]
SPARSE = "sentence_transformers.sparse_encoder.models"
CONFIG, DENSE, SPLADE = "config_sentence_transformers.json", "1_Dense/config.json", "1_SpladePooling/config.json"
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
ROOT = {"sentence_bert_config.json": {"max_seq_length": 30, "do_lower_case": False}}
MEAN, CLS, LAST = ({"1_Pooling/config.json": {"word_embedding_dimension": 24, f"pooling_mode_{name}": True}} for name in (
    "mean_tokens", "cls_token", "lasttoken",
))  # fmt: skip


def name_modules(*kinds: str) -> dict[str, Any]:
    """modules.json: the encoder first, in the folder itself."""
    paths = ["", *(f"{number}_{kind.rpartition('.')[2]}" for number, kind in enumerate(kinds[1:], 1))]
    return {"modules.json": list_modules(*zip(kinds, paths))}


def describe_dense(number: int, inputs: int, outputs: int, *, bias: bool = False, activation: str = IDENTITY) -> dict[str, Any]:
    settings = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation}
    return {f"{number}_Dense/config.json": settings}


def describe_prompts(default: str | None = None, **prompts: str) -> dict[str, Any]:
    facts = {"__version__": {"sentence_transformers": "3.0.0"}, "prompts": prompts, "default_prompt_name": default}
    return {CONFIG: facts | {"similarity_fn_name": "cosine"}}


MODULES_6 = "sentence_transformers.sentence_transformer.modules"
V6 = {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}
V6 |= {"module_output_name": "token_embeddings"}
POOLED = name_modules(f"{ST}.Transformer", f"{ST}.Pooling")
VECTOR, ONE_MAP, TWO_MAPS = (
    name_modules(f"{ST}.Transformer", f"{ST}.Pooling", *[f"{ST}.Dense"] * count, f"{ST}.Normalize") for count in range(3)
)
LATE = name_modules(f"{ST}.Transformer", "pylate.models.Dense.Dense") | describe_dense(1, 24, 8)
TASKS = {"query": "owl: ", "document": "mice: ", "sts": "cat night: ", "Retrieval-query": "the owl in the sea: "}
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "initializer_range": 0.3}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
MODELS = TINY_MODELS | {  # what transformers' modules run
    "mpnet": ("MPNet", SMALL | {"pad_token_id": 1}),
    "t5": ("T5Encoder", {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}),
    "nomic": ("NomicBert", SMALL),
    "qwen3": ("Qwen3", GROUPED | {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 2}),
    "gemma3": ("Gemma3Text", GROUPED | {"use_bidirectional_attention": True, "sliding_window": 8, "layer_types": [
        "sliding_attention", "full_attention",
    ]}),
}  # fmt: skip
PYLATE = {
    "model_type": "ColBERT",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 14,
    "document_length": 26,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
    "do_query_expansion": True,
}
ROUTES = {
    "types": {"query_0": f"{SPARSE}.SparseStaticEmbedding", "": f"{SPARSE}.MLMTransformer", "document_1": f"{SPARSE}.SpladePooling"},
    "structure": {"query": ["query_0"], "document": ["", "document_1"]},
    "parameters": {"default_route": "document", "allow_empty_key": True},
}
SPARSE_CONFIG = {CONFIG: {"model_type": "SparseEncoder", "prompts": {}, "similarity_fn_name": "dot"}}
TOKENIZERS = {"mpnet": write_roberta, "t5": write_xlm_roberta, "qwen3": write_roberta, "gemma3": write_roberta}
ENDS = {"mpnet": "<s> $A </s>", "t5": "$A </s>", "qwen3": "$A </s>", "gemma3": "<s> $A </s>"}


class Layout(NamedTuple):
    """A published folder: the tiny model and its class, the files beside it, and the architecture it becomes."""

    model: str
    files: dict[str, Any]
    arch: str = "dense"
    task: str = "Model"
    sizes: Mapping[str, Any] = MappingProxyType({})


BASE = "sentence_transformers.base.modules"
LAYOUTS = {
    "of version 0": Layout(
        "bert",
        {"modules.json": list_modules((f"{ST}.Transformer", "0_Transformer"), (f"{ST}.Pooling", "1_Pooling"))} | MEAN
        | {"0_Transformer/sentence_bert_config.json": {"max_seq_length": 24}},
    ),
    "of version 2": Layout("bert", POOLED | MEAN | {"sentence_roberta_config.json": {"max_seq_length": 18}}),
    "of version 6": Layout(
        "bert",
        name_modules(f"{BASE}.transformer.Transformer", f"{MODULES_6}.pooling.Pooling", f"{BASE}.normalize.Normalize") | {
            "1_Pooling/config.json": {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": True},
            "2_Normalize/config.json": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"},
            "sentence_bert_config.json": {"transformer_task": "feature-extraction", **V6},
            CONFIG: {"model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}, "similarity_fn_name": "cosine"},
        },
    ),
    "with a length for each side": Layout("bert", {
        "modules.json": list_modules((f"{BASE}.transformer.Transformer", ""), (f"{MODULES_6}.pooling.Pooling", "any name")),
        "any name/config.json": {"embedding_dimension": 24, "pooling_mode": "mean"},
        "sentence_bert_config.json": {**V6, "query_length": 12, "document_length": 26},
    }),
    "e5": Layout("bert", VECTOR | ROOT | MEAN | describe_prompts(query="query: ", document="passage: ", passage="passage: ")),
    "multilingual-e5": Layout("xlm-roberta", VECTOR | ROOT | MEAN),
    "all-mpnet-base-v2": Layout("mpnet", VECTOR | ROOT | MEAN),
    "gtr-t5": Layout("t5", ONE_MAP | ROOT | MEAN | describe_dense(2, 24, 20)),
    "nomic-embed-text-v1.5": Layout("nomic", VECTOR | ROOT | MEAN | describe_prompts(query="query: ", document="document: ")),
    "Qwen3-Embedding": Layout("qwen3", VECTOR | LAST | describe_prompts(query="the owl: ", document="", sts="the cat: ")),
    "EmbeddingGemma": Layout(
        "gemma3", TWO_MAPS | ROOT | MEAN | describe_dense(2, 24, 48) | describe_dense(3, 48, 24) | describe_prompts(**TASKS)
    ),
    "bge": Layout("bert", VECTOR | ROOT | CLS | describe_prompts(query="the owl: ")),
    "LaBSE": Layout("bert", TWO_MAPS | ROOT | CLS | describe_dense(2, 24, 40, bias=True, activation=TANH) | describe_dense(3, 40, 16)),
    "GTE-ModernColBERT": Layout("modernbert", LATE | ROOT | {CONFIG: PYLATE}, "colbert", sizes={"local_attention": 64}),
    "ColBERT without expansion": Layout(
        "bert",
        LATE | {CONFIG: PYLATE | {
            "query_prefix": "[unused0]", "document_prefix": "[unused1]", "do_query_expansion": False, "skiplist_words": [],
        }},
        "colbert",
    ),
    "splade-v3": Layout(
        "bert",
        name_modules(f"{SPARSE}.MLMTransformer", f"{SPARSE}.SpladePooling") | ROOT | SPARSE_CONFIG
        | {SPLADE: {"pooling_strategy": "max", "activation_function": "relu"}},
        "splade",
        "ForMaskedLM",
    ),
    "opensearch-neural-sparse": Layout(
        "distilbert",
        name_modules(f"{ST}.Router") | {"router_config.json": ROUTES} | SPARSE_CONFIG | {
            "document_1/config.json": {"pooling_strategy": "max", "activation_function": "log1p_relu"},
            "query_0/config.json": {"frozen": False},
        },
        "splade",
        "ForMaskedLM",
    ),
}  # fmt: skip


def write_tokenizer(model: str, folder: Path) -> int:
    """A tiny tokenizer in the form of the model's, with PyLate's markers where it is ModernBERT's."""
    size = TOKENIZERS.get(model, ALL_WRITERS.get(model, write_bert))(folder)
    if model not in (*ENDS, "modernbert"):
        return size
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if model in ENDS:
        parts = {"special_tokens": [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>") if token in ENDS[model]]}
        tokenizer.post_processor = processors.TemplateProcessing(single=ENDS[model], pair=f"{ENDS[model]} $B", **parts)
        special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "model_max_length": 30}
        special |= {"pad_token": "</s>", "padding_side": "left"} if model == "qwen3" else {}
    else:
        size += tokenizer.add_tokens([AddedToken("[Q] ", normalized=False), AddedToken("[D] ", normalized=False)])
        special = {"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    return size


@pytest.fixture(scope="module")
def write_layout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the folder of a layout, once."""
    return functools.cache(lambda name: _write_layout(LAYOUTS[name], tmp_path_factory.mktemp("layout") / "folder"))


def _write_layout(layout: Layout, folder: Path) -> Path:
    encoder = folder / layout.files["modules.json"][0]["path"]
    size = write_tokenizer(layout.model, encoder)
    family, settings = MODELS[layout.model]
    settings = settings | {"vocab_size": size, "max_position_embeddings": 40, **layout.sizes}
    config = getattr(transformers, f"{family.removesuffix('Encoder')}Config")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        draw_model(getattr(transformers, f"{family}{layout.task}"), config).save_pretrained(encoder)
        write_files(folder, layout.files)
        for name, content in layout.files.items():
            if "_Dense" in name:
                weights = {"linear.weight": torch.randn(content["out_features"], content["in_features"])}
                weights |= {"linear.bias": torch.randn(content["out_features"])} if content["bias"] else {}
                save_file(weights, folder / name.replace("config.json", "model.safetensors"))
        if (folder / "query_0").exists():
            write_tokenizer(layout.model, folder / "query_0")
            save_file({"weight": torch.randn(size).relu()}, folder / "query_0/model.safetensors")
    for part in (encoder, *filter(Path.exists, [folder / "query_0"])):
        if not (part / "tokenizer_config.json").exists():
            transformers.AutoTokenizer.from_pretrained(encoder, model_max_length=30).save_pretrained(part)
    return folder


def encode_both(model: Any) -> list[np.ndarray]:
    """What a model of sentence-transformers makes of the queries and of the documents, a matrix for each text."""
    outputs = [*model.encode_query(QUERIES), *model.encode_document(DOCUMENTS)]
    return [np.atleast_2d(one.to_dense() if getattr(one, "is_sparse", False) else np.asarray(one)) for one in outputs]


def encode_here(checkpoint: RetrievalModel) -> list[np.ndarray]:
    """The same of a checkpoint."""
    matrices = []
    for side, texts in (("query", QUERIES), ("document", DOCUMENTS)):
        [part] = checkpoint.encode(texts, side).values()
        for own in (part.select(torch.tensor([row])) for row in range(len(texts))):
            matrices.append((own.to_matrix() if own.kind == "sparse" else own.vectors).numpy())
    return matrices


def open_peer(arch: str, folder: Path) -> Any:
    kinds = {"dense": peer.SentenceTransformer, "splade": peer.SparseEncoder, "colbert": peer.MultiVectorEncoder}
    return kinds[arch](str(folder), device="cpu")


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and np.abs(one - other).max() <= 2e-5 * np.abs(other).max() + 1e-6
        assert len(np.unique(one)) > 1  # not the same everywhere


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_folder_has_the_vectors_of_sentence_transformers_in_both_directions(name, write_layout, tmp_path):
    """Also what sentence-transformers makes of a folder of PyLate."""
    arch, folder = LAYOUTS[name].arch, write_layout(name)
    run_moeir("init", "--model", folder, "--arch", arch, "--output", tmp_path / "ckpt")
    checkpoint, theirs = open_checkpoint(tmp_path / "ckpt"), encode_both(open_peer(arch, folder))
    assert_same(encode_here(checkpoint), theirs)
    target = "pylate" if arch == "colbert" else "sentence-transformers"
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", target, "--output", tmp_path / "out")
    assert_same(encode_both(open_peer(arch, tmp_path / "out")), theirs)
    (tmp_path / "out/manifest.json").unlink()  # a folder of another origin
    again = build_checkpoint(tmp_path / "out", arch, {})
    assert (again.spec, again.input_config) == (checkpoint.spec, checkpoint.input_config)
    if arch == "colbert":
        open_peer(arch, folder).save_pretrained(str(tmp_path / "theirs"))
        assert (tmp_path / "theirs/2_MultiVectorMask").exists()
        assert_same(encode_here(build_checkpoint(tmp_path / "theirs", arch, {})), encode_both(open_peer(arch, tmp_path / "theirs")))


def change(*keys: str, **values: Any) -> Callable[[Path], None]:
    return lambda file: change_json(file, *keys, **values)


REFUSED = [  # layout, file, its change, and the words of the error
    ("GTE-ModernColBERT", DENSE, change(use_residual=True), "moeir cannot keep use_residual, true"),
    ("GTE-ModernColBERT", DENSE, change(activation_function=TANH), "maps of its tokens are 8-tanh"),
    ("GTE-ModernColBERT", CONFIG, change(document_prefix="[MASK]"), r"the token '\[MASK\]'; moeir has '\[Q\] ' and "),
    ("GTE-ModernColBERT", CONFIG, change(skiplist_words=["the", "!"]), "documents skip 1 tokens, such as 'the'"),
    ("GTE-ModernColBERT", CONFIG, change(similarity_fn_name="meanmaxsim"), "moeir cannot keep similarity_fn_name, "),
    ("GTE-ModernColBERT", CONFIG, change(token_pooling=2), "moeir cannot keep token_pooling, 2"),
    ("LaBSE", "2_Dense/config.json", change(module_input_name="token_embeddings"), "moeir cannot keep module_input_name, "),
    ("LaBSE", "2_Dense/config.json", change(activation_function="torch.nn.Softmax"), "cannot keep activation_function, "),
    ("LaBSE", "2_Dense/config.json", change(bias=False), r"not those that their settings describe \(first: heads.global"),
    ("LaBSE", "2_Dense/config.json", change(out_features=39), r"shape \[40, 24\]; config.json says \[39, 24\]"),
    ("bge", CONFIG, change("prompts", sts="[CLS] owl: "), r"prompt '\[CLS\] owl: ' has the special token \[CLS\]"),
    ("bge", "sentence_bert_config.json", change(modality_config={"message": {}}), "becomes a message of a chat template"),
    ("splade-v3", SPLADE, change(activation_function="gelu"), "activation_function is 'gelu'; moeir reads 'relu' and 'log1p_relu'"),
    ("splade-v3", SPLADE, change(pooling_strategy="sum"), "pooling_strategy is 'sum'; moeir reads 'max'"),
    ("opensearch-neural-sparse", "router_config.json", change("types", query_0=f"{SPARSE}.MLMTransformer"), "its module .*MLM"),
    ("opensearch-neural-sparse", "router_config.json", change("structure", document=["../x"]), "router_config.json: damaged"),
    ("opensearch-neural-sparse", "router_config.json", change("parameters", route_mappings={"a": 1}), "cannot keep route_map"),
    ("opensearch-neural-sparse", "query_0/config.json", change(path="idf.json"), "moeir cannot keep path, \"idf.json\""),
    ("opensearch-neural-sparse", "query_0/vocab.txt", Path.unlink, "its vocabulary is not that of"),
    ("opensearch-neural-sparse", "query_0/model.safetensors", lambda file: save_file({"weight": -torch.ones(78)}, file), "negative"),
    ("opensearch-neural-sparse", "query_0/model.safetensors", lambda file: save_file({"idf": torch.ones(78)}, file), "first: heads"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "file", "edit", "words"), REFUSED)
def test_what_cannot_be_kept_is_an_error_by_name(layout, file, edit, words, write_layout, tmp_path):
    folder = shutil.copytree(write_layout(layout), tmp_path / "folder")
    edit(folder / file)
    if file.endswith("vocab.txt"):
        write_tokenizer("modernbert", folder / "query_0")
    assert_refused(ArtifactError, words, build_checkpoint, folder, LAYOUTS[layout].arch, {})


def test_an_earlier_pylate_does_not_name_its_kind(write_layout, tmp_path):
    folder = shutil.copytree(write_layout("GTE-ModernColBERT"), tmp_path / "folder")
    specs = [build_checkpoint(folder, "colbert", {}).spec]
    change(model_type=None, skiplist_words=None)(folder / CONFIG)  # its default is all punctuation
    specs.append(build_checkpoint(folder, "colbert", {}).spec)
    assert specs[0] == specs[1] and "markers=true,augmentation=true" in specs[0] and "punctuation=characters" in specs[0]


@pytest.mark.parametrize(("layout", "arch", "words"), [
    ("LaBSE", "came:shared_layers=1", "moeir cannot keep its module Dense in came"),
    ("gtr-t5", "colbert", "moeir cannot keep its module Dense in colbert"),
    ("splade-v3", "dense", "its modules are MLMTransformer, SpladePooling"),
])  # fmt: skip
def test_modules_of_another_architecture_are_refused(layout, arch, words, write_layout, tmp_path):
    refused = run_in_process("init", "--model", write_layout(layout), "--arch", arch, "--output", tmp_path / "out")
    assert refused.code == 4 and words in refused.stderr and not (tmp_path / "out").exists()
