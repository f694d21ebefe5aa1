"""Analysers of languages, with the steps and the stop words of Lucene's: GermanAnalyzer, FrenchAnalyzer, …, CJKAnalyzer."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import regex

from moeir.errors import UsageError
from moeir.indexes.analyzer import WORD_PATTERN, Analyzer, EnglishAnalyzer, read_stop_words
from moeir.indexes.stemmers import open_stemmer, stemmer_names

Step = Callable[[str], str]


def _lower(word: str) -> str:
    """Lower case letter by letter, as Java has it: a final sigma is as any other, and a dotted I has one letter."""
    return word.replace("Σ", "σ").replace("İ", "i").lower()


def _lower_turkish(word: str) -> str:
    return _lower(word.replace("I\u0307", "i").replace("I", "ı"))


def _lower_greek(word: str) -> str:
    return _lower(word).translate(GREEK_ACCENTS)


def _lower_irish(word: str) -> str:
    return _lower(f"{word[0]}-{word[1:]}" if word[:1] in ("n", "t") and word[1:2] in tuple("AEIOUÁÉÍÓÚ") else word)


def _cut_after_apostrophe(word: str) -> str:
    return re.split("['’]", word, maxsplit=1)[0]


def _cut_article(articles: str) -> Step:
    """Lucene's ElisionFilter: the word without an article before its first apostrophe."""
    pattern = re.compile(rf"(?:{articles})['’]", re.IGNORECASE)
    return lambda word: word[match.end() :] if (match := pattern.match(word)) else word


def _drop(words: str) -> Step:
    return lambda word: "" if word.lower() in words.split() else word


def _ascii_digits(word: str) -> str:
    return word if word.isascii() else re.sub(r"\d", lambda digit: str(int(digit[0])), word)


GREEK_ACCENTS = str.maketrans("ςάέήίϊΐόύϋΰώ", "σαεηιιιουυυω")
SERBIAN_LETTERS = dict(zip("абвгдезијклмнопрстћуфхцчшжžšćč", "abvgdezijklmnoprstcufhccszzscc", strict=True))
SERBIAN_LETTERS |= {"ђ": "dj", "đ": "dj", "љ": "lj", "њ": "nj", "џ": "dz"}


def _read_letters(table: str) -> dict[str, str]:
    """Letters and what stands for them, by code points: `93c:` is dropped, `905+945:972` are two letters that become one."""
    sides = (pair.split(":") for pair in table.split())
    return {"".join(chr(int(code, 16)) for code in old.split("+")): chr(int(new, 16)) if new else "" for old, new in sides}


def _replace_letters(letters: dict[str, str]) -> Step:
    """A step that replaces letters, the longest key first."""
    pattern = re.compile("|".join(sorted(letters, key=len, reverse=True)))
    return lambda word: word if word.isascii() else pattern.sub(lambda match: letters[match[0]], word)


# the letters that Lucene 9.9.1 (Apache License 2.0) takes for one another
ARABIC_LETTERS = _read_letters("622:627 623:627 625:627 649:64a 629:647 640: 64b: 64c: 64d: 64e: 64f: 650: 651: 652:")
PERSIAN_LETTERS = _read_letters("6cc:64a 6d2:64a 6a9:643 6c0:647 6c1:647 654:")
INDIC_LETTERS = _read_letters("""
    905+93e+945:911 905+93e+946:912 905+93e+947:913 905+93e+948:914 905+93e:906 905+945:972 905+946:904 905+949:911 905+94a:912 905+94b:913
    905+94c:914 906+945:911 906+946:912 906+947:913 906+948:914 909+941:90a 90f+945:90d 90f+946:90e 90f+947:910 915+93c:958 916+93c:959
    917+93c:95a 91c+93c:95b 921+93c:95c 922+93c:95d 928+93c:929 92b+93c:95e 92f+93c:95f 930+93c:931 933+93c:934 93e+945:949 93e+946:94a
    93e+947:94b 93e+948:94c b89+bd7:b8a b92+bd7:b94 bc6+bbe:bca bc6+bd7:bcc bc7+bbe:bcb
""")
HINDI_LETTERS = _read_letters("""
    928+94d:902 901:902 929:928 931:930 934:933 958:915 959:916 95a:917 95b:91c 95c:921 95d:922 95e:92b 95f:92f 945:947 946:947 949:94b
    94a:94b 90d:90f 90e:90f 911:913 912:913 972:905 906:905 908:907 90a:909 960:90b 961:90c 910:90f 914:913 940:93f 942:941 944:943
    963:962 948:947 94c:94b 93c: 94d: 200c: 200d:
""")


def _normalise_german(word: str) -> str:
    """Lucene's GermanNormalizationFilter: ß is ss; ä, ae are a, and so on; ue is not ü after a vowel or q."""
    word = word.replace("ß", "ss")
    return re.sub(r"([ao])e|(?<![aeiouyqäöü])(u)e", r"\1\2", word).translate(str.maketrans("äöü", "aou"))


@dataclass(frozen=True)
class Language:
    """What is done to a text, to a token before and after stop words are removed, and to a stem."""

    text: Step = str
    before: tuple[Step, ...] = (_lower,)
    after: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()


FRENCH_ARTICLES = "l|m|t|qu|n|s|j|d|c|jusqu|quoiqu|lorsqu|puisqu"
ITALIAN_ARTICLES = "c|l|all|dall|dell|nell|sull|coll|pell|gl|agl|dagl|degl|negl|sugl|un|m|t|s|v|d"
LOWERED_ALONE = [  # before stop words are removed
    *("armenian", "basque", "czech", "danish", "dutch", "esperanto", "estonian", "finnish", "hungarian", "indonesian", "lithuanian"),
    *("norwegian", "polish", "portuguese", "romanian", "russian", "sesotho", "spanish", "swedish", "yiddish"),
]
LANGUAGES = {language: Language() for language in LOWERED_ALONE} | {
    "arabic": Language(before=(_lower, _ascii_digits), after=(_replace_letters(ARABIC_LETTERS),)),
    "catalan": Language(before=(_cut_article("d|l|m|n|s|t"), _lower)),
    "french": Language(before=(_cut_article(FRENCH_ARTICLES), _lower)),
    "german": Language(after=(_normalise_german,)),
    "greek": Language(before=(_lower_greek,)),
    "hindi": Language(before=(_lower, _ascii_digits, _replace_letters(INDIC_LETTERS), _replace_letters(HINDI_LETTERS))),
    "irish": Language(before=(_drop("h n t"), _cut_article("d|m|b"), _lower_irish)),
    "italian": Language(before=(_cut_article(ITALIAN_ARTICLES), _lower)),
    "nepali": Language(before=(_lower, _ascii_digits, _replace_letters(INDIC_LETTERS))),
    "persian": Language(
        lambda text: text.replace("\u200c", " "),
        (_lower, _ascii_digits, _replace_letters(ARABIC_LETTERS), _replace_letters(PERSIAN_LETTERS)),
    ),
    "serbian": Language(last=(_replace_letters(SERBIAN_LETTERS),)),
    "tamil": Language(before=(_lower, _ascii_digits, _replace_letters(INDIC_LETTERS))),
    "turkish": Language(before=(_cut_after_apostrophe, _lower_turkish)),
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
        self._stem = open_stemmer(language, stemmer)

    def terms(self, text: str) -> Sequence[str]:
        """The terms of a text, in order.

        >>> LanguageAnalyzer("german", "lucene", "lucene").terms("Die Häuser an der Straße")
        ['haus', 'strass']
        """
        return super().terms(self._steps.text(text))

    def _analyze(self, words: Sequence[str]) -> Iterator[str]:
        for word in words:
            for step in self._steps.before:
                word = step(word)
            if not word or word in self._stop_words:
                continue
            for step in self._steps.after:
                word = step(word)
            word = self._stem(word)
            for step in self._steps.last:
                word = step(word)
            yield word


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
        terms, run, end = list[str](), list[str](), -1
        for match in TOKEN_PATTERN.finditer(text):
            word = _lower(WIDE_PATTERN.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), match[0]))
            is_cjk = CJK_PATTERN.fullmatch(match[0]) is not None
            if run and not (is_cjk and match.start() == end):
                terms += self._pairs("".join(run))
                run = []
            if is_cjk:
                run.append(word)
                end = match.end()
            else:
                terms.append(word)
        return [term for term in (*terms, *self._pairs("".join(run))) if term not in self._stop_words]

    def _pairs(self, run: str) -> list[str]:
        """Each two neighbours of a run of characters; a character that is alone."""
        return [run[first : first + 2] for first in range(max(len(run) - 1, 1))] if run else []


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
