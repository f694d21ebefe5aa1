"""A downloaded tokenizer that cannot encode texts is refused in one line when it is opened; it neither hangs nor exhausts memory."""

import json
import re
import shutil
import time

import pytest

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError
from tests.backbones.tiny_tokenizers import ALL_WRITERS, write_bert, write_roberta
from tests.conftest import SPECIAL_TOKENS

LETTER = {token: number for number, token in enumerate((*SPECIAL_TOKENS, "o"))}


def part(name, **values):
    """A change of tokenizer.json: the part `name` has these values."""
    return lambda content: content.update({name: values})


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern, kind="String"):
    return part("pre_tokenizer", type="Split", pattern={kind: pattern}, behavior="Isolated", invert=False)


def normalizers(*parts):
    return part("normalizer", type="Sequence", normalizers=list(parts))


def template(*pieces, ids=(4,)):
    def piece(name):
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": 0}}

    pair, special_tokens = [piece("A"), piece("B")], {"C": {"id": "C", "ids": list(ids), "tokens": ["C"] * len(ids)}}
    return part("post_processor", type="TemplateProcessing", single=list(map(piece, pieces)), pair=pair, special_tokens=special_tokens)


def vocabulary(change):
    """A change of the vocabulary in tokenizer.json; special tokens are also among its added tokens."""

    def damage(content):
        change(content["model"]["vocab"])
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in content["model"]["vocab"]]

    return damage


def only_special(tokens):
    for token in [token for token in tokens if token not in SPECIAL_TOKENS]:
        del tokens[token]


def unigram(*tokens, unknown=None):
    return part("model", type="Unigram", unk_id=unknown, vocab=[[token, -1.0] for token in (*SPECIAL_TOKENS, "o", *tokens)])


def add_token(**values):
    token = {"id": 5000, "content": "owl!", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return lambda content: content["added_tokens"].append(token | values)


REFUSED = {
    "no [UNK]": (vocabulary(lambda tokens: tokens.pop("[UNK]")), "vocabulary has no [UNK], the token of unknown text"),
    "another token of unknown text": (lambda content: content["model"].update(unk_token="zz"), "vocabulary has no zz"),
    "words without one": (part("model", type="WordLevel", vocab=LETTER, unk_token="zz"), "has no zz"),
    "byte pairs without one": (part("model", type="BPE", vocab=LETTER, merges=[], unk_token="zz"), "has no zz"),
    "sentence pieces without one": (unigram(), "cannot encode a text: "),
    "an unknown one": (unigram(unknown=99), "cannot be opened: "),
    "special tokens only": (vocabulary(only_special), "special tokens only; expected tokens of texts"),
    "no tokens": (lambda content: content.update(added_tokens=[], model=content["model"] | {"vocab": {}}), "has an empty vocabulary"),
    "one id for two tokens": (vocabulary(lambda tokens: tokens.update(owl=tokens["o"])), "expected an id for each token"),
    "an id below zero": (vocabulary(lambda tokens: tokens.update(owl=-1)), "cannot be opened: invalid value: integer `-1`"),
    "an endless vocabulary": (
        vocabulary(lambda tokens: tokens.update(owl=2**32 - 1)),
        "has the id 4294967295 for 'owl'; expected ids below",
    ),
    "an id that is no number": (vocabulary(lambda tokens: tokens.update(owl="7")), "cannot be opened: invalid type"),
    "an id that no token has": (template("C", "A", "C", ids=[999_999]), "puts the id 999999 into a text, which no token"),
    "no special tokens": (template("A"), "adds no special tokens; expected an encoder's tokenizer"),
    "a template of the second text": (template("B"), "cannot encode a text: "),
    "a template of an absent token": (template("Z", "A"), "cannot encode a text: "),
    "no template": (lambda content: content.update(post_processor=None), "adds no special tokens"),
    "an empty string replaced": (normalizers(replace("", "xx")), "a Replace with an empty pattern; expected one that matches some text"),
    "an empty expression replaced": (normalizers(replace("", "xx", "Regex")), "a Replace with an empty pattern"),
    "a decoder of an empty string": (part("decoder", **replace("", "xx")), "a Replace with an empty pattern"),
    "split at an empty string": (split(""), "a Split with an empty pattern"),
    "split at an empty expression": (split("", "Regex"), "a Split with an empty pattern"),
    "a broken expression": (normalizers(replace("(", "", "Regex")), "cannot be opened: "),
    "pieces of no characters": (part("pre_tokenizer", type="FixedLength", length=0), "pieces of 0 characters; expected at least 1"),
    "a text 50^6 times as long": (normalizers(*[replace("a", 50 * "a")] * 6), "more than 1,000 times as long"),
    "the same in turns": (normalizers(*[replace("a", 50 * "b"), replace("bb", 50 * "a")] * 3), "more than 1,000 times as long"),
    "replacements without end": (normalizers(*[replace("a", "b")] * 1001), "more than 1,000 times as long, or slow"),
    "words of any length": (
        lambda content: content["model"].update(max_input_chars_per_word=2**40),
        "_word is 1099511627776; expected",
    ),
    "words of no length": (lambda content: content["model"].update(max_input_chars_per_word=0), "_per_word is 0; expected 1 to 1,000"),
    "another text each time": (
        part("model", type="BPE", vocab=LETTER, merges=[], dropout=0.5, unk_token=None),
        "otherwise each time, with dropout 0.5; expected none",
    ),
    "a table that is none": (normalizers({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "cannot be opened: "),
    "a table of other sizes": (
        normalizers({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAAAAAAAAAA="}),
        "cannot encode a text",
    ),
}
FINE = {
    "rules for single characters": normalizers(*[replace(letter, 3 * letter.upper()) for letter in "äöüßœæ"], replace(" +", " ", "Regex")),
    "an expression that may match nothing": normalizers(replace("x*", "y", "Regex")),
    "an expression that takes long": split("(a*)*$", "Regex"),
    "truncation to nothing": part("truncation", direction="Right", max_length=0, strategy="LongestFirst", stride=0),
    "truncation with a longer stride": part("truncation", direction="Left", max_length=5, strategy="OnlySecond", stride=9),
    "padding to multiples of 0": part(
        *("padding",),
        **{"strategy": {"Fixed": 2**62}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    ),
    "an empty added token": add_token(content=""),
    "an added token": add_token(),
    "no [PAD]": vocabulary(lambda tokens: tokens.update(owl_=tokens.pop("[PAD]"))),
}
CONFIGS = [
    *({"mask_token": 7}, {"mask_token": ["[MASK]"]}, {"mask_token": {"content": 7}}, {"mask_token": {}}, {"mask_token": "\ud800"}),
    *({"do_lower_case": "false"}, {"do_lower_case": 0}, {"add_prefix_space": "no"}, {"cls_token": 1}, [], "x", 7),
]


@pytest.fixture
def change_tokenizer(tiny_model, tmp_path):
    """A copy of the tiny weights whose tokenizer.json has changed."""

    def change(damage):
        folder = shutil.copytree(tiny_model, tmp_path / "model")
        content = json.loads((folder / "tokenizer.json").read_text())
        damage(content)
        (folder / "tokenizer.json").write_text(json.dumps(content))
        return folder

    return change


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_cannot_encode_texts_is_refused_when_it_is_opened(name, change_tokenizer):
    damage, words = REFUSED[name]
    folder, began = change_tokenizer(damage), time.monotonic()
    with pytest.raises(ArtifactError, match=re.escape(words)) as caught:
        TextTokenizer(folder)
    assert str(caught.value).startswith(f"{folder}: ") and "\n" not in str(caught.value) and len(str(caught.value)) < len(str(folder)) + 200
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", FINE)
def test_a_strange_tokenizer_that_encodes_texts_is_read(name, change_tokenizer):
    reader, began = TextTokenizer(change_tokenizer(FINE[name])), time.monotonic()
    ids = reader.encode(["an owl", "hunting mice at night " * 100])
    assert all(text[0] == reader.special_tokens.beginning and text[-1] == reader.special_tokens.separator for text in ids)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "modernbert"])
def test_the_tokenizer_of_every_family_is_fine(name, tmp_path):
    reader = TextTokenizer(tmp_path) if ALL_WRITERS[name](tmp_path) else None
    assert reader.vocabulary_size == reader._tokenizer.get_vocab_size()


def test_ids_beyond_the_word_embeddings_are_refused(change_tokenizer, came_checkpoint, tmp_path):
    damage = vocabulary(lambda tokens: tokens.update(owl=1_000_000))
    words = "the tokenizer has ids up to 1000000, the weights only"
    with pytest.raises(ArtifactError, match=words):
        build_checkpoint(folder := change_tokenizer(damage), "dense", {})
    shutil.copytree(came_checkpoint, tmp_path / "came")
    shutil.copy(folder / "tokenizer.json", tmp_path / "came")
    with pytest.raises(ArtifactError, match=words):
        open_checkpoint(tmp_path / "came")


def test_a_vocabulary_with_holes_ends_with_its_highest_id(change_tokenizer):
    reader = TextTokenizer(change_tokenizer(vocabulary(lambda tokens: tokens.pop("z"))))
    words = [reader.id_to_token(number) for number in range(reader.vocabulary_size)]
    assert "" in words and "None" not in words and words[-1] and len(words) == reader._tokenizer.get_vocab_size() + 1


@pytest.mark.parametrize("content", CONFIGS)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_tokenizer_config_of_other_types_is_refused(name, content, tmp_path):
    write_roberta(tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=rf"{name}: (\w+ is .*; expected |not a JSON object)") as caught:
        TextTokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["[UNK]", "[CLS]", "[SEP]"])
def test_a_vocabulary_file_without_special_tokens_is_refused(missing, tmp_path):
    write_bert(tmp_path)
    lines = (tmp_path / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join(line for line in lines if line != missing))
    with pytest.raises(ArtifactError, match=r"vocabulary has no \[UNK\]|cannot be opened: .* not found in the vocabulary"):
        TextTokenizer(tmp_path)


def test_a_vocabulary_file_with_a_line_twice_is_read(tmp_path):
    rows = write_bert(tmp_path)
    with open(tmp_path / "vocab.txt", "a") as file:
        file.write("owl\n")
    assert TextTokenizer(tmp_path).vocabulary_size == rows + 1
