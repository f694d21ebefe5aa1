"""English tokenisation as in Lucene's EnglishAnalyzer: tokens, possessives, lower case, stop words, stems."""

import re
from collections.abc import Sequence

import regex
import Stemmer

from moeir.errors import UsageError

LUCENE_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with
"""
STOP_WORD_LISTS = {"lucene": frozenset(LUCENE_STOP_WORDS.split()), "none": frozenset[str]()}
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
    word = rf"{joint}*{run}(?:{joint}+{run})*{joint}*"
    return rf"{word}|\p{{LB=SA}}++|[\p{{Script=Han}}\p{{Script=Hiragana}}]{marks}"


def _ascii_word_pattern() -> str:
    """The same for texts of ASCII characters alone, which the standard library's `re` finds three times as fast."""
    run = r"(?:[A-Za-z](?:['.:](?=[A-Za-z]))?|[0-9](?:[,;'.](?=[0-9]))?)++"
    return rf"_*{run}(?:_+{run})*_*"


WORD_PATTERN = regex.compile(_word_pattern())
ASCII_WORD_PATTERN = re.compile(_ascii_word_pattern())


class EnglishAnalyzer:
    """Text → terms. `stemmer` is a Snowball name (`porter`, `english`, …) or `none`; `stop_words` is `lucene` or `none`."""

    def __init__(self, stemmer: str = "porter", stop_words: str = "lucene") -> None:
        if stemmer != "none" and stemmer not in Stemmer.algorithms():
            raise UsageError(f"stemmer {stemmer!r} is unknown; known: none, {', '.join(Stemmer.algorithms())}")
        if stop_words not in STOP_WORD_LISTS:
            raise UsageError(f"stop_words {stop_words!r} is unknown; known: {', '.join(STOP_WORD_LISTS)}")
        self._stemmer = None if stemmer == "none" else Stemmer.Stemmer(stemmer)
        self._stop_words = STOP_WORD_LISTS[stop_words]
        self._terms_of_token: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order.

        >>> EnglishAnalyzer().terms("The cat's U.S. flights, in 1,000 cities")
        ['cat', 'u.', 'flight', '1,000', 'citi']
        """
        pattern, cache = ASCII_WORD_PATTERN if text.isascii() else WORD_PATTERN, self._terms_of_token
        terms: list[str] = []
        for token in pattern.findall(text):
            known = cache.get(token)
            terms += self._add_to_cache(token) if known is None else known
        return terms

    def _add_to_cache(self, token: str) -> tuple[str, ...]:
        """The terms of a token: one, none for a stop word, several for a token that is cut."""
        parts = (token[first : first + MAX_TOKEN_LENGTH] for first in range(0, len(token), MAX_TOKEN_LENGTH))
        words = ((part[:-2] if part.endswith(POSSESSIVES) else part).lower() for part in parts)
        content_words = [word for word in words if word not in self._stop_words]
        stems = content_words if self._stemmer is None else self._stemmer.stemWords(content_words)
        self._terms_of_token[token] = tuple(stem for stem in stems if stem)
        return self._terms_of_token[token]
