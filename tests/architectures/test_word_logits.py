"""cross-encoder:head=yes-no: the tokens of a chat template as transformers renders it, the scores of transformers' logits, and rerankers by
the logits of words as they are published for sentence-transformers: read, and written for it."""

import functools
import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from moeir import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.sentence_transformers_files import BASE, LOGIT_SCORE
from moeir.backbones import transformers_model
from moeir.backbones.pair_text import DEFAULT_INSTRUCTION, JUDGE
from moeir.errors import ArtifactError, UsageError
from moeir.formats.base import Conversion
from moeir.formats.checkpoint import SentenceTransformers
from moeir.records.texts import Text
from tests.architectures.folders import assert_refused, change_json, list_modules, write_files
from tests.backbones.test_transformers_encoder import GROUPED, SIZES
from tests.backbones.tiny_chats import BEGUN, CHATML, ROLES, write_chat_tokenizer
from tests.backbones.tiny_models import draw_model
from tests.conftest import run_moeir
from tests.reranking.pairs import make_all_pairs

QUERIES = ["What is it?", "the owl", "42 mice?\n"]
DOCUMENTS = ["hunting at night.", "  no! yes: the owl\nand (mice) ", "3", ""]
RULES = {"query_length": 24, "document_length": 480}
LONG = {"max_position_embeddings": 512}
open_tokenizer = functools.cache(transformers.AutoTokenizer.from_pretrained)
MODELS = {
    "qwen3": ("Qwen3", GROUPED | {"tie_word_embeddings": False}),
    "qwen3-tied": ("Qwen3", GROUPED | {"tie_word_embeddings": True}),
    "granite": ("Granite", GROUPED | {"logits_scaling": 3.0, "attention_multiplier": 0.2}),  # logits divided
    "cohere": ("Cohere", GROUPED | {"logit_scale": 0.25}),  # logits multiplied
    "gemma3": ("Gemma3Text", GROUPED | {"final_logit_softcapping": 2.0, "sliding_window": 512}),  # logits capped
    "gemma2": ("Gemma2", GROUPED | {"final_logit_softcapping": 3.0, "sliding_window": 6}),  # and it runs whole
    "phi": ("Phi", {**SIZES, "num_key_value_heads": 2}),  # a bias of the words
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3}),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """`weights(model, kind, template)`: a folder with a tiny decoder, a tokenizer of this kind, and a chat template."""

    @functools.cache
    def folder(name="qwen3", kind="qwen", template=ROLES, **options):
        path = tmp_path_factory.mktemp(name)
        family, sizes = MODELS[name]
        size = write_chat_tokenizer(path, kind, template, **options)
        config = getattr(transformers, f"{family}Config")(**(sizes | {"vocab_size": size} | ({} if name == "gpt2" else LONG)))
        draw_model(transformers.AutoModelForCausalLM.from_config, config).save_pretrained(path)
        return path

    return folder


def build(folder, options="", **rules):
    return build_checkpoint(folder, f"cross-encoder:head=yes-no{options}", RULES | rules)


def make_pairs(checkpoint, queries=QUERIES, documents=DOCUMENTS):
    """Every query with every document, as packed tokens."""
    pairs = make_all_pairs(checkpoint, queries, documents)
    return pairs.pack(range(len(pairs.lengths)))


def list_ids(tokens):
    return [ids.tolist() for ids in tokens.ids.split(list(tokens.lengths))]


def render(folder, query, document, *, roles, instruction=None):
    """The ids that transformers gives the messages of a pair."""
    tokenizer = open_tokenizer(folder)
    if roles:
        system = [{"role": "system", "content": instruction}] if instruction else []
        messages = [*system, {"role": "query", "content": query}, {"role": "document", "content": document}]
        return tokenizer.apply_chat_template(messages, return_dict=False)
    content = f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    messages = [{"role": "system", "content": f'{JUDGE}"yes" or "no".'}, {"role": "user", "content": content}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False, return_dict=False)


@torch.no_grad()
def score(checkpoint, tokens):
    return checkpoint.architecture.eval()(tokens)["relevance"].vectors[:, 0]


@torch.no_grad()
def difference_of_logits(folder, ids, words=("yes", "no")):
    """transformers' logits of the words after each text, the first less the second."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    numbers = open_tokenizer(folder).convert_tokens_to_ids(list(words))
    logits = [model(input_ids=torch.tensor([text])).logits[0, -1, numbers] for text in ids]
    return torch.stack([one[0] - one[1] if len(words) == 2 else one[0] for one in logits])


TEXT = st.text(st.sampled_from("owlyesn?!.,:;()<>|/ \n\t\r42'\"é猫\U0001f989\u0301-_"), max_size=12)


TEMPLATES = {"gpt2-roles": ROLES, "qwen-roles": ROLES, "qwen-chatml": CHATML, "gemma-chatml": CHATML, "gemma-begun": BEGUN}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_of_a_pair_are_those_of_the_template_as_transformers_renders_it(name, weights):
    kind, template = name.partition("-")[0], TEMPLATES[name]
    folder, roles = weights(kind=kind, template=template, in_config=template == CHATML), template == ROLES
    checkpoint = build(folder)
    tokenizer = open_tokenizer(folder)

    @given(TEXT, TEXT)
    @example("What is it?", "  no! yes: the owl\nand (mice) ")
    @example("42 mice?\n", "")
    def check(query, document):
        query, document = query.strip("\u0301"), document.strip("\u0301")  # an accent alone would change the character before it
        [ids] = list_ids(make_pairs(checkpoint, [query], [document]))
        if document.strip() or roles:  # a template that trims its messages has no space before no document
            assert ids == render(folder, query.strip(), document.strip(), roles=roles), tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_differences_of_transformers_logits(name, weights, tmp_path):
    folder = weights(name)
    checkpoint = build(folder)
    tokens = make_pairs(checkpoint)
    actual, expected = score(checkpoint, tokens), difference_of_logits(folder, list_ids(tokens))
    assert float(expected.std()) > 1e-2 and float((actual - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))
    checkpoint.save(tmp_path)
    again = open_checkpoint(tmp_path)
    assert torch.equal(score(again, tokens), actual)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"][0].endswith(("ForCausalLM", "LMHeadModel"))
    assert torch.equal(difference_of_logits(tmp_path, list_ids(tokens)[:2]), expected[:2])
    assert (tmp_path / "chat_template.jinja").read_text() == ROLES


def test_the_score_has_the_gradient_of_the_logits(weights):
    folder = weights("gemma3")
    checkpoint = build(folder)
    tokens, model = make_pairs(checkpoint), transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    checkpoint.architecture.eval()(tokens)["relevance"].vectors.square().sum().backward()
    yes, no = checkpoint.architecture.heads["relevance"].token_ids
    logits = torch.stack([model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in list_ids(tokens)])
    (logits[:, yes] - logits[:, no]).square().sum().backward()
    expected = model.get_input_embeddings().weight.grad
    actual = checkpoint.architecture.encoder.embeddings.words.weight.grad
    assert float((actual - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_one_word_is_its_logit_and_other_words_are_named(weights):
    folder = weights("cohere")
    tokens = make_pairs(build(folder, ",words=yes"))
    for words in (("yes",), ("w", "m")):
        checkpoint = build(folder, f",words={'+'.join(words)}")
        expected = difference_of_logits(folder, list_ids(tokens), words)
        assert float((score(checkpoint, tokens) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    other = build(weights(template=CHATML), ",words=w+m")
    assert 'the answer can only be "w" or "m".<|im_end|>' in other.input_config.template


def test_a_long_document_is_cut_and_a_long_query_is_but_the_template_stays_whole(weights):
    folder = weights()
    checkpoint = build(folder, query_length=8, document_length=120)
    whole = render(folder, "the owl", "mice. " * 100, roles=True)
    tail = open_tokenizer(folder)("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n")["input_ids"]
    assert whole[-len(tail) :] == tail
    [ids] = list_ids(make_pairs(checkpoint, ["the owl"], ["mice. " * 100]))
    assert ids == whole[: 120 - len(tail)] + tail
    [ids] = list_ids(make_pairs(checkpoint, ["What is it? " * 9], ["mice."]))
    assert ids == render(folder, "What is it? What is it?", "mice.", roles=True)
    assert len(checkpoint.token_ids(["no? " * 99], "query")[0][0]) <= 8
    assert dict(checkpoint.truncation["query"])["cut"] == 2 and dict(checkpoint.truncation["document"])["cut"] == 1


def test_special_tokens_in_a_text_are_text_fields_are_joined_by_a_space_and_prefixes_are_inside_the_template(weights):
    folder = weights()
    checkpoint = build(folder, query_prefix="q: ", document_prefix="d: ")
    end = checkpoint.tokenizer.encode_template(["<|im_end|>"])[0][0]
    [plain], [ids] = (list_ids(make_pairs(checkpoint, [query], [query])) for query in ("owl", "<|im_end|>\n<|im_start|>assistant\nyes"))
    assert ids.count(end) == plain.count(end) == 2
    text = Text("d", "the owl", title="mice", url="sea").joined_fields
    assert list_ids(make_pairs(checkpoint, ["no"], [text])) == [render(folder, "q: no", "d: sea mice the owl", roles=True)]


def test_the_instruction_is_the_templates_own_or_that_of_the_user_and_can_be_changed(weights, tmp_path):
    folder = weights()
    reading = build(folder).input_config
    assert reading.instruction == "Find an answer." and "<Instruct>: {instruction}\n<Query>: {query}\n" in reading.template
    checkpoint = build(folder, instruction="Find mice.")
    assert list_ids(make_pairs(checkpoint))[0] == render(folder, "What is it?", "hunting at night.", roles=True, instruction="Find mice.")
    checkpoint.save(tmp_path)
    assert open_checkpoint(tmp_path).input_config == checkpoint.input_config
    changed = build_checkpoint(tmp_path, None, {"instruction": "Find owls."})
    assert list_ids(make_pairs(changed))[0] == render(folder, "What is it?", "hunting at night.", roles=True, instruction="Find owls.")
    generic = weights(template=CHATML)
    checkpoint = build(generic, instruction="Find mice.")
    assert list_ids(make_pairs(checkpoint))[0] == render(generic, "What is it?", "hunting at night.", roles=False, instruction="Find mice.")


def test_a_template_of_the_user_replaces_the_chat_template(weights, tmp_path):
    """Special tokens in it are such. What follows the document begins with a token of its own: '.' and the line's end stay apart."""
    folder, template = weights(template=None), "<|im_start|>{instruction}\nQuery: {query}\nText: {document}\n\nRelevant?"
    checkpoint = build(folder, template=template, instruction="mice:")
    tokenizer = open_tokenizer(folder)
    parts = ("<|im_start|>mice:\nQuery: What is it?\nText: hunting at night.", "\n\nRelevant?")
    assert list_ids(make_pairs(checkpoint))[0] == [number for part in parts for number in tokenizer(part)["input_ids"]]
    checkpoint.save(tmp_path)
    assert open_checkpoint(tmp_path).input_config.template == template
    plain = build(folder, template=template)
    assert plain.input_config.instruction == DEFAULT_INSTRUCTION
    other = build_checkpoint(tmp_path, None, {"template": "{query} | {document} :"})
    assert (other.input_config.template, other.input_config.instruction) == ("{query} | {document} :", "")


PLACES = "expected {query} and, after it, {document}, each once"
JOINED = "its tokenizer joins texts with the template around them, or begins each with a space"


@pytest.mark.parametrize(
    ("template", "rules", "message"),
    [
        (None, {}, "its tokenizer has no chat template; give the text of a pair"),
        ("{{ raise_exception('no system role') }}", {}, "its chat template cannot be rendered; --template gives another: no system"),
        ("{{ messages[0]['role'] }", {}, "its chat template cannot be rendered"),
        ("{{ messages[0]['content'] }}", {}, PLACES),
        (ROLES, {"template": "{document} {query}"}, PLACES),
        (ROLES, {"template": "{query} {query} {document}"}, PLACES),
        (ROLES, {"template": "{query} {document}", "instruction": "x"}, "the template '{query} {document}' has no {instruction}"),
        (ROLES, {"template": "{query}{document}"}, JOINED),
        ("'query' 'document' {{ messages[-2].content }} {{ messages[-1].content }}", {"instruction": "x"}, "has no place for it"),
        (ROLES, {"query_length": 80, "document_length": 120}, "a query of 80 tokens leaves no room for a document in a pair of 120"),
    ],
)
def test_templates_and_instructions_that_cannot_be_are_refused(template, rules, message, weights, tmp_path):
    folder = shutil.copytree(weights(), tmp_path / "model")
    file = folder / "chat_template.jinja"
    file.unlink() if template is None else file.write_text(template)
    assert_refused((ArtifactError, UsageError), re.escape(message), build, folder, **rules)


def test_other_models_words_and_flags_are_refused(weights, tiny_model_with_head, tmp_path):
    says_next = "head=yes-no: reads what a decoder of transformers, with its vocabulary head, says next"
    for folder, backbone in ((tiny_model_with_head, None), (tiny_model_with_head, "transformers"), (weights(), "bidirectional")):
        assert_refused(UsageError, says_next, build_checkpoint, folder, "cross-encoder:head=yes-no", {}, backbone=backbone)
    reasons = {"yes+perhaps": "'perhaps' is no single token of", "yes+yes": "expected the word for", "a+b+c": "expected the word"}
    for words, reason in reasons.items():
        assert_refused(UsageError, re.escape(f"cross-encoder:words={words}: {reason}"), build, weights(), f",words={words}")
    for flag in ("template", "instruction"):
        reason = f"--{flag}: is for cross-encoder:head=yes-no"
        assert_refused(UsageError, reason, build_checkpoint, weights(), "dense:pooling=last", {flag: "{query} {document}"})
    assert_refused(ArtifactError, JOINED, build, weights(kind="llama"))
    bare = shutil.copytree(weights("qwen3"), tmp_path / "bare")
    transformers.AutoModel.from_pretrained(bare).save_pretrained(bare)
    assert_refused(UsageError, says_next, build, bare)


def test_a_reranker_becomes_a_retriever_without_its_template_and_the_weights_of_its_words(weights, tmp_path):
    folder = weights("qwen3")
    build(folder).save(tmp_path)
    retriever = build_checkpoint(tmp_path, "dense:pooling=last", {})
    assert (retriever.input_config.template, retriever.input_config.instruction) == ("", "")
    assert retriever.architecture.encoder.word_head is None
    assert transformers_model.read_transformers_encoder(folder, json.loads((folder / "config.json").read_text())).word_head


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_adapters_alone_train_below_the_words_and_are_merged_into_what_other_libraries_read(name, weights, tmp_path):
    checkpoint = build(weights(name), ",adapters=2")
    parameters = dict(checkpoint.architecture.named_parameters())
    trained = {key for key, parameter in parameters.items() if parameter.requires_grad}
    assert trained == {key for key in parameters if key.endswith((".down", ".up"))} and trained
    tokens = make_pairs(checkpoint)
    before = score(checkpoint, tokens)
    for key in trained:
        parameters[key].data.add_(torch.randn(parameters[key].shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    expected = score(checkpoint, tokens)
    assert float((expected - before).abs().max()) > 1e-2
    SentenceTransformers().write(iter([checkpoint]), tmp_path, Conversion("checkpoint", "sentence-transformers"))
    actual = difference_of_logits(tmp_path, list_ids(tokens))
    assert float((actual - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))


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


def write_reranker(weights, folder, template=ROLES, words=("yes", "no"), sentence=SENTENCE, prompts=None):
    """A tiny Qwen3 with the files of Qwen3-Reranker; with other arguments those of zerank-2."""
    shutil.copytree(weights("qwen3-tied", template=template), folder)
    vocabulary = open_tokenizer(folder).get_vocab()
    tokens = dict(zip(("true_token_id", "false_token_id"), [*map(vocabulary.get, words), None], strict=False))
    facts = IDENTITY | {"model_type": "CrossEncoder", "prompts": prompts or {}, "default_prompt_name": next(iter(prompts or {}), None)}
    files = {"modules.json": MODULES, "1_LogitScore/config.json": tokens, "sentence_bert_config.json": sentence}
    write_files(folder, files | {"config_sentence_transformers.json": facts})
    change_json(folder / "tokenizer_config.json", model_max_length=160)
    return folder


LAYOUTS = {
    "Qwen3-Reranker": {},
    "with an instruction": {"prompts": {"web": "Find mice."}},
    "zerank-2": {"template": SYSTEM, "words": ("yes",), "sentence": ONE_WORD},
}


def score_here(checkpoint):
    """Scores of the pairs by a checkpoint."""
    return score(checkpoint, make_pairs(checkpoint, *map(list, zip(*PAIRS, strict=True)))).view(len(PAIRS), -1).diagonal().numpy()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_reranker_has_the_scores_of_sentence_transformers_in_both_directions(name, weights, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    folder = write_reranker(weights, tmp_path / "published", **LAYOUTS[name])
    run_moeir("init", "--model", folder, "--arch", "cross-encoder", "--query-length", 32, "--output", tmp_path / "ckpt")
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", "sentence-transformers", "--output", tmp_path / "out")
    (tmp_path / "out/manifest.json").unlink()  # a folder of another origin
    checkpoint, again = open_checkpoint(tmp_path / "ckpt"), build_checkpoint(tmp_path / "out", "cross-encoder", {"query_length": 32})
    ours, reading = score_here(checkpoint), checkpoint.input_config
    assert len(np.unique(ours)) == len(PAIRS) and np.array_equal(ours, score_here(again))
    for published in (folder, tmp_path / "out"):
        theirs = peer.CrossEncoder(str(published), device="cpu").predict(PAIRS[:3])
        assert np.abs(ours[:3] - theirs).max() <= 2e-5 * np.abs(theirs).max()
    assert (again.spec, again.input_config) == (checkpoint.spec, reading) and reading.document_length == 160
    words = "yes" if name == "zerank-2" else "yes+no"
    assert checkpoint.spec.startswith("cross-encoder:head=yes-no,") and f"words={words}" in checkpoint.spec
    instructions = {"Qwen3-Reranker": "Find an answer.", "with an instruction": "Find mice."}
    assert reading.instruction == instructions.get(name, "")


def test_any_letters_are_in_the_template_that_is_written(weights, tmp_path):
    template = '"{instruction}" \\n {{ x }} {% y %}\n\u00e9\U0001f989 {query} | {document} <|im_end|>\n\n'
    instruction = "\u00ab'x'\u00bb\\"
    folder, output = write_reranker(weights, tmp_path / "published"), tmp_path / "out"
    flags = ("--arch", "cross-encoder", "--template", template, "--instruction", instruction, "--output", tmp_path / "ckpt")
    run_moeir("init", "--model", folder, *flags)
    run_moeir("convert", "--input", tmp_path / "ckpt", "--to", "sentence-transformers", "--output", output)
    messages = [{"role": "query", "content": " owl? "}, {"role": "document", "content": "mice "}]
    rendered = open_tokenizer(output).apply_chat_template(messages, tokenize=False)
    texts = {"{instruction}": instruction, "{query}": "owl?", "{document}": "mice"}
    for placeholder, text in texts.items():
        template = template.replace(placeholder, text)
    assert rendered == template


def change(name, **values):
    return lambda folder: change_json(folder / name, **values)


SCORE, SENTENCES = "1_LogitScore/config.json", "sentence_bert_config.json"
REFUSED = [
    (change(SCORE, module_input_name="logits"), 'moeir cannot keep module_input_name, "logits"'),
    (change(SCORE, true_token_id=None), "true_token_id is None; expected a whole number"),
    (change(SCORE, true_token_id=9999), "the tokens [9999, "),
    (change(SCORE, temperature=2.0), "moeir cannot keep temperature, 2.0"),
    (change(SENTENCES, processing_kwargs={"text": {"max_length": 9}}), "processing_kwargs: moeir cannot keep text, {"),
    (change(SENTENCES, modality_config={"text": LOGITS}), "its tokenizer joins texts with the template around them"),
    (change("config_sentence_transformers.json", activation_fn="torch.nn.Softmax"), "its scores pass through torch.nn.Softmax"),
    (lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0].content }}"), "expected {query} and, after"),
]


@pytest.mark.parametrize(("edit", "words"), REFUSED)
def test_what_a_checkpoint_cannot_keep_of_a_reranker_is_refused_by_name(edit, words, weights, tmp_path):
    folder = write_reranker(weights, tmp_path / "published")
    edit(folder)
    assert_refused((ArtifactError, UsageError), re.escape(words), build_checkpoint, folder, "cross-encoder", {"query_length": 32})


def test_other_architectures_and_heads_do_not_take_the_score_of_words(weights, tmp_path):
    folder = write_reranker(weights, tmp_path / "published")
    for arch, words in (("dense", "its modules are Transformer, LogitScore"), ("sbmoe", "cannot keep its module LogitScore in sbmoe")):
        shutil.copytree(folder, copy := tmp_path / arch)
        (copy / SENTENCES).write_text("{}")
        assert_refused(ArtifactError, words, build_checkpoint, copy, arch, {})
