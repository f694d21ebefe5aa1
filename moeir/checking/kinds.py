"""Kinds of faults with advice, and findings: a count of each kind and its first few lines."""

from typing import NamedTuple


class FaultKind(NamedTuple):
    """A kind of fault. `message_parts` are substrings of the reader messages of this kind; a `note` is not a fault."""

    name: str
    advice: str
    message_parts: tuple[str, ...] = ()
    note: bool = False


DELETE_ADVICE = "repair or delete the line; --fix deletes it"
FAULT_KINDS = (
    FaultKind("damaged-archive", "fetch the file again", ("damaged archive", "cannot be read")),
    FaultKind("empty-file", "check the path"),
    FaultKind("not-utf8", "convert the file to UTF-8; --fix reads such lines as Windows-1252"),
    FaultKind("control-character", "remove it; --fix writes a space instead", ("Invalid control character",)),
    FaultKind("mojibake", "the text was decoded as Windows-1252 though it was UTF-8; --fix decodes it as UTF-8"),
    FaultKind("replacement-character", "the original character is lost; take the text from its source", note=True),
    FaultKind("half-character", DELETE_ADVICE, ("lone surrogate",)),
    FaultKind("broken-json", DELETE_ADVICE, ("broken JSON", " in the array, found ")),
    FaultKind("not-an-object", DELETE_ADVICE, ("a JSON object was expected", "expected a JSON object")),
    FaultKind("columns", DELETE_ADVICE, ("columns between tabs", "tab-separated", "a list of answers", "query document grade", "rank score tag")),
    FaultKind("no-id", DELETE_ADVICE, ("no id;", "no query_id")),
    FaultKind("id-not-a-word", DELETE_ADVICE, ("id is not a string",)),
    FaultKind("blank-id", "give the record an id; --fix deletes the line", ("id is blank",)),
    FaultKind("id-with-space", "rename it everywhere: a run has one word for an id; --fix deletes the line", ("id with white space",)),
    FaultKind("duplicate-id", "keep one of them; --fix keeps the first", ("on an earlier line too", "duplicate id", "duplicate query id")),
    FaultKind("no-text", DELETE_ADVICE, ("no text;", "no query text", "is missing or not a string")),
    FaultKind("text-not-a-string", DELETE_ADVICE, (" is not a string: ", "answers is not a list")),
    FaultKind("empty-text", "give it a text, or delete it as --fix does, or keep it with --keep-empty", ("is empty; --keep-empty",)),
    FaultKind("duplicate-text", "one of them may be judged and the other not, which distorts evaluation", note=True),
    FaultKind("query-in-corpus", "leave the document out when its query is evaluated, or --allow query-in-corpus"),
    FaultKind("two-texts", "different texts need other ids; --fix deletes the line", ("has two texts",)),
    FaultKind("grade-not-a-number", DELETE_ADVICE, ("grade is not a number",)),
    FaultKind("grade-not-whole", "write a whole number; --fix deletes the line", ("grade is not a whole number",)),
    FaultKind("duplicate-judgement", "keep one of them; --fix keeps the first"),
    FaultKind("grades-disagree", "decide which is right; --fix keeps the first"),
    FaultKind("unknown-query", "remove the line, as --fix does, or name the file that has the query"),
    FaultKind("unknown-document", "remove it, as --fix does, or name the corpus that has the document"),
    FaultKind("no-relevant", "every measure of the query is 0; remove its lines or judge more documents", note=True),
    FaultKind("unjudged-query", "evaluation leaves it out", note=True),
    FaultKind("not-a-list", DELETE_ADVICE, (" is not a list",)),
    FaultKind("no-negatives", DELETE_ADVICE, ("no negatives;", "no negative_passages", "no negative_scores")),
    FaultKind("no-positive", "training learns nothing of it; --fix deletes the line", ("has no positive", "no positives;", "no positive_")),
    FaultKind("positive-among-negatives", "take it out of the negatives, as --fix does", ("is a positive and a negative",)),
    FaultKind("duplicate-passage", "name it once, as --fix does", (" twice in positive", " twice in negative")),
    FaultKind("scores-miscounted", "write one score for each document; --fix deletes the line", ("_scores has",)),
    FaultKind("score-not-finite", "fix the program that wrote it; --fix deletes the line", ("score is not finite", "expected finite numbers")),
    FaultKind("provenance", DELETE_ADVICE, ("negative_provenance",)),
    FaultKind("leaked-query", "remove it from training, as --fix does: it is a dev query"),
    FaultKind("score-not-a-number", DELETE_ADVICE, ("score is not a number",)),
    FaultKind("rank-not-a-number", "write whole numbers from 1; --fix renumbers by score"),
    FaultKind("rank-order", "number each list from 1, best first; --fix renumbers by score"),
    FaultKind("unsorted", "sort each list by score, as --fix does"),
    FaultKind("duplicate-document", "keep one; --fix keeps the higher score"),
    FaultKind("query-in-parts", "keep the lines of a query together, as --fix does"),
    FaultKind("ties", "tools order them differently; moeir takes the larger id first, as trec_eval", note=True),
    FaultKind("several-tags", "moeir keeps the first tag", note=True),
    FaultKind("query-without-hits", "it scores 0 in every measure", note=True),
    FaultKind("truncated", "encode with a longer --document-length or --query-length, or cut texts into passages", note=True),
    FaultKind("not-finite", "encode again; if it recurs, the weights are damaged"),
    FaultKind("zero-vector", "its score is 0 for every query; check the text"),
    FaultKind("no-terms", "its score is 0 for every query; check the text, or keep more terms"),
    FaultKind("collapsed", "the expert maps all texts to nearly the same vector: train it again with another learning rate or other negatives"),
    FaultKind("duplicate-vector", "equal texts have equal vectors; check the corpus for them", note=True),
    FaultKind("missing-document", "encode the corpus again"),
    FaultKind("other-order", "fine for search; another corpus, or another version of it, was encoded", note=True),
    FaultKind("faulty-line", DELETE_ADVICE),
)
KINDS_BY_NAME = {kind.name: kind for kind in FAULT_KINDS}


def classify_message(message: str) -> str:
    """Kind of fault of a reader's error message.

    >>> classify_message("dev.tsv:3: grade is not a number: 'x'")
    'grade-not-a-number'
    """
    return next((kind.name for kind in FAULT_KINDS if any(words in message for words in kind.message_parts)), "faulty-line")
