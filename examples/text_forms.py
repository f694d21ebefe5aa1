"""Length and form of queries and passages: words per text, and the shares of questions, statements and phrases among their sentences.

    python examples/text_forms.py QUERIES CORPUS [FIGURE]

prints a table and draws FIGURE, .svg or .png. English, by plain rules without a parser: a sentence ends at a mark before white space, or
at a new line. A question ends with a question mark or, without any mark, begins with a question word or an auxiliary; a statement ends with
another mark or has a finite auxiliary (is, can, did, …); all else is a phrase, also "the owl hunts mice".
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from moeir.errors import MoeirError
from moeir.evaluation import tables
from moeir.records import texts

QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how")
YES_NO_VERBS = ("is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "will", "would", "should")
FORMS = ("question", "statement", "phrase")
FINITE_AUXILIARIES = frozenset([*YES_NO_VERBS, "am", "had", "may", "might", "must", "shall", "cannot"])
SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+(?!\s|$)[^.!?\n]+)*[.!?]*")
WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass
class TextStatistics:
    """Counts over the texts of one side: texts by their number of words, and sentences by their form."""

    lengths: Counter[int] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        """Count a text."""
        self.lengths[len(WORD.findall(text))] += 1
        self.forms.update(map(sentence_form, find_sentences(text)))

    def rows(self) -> list[tuple[str, float]]:
        """Names and values of the statistics."""
        texts_count, sentences = self.lengths.total(), max(1, self.forms.total())
        return [
            ("texts", texts_count),
            ("median words per text", median(self.lengths)),
            ("sentences per text", sentences / texts_count),
            ("words per sentence", sum(length * count for length, count in self.lengths.items()) / sentences),
            *((f"share of {form}s", self.forms[form] / sentences) for form in FORMS),
        ]


def median(counts: Counter[int]) -> int:
    """The smallest length that half of the texts do not exceed."""
    ordered = sorted(counts)
    reached = accumulate(counts[length] for length in ordered)
    return next(length for length, count in zip(ordered, reached, strict=True) if 2 * count >= counts.total())


def list_shares(statistics: Mapping[str, TextStatistics]) -> dict[str, dict[tuple[str, str], float]]:
    """The shares of texts by their number of words, in classes that double, and of sentences by their form."""
    lengths, forms = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    longest = max(length for one in statistics.values() for length in one.lengths)
    for side, one in statistics.items():
        for bits in range(longest.bit_length() + 1):
            share = sum(count for length, count in one.lengths.items() if length.bit_length() == bits) / one.lengths.total()
            lengths[side, f"{2**bits // 2}-{2**bits - 1}"] = share
        forms |= {(side, form): one.forms[form] / max(1, one.forms.total()) for form in FORMS}
    return {"words per text": lengths, "form of sentences": forms}


def find_sentences(text: str) -> list[str]:
    """The sentences of a text that have a word."""
    return [sentence.strip() for sentence in SENTENCE.findall(text) if WORD.search(sentence)]


def sentence_form(sentence: str) -> str:
    """`question`, `statement` or `phrase`."""
    words = [word.lower() for word in WORD.findall(sentence)]
    mark = sentence.rstrip("\"'”’)] ")[-1:]
    if mark == "?" or (mark not in (".", "!") and words[0] in (*QUESTION_WORDS, "whose", "whom", *YES_NO_VERBS)):
        return "question"
    return "statement" if mark in (".", "!") or FINITE_AUXILIARIES.intersection(words) else "phrase"


def count_texts(path: Path) -> TextStatistics:
    """The statistics of a file of texts."""
    statistics = TextStatistics()
    for text in texts.read_texts(path, keep_empty=True):
        statistics.add(text.content)
    return statistics


def main(queries: Path, corpus: Path, figure: Path | None = None) -> None:
    statistics = {"query": count_texts(queries), "document": count_texts(corpus)}
    rows = [(side, *row) for side, one in statistics.items() for row in one.rows()]
    sys.stdout.write(tables.format_table(["side", "statistic", "value"], rows) + "\n")
    if figure is not None:
        import figures

        figures.draw_panels("bars", list_shares(statistics), figure, y_label="share")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
