"""Analysers of all languages: Snowball's stemmers by PyStemmer, and pairs of characters for Chinese, Japanese and Korean."""

import re
import unicodedata
from collections.abc import Sequence

import regex
import Stemmer

from moeir.errors import UsageError
from moeir.indexes.analyzer import WORD_PATTERN, Analyzer, EnglishAnalyzer, open_stemmer, read_stop_words

STEMMER_OF = {"cjk": "none", "english": "porter"}  # of other languages, the stemmer of the same name
LANGUAGES = sorted({*Stemmer.algorithms(), "cjk"} - {"porter", "dutch_porter"})
SPLIT_AT_APOSTROPHES = ("catalan", "french", "italian")  # articles and other short words before a vowel: l'été, dell'acqua
STOP_WORD_LETTERS = {  # the letters of texts, and those of the list of stop words
    "greek": str.maketrans("άέήίϊΐόύϋΰώς", "αεηιιιουυυωσ"),
    "persian": str.maketrans("یک", "يك"),
    "romanian": str.maketrans("șț", "şţ"),
}
MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
CJK_CHARACTER = r"(?:(?!\p{WB=ALetter})[\p{Han}\p{Hiragana}]|\p{WB=Katakana}|(?=\p{WB=ALetter})\p{Hangul})"
CJK_PATTERN = regex.compile(f"(?:{CJK_CHARACTER}{MARKS})+")


class LanguageAnalyzer(Analyzer):
    """Text → terms of a language: words in lower case, with digits 0 to 9, without stop words; of these, the stems.

    >>> LanguageAnalyzer("german", "german").terms("Die Häuser an der Straße")
    ['haus', 'strass']
    """

    def __init__(self, language: str, stemmer: str, stop_words: str = "lucene") -> None:
        super().__init__()
        self.language, self.stemmer = language, stemmer
        self._stem, self._stop_words = open_stemmer(stemmer), read_stop_words(language, stop_words)
        self._apostrophe = " " if language in SPLIT_AT_APOSTROPHES else "'"  # the one that Snowball's stemmers know

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order."""
        return super().terms(unicodedata.normalize("NFKC", text).replace("’", "'").replace("'", self._apostrophe))

    def _analyze(self, word: str) -> str | None:
        if self.language == "turkish":
            word = word.replace("İ", "i").replace("I", "ı")
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


def open_analyzer(language: str, stemmer: str = "snowball", stop_words: str = "lucene") -> EnglishAnalyzer | LanguageAnalyzer | CjkAnalyzer:
    """The analyser of a language; UsageError for an unknown language, stemmer or list of stop words.

    >>> open_analyzer("french").terms("L'été des Indiens"), open_analyzer("english").stemmer
    (['été', 'indien'], 'porter')
    """
    if language not in LANGUAGES:
        raise UsageError(f"bm25: language {language!r} is unknown; known: {', '.join(LANGUAGES)}")
    stemmer = STEMMER_OF.get(language, language) if stemmer == "snowball" else stemmer
    if language == "english":
        return EnglishAnalyzer(stemmer, stop_words)
    if language == "cjk":
        if stemmer != "none":
            raise UsageError(f"bm25: language 'cjk' has pairs of characters and no stemmer, found stemmer {stemmer!r}")
        return CjkAnalyzer(stop_words)
    return LanguageAnalyzer(language, stemmer, stop_words)
