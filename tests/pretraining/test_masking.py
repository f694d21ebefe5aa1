"""Whole-word masking: a worked example, a slow loop over one text, and the words of vocabularies."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import UsageError
from moeir.kernels.splitmix import text_keys
from moeir.pretraining.masking import WordVocabulary, mask_tokens
from tests.oracles import masking as oracle

# A vocabulary of 40: 0-4 special (4 hides), 5-24 begin words, 25-29 are words alone, 30-39 continue one.
NUMBERS = np.arange(40)
WORDS = WordVocabulary((NUMBERS >= 5) & (NUMBERS < 30), (NUMBERS < 5) | ((NUMBERS >= 25) & (NUMBERS < 30)), NUMBERS < 5, NUMBERS[5:], 4)
TEXTS = st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=30), min_size=1, max_size=8)


def mask(texts, rate, *, seed=1, epoch=0, copy=0):
    """The masked ids and masked positions of each text."""
    starts = np.cumsum([0, *map(len, texts)])
    masked_ids, is_masked = mask_tokens(np.concatenate(texts), starts, text_keys(seed, epoch, copy, np.arange(len(texts))), rate, WORDS)
    cuts = starts[1:-1]
    return [(ids.tolist(), np.flatnonzero(masks).tolist()) for ids, masks in zip(np.split(masked_ids, cuts), np.split(is_masked, cuts))]


def test_a_worked_example():
    # "owl ##s , sleep ##ing [UNK] day": words 0-1, 2, 3-4, 6; the unknown word 5 is never masked; half of 7 tokens is a budget of 4.
    text = [5, 30, 25, 6, 31, 1, 7]
    assert oracle.word_positions(text, set(range(5, 30)), {0, 1, 2, 3, 4, 25}) == [[0, 1], [2], [3, 4], [5], [6]]
    key = oracle.text_key(293, 0, 0, 0)
    order = sorted([0, 2, 3, 6], key=lambda first: oracle.random_bits(key, 2 * first))
    assert order == [2, 0, 3, 6]  # one token, then two, then two that do not fit into what is left, then one that does
    shares = [round(oracle.random_bits(key, 2 * index + 1) / 2**64, 2) for index in (0, 1, 2, 6)]
    assert shares == [0.03, 0.99, 0.0, 0.83]  # a mask, the token as it was, a mask, a random token:
    assert oracle.random_bits(key, 2 * 6 + 1) % 2**32 * 35 >> 32 == 13  # the 13th of the ordinary ones, which begin at 5
    assert mask([text], 0.5, seed=293) == [([4, 30, 4, 6, 31, 1, 18], [0, 1, 2, 6])]


@settings(max_examples=60)
@given(TEXTS, st.floats(0.01, 1), st.integers(0, 10**6), st.integers(0, 50), st.integers(0, 3))
def test_all_texts_at_once_are_as_each_by_itself_in_a_loop(texts, rate, seed, epoch, copy):
    sets = {"begins": set(range(5, 30)), "alone": {*range(5), *range(25, 30)}, "special": set(range(5)), "ordinary": list(range(5, 40))}
    expected = [oracle.mask_words(text, oracle.text_key(seed, epoch, copy, row), rate, **sets, mask=4) for row, text in enumerate(texts)]
    assert mask(texts, rate, seed=seed, epoch=epoch, copy=copy) == expected


def vocabulary(folder, tokenizer):
    folder.mkdir()
    special = ("<s>", "</s>", "<mask>")
    tokenizer.add_special_tokens(list(special))
    ends = [(token, tokenizer.token_to_id(token)) for token in special[:2]]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder)


def words_of(reader, text):
    """The words of a text, as the pieces that make them up."""
    ids = reader.encode([text])[0][1:-1]
    firsts = np.flatnonzero(WordVocabulary.from_tokenizer(reader).find_word_starts(np.array(ids), np.array([0, len(ids)])))
    return ["".join(reader.id_to_token(number) for number in part) for part in np.split(ids, firsts[1:])]


def test_words_of_word_pieces(tiny_model):
    reader = TextTokenizer(tiny_model)
    assert words_of(reader, "Owls hunts.") == ["owl##s", "hunts", "."]
    words = WordVocabulary.from_tokenizer(reader)
    assert not {reader.id_to_token(number) for number in words.ordinary_ids} & {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"}
    assert words.mask_id == reader.special_tokens.mask


def test_words_of_byte_pairs(tmp_path: Path):
    pieces = {piece: number for number, piece in enumerate(["<s>", "</s>", "<mask>", *pre_tokenizers.ByteLevel.alphabet()])}
    merges = [("o", "w"), ("ow", "l"), ("Ġ", "a"), ("Ġ", "b")]
    pieces |= {"".join(pair): len(pieces) + index for index, pair in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(pieces, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reader = vocabulary(tmp_path / "bytes", tokenizer)
    assert words_of(reader, "owls (a,b) él") == ["owls", "Ġ", "(", "a", ",", "b", ")", "ĠÃ©l"]


def test_words_of_sentence_pieces(tmp_path: Path):
    pieces = ["<s>", "</s>", "<unk>", "<mask>", "▁", "▁owl", "s", "▁a", "b", ",", "猫", "狗", "が", "한"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(index)) for index, piece in enumerate(pieces)], unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    reader = vocabulary(tmp_path / "pieces", tokenizer)
    assert words_of(reader, "owls a,b 猫狗が 한s") == ["▁owls", "▁a", ",", "b", "▁", "猫", "狗", "が", "▁한s"]


def test_a_vocabulary_without_a_mask_is_refused(tmp_path: Path):
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "owl": 2, "<unk>": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"has no \[MASK\]"):
        WordVocabulary.from_tokenizer(TextTokenizer(tmp_path))
