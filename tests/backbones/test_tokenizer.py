"""Tokenizers of the families beside BERT: byte pairs, sentence pieces, and their special tokens."""

import json
import string

import pytest
from transformers import RobertaTokenizer

from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError
from tests.backbones.tiny_tokenizers import WRITERS, write_bert, write_modernbert, write_roberta, write_xlm_roberta

TEXT = ["An owl, hunting (at night) ... the end!", "owls  hunt\nmice", "Ğürültü 猫 the end.", ""]


def tokens(reader, text):
    return [reader.id_to_token(number) for number in reader.encode([text])[0]]


@pytest.mark.parametrize("spaced", [False, True])
def test_byte_pairs_from_two_files_are_those_of_transformers(spaced, tmp_path):
    write_roberta(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": spaced}))
    reader = TextTokenizer(tmp_path)
    theirs = RobertaTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=spaced)
    assert reader.encode(TEXT) == theirs(TEXT)["input_ids"]
    assert tokens(reader, "owl")[0] == "<s>" and tokens(reader, "owl")[-1] == "</s>"
    assert (
        reader.id_to_token(reader.special_tokens.mask) == "<mask>"
        and reader.special_tokens.query_marker is None
        and reader.special_tokens.document_marker is None
    )


def test_a_copied_tokenizer_of_two_files_reads_the_same(tmp_path):
    write_roberta(tmp_path / "first")
    (tmp_path / "second").mkdir()
    reader = TextTokenizer(tmp_path / "first")
    reader.copy_files(tmp_path / "second")
    again = TextTokenizer(tmp_path / "second")
    assert {file.name for file in (tmp_path / "second").iterdir()} == {"vocab.json", "merges.txt", "tokenizer.json"}
    assert again.encode(TEXT) == reader.encode(TEXT) and again.special_tokens == reader.special_tokens


@pytest.mark.parametrize("name, mask", [("roberta", "<mask>"), ("xlm-roberta", "<mask>"), ("modernbert", "[MASK]")])
def test_special_tokens_in_a_text_are_text_in_every_family(name, mask, tmp_path):
    WRITERS[name](tmp_path)
    reader = TextTokenizer(tmp_path)
    assert reader.id_to_token(reader.special_tokens.mask) == mask
    inside = reader.encode([f"the {mask} owl {reader.id_to_token(reader.special_tokens.separator)}{mask}"])[0][1:-1]
    assert not {reader.special_tokens.mask, reader.special_tokens.separator, reader.special_tokens.beginning} & set(inside)


def test_sentence_pieces_are_read(tmp_path):
    write_xlm_roberta(tmp_path)
    reader = TextTokenizer(tmp_path)
    pieces = tokens(reader, "the end")
    assert pieces[0] == "<s>" and pieces[-1] == "</s>" and "".join(pieces[1:-1]).replace("▁", " ") == " the end"


def test_modernbert_has_the_markers_of_bert(tmp_path):
    write_modernbert(tmp_path)
    reader = TextTokenizer(tmp_path)
    assert [reader.id_to_token(number) for number in (reader.special_tokens.query_marker, reader.special_tokens.document_marker)] == [
        "[unused0]",
        "[unused1]",
    ]
    assert tokens(reader, "owl")[0] == "[CLS]" and tokens(reader, "owl")[-1] == "[SEP]"


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
    [(write_roberta, "Ġthe", "e"), (write_modernbert, "Ġend", "An"), (write_xlm_roberta, "▁owl", "o"), (write_bert, "owl", "##l")],
)
def test_a_word_is_a_token_that_begins_one(write, whole, part, tmp_path):
    write(tmp_path)
    reader = TextTokenizer(tmp_path)
    words = {reader.id_to_token(number): reader.whole_word(number) for number in range(reader.vocabulary_size)}
    assert words[whole] == whole.lstrip("Ġ▁")
    assert all(words[token] == "" for token in (part, ",", "(") if token in words)


def test_tokenizers_that_cannot_be_read_are_refused_in_one_line(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"pieces")
    with pytest.raises(ArtifactError, match=r"no tokenizer.json beside sentencepiece.bpe.model; AutoTokenizer of transformers"):
        TextTokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ArtifactError, match=r"cannot be opened: vocab.json has no <s> and </s>"):
        TextTokenizer(tmp_path)
    write_roberta(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"tokenizer_config.json: not a JSON object") as caught:
        TextTokenizer(tmp_path)
    assert "\n" not in str(caught.value)
