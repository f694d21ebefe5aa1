"""Form of queries and passages by plain rules: questions, statements and phrases, and the share of function words.

The rules know closed classes of English words and punctuation, no grammar: parts of speech, finite verbs outside the closed class of
auxiliaries, and clauses would need a parser.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moeir.analysis.result import AnalysisResult, Plot
from moeir.analysis.wins import QUESTION_WORDS, YES_NO_VERBS

FORMS = ("question", "statement", "phrase")
_NONFINITE_AUXILIARIES = frozenset(["be", "been", "being", "having", "doing", "done"])
_FUNCTION_WORD_LINES = (
    "a an the this that these those each every either neither some any no all both such another there whose whom one not",
    "i you he she it we they me him her us them my your his its our their mine yours hers ours theirs",
    "myself yourself himself herself itself ourselves themselves and or but nor so yet if because although though while whereas unless",
    "of in to for with on at by from about into over after under between through during before without against within along across",
    "behind beyond beside besides near off onto out since toward towards until up upon via among despite except per than as like whether",
)
FINITE_AUXILIARIES = frozenset([*YES_NO_VERBS, "am", "had", "may", "might", "must", "shall", "cannot"])
FUNCTION_WORDS = FINITE_AUXILIARIES | _NONFINITE_AUXILIARIES | {word for line in _FUNCTION_WORD_LINES for word in line.split()}
FUNCTION_WORDS |= set(QUESTION_WORDS)
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?]+(?!\s|$)[^.!?\n]+)*[.!?]*")
_WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass
class SyntaxCounts:
    """Counts over the texts of one side."""

    texts: int = 0
    words: int = 0
    function_words: int = 0
    forms: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        """Count a text."""
        self.texts += 1
        for sentence in find_sentences(text):
            words = [word.lower() for word in _WORD.findall(sentence)]
            self.words += len(words)
            self.function_words += sum(word in FUNCTION_WORDS for word in words)
            self.forms[sentence_form(sentence)] += 1

    def statistics(self) -> dict[str, float]:
        """Texts, sentences per text, words per sentence, the share of each form among sentences and of function words among words."""
        sentences = max(1, self.forms.total())
        shares = {f"share of {form}s": self.forms[form] / sentences for form in FORMS}
        per_text = {"sentences per text": sentences / max(1, self.texts), "words per sentence": self.words / sentences}
        return {"texts": self.texts, **per_text, **shares, "share of function words": self.function_words / max(1, self.words)}


def find_sentences(text: str) -> list[str]:
    """The sentences of a text that have a word; a full stop, question or exclamation mark before white space, or a new line, ends one.

    >>> find_sentences("Owls see 3.5 km far. Do they?  owl sight")
    ['Owls see 3.5 km far.', 'Do they?', 'owl sight']
    """
    return [sentence.strip() for sentence in _SENTENCE.findall(text) if _WORD.search(sentence)]


def sentence_form(sentence: str) -> str:
    """`question`, `statement` or `phrase`.

    A question ends with a question mark or, without any mark, begins with a question word or an auxiliary. A statement ends with another
    mark or has a finite auxiliary. All else is a phrase, also a statement without mark whose verbs are all full verbs.

    >>> [sentence_form(each) for each in ("what do owls eat", "Owls hunt.", "owls are birds", "owl food")]
    ['question', 'statement', 'statement', 'phrase']
    """
    words = [word.lower() for word in _WORD.findall(sentence)]
    mark = sentence.rstrip("\"'”’)] ")[-1:]
    if mark == "?" or (mark not in (".", "!") and words[:1] and words[0] in (*QUESTION_WORDS, "whose", "whom", *YES_NO_VERBS)):
        return "question"
    return "statement" if mark in (".", "!") or FINITE_AUXILIARIES.intersection(words) else "phrase"


def analyze_syntax(texts_by_side: Mapping[str, Iterable[str]]) -> AnalysisResult:
    """Statistics of the form of queries and documents; the plot shows the shares of questions, statements and phrases."""
    rows: list[tuple[str, str, float]] = []
    marks: list[tuple[str, str, str, float]] = []
    for side, texts in texts_by_side.items():
        counts = SyntaxCounts()
        for text in texts:
            counts.add(text)
        statistics = counts.statistics()
        rows += [(side, name, value) for name, value in statistics.items()]
        marks += [("share of sentences", side, form, statistics[f"share of {form}s"]) for form in FORMS]
    return AnalysisResult(["side", "statistic", "value"], rows, Plot("bars", marks, y_label="share of sentences"))
