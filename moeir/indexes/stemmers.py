"""Stemmers of Lucene's analysers: rules where Lucene has its own, and PyStemmer's Snowball, corrected where Lucene's is an older one."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import Stemmer

from moeir.errors import UsageError

RULES_FILE = Path(__file__).with_name("stemmer_rules.txt")
Stem = Callable[[str], str]


@dataclass(frozen=True)
class Rule:
    """A line of the file of rules, whose head says what it means; `counted` are the letters that count for the length, all if empty."""

    length: int
    counted: str
    change: Stem
    suffixes: tuple[str, ...] = ("",)
    cut: int = 0

    @classmethod
    def from_line(cls, line: str, counted: str) -> "Rule":
        """The rule of a line."""
        length, first, *rest = re.sub(r"\\u(....)", lambda code: chr(int(code[1], 16)), line).split(" ")
        if first.startswith("/"):
            return cls(int(length), counted, partial(re.compile(first[1:]).sub, rest[0].strip("-")))
        if first.startswith("="):
            letters = dict(pair.split(":") for pair in (first[1:], *rest))
            return cls(int(length), counted, partial(re.compile("|".join(letters)).sub, lambda match: letters[match[0]]))
        cut, ending, second_ending, pattern = (*rest, *["0", "-", "-", "(?!)"][len(rest) :])
        is_before_second_ending = re.compile(pattern).fullmatch

        def change_suffix(word: str) -> str:
            stem = word[: len(word) - int(cut)] + ending.strip("-")
            return stem + second_ending if is_before_second_ending(stem) else stem

        return cls(int(length), counted, change_suffix, tuple(first.split("|")), int(cut))

    def apply(self, word: str) -> str:
        """The word as the rule changes it, if it is long enough and has one of the suffixes."""
        length = sum(map(word.count, self.counted)) if self.counted else len(word)
        return self.change(word) if length > self.length and word.endswith(self.suffixes) else word


@cache
def read_rules(section: str) -> tuple[tuple[tuple[Rule, ...], bool], ...]:
    """The steps of a section of the file of rules, each with whether it is the last one if it changes a word; none if it has no section."""
    match = re.search(rf"^\[{section}(?: (\w+))?\]\n(.*?)(?=\n\n|\Z)", RULES_FILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if match is None:
        return ()
    *parts, last = re.split(r"\n(--|==)\n", match[2].rstrip("\n"))
    steps = [*zip(parts[::2], parts[1::2], strict=True), (last, "--")]
    return tuple((tuple(Rule.from_line(line, match[1] or "") for line in lines.split("\n")), end == "==") for lines, end in steps)


def apply_rules(section: str, word: str) -> str:
    """The word after the steps of a section; in each the first rule that changes it.

    >>> apply_rules("german", "häusern"), apply_rules("indonesian", "membelajarkannya")
    ('haus', 'ajar')
    """
    for rules, is_last in read_rules(section):
        changed = next((new for rule in rules if (new := rule.apply(word)) != word), word)
        if is_last and changed != word:
            return changed
        word = changed
    return word


def _stem_greek(word: str) -> str:
    stem = apply_rules("greek", word)
    return apply_rules("greek-degrees", apply_rules("greek-endings", stem) if len(stem) == len(word) else stem)


RULE_STEMMERS: dict[str, Stem] = {
    **{name: partial(apply_rules, name) for name in ("arabic", "czech", "german", "hindi", "indonesian", "italian", "spanish")},
    "french": lambda word: apply_rules("french-letters", apply_rules("french", word)),
    "greek": lambda word: _stem_greek(word) if len(word) > 3 else word,
    "portuguese": lambda word: apply_rules("portuguese", word) if len(word) > 3 else word,
}
OLDER_SNOWBALL = ("danish", "dutch", "estonian", "finnish", "lithuanian", "norwegian", "romanian", "swedish")


def _stem_as_older(language: str, stem: Stem, word: str) -> str:
    """The stem of Lucene's Snowball, for which an apostrophe is a consonant, by means of the newer one of PyStemmer."""
    newer_stem = stem(apply_rules(f"{language}-before", word).replace("'", "\x01")).replace("\x01", "'")
    return apply_rules(f"{language}-after", f"{word}>{newer_stem}").rpartition(">")[2]


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
    if language in RULE_STEMMERS:
        return RULE_STEMMERS[language]
    name = "dutch_porter" if language == "dutch" else language
    if name not in Stemmer.algorithms():
        raise UsageError(f"bm25: language {language!r} needs a newer PyStemmer than {Stemmer.version()}; pip install -U PyStemmer")
    stem = Stemmer.Stemmer(name).stemWord
    return partial(_stem_as_older, language, stem) if language in OLDER_SNOWBALL else stem
