"""Rerankers by the logits of words, as they are published for sentence-transformers: read, and written for it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from moeir import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.sentence_transformers_files import BASE, LOGIT_SCORE
from moeir.errors import ArtifactError, UsageError
from moeir.reranking.scoring import score_pairs
from tests.architectures.folders import change_json, list_modules, write_files
from tests.backbones.test_transformers_encoder import GROUPED
from tests.backbones.tiny_chats import ROLES, write_chat_tokenizer
from tests.conftest import run_moeir
from tests.reranking.pairs import make_all_pairs

PAIRS = [("What is it?", "hunting at night."), ("the owl", "no! yes: mice\nand"), ("3", "mice. " * 90), ("A\u00e9", "<|im_start|> x")]
SYSTEM = (
    "<|im_start|>system\n{{ (messages | selectattr('role', 'eq', 'query') | first).content }}<|im_end|>\n<|im_start|>user\n"
    "{{ (messages | selectattr('role', 'eq', 'document') | first).content }}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGITS = {"method": "forward", "method_output_name": "logits"}
SENTENCE = {"transformer_task": "text-generation", "modality_config": {"text": LOGITS, "message": {**LOGITS, "format": "flat"}}}
SENTENCE |= {"module_output_name": "causal_logits"}
MODULES = list_modules((f"{BASE}.Transformer", ""), (LOGIT_SCORE, "1_LogitScore"))
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}
ONE_WORD = SENTENCE | {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}


def write_reranker(
    folder: Path,
    template: str = ROLES,
    words: tuple[str, ...] = ("yes", "no"),
    sentence: Any = SENTENCE,
    prompts: dict[str, str] | None = None,
) -> Path:
    """A tiny Qwen3 with the files of Qwen3-Reranker; with other arguments those of zerank-2."""
    size = write_chat_tokenizer(folder, "qwen", template)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        config = transformers.Qwen3Config(**(GROUPED | {"vocab_size": size, "max_position_embeddings": 512, "tie_word_embeddings": True}))
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    names = ("true_token_id", "false_token_id")
    tokens = dict.fromkeys(names) | dict(zip(names, (vocabulary[word] for word in words), strict=False))
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 160}
    facts = IDENTITY | {"model_type": "CrossEncoder", "prompts": prompts or {}, "default_prompt_name": next(iter(prompts or {}), None)}
    files = {"modules.json": MODULES, "1_LogitScore/config.json": tokens, "sentence_bert_config.json": sentence}
    files |= {"tokenizer_config.json": settings, "config_sentence_transformers.json": facts}
    write_files(folder, files)
    return folder


LAYOUTS: dict[str, dict[str, Any]] = {
    "Qwen3-Reranker": {},
    "with an instruction": {"prompts": {"web": "Find mice."}},
    "zerank-2": {"template": SYSTEM, "words": ("yes",), "sentence": ONE_WORD},
}


def score_here(folder: Path) -> np.ndarray:
    """Scores of the pairs by a checkpoint."""
    checkpoint = open_checkpoint(folder)
    pairs = make_all_pairs(checkpoint, *map(list, zip(*PAIRS, strict=True)))
    return score_pairs(checkpoint, pairs, dtype=torch.float32, max_tokens=1000).reshape(len(PAIRS), -1).diagonal()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_reranker_has_the_scores_of_sentence_transformers_in_both_directions(name, tmp_path):
    """What is written for it is read as the same reranker."""
    peer = pytest.importorskip("sentence_transformers")
    folder = write_reranker(tmp_path / "published", **LAYOUTS[name])
    flags = ("--arch", "cross-encoder", "--query-length", 32)
    run_moeir("init", "--model", folder, *flags, "--output", tmp_path / "ckpt")
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", "sentence-transformers", "--output", tmp_path / "out")
    (tmp_path / "out/manifest.json").unlink()  # a folder of another origin
    run_moeir("init", "--model", tmp_path / "out", *flags, "--output", tmp_path / "again")
    ours = score_here(tmp_path / "ckpt")
    assert len(np.unique(ours)) == len(PAIRS) and np.array_equal(ours, score_here(tmp_path / "again"))
    for published in (folder, tmp_path / "out"):
        theirs = peer.CrossEncoder(str(published), device="cpu").predict(PAIRS[:3])
        assert np.abs(ours[:3] - theirs).max() <= 2e-5 * np.abs(theirs).max()
    first, second = (json.loads((tmp_path / part / "moeir.json").read_text()) for part in ("ckpt", "again"))
    assert first == second and first["reading"]["document_length"] == 160
    words = "yes" if name == "zerank-2" else "yes+no"
    assert first["architecture"].startswith("cross-encoder:head=yes-no,") and f"words={words}" in first["architecture"]
    instructions = {"Qwen3-Reranker": "Find an answer.", "with an instruction": "Find mice."}
    assert first["reading"].get("instruction") == instructions.get(name)


def test_any_letters_are_in_the_template_that_is_written(tmp_path):
    """Quotes, backslashes, braces, letters beyond ASCII and beyond 16 bits."""
    template = '"{instruction}" \\n {{ x }} {% y %}\n\u00e9\U0001f989 {query} | {document} <|im_end|>\n\n'
    instruction = "\u00ab'x'\u00bb\\"
    folder, output = write_reranker(tmp_path / "published"), tmp_path / "out"
    flags = ("--arch", "cross-encoder", "--template", template, "--instruction", instruction, "--output", tmp_path / "ckpt")
    run_moeir("init", "--model", folder, *flags)
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", "sentence-transformers", "--output", output)
    messages = [{"role": "query", "content": " owl? "}, {"role": "document", "content": "mice "}]
    rendered = transformers.AutoTokenizer.from_pretrained(output).apply_chat_template(messages, tokenize=False)
    texts = {"{instruction}": instruction, "{query}": "owl?", "{document}": "mice"}
    for placeholder, text in texts.items():
        template = template.replace(placeholder, text)
    assert rendered == template


def change(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / name, **values)


SCORE, TEXTS = "1_LogitScore/config.json", "sentence_bert_config.json"
REFUSED = [
    (change(SCORE, module_input_name="logits"), 'moeir cannot keep module_input_name, "logits"'),
    (change(SCORE, true_token_id=None), "true_token_id is None; expected a whole number"),
    (change(SCORE, true_token_id=9999), "the tokens [9999, "),
    (change(SCORE, temperature=2.0), "moeir cannot keep temperature, 2.0"),
    (change(TEXTS, processing_kwargs={"text": {"max_length": 9}}), "processing_kwargs: moeir cannot keep text, {"),
    (change(TEXTS, modality_config={"text": LOGITS}), "its tokenizer joins texts with the template around them"),
    (change("config_sentence_transformers.json", activation_fn="torch.nn.Softmax"), "its scores pass through torch.nn.Softmax"),
    (lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0].content }}"), "expected {query} and, after"),
]


@pytest.mark.parametrize(("edit", "words"), REFUSED)
def test_what_a_checkpoint_cannot_keep_of_a_reranker_is_refused_by_name(edit, words, tmp_path):
    folder = write_reranker(tmp_path / "published")
    edit(folder)
    with pytest.raises((ArtifactError, UsageError)) as error:
        build_checkpoint(folder, "cross-encoder", {"query_length": 32})
    message = str(error.value)
    assert words in message and "\n" not in message


def test_other_architectures_and_heads_do_not_take_the_score_of_words(tmp_path):
    folder = write_reranker(tmp_path / "published")
    for arch, words in (("dense", "its modules are Transformer, LogitScore"), ("sbmoe", "cannot keep its module LogitScore in sbmoe")):
        shutil.copytree(folder, copy := tmp_path / arch)
        (copy / TEXTS).write_text("{}")
        with pytest.raises(ArtifactError, match=words):
            build_checkpoint(copy, arch, {})
