"""English tokenisation as in Lucene's EnglishAnalyzer: tokens, possessives, lower case, stop words, stems."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import regex
import Stemmer

from moeir.errors import UsageError

LUCENE_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with
"""
STOP_WORDS_FILE = Path(__file__).with_name("stop_words.txt")  # of the other languages
MAX_TOKEN_LENGTH = 255  # StandardTokenizer cuts longer ones
POSSESSIVES = ("'s", "'S", "’s", "’S", "＇s", "＇S")


def _word_pattern() -> str:
    """Unicode's word boundaries (UAX #29, WB4–WB13) as StandardTokenizer applies them; Han and Hiragana characters are single tokens."""
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
    letter, digit = r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}]", r"\p{WB=Numeric}"
    between_letters = rf"(?:[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{marks}(?={letter}))?"
    between_digits = rf"(?:[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{marks}(?={digit}))?"
    run = rf"(?:(?:{letter}{marks}{between_letters}|{digit}{marks}{between_digits})++|(?:\p{{WB=Katakana}}{marks})++)"
    joint = rf"(?:\p{{WB=ExtendNumLet}}{marks})"
    word = rf"{joint}*+{run}(?:{joint}++{run})*+{joint}*+"
    alone = rf"{joint}++(*SKIP)(*FAIL)"  # no word: the next one is looked for after all of it, not after each underscore
    return rf"{word}|\p{{LB=SA}}++|[\p{{Script=Han}}\p{{Script=Hiragana}}]{marks}|{alone}"


def _ascii_word_pattern() -> str:
    """Words of texts of ASCII characters alone, which the standard library's `re` finds three times as fast."""
    run = r"(?:[A-Za-z](?:['.:](?=[A-Za-z]))?|[0-9](?:[,;'.](?=[0-9]))?)++"
    return rf"(?:(?<!_)_++)?{run}(?:_++{run})*+_*+"


WORD_PATTERN = regex.compile(_word_pattern())
ASCII_WORD_PATTERN = re.compile(_ascii_word_pattern())


def read_stop_words(language: str, stop_words: str) -> frozenset[str]:
    """Lucene's stop words of a language, where it has some, if `stop_words` is `lucene`; no words if it is `none`."""
    if stop_words not in ("lucene", "none"):
        raise UsageError(f"bm25: stop_words {stop_words!r} is unknown; known: lucene, none")
    if stop_words == "none" or language == "english":
        return frozenset(LUCENE_STOP_WORDS.split() if stop_words == "lucene" else ())
    match = re.search(rf"^{language}: (.*)", STOP_WORDS_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(match[1].split() if match else ())


def open_stemmer(name: str) -> Callable[[str], str]:
    """Snowball's stemmer of a name, word → stem; `none` leaves words as they are."""
    if name == "none":
        return str
    if name not in Stemmer.algorithms():
        raise UsageError(f"bm25: stemmer {name!r} is unknown; known: snowball, none, {', '.join(Stemmer.algorithms())}")
    return Stemmer.Stemmer(name).stemWord


class Analyzer(ABC):
    """Text → terms, token by token; the terms of a token are kept."""

    def __init__(self) -> None:
        self._terms_of_token: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order."""
        pattern, cache = ASCII_WORD_PATTERN if text.isascii() else WORD_PATTERN, self._terms_of_token
        terms: list[str] = []
        for token in pattern.findall(text):
            known = cache.get(token)
            terms += self._add_to_cache(token) if known is None else known
        return terms

    def _add_to_cache(self, token: str) -> tuple[str, ...]:
        """The terms of a token: one, none for a stop word, several for a token that is cut."""
        words = [token[first : first + MAX_TOKEN_LENGTH] for first in range(0, len(token), MAX_TOKEN_LENGTH)]
        self._terms_of_token[token] = tuple(term for word in words if (term := self._analyze(word)) is not None)
        return self._terms_of_token[token]

    @abstractmethod
    def _analyze(self, word: str) -> str | None:
        """The term of a word, None for a stop word."""


class EnglishAnalyzer(Analyzer):
    """Text → terms. `stemmer` is a Snowball name (`porter`, `english`, …) or `none`; `stop_words` is `lucene` or `none`.

    >>> EnglishAnalyzer().terms("The cat's U.S. flights, in 1,000 cities")
    ['cat', 'u.', 'flight', '1,000', 'citi']
    """

    def __init__(self, stemmer: str = "porter", stop_words: str = "lucene") -> None:
        super().__init__()
        self.stemmer, self._stem = stemmer, open_stemmer(stemmer)
        self._stop_words = read_stop_words("english", stop_words)

    def _analyze(self, word: str) -> str | None:
        lowered = (word[:-2] if word.endswith(POSSESSIVES) else word).lower()
        return None if lowered in self._stop_words else self._stem(lowered) or None
