"""Settings of folders of sentence-transformers: read, or named in an error if a checkpoint cannot keep them."""

import json
import shutil

import pytest
import torch
import transformers

from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.input_config import InputConfig
from moeir.architectures.sentence_transformers_files import read_folder_settings, write_dense_files
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError
from moeir.heads.pooling import POOLINGS, PoolingHead
from tests.architectures.folders import ST, assert_refused, change_json, list_modules, save, write_files
from tests.conftest import run_moeir

QUERIES = ["Which OWLS hunt at night?", "why " * 40 + "owls"]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
POOLING |= {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")}
OLD = list_modules((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1_Pooling"))
SENTENCE, CONFIG, POOL = "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"
BASE = {"modules.json": OLD, POOL: POOLING, SENTENCE: {"max_seq_length": 20, "do_lower_case": False}}
BASE |= {CONFIG: {"__version__": {"sentence_transformers": "2.2.2"}}}


def write_folder(tiny_model, folder, files):
    """The tiny weights with the files of a sentence-transformers folder."""
    shutil.copytree(tiny_model, folder)
    write_files(folder, files)
    return folder


REFUSED = {
    "a Dense without weights": ("modules.json", [*OLD, *list_modules((f"{ST}.Dense", "2"))], "2: no model.safetensors"),
    "tokens' Dense": ("modules.json", [OLD[0], *list_modules((f"{ST}.Dense", "2")), OLD[1]], "Dense, Pooling; expected"),
    "own code": ("modules.json", list_modules(("custom_st.Transformer", "")), "custom_st.Transformer"),
    "no encoder": ("modules.json", list_modules((f"{ST}.Pooling", "1_Pooling")), "its modules are Pooling"),
    "a router": ("modules.json", list_modules((f"{ST}.Router", "")), "models.Router"),
    "no pooling": ("modules.json", OLD[:1], "its modules are Transformer; expected Transformer, Pooling"),
    "two poolings": (POOL, POOLING | {"pooling_mode_cls_token": True}, "pools by cls and mean"),
    "an unknown pooling": (POOL, {"pooling_mode": "attention"}, "pools by attention"),
    "prompts left out": (POOL, POOLING | {"include_prompt": False}, "include_prompt is false"),
    "an unknown key": (POOL, POOLING | {"temperature": 2}, "cannot keep temperature, 2"),
    "similarity": (CONFIG, {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'euclidean'"),
    "a wrong dimension": (CONFIG, {"truncate_dim": "8"}, "truncate_dim is '8'; expected a whole number or null"),
    "another state": (SENTENCE, {"modality_config": {"text": {"method_output_name": "pooler_output"}}}, "pooler_output"),
    "pixels": (SENTENCE, {"modality_config": {"text": 7}}, "its output is None"),
    "no object": (SENTENCE, {"config_args": [1]}, "config_args is [1]"),
    "expansion": (SENTENCE, {"query_expansion": {"length": 32}}, "cannot keep query_expansion"),
    "arguments": (SENTENCE, {"config_args": {"num_hidden_layers": 2}}, "cannot keep num_hidden_layers, 2"),
    "an adapter": ("adapter_config.json", {"peft_type": "LORA"}, "as PEFT writes them"),
    "cut at the start": ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side is 'left'"),
    "no file of the pooling": (POOL, None, "1_Pooling/config.json: missing"),
    "a path outside": ("modules.json", list_modules((f"{ST}.Transformer", "../x")), "a path in the folder"),
}


OTHER_TYPES = [
    *(("modules.json", content) for content in (7, {"type": "Pooling"}, [7], [{}], [{"type": 7}], ["Pooling"])),
    *((CONFIG, {"prompts": {"sts": value}}) for value in (7, ["x"])),
    *((SENTENCE, {"max_seq_length": value}) for value in (-1, True, "x", 1.5, 1e300, float("inf"), [16])),
    (SENTENCE, [16]),
    *((CONFIG, {"prompts": value}) for value in (7, "x", ["x"], {"query": 7}, {"document": ["x"]})),
    *((POOL, {"pooling_mode_cls_token": value}) for value in (None, 1, "true", [])),
    (POOL, "cls"),
]


@pytest.mark.parametrize(("file", "content", "message"), [*REFUSED.values(), *((*case, "expected ") for case in OTHER_TYPES)])
def test_what_a_checkpoint_cannot_keep_and_files_of_other_types_are_refused_by_name(file, content, message, tiny_model, tmp_path):
    folder = write_folder(tiny_model, tmp_path / "folder", BASE)
    (folder / file).write_text(json.dumps(content)) if content is not None else (folder / file).unlink()
    with pytest.raises(ArtifactError) as caught:
        build_checkpoint(folder, "dense", {})
    words = str(caught.value)
    assert message in words and "\n" not in words and (message != "expected " or words.startswith(f"{folder / file}: "))


def test_what_the_user_names_replaces_that_of_the_folder(tiny_model, tmp_path):
    files = BASE | {POOL: {"pooling_mode": "attention"}, CONFIG: {"prompts": {"query": "owl: "}}}
    folder = write_folder(tiny_model, tmp_path / "folder", files)
    checkpoint = build_checkpoint(folder, "dense:pooling=mean", {"query_prefix": "", "document_length": 16})
    config = checkpoint.input_config
    assert (config.query_prefix, config.query_length, config.document_length) == ("", 20, 16) and "pooling=mean" in checkpoint.spec


def test_the_length_of_a_text_is_that_of_a_pair_unless_the_user_names_another(tiny_model, tmp_path):
    folder = write_folder(tiny_model, tmp_path / "folder", BASE)
    for lengths, expected in (({}, (10, 20)), ({"document_length": 32, "query_length": 20}, (20, 32))):
        config = build_checkpoint(folder, "cross-encoder", lengths).input_config
        assert (config.query_length, config.document_length) == expected


COSINE = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
NORMALISED = [*OLD, *list_modules((f"{ST}.Normalize", "2_Normalize"))]
UNNAMED = "names no similarity; here it is the inner product, in sentence-transformers the cosine"
SPELLINGS = [  # files, the fields and options that are read, and the warning
    ({POOL: {"pooling_mode": ["mean"]}}, {}, {}, UNNAMED),
    ({POOL: {"pooling_mode": "cls"}, "modules.json": NORMALISED}, {}, {"normalise": "true", "pooling": "cls"}, ""),
    ({POOL: {"word_embedding_dimension": 8}, "modules.json": [*OLD, *list_modules((f"{ST}.Dropout", "2_Dropout"))]}, {}, {}, UNNAMED),
    (
        {SENTENCE: {"max_seq_length": None}, CONFIG: COSINE, "tokenizer_config.json": {"model_max_length": 22}},
        {"query_length": 22, "document_length": 22, "prompts": {"passage": "passage: "}}
        | {"query_prefix": "query: ", "document_prefix": "passage: "},
        {"normalise": "true"},
        "documents get the prompt 'passage'",
    ),
    (
        {SENTENCE: {}, CONFIG: {"prompts": {"sts": "owl: "}, "default_prompt_name": "sts"}}
        | {"tokenizer_config.json": {"model_max_length": 1e30}},
        {"query_length": 64, "document_length": 64, "prompts": {"sts": "owl: "}, "default_prompt": "sts"},
        {},
        "the default prompt 'sts' is for neither queries nor documents",
    ),
]


@pytest.mark.parametrize(("files", "fields", "options", "message"), SPELLINGS)
def test_settings_are_read_in_every_spelling(files, fields, options, message, tiny_model, tmp_path, caplog):
    settings = read_folder_settings(write_folder(tiny_model, tmp_path / "folder", BASE | files), "dense", {})
    defaults = {"query_length": 20, "document_length": 20, "query_prefix": "", "document_prefix": "", "prompts": {}, "default_prompt": ""}
    assert settings.fields == defaults | fields and settings.options == {"normalise": "false", "pooling": "mean"} | options
    assert message in caplog.text and bool(caplog.text) == bool(message)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_truncated_vectors_are_kept_where_their_similarity_is(similarity, tiny_model, tmp_path):
    files = BASE | {"modules.json": NORMALISED, CONFIG: {"truncate_dim": 8, "similarity_fn_name": similarity}}
    folder = write_folder(tiny_model, tmp_path / "folder", files)
    if similarity == "dot":
        words = "truncate_dim 8 cuts vectors that are normalised; moeir normalises them again"
        assert_refused(ArtifactError, words, build_checkpoint, folder, "dense", {})
        return
    whole = build_checkpoint(write_folder(tiny_model, tmp_path / "whole", BASE), "dense", {}).encode(QUERIES, "query")["global"].vectors
    for arch, dimension in (("dense", 8), ("dense:dimension=16", 16)):
        vectors = build_checkpoint(folder, arch, {}).encode(QUERIES, "query")["global"].vectors
        assert torch.allclose(vectors, torch.nn.functional.normalize(whole[:, :dimension], dim=1), atol=1e-5)


def test_lower_case_is_kept_in_a_checkpoint(tiny_model, tmp_path):
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tiny_model, do_lower_case=False)
    settings = {"max_seq_length": 20, "do_lower_case": True}
    folder = write_folder(tiny_model, tmp_path / "folder", BASE)
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"] is False
    cased, digest = build_checkpoint(folder, "dense", {}), TextTokenizer(folder).digest
    (folder / SENTENCE).write_text(json.dumps(settings))
    lowered, pairs = (build_checkpoint(folder, arch, {}) for arch in ("dense", "cross-encoder"))
    for name, model in {"lowered": lowered, "pairs": pairs}.items():
        folder.rename(tmp_path / "elsewhere")  # before it is saved
        save(model, tmp_path / name)
        (tmp_path / "elsewhere").rename(folder)
        config = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert config["do_lower_case"] is True and TextTokenizer(tmp_path / name).encode(["OWL"]) == lowered.tokenizer.encode(["OWL"])
    assert digest != lowered.tokenizer.digest and cased.tokenizer.encode(["OWL"]) != lowered.tokenizer.encode(["OWL"])
    assert lowered.tokenizer.encode(["The OWL"]) == cased.tokenizer.encode(["the owl"])
    run_moeir("init", "--model", folder, "--arch", "dense", "--output", tmp_path / "ckpt")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ckpt")
    assert peer("The OWL, Émile")["input_ids"] == cased.tokenizer.encode(["the owl, émile"])[0]


@pytest.fixture
def cross_encoder(family_weights, tmp_path):
    sizes = {"num_labels": 1, "max_position_embeddings": 64}
    return shutil.copytree(family_weights("bert", kind="ForSequenceClassification", **sizes), tmp_path / "ce")


def test_a_cross_encoder_brings_the_length_of_its_pairs_and_takes_it_along(cross_encoder, tmp_path):
    write_files(cross_encoder, {"tokenizer_config.json": {"model_max_length": 24}})
    rules = build_checkpoint(cross_encoder, "cross-encoder", {}).input_config
    assert (rules.query_length, rules.document_length) == (12, 24)
    flags = ("--arch", "cross-encoder", "--document-length", 20, "--output", tmp_path / "out")
    run_moeir("init", "--model", cross_encoder, *flags)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 20


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.GELU"}}, "pass through torch.nn.modules"),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.Softmax"}, "pass through torch.nn.Softmax"),
        (CONFIG, {"activation_fn": "torch.nn.Softmax"}, "pass through torch.nn.Softmax"),
        (CONFIG, {"prompts": {"q": "find: "}, "default_prompt_name": "q"}, "cannot keep the prompt 'q'"),
        ("modules.json", list_modules(("sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "1")), "LogitScore"),
    ],
)
def test_what_a_cross_encoder_cannot_keep_is_refused_by_name(file, content, message, cross_encoder):
    change_json(cross_encoder / file, **content) if file == "config.json" else write_files(cross_encoder, {file: content})
    assert_refused(ArtifactError, message, build_checkpoint, cross_encoder, "cross-encoder", {})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_is_written_by_the_name_that_it_has_there(pooling, tmp_path):
    others = {"last": "lasttoken", "weighted_mean": "weightedmean_tokens"}
    write_dense_files(tmp_path, InputConfig(query_length=8, document_length=8), 32, PoolingHead(pooling=pooling))
    settings = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert [name for name, value in settings.items() if value is True and name.startswith("pooling_mode")] == [
        f"pooling_mode_{others.get(pooling, f'{pooling}_token' if pooling == 'cls' else f'{pooling}_tokens')}"
    ]
