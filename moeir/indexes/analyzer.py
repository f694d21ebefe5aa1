"""Text → terms of a language: words in lower case without stop words, as stems by PyStemmer; English as Lucene's EnglishAnalyzer.

Chinese, Japanese and Korean are pairs of neighbouring characters.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import regex
import Stemmer

from moeir.errors import UsageError

STOP_WORDS_FILE = Path(__file__).with_name("stop_words.txt")  # of all languages
MAX_TOKEN_LENGTH = 255  # StandardTokenizer cuts longer ones
POSSESSIVES = ("'s", "'S", "’s", "’S", "＇s", "＇S")
STEMMER_OF = {"cjk": "none", "english": "porter"}  # of other languages, the stemmer of the same name
LANGUAGES = sorted({*Stemmer.algorithms(), "cjk"} - {"porter", "dutch_porter"})
MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"  # after a character
SPLIT_AT_APOSTROPHES = ("catalan", "french", "italian")  # articles and other short words before a vowel: l'été, dell'acqua
STOP_WORD_LETTERS = {  # the letters of texts, and those of the list of stop words
    "greek": str.maketrans("άέήίϊΐόύϋΰώς", "αεηιιιουυυωσ"),
    "persian": str.maketrans("یک", "يك"),
    "romanian": str.maketrans("șț", "şţ"),
}


def _word_pattern() -> str:
    """Unicode's word boundaries (UAX #29, WB4–WB13) as StandardTokenizer applies them; Han and Hiragana characters are single tokens."""
    marks = MARKS
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
CJK_CHARACTER = r"(?:(?!\p{WB=ALetter})[\p{Han}\p{Hiragana}]|\p{WB=Katakana}|(?=\p{WB=ALetter})\p{Hangul})"
CJK_PATTERN = regex.compile(f"(?:{CJK_CHARACTER}{MARKS})+")


def read_stop_words(language: str, stop_words: str) -> frozenset[str]:
    """Lucene's stop words of a language, where it has some, if `stop_words` is `lucene`; no words if it is `none`."""
    if stop_words not in ("lucene", "none"):
        raise UsageError(f"bm25: stop_words {stop_words!r} is unknown; known: lucene, none")
    match = stop_words == "lucene" and re.search(rf"^{language}: (.*)", STOP_WORDS_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(match[1].split() if match else ())


def open_stemmer(name: str) -> Callable[[str], str]:
    """Snowball's stemmer of a name, word → stem; `none` leaves words as they are."""
    if name == "none":
        return str
    if name not in Stemmer.algorithms():
        raise UsageError(f"bm25: stemmer {name!r} is unknown; known: snowball, none, {', '.join(Stemmer.algorithms())}")
    return Stemmer.Stemmer(name).stemWord


class Analyzer:
    """Text → terms of a language, token by token; the terms of a token are kept.

    `stemmer` is a Snowball name (`porter`, `english`, …) or `none`; `stop_words` is `lucene` or `none`. Other languages than English are
    normalised first, and have the digits 0 to 9.

    >>> Analyzer().terms("The cat's U.S. flights, in 1,000 cities"), Analyzer("german", "german").terms("Die Häuser an der Straße")
    (['cat', 'u.', 'flight', '1,000', 'citi'], ['haus', 'strass'])
    """

    def __init__(self, language: str = "english", stemmer: str = "porter", stop_words: str = "lucene") -> None:
        self.language, self.stemmer = language, stemmer
        self._stem, self._stop_words = open_stemmer(stemmer), read_stop_words(language, stop_words)
        self._apostrophe = " " if language in SPLIT_AT_APOSTROPHES else "'"  # the one that Snowball's stemmers know
        self._terms_of_token: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order."""
        if self.language != "english":
            text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("'", self._apostrophe)
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

    def _analyze(self, word: str) -> str | None:
        """The term of a word, None for a stop word."""
        if self.language == "english":
            lowered = (word[:-2] if word.endswith(POSSESSIVES) else word).lower()
        else:
            word = word.replace("İ", "i").replace("I", "ı") if self.language == "turkish" else word
            lowered = re.sub(r"\d", lambda digit: str(int(digit[0])), word.lower())
        is_stop_word = lowered.translate(STOP_WORD_LETTERS.get(self.language, {})) in self._stop_words
        return None if is_stop_word else self._stem(lowered) or None


class CjkAnalyzer:
    """Text → terms: pairs of neighbouring Chinese, Japanese or Korean characters; other words in lower case, without English stop words."""

    stemmer = "none"

    def __init__(self, stop_words: str = "lucene") -> None:
        self._stop_words = read_stop_words("cjk", stop_words)

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order; characters of full and half width are the same.

        >>> CjkAnalyzer().terms("東京都のＷｉＦｉ")
        ['東京', '京都', '都の', 'wifi']
        """
        runs, end = list[tuple[bool, list[str]]](), -1
        for match in WORD_PATTERN.finditer(unicodedata.normalize("NFKC", text)):
            is_cjk = CJK_PATTERN.fullmatch(match[0]) is not None
            if is_cjk and match.start() == end:
                runs[-1][1].append(match[0])
            else:
                runs.append((is_cjk, [match[0].lower()]))
            end = match.end() if is_cjk else -1
        terms = (term for is_cjk, run in runs for term in (self._pairs("".join(run)) if is_cjk else run))
        return [term for term in terms if term not in self._stop_words]

    def _pairs(self, run: str) -> list[str]:
        """Each two neighbours of a run of characters; a character that is alone."""
        return [run[first : first + 2] for first in range(max(len(run) - 1, 1))]


def open_analyzer(language: str, stemmer: str = "snowball", stop_words: str = "lucene") -> Analyzer | CjkAnalyzer:
    """The analyser of a language; UsageError for an unknown language, stemmer or list of stop words.

    >>> open_analyzer("french").terms("L'été des Indiens"), open_analyzer("english").stemmer
    (['été', 'indien'], 'porter')
    """
    if language not in LANGUAGES:
        raise UsageError(f"bm25: language {language!r} is unknown; known: {', '.join(LANGUAGES)}")
    stemmer = STEMMER_OF.get(language, language) if stemmer == "snowball" else stemmer
    if language == "cjk":
        if stemmer != "none":
            raise UsageError(f"bm25: language 'cjk' has pairs of characters and no stemmer, found stemmer {stemmer!r}")
        return CjkAnalyzer(stop_words)
    return Analyzer(language, stemmer, stop_words)
