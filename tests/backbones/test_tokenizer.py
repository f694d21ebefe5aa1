"""Tokenizers of the families: word pieces, byte pairs, sentence pieces, and their special tokens."""

import json
import shutil
import string

import pytest
import torch
from transformers import AutoTokenizer, RobertaTokenizer

from moeir.architectures.base import Architecture
from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError
from tests.architectures.folders import assert_refused
from tests.backbones.tiny_tokenizers import ALL_WRITERS, WRITERS, write_bert, write_modernbert, write_roberta, write_xlm_roberta

TEXT = ["An owl, hunting (at night) ... the end!", "owls  hunt\nmice", "Ğürültü 猫 the end.", ""]


def write_llama(folder):
    """A tokenizer whose normalizer writes the spaces, as of Llama 2 and Mistral."""
    write_xlm_roberta(folder)
    parts = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    content = json.loads((folder / "tokenizer.json").read_text())
    content |= {"normalizer": {"type": "Sequence", "normalizers": parts}, "pre_tokenizer": None}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def tokens(reader, text):
    return [reader.id_to_token(number) for number in reader.encode([text])[0]]


@pytest.mark.parametrize("spaced", [False, True])
def test_byte_pairs_are_those_of_transformers(spaced, tmp_path):
    write_roberta(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": spaced}))
    reader, theirs = TextTokenizer(tmp_path), RobertaTokenizer.from_pretrained(tmp_path)
    assert reader.encode(TEXT) == theirs(TEXT)["input_ids"]


def test_a_word_list_alone_is_a_tokenizer_and_its_copy_reads_the_same(tiny_model, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    shutil.copy(tiny_model / "vocab.txt", tmp_path / "first")
    alone, full = TextTokenizer(tmp_path / "first"), TextTokenizer(tiny_model)
    alone.copy_files(tmp_path / "second")
    assert {file.name for file in (tmp_path / "second").iterdir()} == {"vocab.txt", "tokenizer.json"}
    for reader in (alone, TextTokenizer(tmp_path / "second")):
        assert reader.encode(["An owl, hunting!", *TEXT]) == full.encode(["An owl, hunting!", *TEXT])
        assert reader.special_tokens == full.special_tokens
    assert tokens(full, "owl") == ["[CLS]", "owl", "[SEP]"]
    assert sorted(full.id_to_token(number) for number in full.special_tokens.punctuation) == sorted(",.?!-':")


SIGNS = {"bert": ("[CLS]", "[MASK]", "[SEP]"), "modernbert": ("[CLS]", "[MASK]", "[SEP]")}


@pytest.mark.parametrize("name", ["bert", *WRITERS])
def test_special_tokens_are_read_and_in_a_text_are_text(name, tmp_path):
    ALL_WRITERS[name](tmp_path)
    reader, (first, mask, last) = TextTokenizer(tmp_path), SIGNS.get(name, ("<s>", "<mask>", "</s>"))
    special = reader.special_tokens
    assert [reader.id_to_token(number) for number in (special.beginning, special.mask, special.separator)] == [first, mask, last]
    markers = [reader.id_to_token(number) for number in (special.query_marker, special.document_marker) if number is not None]
    assert markers == (["[unused0]", "[unused1]"] if name in SIGNS else [])
    assert [tokens(reader, "owl")[0], tokens(reader, "owl")[-1]] == [first, last]
    inside = reader.encode([f"the {mask} owl {reader.id_to_token(reader.special_tokens.separator)}{mask}"])[0][1:-1]
    assert not {reader.special_tokens.mask, reader.special_tokens.separator, reader.special_tokens.beginning} & set(inside)


@pytest.mark.parametrize("name, space", [("roberta", "Ġ"), ("xlm-roberta", "▁"), ("modernbert", "Ġ")])
def test_punctuation_has_or_has_not_the_sign_of_a_space_before_it(name, space, tmp_path):
    WRITERS[name](tmp_path)
    reader = TextTokenizer(tmp_path)
    vocabulary = {reader.id_to_token(number) for number in range(reader.vocabulary_size)}
    punctuation = {reader.id_to_token(number) for number in reader.special_tokens.punctuation}
    assert punctuation == {
        token for token in vocabulary if token.removeprefix(space) and not set(token.removeprefix(space)) - set(string.punctuation)
    }
    assert f"{space}(" in punctuation and "," in punctuation and space not in punctuation
    dropped = {number for number in reader.encode(["the end! (the end), the end ..."])[0] if number in reader.special_tokens.punctuation}
    assert {symbol for number in dropped for symbol in reader.id_to_token(number)} - {space} == set("!(),.")


@pytest.mark.parametrize(
    "write, whole, part",
    [
        (write_llama, "▁owl", "o"),
        (write_roberta, "Ġthe", "e"),
        (write_modernbert, "Ġend", "An"),
        (write_xlm_roberta, "▁owl", "o"),
        (write_bert, "owl", "##l"),
    ],
)
def test_a_word_is_a_token_that_begins_one(write, whole, part, tmp_path):
    write(tmp_path)
    reader = TextTokenizer(tmp_path)
    words = {reader.id_to_token(number): reader.whole_word(number) for number in range(reader.vocabulary_size)}
    assert words[whole] == whole.lstrip("Ġ▁")
    assert all(words[token] == "" for token in (part, ",", "(") if token in words)


def change_part(name, **values):
    """A change of tokenizer.json: the part `name` has these values."""
    return lambda content: content.update({name: content[name] | values if isinstance(content[name], dict) else values})


def pop_unknown(content):
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]


REFUSED = {
    "no [UNK]": (pop_unknown, "cannot encode a text: "),
    "no tokens": (lambda content: content.update(added_tokens=[], model=content["model"] | {"vocab": {}}), "cannot encode a text: "),
    "an id that is no number": (lambda content: content["model"]["vocab"].update(owl="7"), "cannot be opened: "),
    "a panic": (change_part("normalizer", type="Precompiled", precompiled_charsmap="CAAAAAAAAAAAAAAAAAA="), "cannot encode a text: "),
    "another text each time": (
        lambda content: content.update(model={"type": "BPE", "vocab": {"o": 4}, "merges": [], "dropout": 0.5}),
        "otherwise each time, with a dropout",
    ),
}


def change_tokenizer(folder, damage):
    content = json.loads((folder / "tokenizer.json").read_text())
    damage(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_cannot_encode_texts_is_refused_when_it_is_opened(name, tiny_model, tmp_path):
    folder, (damage, words) = shutil.copytree(tiny_model, tmp_path / "model"), REFUSED[name]
    change_tokenizer(folder, damage)
    with pytest.raises(ArtifactError, match=words) as caught:
        TextTokenizer(folder)
    assert str(caught.value).startswith(f"{folder}: ") and "\n" not in str(caught.value)


def test_an_encoder_whose_tokenizer_adds_no_special_tokens_is_refused(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    change_tokenizer(folder, lambda content: content.update(post_processor=None))
    assert_refused(ArtifactError, "adds no special tokens; expected an encoder's tokenizer", build_checkpoint, folder, "dense", {})


ENDS = {"<s> $A": (1, 0), "$A </s>": (0, 1), "<s> $A <unk> </s>": (1, 2), "": (0, 0)}


@pytest.mark.parametrize("template", ENDS)
def test_a_decoders_tokenizer_adds_what_its_post_processor_says_and_keeps_it_when_a_text_is_cut(template, tmp_path):
    """Byte pairs with the ends of Llama, of Qwen3-Embedding, of two tokens, and of none; no padding token."""
    write_roberta(tmp_path)
    known = {"<s>": 0, "<unk>": 3, "</s>": 2}
    parts = [{"SpecialToken" if part in known else "Sequence": {"id": part.strip("$"), "type_id": 0}} for part in template.split()]
    tokens = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in known.items()}
    processor = {"type": "TemplateProcessing", "single": parts, "pair": [*parts, *parts], "special_tokens": tokens}
    change_tokenizer(tmp_path, lambda content: content.update(post_processor=processor if parts else None))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}))
    reader, theirs = TextTokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (reader.special_tokens.leading, reader.special_tokens.trailing) == ENDS[template]
    assert reader.encode(TEXT[:3]) == theirs(TEXT[:3])["input_ids"] and reader.encode([""])[0] == (theirs("")["input_ids"] or [2])
    long = "the owls hunting at night " * 9
    cut, silent = Architecture(torch.nn.Identity(), reader.special_tokens).truncate_and_mark(reader.encode([long]), "document", 9)
    assert cut == [theirs(long, truncation=True, max_length=9)["input_ids"]] and silent is None


def test_ids_beyond_the_word_embeddings_are_refused(tiny_model, came_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    change_tokenizer(folder, lambda content: content["model"]["vocab"].update(owl=1_000_000))
    words = "the tokenizer has ids up to 1000000, the weights only"
    assert_refused(ArtifactError, words, build_checkpoint, folder, "dense", {})
    shutil.copytree(came_checkpoint, tmp_path / "came")
    shutil.copy(folder / "tokenizer.json", tmp_path / "came")
    assert_refused(ArtifactError, words, open_checkpoint, tmp_path / "came")


@pytest.mark.parametrize("content", [{"do_lower_case": "false"}, {"do_lower_case": 0}, {"add_prefix_space": "no"}, [], "x"])
def test_a_tokenizer_config_of_other_types_is_refused(content, tmp_path):
    write_bert(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    assert_refused(ArtifactError, r"tokenizer_config.json: (\w+ is .*; expected |not a JSON object)", TextTokenizer, tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"pieces")
    assert_refused(ArtifactError, r"no tokenizer.json or vocab.txt, .* AutoTokenizer.from_pretrained\(", TextTokenizer, tmp_path)


def test_a_word_none_is_not_the_mask_of_a_folder_that_names_none_and_a_line_may_be_there_twice(tmp_path):
    rows = write_bert(tmp_path)
    with open(tmp_path / "vocab.txt", "a") as file:
        file.write("None\nowl\n")
    reader = TextTokenizer(tmp_path)
    assert reader.id_to_token(reader.special_tokens.mask) == "[MASK]" and reader.vocabulary_size == rows + 2


def test_tokens_that_are_added_to_a_vocabulary_are_not_overlooked(tmp_path):
    write_bert(tmp_path)
    vocabulary = {token: number for number, token in enumerate((tmp_path / "vocab.txt").read_text().splitlines())}
    added = tmp_path / "added_tokens.json"
    added.write_text(json.dumps({"owl": vocabulary["owl"]}))
    assert TextTokenizer(tmp_path).vocabulary_size == len(vocabulary), "it is in the vocabulary"
    added.write_text(json.dumps({"[E2]": len(vocabulary)}))
    assert_refused(ArtifactError, r"adds '\[E2\]' to vocab.txt, expected a tokenizer.json with both", TextTokenizer, tmp_path)
