"""English tokenisation as in Lucene's EnglishAnalyzer: tokens, possessives, lower case, stop words, stems."""

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


WORD_PATTERN = regex.compile(_word_pattern())


class EnglishAnalyzer:
    """Text → terms. `stemmer` is a Snowball name (`porter`, `english`, …) or `none`; `stop_words` is `lucene` or `none`."""

    def __init__(self, stemmer: str = "porter", stop_words: str = "lucene") -> None:
        if stemmer != "none" and stemmer not in Stemmer.algorithms():
            raise UsageError(f"stemmer {stemmer!r} is unknown; known: none, {', '.join(Stemmer.algorithms())}")
        if stop_words not in STOP_WORD_LISTS:
            raise UsageError(f"stop_words {stop_words!r} is unknown; known: {', '.join(STOP_WORD_LISTS)}")
        self._stemmer = None if stemmer == "none" else Stemmer.Stemmer(stemmer)
        self._stop_words = STOP_WORD_LISTS[stop_words]
        self._term_cache: dict[str, str] = {}

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order.

        >>> EnglishAnalyzer().terms("The cat's U.S. flights, in 1,000 cities")
        ['cat', 'u.', 'flight', '1,000', 'citi']
        """
        terms = []
        for token in WORD_PATTERN.findall(text):
            for first in range(0, len(token), MAX_TOKEN_LENGTH):
                term = self._term(token[first : first + MAX_TOKEN_LENGTH])
                if term:
                    terms.append(term)
        return terms

    def _term(self, token: str) -> str:
        """The term of a token, empty for a stop word."""
        if token not in self._term_cache:
            word = (token[:-2] if token.endswith(POSSESSIVES) else token).lower()
            stopped = word in self._stop_words
            self._term_cache[token] = "" if stopped else word if self._stemmer is None else self._stemmer.stemWord(word)
        return self._term_cache[token]
