"""Analysers of languages, with the steps and the stop words of Lucene's: GermanAnalyzer, FrenchAnalyzer, …, CJKAnalyzer."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import regex

from moeir.errors import UsageError
from moeir.indexes.analyzer import WORD_PATTERN, Analyzer, EnglishAnalyzer, read_stop_words
from moeir.indexes.stemmers import apply_rules, open_stemmer, stemmer_names

Step = Callable[[str], str]


def _lower(word: str) -> str:
    """Lower case letter by letter, as Java has it: a final sigma is as any other, and a dotted I has one letter."""
    return word.replace("Σ", "σ").replace("İ", "i").lower()


def _ascii_digits(word: str) -> str:
    return word if word.isascii() else re.sub(r"\d", lambda digit: str(int(digit[0])), word)


def _open_rules(section: str) -> Step:
    """What a section of the file of rules does to a word."""
    return partial(apply_rules, section)


@dataclass(frozen=True)
class Language:
    """What is done to a text, to a token before and after stop words are removed, and to a stem."""

    text: Step = str
    before: tuple[Step, ...] = (_lower,)
    after: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()


LOWERED_ALONE = [  # before stop words are removed
    *("armenian", "basque", "czech", "danish", "dutch", "esperanto", "estonian", "finnish", "hungarian", "indonesian", "lithuanian"),
    *("norwegian", "polish", "portuguese", "romanian", "russian", "sesotho", "spanish", "swedish", "yiddish"),
]
LANGUAGES = {language: Language() for language in LOWERED_ALONE} | {
    "arabic": Language(before=(_lower, _ascii_digits), after=(_open_rules("arabic-letters"),)),
    "catalan": Language(before=(_open_rules("catalan-articles"), _lower)),
    "french": Language(before=(_open_rules("french-articles"), _lower)),
    "german": Language(after=(_open_rules("german-letters"),)),
    "greek": Language(before=(_lower, _open_rules("greek-letters"))),
    "hindi": Language(before=(_lower, _ascii_digits, _open_rules("indic-letters"), _open_rules("hindi-letters"))),
    "irish": Language(before=(_open_rules("irish-particles"), _lower)),
    "italian": Language(before=(_open_rules("italian-articles"), _lower)),
    "nepali": Language(before=(_lower, _ascii_digits, _open_rules("indic-letters"))),
    "persian": Language(
        lambda text: text.replace("\u200c", " "), (_lower, _ascii_digits, _open_rules("arabic-letters"), _open_rules("persian-letters"))
    ),
    "serbian": Language(last=(_open_rules("serbian-letters"),)),
    "tamil": Language(before=(_lower, _ascii_digits, _open_rules("indic-letters"))),
    "turkish": Language(before=(_open_rules("turkish-letters"), _lower)),
}
WIDE_PATTERN = re.compile("[\u30a6-\u30fd]?[\uff01-\uff5e\uff65-\uff9f]+")
EMOJI = r"[\p{Emoji}--[0-9#*\p{RI}]]"
EMOJI_PART = rf"{EMOJI}\p{{EMod}}?\ufe0f?[\U000e0020-\U000e007f]*+"
EMOJI_PATTERN = rf"\p{{RI}}{{2}}|[#*]\ufe0f?\u20e3|{EMOJI_PART}(?:\u200d{EMOJI_PART})*+"
TOKEN_PATTERN = regex.compile(f"{EMOJI_PATTERN}|{WORD_PATTERN.pattern}", regex.V1)
MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
CJK_CHARACTER = r"(?:(?!\p{WB=ALetter})[\p{Han}\p{Hiragana}]|\p{WB=Katakana}|(?=\p{WB=ALetter})\p{Hangul})"
CJK_PATTERN = regex.compile(f"(?:{CJK_CHARACTER}{MARKS})+")


class LanguageAnalyzer(Analyzer):
    """Text → terms of a language. `stemmer` is `lucene` (Lucene's), the language's of Snowball, or `none`."""

    _token_pattern = TOKEN_PATTERN

    def __init__(self, language: str, stemmer: str, stop_words: str) -> None:
        super().__init__()
        known = stemmer_names(language)
        if stemmer not in known:
            raise UsageError(f"stemmer {stemmer!r} is not one of language {language!r}; known: {', '.join(known)}")
        self.stemmer, self._steps = stemmer, LANGUAGES[language]
        self._stop_words = read_stop_words(language, stop_words)
        self._steps_to_term = (*self._steps.after, open_stemmer(language, stemmer), *self._steps.last)

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order.

        >>> LanguageAnalyzer("german", "lucene", "lucene").terms("Die Häuser an der Straße")
        ['haus', 'strass']
        """
        return super().terms(self._steps.text(text))

    def _analyze(self, word: str) -> str | None:
        for step in self._steps.before:
            word = step(word)
        if not word or word in self._stop_words:
            return None
        for step in self._steps_to_term:
            word = step(word)
        return word


class CjkAnalyzer:
    """Text → terms: pairs of neighbouring Chinese, Japanese or Korean characters, other words in lower case, as CJKAnalyzer has them."""

    def __init__(self, stemmer: str, stop_words: str) -> None:
        if stemmer not in ("lucene", "none"):
            raise UsageError(f"stemmer {stemmer!r} is not one of language 'cjk'; known: lucene, none")
        self.stemmer, self._stop_words = "none", read_stop_words("cjk", stop_words)

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order.

        >>> CjkAnalyzer("lucene", "lucene").terms("東京都のWiFi")
        ['東京', '京都', '都の', 'wifi']
        """
        runs, end = list[tuple[bool, list[str]]](), -1
        for match in TOKEN_PATTERN.finditer(text):
            word = _lower(WIDE_PATTERN.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), match[0]))
            is_cjk = CJK_PATTERN.fullmatch(match[0]) is not None
            if is_cjk and match.start() == end:
                runs[-1][1].append(word)
            else:
                runs.append((is_cjk, [word]))
            end = match.end() if is_cjk else -1
        terms = (term for is_cjk, run in runs for term in (self._pairs("".join(run)) if is_cjk else run))
        return [term for term in terms if term not in self._stop_words]

    def _pairs(self, run: str) -> list[str]:
        """Each two neighbours of a run of characters; a character that is alone."""
        return [run[first : first + 2] for first in range(max(len(run) - 1, 1))]


def open_analyzer(language: str, stemmer: str = "lucene", stop_words: str = "lucene") -> EnglishAnalyzer | LanguageAnalyzer | CjkAnalyzer:
    """The analyser of a language; UsageError for an unknown one, or a stemmer of another language.

    >>> open_analyzer("french").terms("L'été des Indiens"), open_analyzer("english").stemmer
    (['été', 'indien'], 'porter')
    """
    if language == "english":
        return EnglishAnalyzer("porter" if stemmer == "lucene" else stemmer, stop_words)
    if language == "cjk":
        return CjkAnalyzer(stemmer, stop_words)
    if language not in LANGUAGES:
        raise UsageError(f"bm25: language {language!r} is unknown; known: {', '.join(sorted(['english', 'cjk', *LANGUAGES]))}")
    return LanguageAnalyzer(language, stemmer, stop_words)
