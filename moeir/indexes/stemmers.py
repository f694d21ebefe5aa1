"""Stemmers of Lucene's analysers: rules of suffixes where Lucene has its own, and PyStemmer's Snowball as Lucene's older one stems."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import Stemmer

from moeir.errors import UsageError

RULES_FILE = Path(__file__).with_name("stemmer_rules.txt")
Stem = Callable[[str], str]


@dataclass(frozen=True)
class SuffixRule:
    """A line of the file of rules, whose head says what it means."""

    length: int
    suffixes: tuple[str, ...]
    cut: int
    ending: str = ""
    second_ending: str = ""
    before_second_ending: re.Pattern[str] = re.compile("(?!)")

    @classmethod
    def from_line(cls, line: str) -> "SuffixRule":
        """The rule of a line."""
        length, suffixes, cut, *rest = line.split()
        ending, second_ending, pattern = (*rest, *["-", "-", "(?!)"][len(rest) :])
        return cls(int(length), tuple(suffixes.split("|")), int(cut), ending.strip("-"), second_ending.strip("-"), re.compile(pattern))

    def applies_to(self, word: str) -> bool:
        """Whether the word is long enough and has one of the suffixes."""
        return len(word) > self.length and word.endswith(self.suffixes)

    def apply(self, word: str) -> str:
        """The word without what the rule cuts, with the endings."""
        stem = word[: len(word) - self.cut] + self.ending
        return stem + self.second_ending if self.before_second_ending.fullmatch(stem) else stem


@cache
def read_rules(section: str) -> tuple[tuple[tuple[SuffixRule, ...], bool], ...]:
    """The steps of a section of the file of rules, each with whether it is the last one if it changes a word."""
    [text] = re.findall(rf"^\[{section}\]\n(.*?)(?=\n\n|\Z)", RULES_FILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    *parts, last = re.split(r"\n(--|==)\n", text.rstrip("\n"))
    steps = [*zip(parts[::2], parts[1::2], strict=True), (last, "--")]
    return tuple((tuple(map(SuffixRule.from_line, lines.splitlines())), separator == "==") for lines, separator in steps)


def apply_rules(section: str, word: str) -> str:
    """The word after the steps of a section; in each the first rule that applies.

    >>> apply_rules("german", "hausern")
    'haus'
    """
    for rules, is_last in read_rules(section):
        rule = next((rule for rule in rules if rule.applies_to(word)), None)
        shorter = word if rule is None else rule.apply(word)
        if is_last and shorter != word:
            return shorter
        word = shorter
    return word


def _accents(**letters: str) -> dict[int, str]:
    return {ord(accented): plain for plain, of_plain in letters.items() for accented in of_plain}


ROMANCE_ACCENTS = _accents(a="àáâä", o="òóôö", e="èéêë", u="ùúûü", i="ìíîï")
PORTUGUESE_ACCENTS = ROMANCE_ACCENTS | _accents(a="ã", o="õ", c="ç")
FRENCH_ACCENTS = _accents(a="àáâ", o="ô", e="èéê", u="ùû", i="î", c="ç")
GERMAN_ACCENTS = _accents(a="äàáâ", o="öòóô", i="ïìíî", u="üùúû")


ARABIC_PREFIXES = ("ال", "وال", "بال", "كال", "فال", "لل", "و")


def stem_arabic(word: str) -> str:
    """Lucene's ArabicStemmer, light10."""
    shortest = 4 if len(prefix := next(filter(word.startswith, ARABIC_PREFIXES), "")) == 1 else len(prefix) + 2
    return apply_rules("arabic", word.removeprefix(prefix) if len(word) >= shortest else word)


def stem_czech(word: str) -> str:
    """Lucene's CzechStemmer: cases and possessives, then what changes before them."""
    word = apply_rules("czech", word)
    for pattern, ending in {"čt$": "ck", "št$": "sk", "[cč]$": "k", "[zž]$": "h", "e(.)$": r"\1", "(?<=.)ů(.)$": r"o\1"}.items():
        if re.search(pattern, word):
            return re.sub(pattern, ending, word)
    return word


def stem_french(word: str) -> str:
    """Lucene's FrenchLightStemmer."""
    word = apply_rules("french", word)
    if len(word) > 4:
        word = re.sub(r"([^\W\d_])\1+", r"\1", word.translate(FRENCH_ACCENTS))
    word = word[:-2] if len(word) > 4 and word.endswith("ie") else word
    return re.sub(r"([^\W\d_])\1$", r"\1", re.sub("e?e?r?$", "", word)) if len(word) > 4 else word


def stem_german(word: str) -> str:
    """Lucene's GermanLightStemmer."""
    return apply_rules("german", word.translate(GERMAN_ACCENTS))


def stem_greek(word: str) -> str:
    """Lucene's GreekStemmer."""
    if len(word) < 4:
        return word
    stem = apply_rules("greek", word)
    return apply_rules("greek-degrees", apply_rules("greek-endings", stem) if len(stem) == len(word) else stem)


def stem_hindi(word: str) -> str:
    """Lucene's HindiStemmer."""
    return apply_rules("hindi", word)


INDONESIAN_FIRST_PREFIXES = re.compile(
    "(?P<meng>meng|meny(?=[aeiou])|men|mem|me)|(?P<peng>peng|peny|pen|pem)|(?P<di>di)|(?P<ter>ter)|(?P<ke>ke)"
)
INDONESIAN_SECOND_PREFIXES = re.compile("(?P<ber>ber|bel(?=ajar$)|be(?=[^aeiou]er))|(?P<per>per|pel(?=ajar$))|(?P<pe>pe)")
INDONESIAN_SUFFIXES = (("kan", ("ke", "peng", "pe")), ("an", ("di", "meng", "ter")), ("i", ("ber", "ke", "peng")))


def stem_indonesian(word: str) -> str:
    """Lucene's IndonesianStemmer (Tala 2003): of a word with more than two vowels, particle, possessive, prefix, suffix, and second prefix.

    >>> stem_indonesian("membelajarkannya")
    'ajar'
    """
    for ending in ("(?:kah|lah|pun)$", "(?:ku|mu|nya)$"):
        word = re.sub(ending, "", word) if _has_three_vowels(word) else word
    word, first = _cut_indonesian_prefix(word, INDONESIAN_FIRST_PREFIXES)
    if not first:
        return _cut_indonesian_suffix(*_cut_indonesian_prefix(word, INDONESIAN_SECOND_PREFIXES))
    shorter = _cut_indonesian_suffix(word, first)
    return word if shorter == word else _cut_indonesian_prefix(shorter, INDONESIAN_SECOND_PREFIXES)[0]


def _has_three_vowels(word: str) -> bool:
    return sum(letter in "aeiou" for letter in word) > 2


def _cut_indonesian_prefix(word: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """The word without its prefix, with the letter that the prefix has taken; and the prefix's name, empty if there is none."""
    match = pattern.match(word) if _has_three_vowels(word) else None
    if match is None:
        return word, ""
    rest = word[match.end() :]
    taken = {"meny": "s", "peny": "s", "pen": "t"}.get(match[0], "") if rest.startswith(tuple("aeiou")) else ""
    return taken + rest, str(match.lastgroup)


def _cut_indonesian_suffix(word: str, prefix: str) -> str:
    """The word without its suffix, if the suffix may stand with the prefix."""
    if _has_three_vowels(word) and not word.endswith("si"):
        for suffix, prefixes in INDONESIAN_SUFFIXES:
            if word.endswith(suffix) and prefix not in prefixes:
                return word.removesuffix(suffix)
    return word


def stem_italian(word: str) -> str:
    """Lucene's ItalianLightStemmer."""
    return apply_rules("italian", word.translate(ROMANCE_ACCENTS)) if len(word) > 5 else word


def stem_portuguese(word: str) -> str:
    """Lucene's PortugueseLightStemmer."""
    return apply_rules("portuguese", word).translate(PORTUGUESE_ACCENTS) if len(word) > 3 else word


def stem_spanish(word: str) -> str:
    """Lucene's SpanishLightStemmer."""
    return apply_rules("spanish", word.translate(ROMANCE_ACCENTS)) if len(word) > 4 else word


OWN_STEMMERS: dict[str, Stem] = {
    **{"arabic": stem_arabic, "czech": stem_czech, "french": stem_french, "german": stem_german, "greek": stem_greek, "hindi": stem_hindi},
    **{"indonesian": stem_indonesian, "italian": stem_italian, "portuguese": stem_portuguese, "spanish": stem_spanish},
}


def _keep_apostrophe(stem: Stem) -> Stem:
    """Lucene's Snowball takes an apostrophe for a consonant, the newer one for an end of the word."""
    return lambda word: stem(word.replace("'", "\x01")).replace("\x01", "'") if "'" in word else stem(word)


def _stem_danish(stem: Stem) -> Stem:
    pair = re.compile(r"(?=.{4})(.*[aeiouyæåø].*([chjqvwxz]))\2")  # loses one letter, as the pairs that Danish words have
    return lambda word: match[1] if (match := pair.fullmatch(stemmed := stem(word))) else stemmed


def _stem_dutch(stem: Stem) -> Stem:
    return lambda word: DUTCH_STEMS[word] if word in DUTCH_STEMS else stem(word)


def _stem_estonian(stem: Stem) -> Stem:
    def stem_older(word: str) -> str:
        if re.fullmatch("[aeiouõäöü][^aeiouõäöü][aeiouõäöü]t", word):
            return word[:-1]
        return word if re.search("[^aeiouõäöü]t$", word) and stem(word) == word[:-1] else stem(word)

    return stem_older


def _stem_finnish(stem: Stem) -> Stem:
    return lambda word: word if re.search("[^aeiouyäö]h[eioö]n$", word) else stem(word)  # -hVn stays after a consonant


def _stem_lithuanian(stem: Stem) -> Stem:
    return lambda word: stem(word).removesuffix("er") if re.search("[aeiouyąęėįųū].*er(į|s|ų|ia|iai|yje|ys)$", word) else stem(word)


def _stem_norwegian(stem: Stem) -> Stem:
    return lambda word: stem(re.sub("(?<=.)ers$", "er", word))


def _stem_romanian(stem: Stem) -> Stem:
    return lambda word: stem(word.translate(ROMANIAN_COMMAS)).translate(ROMANIAN_CEDILLAS)  # ş and ţ have a cedilla, not a comma


def _stem_swedish(stem: Stem) -> Stem:
    def stem_older(word: str) -> str:
        if match := SWEDISH_NEUTERS.fullmatch(word):
            return match[1]
        adjective = f"{(stemmed := stem(word))}t"
        return (
            adjective if stemmed.endswith("ös") and word.startswith(adjective) and not SWEDISH_ADJECTIVES.fullmatch(adjective) else stemmed
        )

    return stem_older


DUTCH_STEMS = {"fiets": "fiets", "bromfiets": "bromfiets", "ei": "eier", "kind": "kinder"}
ROMANIAN_COMMAS, ROMANIAN_CEDILLAS = str.maketrans("șț", "ʂʈ"), str.maketrans("șțʂʈ", "şţșț")
SWEDISH_NEUTERS = re.compile(r"(.+(?<!and|..h)et)s?")  # -et stays but in -andet and -het
SWEDISH_ADJECTIVES = re.compile("(?=.{7}).*[aeiouyåäö][^aeiouyåäö].*löst")  # lose their -t
OLDER_SNOWBALL: dict[str, Callable[[Stem], Stem]] = {  # Lucene's Snowball by means of the newer one of PyStemmer
    **{"danish": _stem_danish, "dutch": _stem_dutch, "estonian": _stem_estonian, "finnish": _stem_finnish, "lithuanian": _stem_lithuanian},
    **{"norwegian": _stem_norwegian, "romanian": _stem_romanian, "swedish": _stem_swedish},
}


def stemmer_names(language: str) -> list[str]:
    """What can be named as the stemmer of a language: Lucene's, none, and Snowball's own."""
    return ["lucene", "none", *sorted({language, f"{language}_porter"} & {*Stemmer.algorithms()})]


def open_stemmer(language: str, stemmer: str) -> Stem:
    """The stemmer of a language by its name.

    >>> open_stemmer("dutch", "lucene")("kind"), open_stemmer("french", "lucene")("directrices")
    ('kinder', 'direct')
    """
    if stemmer == "none" or (language, stemmer) == ("persian", "lucene"):
        return str
    if stemmer != "lucene":
        return Stemmer.Stemmer(stemmer).stemWord
    if language in OWN_STEMMERS:
        return OWN_STEMMERS[language]
    name = "dutch_porter" if language == "dutch" else language
    if name not in Stemmer.algorithms():
        raise UsageError(f"bm25: language {language!r} needs a newer PyStemmer than {Stemmer.version()}; pip install -U PyStemmer")
    stem = Stemmer.Stemmer(name).stemWord
    return OLDER_SNOWBALL[language](_keep_apostrophe(stem)) if language in OLDER_SNOWBALL else stem
