"""The first tokens of long texts: the same as of the whole text, for every family's tokenizer, and no more of them is encoded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.backbones import tokenizer as tokenizer_module
from moeir.backbones.tokenizer import TextTokenizer
from tests.backbones.tiny_tokenizers import ALL_WRITERS

FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert")
WORDS = ["the", "owls", "Hunting", "NIGHT", "mice,", "end.", "cat's", "[MASK]", "</s>", "[unused0]", "x" * 90, "Émile", "e\u0301"]
WORDS += ["1,234.5", "a" * 150, "猫は夜に狩る。", "ﬁne", "İ", "ß", "\U0001f989" * 3, "  ", "\n\n", "\t", "กขค", "--", "..."]
WORDS += ["\u200b", "c2Fmb3c+/=" * 9]
LONG = {
    "one word": "a" * 9000,
    "a long word": "the owl " + "b7" * 9000 + " mice",
    "no spaces": "猫" * 5000,
    "spaces": "owl " + " " * 9000 + "mice",
    "lines": "\n" * 9000 + "owl",
    "accents": "e" + "\u0301" * 5000,
    "spaces first": "   " + "b7" * 9000,
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    for name, folder in folders.items():
        ALL_WRITERS[name](folder)
    return {name: TextTokenizer(folder) for name, folder in folders.items()}


@pytest.fixture
def short_prefixes(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "PREFIX_CHARACTERS", 256)
    monkeypatch.setattr(tokenizer_module, "PREFIX_CHARACTERS_PER_TOKEN", 4)


def first_ids(reader, text, count, special):
    [ids], [size] = reader.encode_first([text], count, special=special)
    [whole] = reader.encode([text], special=special)
    assert ids[:count] == whole[:count] and (len(ids) > count) == (len(whole) > count)
    assert len(whole) == size or len(ids) > 2 * count
    return ids


@pytest.mark.usefixtures("short_prefixes")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_tokens_are_those_of_the_whole_text(family, readers):
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60), st.sampled_from(["", " ", "  "]), st.integers(2, 40), st.booleans())
    def check(words, space, count, special):
        first_ids(readers[family], space.join(words * 9), count, special)

    check()


@pytest.mark.usefixtures("short_prefixes")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", LONG)
def test_a_word_longer_than_the_prefix_changes_nothing(text, family, readers):
    for count in (2, 16):
        first_ids(readers[family], LONG[text], count, special=True)


def test_only_a_prefix_of_a_long_text_is_encoded_with_spaces_and_without(readers, monkeypatch):
    """Which bounds the memory that cutting a text takes; a tokenizer for which the text is one word reads more of it."""
    for reader in readers.values():
        [ids], _ = reader.encode_first(["猫 " + "猫は夜" * 20_000], 8)
        assert len(ids) < 10_000
    encoded, encode = [], TextTokenizer.encode
    monkeypatch.setattr(TextTokenizer, "encode", lambda reader, texts, **options: encoded.extend(texts) or encode(reader, texts, **options))
    for name in ("roberta", "bert"):
        ids, sizes = readers[name].encode_first(["the owl", "the owls at night " * 20_000], 8)
    assert 0 < max(map(len, encoded)) < 10_000
    assert [len(ids[0]), sizes[0]] == [4, 4] and len(ids[1]) < 2000 and sizes[1] == pytest.approx(80_002, rel=0.05)
