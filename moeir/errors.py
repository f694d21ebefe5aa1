"""Errors a user can cause, their exit codes, and the kinds of faults of data.

A message is one line: where, what was found, what was expected, and the command that repairs it if there is one.
"""

import re
from typing import ClassVar, NamedTuple

_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|failed to map segment")  # in the messages of torch and of the loader


class FaultKind(NamedTuple):
    """A kind of fault of data; a `note` is not a fault."""

    advice: str
    note: bool = False


DELETE_ADVICE = "repair or delete the line"
FAULT_KINDS = {
    "damaged-archive": FaultKind("fetch the file again"),
    "empty-file": FaultKind("check the path"),
    "not-utf8": FaultKind("convert the file to UTF-8; --fix reads such lines as Windows-1252"),
    "control-character": FaultKind("remove it; --fix writes a space instead"),
    "mojibake": FaultKind(
        "the text was decoded with another encoding than its own, such as Windows-1252 for UTF-8; --fix decodes it again"
    ),
    "replacement-character": FaultKind("the original character is lost; take the text from its source", note=True),
    "half-character": FaultKind(DELETE_ADVICE),
    "broken-json": FaultKind(DELETE_ADVICE),
    "not-an-object": FaultKind(DELETE_ADVICE),
    "columns": FaultKind(DELETE_ADVICE),
    "no-id": FaultKind(DELETE_ADVICE),
    "id-not-a-word": FaultKind(DELETE_ADVICE),
    "blank-id": FaultKind("give the record an id"),
    "id-with-space": FaultKind("rename it everywhere: a run has one word for an id"),
    "duplicate-id": FaultKind("keep one of them; --fix keeps the first"),
    "no-text": FaultKind(DELETE_ADVICE),
    "text-not-a-string": FaultKind(DELETE_ADVICE),
    "empty-text": FaultKind("give it a text or delete it, or keep it with --keep-empty"),
    "duplicate-text": FaultKind("one of them may be judged and the other not, which distorts evaluation", note=True),
    "query-in-corpus": FaultKind("leave the document out when its query is evaluated, or --allow query-in-corpus"),
    "two-texts": FaultKind("different texts need other ids"),
    "grade-not-a-number": FaultKind(DELETE_ADVICE),
    "grade-not-whole": FaultKind("write a whole number"),
    "duplicate-judgement": FaultKind("keep one of them; --fix keeps the first"),
    "grades-disagree": FaultKind("decide which is right"),
    "unknown-query": FaultKind("remove the line, or name the file that has the query"),
    "unknown-document": FaultKind("remove it, or name the corpus that has the document"),
    "no-relevant": FaultKind("every measure of the query is 0; remove its lines or judge more documents", note=True),
    "unjudged-query": FaultKind("evaluation leaves it out", note=True),
    "not-a-list": FaultKind(DELETE_ADVICE),
    "no-negatives": FaultKind(DELETE_ADVICE),
    "no-positive": FaultKind("training learns nothing of it; delete the line"),
    "positive-among-negatives": FaultKind("take it out of the negatives"),
    "positive-text-among-negatives": FaultKind("it is the positive under another id: take it out of the negatives"),
    "duplicate-passage": FaultKind("name it once"),
    "scores-miscounted": FaultKind("write one score for each document"),
    "score-not-finite": FaultKind("fix the program that wrote it"),
    "provenance": FaultKind(DELETE_ADVICE),
    "leaked-query": FaultKind("remove it from training: it is a dev query"),
    "score-not-a-number": FaultKind(DELETE_ADVICE),
    "rank-not-a-number": FaultKind("write whole numbers from 1; moeir convert --to run numbers by score"),
    "rank-order": FaultKind("number each list from 1, best first; moeir convert --to run numbers by score"),
    "unsorted": FaultKind("sort each list by score, as moeir convert --to run does"),
    "duplicate-document": FaultKind("keep one; --fix keeps the first"),
    "query-in-parts": FaultKind("keep the lines of a query together, as moeir convert --to run does"),
    "ties": FaultKind("tools order them differently; moeir takes the larger id first, as trec_eval", note=True),
    "several-tags": FaultKind("moeir keeps the first tag", note=True),
    "query-without-hits": FaultKind("it scores 0 in every measure", note=True),
    "truncated": FaultKind("encode with a longer --document-length or --query-length, or cut texts into passages", note=True),
    "not-finite": FaultKind("encode again; if it recurs, the weights are damaged"),
    "zero-vector": FaultKind("its score is 0 for every query; check the text"),
    "no-terms": FaultKind("its score is 0 for every query; check the text, or keep more terms"),
    "collapsed": FaultKind(
        "the expert maps all texts to nearly the same vector: train it again with another learning rate or other negatives"
    ),
    "duplicate-vector": FaultKind("equal texts have equal vectors; check the corpus for them", note=True),
    "missing-document": FaultKind("encode the corpus again"),
    "faulty-line": FaultKind(DELETE_ADVICE),
}


class MoeirError(Exception):
    """An error that ends a command with one line instead of a traceback; `code` is the kind of fault, a key of FAULT_KINDS, or empty."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UsageError(MoeirError):
    """A flag, option, or specification that does not make sense."""

    exit_code: ClassVar[int] = 2


class DataError(MoeirError):
    """A missing or faulty text file."""

    exit_code: ClassVar[int] = 3


class ArtifactError(MoeirError):
    """A checkpoint, encoding, or index that is missing, unfinished, damaged, of another kind, or made from other sources."""

    exit_code: ClassVar[int] = 4


class OutputInUse(ArtifactError):
    """An output that another process is writing at this moment."""


class OutOfMemory(MoeirError):
    """The CPU or a device is out of memory."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an exception of Python or torch means that memory has run out."""
    matches = isinstance(problem, RuntimeError | ImportError) and (
        type(problem).__name__ == "OutOfMemoryError" or _OUT_OF_MEMORY.search(str(problem))
    )
    return isinstance(problem, MemoryError) or bool(matches)
