"""Folders of sentence-transformers, as its versions write them: the vectors are those of transformers with the folder's settings, or the
setting that cannot be kept is named in an error."""

import json
import shutil

import pytest
import torch
import transformers

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.input_config import InputConfig
from moeir.architectures.sentence_transformers_files import read_folder_settings, write_dense_files
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError
from moeir.heads.pooling import POOLINGS, PoolingHead
from tests.architectures.folders import ST, change_json, list_modules, save, write_files

QUERIES = ("Which OWLS hunt at night?", "why " * 40 + "owls")
DOCUMENTS = ("Owls hunt mice at NIGHT.", "owl cat mice " * 30)
POOLING = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
POOLING |= {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")}
CLS = POOLING | {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
V6 = {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}
V6 |= {"module_output_name": "token_embeddings"}
OLD = list_modules((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1_Pooling"))
FIRST = list_modules((f"{ST}.Transformer", "0_Transformer"), (f"{ST}.Pooling", "1_Pooling"))
NEW = list_modules(
    ("sentence_transformers.base.modules.transformer.Transformer", ""),
    ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
    ("sentence_transformers.base.modules.normalize.Normalize", "2_Normalize"),
)
SENTENCE, CONFIG, POOL = "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"


def describe_folder(sentence=None, config=None, *, pooling=POOLING, modules=OLD, tokenizer_length=None, **more):
    """The files of a folder."""
    files = {"modules.json": modules, POOL: pooling, SENTENCE: sentence, CONFIG: config}
    files |= {"tokenizer_config.json": tokenizer_length and {"model_max_length": tokenizer_length}}
    return {name: content for name, content in files.items() if content is not None} | more


BASE = describe_folder({"max_seq_length": 20, "do_lower_case": False}, {"__version__": {"sentence_transformers": "2.2.2"}})
VERSIONS = {  # files of a folder, and what they mean: length, prefixes, pooling, if vectors are normalised
    "0.x": (describe_folder(modules=FIRST, **{f"0_Transformer/{SENTENCE}": {"max_seq_length": 24}}), {"length": 24}),
    "2.x": (BASE | {POOL: CLS}, {"length": 20, "pooling": "cls"}),
    "2.x roberta": (describe_folder(**{"sentence_roberta_config.json": {"max_seq_length": 18}}), {"length": 18}),
    "3.x cosine": (
        describe_folder(
            {"max_seq_length": None, "do_lower_case": False},
            {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
            pooling=POOLING | {"include_prompt": True},
            tokenizer_length=22,
        ),
        {"length": 22, "query": "query: ", "document": "passage: ", "normalise": True},
    ),
    "default prompt": (
        describe_folder(config={"prompts": {"sts": "owl: "}, "default_prompt_name": "sts"}, tokenizer_length=1e30),
        {"length": None},
    ),
    "6.x": (
        describe_folder(
            {"transformer_task": "feature-extraction", **V6},
            {"model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}, "similarity_fn_name": "cosine"},
            pooling={"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True},
            modules=NEW,
            tokenizer_length=21,
            **{"2_Normalize/config.json": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}},
        ),
        {"length": 21, "normalise": True},
    ),
    "6.x sides": (
        {
            "modules.json": [NEW[0], {**NEW[1], "path": "any name"}],
            "any name/config.json": {"embedding_dimension": 32, "pooling_mode": "mean"},
            SENTENCE: {**V6, "query_length": 12, "document_length": 26},
        },
        {"length": 26, "query_length": 12},
    ),
}


def write_folder(tiny_model, folder, files):
    """The tiny weights with the files of a sentence-transformers folder."""
    encoder = folder / next((part["path"] for part in files.get("modules.json", []) if part["type"].endswith("Transformer")), "")
    shutil.copytree(tiny_model, encoder)
    write_files(folder, files)
    return folder, encoder


@torch.no_grad()
def expected_vectors(encoder, texts, prefix="", *, length, pooling="mean", normalise=False):
    """The vectors by transformers, one text at a time."""
    model, tokenizer = transformers.AutoModel.from_pretrained(encoder).eval(), transformers.AutoTokenizer.from_pretrained(encoder)
    vectors = []
    for text in texts:
        tokens = tokenizer(prefix + text, truncation=True, max_length=length or model.config.max_position_embeddings, return_tensors="pt")
        states = model(**tokens).last_hidden_state[0]
        vectors.append(states[0] if pooling == "cls" else states.mean(0))
    stacked = torch.stack(vectors)
    return torch.nn.functional.normalize(stacked, dim=-1) if normalise else stacked


@pytest.mark.parametrize("version", VERSIONS)
def test_a_folder_of_any_version_has_the_vectors_of_its_settings(version, tiny_model, tmp_path, caplog):
    files, meaning = VERSIONS[version][0], dict(VERSIONS[version][1])
    folder, encoder = write_folder(tiny_model, tmp_path / "folder", files)
    with caplog.at_level("WARNING"):
        checkpoint = build_checkpoint(folder, "dense", {})
    named = {"3.x cosine": "documents get the prompt 'passage'", "default prompt": "the default prompt 'sts' is for neither"}
    assert named.get(version, "") in caplog.text and bool(caplog.text) == (version in named)
    save(checkpoint, tmp_path / "saved")
    length, queries, documents = (meaning.pop(name, default) for name, default in (("length", None), ("query", ""), ("document", "")))
    query_length = meaning.pop("query_length", length)
    for opened in (checkpoint, open_checkpoint(tmp_path / "saved"), build_checkpoint(tmp_path / "saved", None, {})):
        ours = opened.encode(QUERIES, "query")["global"].vectors, opened.encode(DOCUMENTS)["global"].vectors
        assert torch.allclose(ours[0], expected_vectors(encoder, QUERIES, queries, length=query_length, **meaning), atol=1e-5)
        assert torch.allclose(ours[1], expected_vectors(encoder, DOCUMENTS, documents, length=length, **meaning), atol=1e-5)
    (tmp_path / "saved/moeir.json").unlink()  # the rest is what sentence-transformers reads
    again = build_checkpoint(tmp_path / "saved", "dense", {})
    assert again.spec == checkpoint.spec and (again.input_config == checkpoint.input_config or version == "6.x sides")


PROMPTS = {"prompts": {"query": "owl: "}}
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
    folder, _ = write_folder(tiny_model, tmp_path / "folder", BASE)
    (folder / file).write_text(json.dumps(content)) if content is not None else (folder / file).unlink()
    with pytest.raises(ArtifactError) as caught:
        build_checkpoint(folder, "dense", {})
    words = str(caught.value)
    assert message in words and "\n" not in words and (message != "expected " or words.startswith(f"{folder / file}: "))


def test_what_the_user_names_replaces_that_of_the_folder(tiny_model, tmp_path):
    files = BASE | {POOL: {"pooling_mode": "attention"}, CONFIG: PROMPTS}
    folder, encoder = write_folder(tiny_model, tmp_path / "folder", files)
    checkpoint = build_checkpoint(folder, "dense:pooling=mean", {"query_prefix": "", "document_length": 16})
    for side, texts, length in (("query", QUERIES, 20), ("document", DOCUMENTS, 16)):
        vectors = checkpoint.encode(texts, side)["global"].vectors
        assert torch.allclose(vectors, expected_vectors(encoder, texts, length=length), atol=1e-5)


def test_the_length_of_a_text_is_that_of_a_pair_unless_the_user_names_another(tiny_model, tmp_path):
    folder, _ = write_folder(tiny_model, tmp_path / "folder", BASE)
    for lengths, expected in (({}, (10, 20)), ({"document_length": 32, "query_length": 20}, (20, 32))):
        config = build_checkpoint(folder, "cross-encoder", lengths).input_config
        assert (config.query_length, config.document_length) == expected


@pytest.mark.parametrize(
    ("pooling", "more", "expected"),
    [
        ({"pooling_mode": ["mean"]}, (), {"normalise": "false", "pooling": "mean"}),
        ({"pooling_mode": "cls"}, ("Normalize",), {"normalise": "true", "pooling": "cls"}),
        ({"word_embedding_dimension": 8}, ("Dropout",), {"normalise": "false", "pooling": "mean"}),
    ],
)
def test_other_spellings_of_pooling_and_normalisation(pooling, more, expected, tiny_model, tmp_path):
    entries = [*OLD, *list_modules(*((f"{ST}.{name}", f"2_{name}") for name in more))]
    folder, _ = write_folder(tiny_model, tmp_path / "folder", BASE | {"modules.json": entries, POOL: pooling})
    assert read_folder_settings(folder, "dense", {})[2] == expected


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_truncated_vectors_are_kept_where_their_similarity_is(similarity, tiny_model, tmp_path):
    entries = [*OLD, *list_modules((f"{ST}.Normalize", "2_Normalize"))]
    config = {"truncate_dim": 8, "similarity_fn_name": similarity}
    files = BASE | {"modules.json": entries, CONFIG: config}
    folder, encoder = write_folder(tiny_model, tmp_path / "folder", files)
    if similarity == "dot":
        with pytest.raises(ArtifactError, match=r"truncate_dim 8 cuts vectors that are normalised; moeir normalises them again"):
            build_checkpoint(folder, "dense", {})
        return
    for arch, dimension in (("dense", 8), ("dense:dimension=16", 16)):
        vectors = build_checkpoint(folder, arch, {}).encode(QUERIES, "query")["global"].vectors
        whole = expected_vectors(encoder, QUERIES, length=20)[:, :dimension]
        assert torch.allclose(vectors, torch.nn.functional.normalize(whole, dim=1), atol=1e-5)


def test_lower_case_is_kept_in_a_checkpoint(tiny_model, tmp_path, moeir):
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tiny_model, do_lower_case=False)
    settings = {"max_seq_length": 20, "do_lower_case": True}
    folder, _ = write_folder(tiny_model, tmp_path / "folder", BASE)
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
    assert moeir("init", "--model", folder, "--arch", "dense", "--output", tmp_path / "ckpt").code == 0
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ckpt")
    assert peer("The OWL, Émile")["input_ids"] == cased.tokenizer.encode(["the owl, émile"])[0]


def test_the_activation_of_a_sparse_encoder_is_read_and_its_vectors_are_not_dense(tiny_model_with_head, tmp_path):
    sparse = "sentence_transformers.sparse_encoder.models"
    entries = list_modules((f"{sparse}.MLMTransformer", ""), (f"{sparse}.SpladePooling", "1_SpladePooling"))
    files = {"modules.json": entries, "1_SpladePooling/config.json": {"pooling_strategy": "max", "activation_function": "log1p_relu"}}
    folder, _ = write_folder(tiny_model_with_head, tmp_path / "folder", files)
    assert "activation=log1p_relu" in build_checkpoint(folder, "splade", {}).spec
    with pytest.raises(ArtifactError, match="its modules are MLMTransformer, SpladePooling"):
        build_checkpoint(folder, "dense", {})
    for settings, message in (
        ({"activation_function": "gelu"}, "activation_function is 'gelu'; moeir reads 'relu' and 'log1p_relu'"),
        ({"pooling_strategy": "sum"}, "pooling_strategy is 'sum'; moeir reads 'max'"),
    ):
        (folder / "1_SpladePooling/config.json").write_text(json.dumps(settings))
        with pytest.raises(ArtifactError, match=message):
            build_checkpoint(folder, "splade", {})


def write_cross_encoder(tiny_model, folder, **changes):
    config = transformers.BertConfig.from_pretrained(tiny_model, num_labels=1, **changes)
    shutil.copytree(tiny_model, folder)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)


def test_a_cross_encoder_brings_the_length_of_its_pairs_and_takes_it_along(tiny_model, tmp_path, moeir):
    write_cross_encoder(tiny_model, tmp_path / "ce")
    (tmp_path / "ce/tokenizer_config.json").write_text(json.dumps({"model_max_length": 24}))
    rules = build_checkpoint(tmp_path / "ce", "cross-encoder", {}).input_config
    assert (rules.query_length, rules.document_length) == (12, 24)
    flags = ("--arch", "cross-encoder", "--document-length", 20, "--output", tmp_path / "out")
    assert moeir("init", "--model", tmp_path / "ce", *flags).code == 0
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
def test_what_a_cross_encoder_cannot_keep_is_refused_by_name(file, content, message, tiny_model, tmp_path):
    write_cross_encoder(tiny_model, tmp_path / "ce")
    change_json(tmp_path / "ce" / file, **content) if file == "config.json" else write_files(tmp_path / "ce", {file: content})
    with pytest.raises(ArtifactError, match=message):
        build_checkpoint(tmp_path / "ce", "cross-encoder", {})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_is_written_by_the_name_that_it_has_there(pooling, tmp_path):
    others = {"last": "lasttoken", "weighted_mean": "weightedmean_tokens"}
    write_dense_files(tmp_path, InputConfig(query_length=8, document_length=8), 32, PoolingHead(pooling=pooling))
    settings = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert [name for name, value in settings.items() if value is True and name.startswith("pooling_mode")] == [
        f"pooling_mode_{others.get(pooling, f'{pooling}_token' if pooling == 'cls' else f'{pooling}_tokens')}"
    ]
