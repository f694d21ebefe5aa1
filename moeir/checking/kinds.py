"""Kinds of faults with advice, and findings: a count of each kind and its first few lines."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of fault. `message_parts` are substrings of the reader messages of this kind; a `note` is not a fault."""

    name: str
    advice: str
    words: tuple[str, ...] = ()
    note: bool = False


DROPPED = "repair or delete the line; --fix deletes it"
EVERY = (
    Kind("damaged-archive", "fetch the file again", ("damaged archive", "cannot be read")),
    Kind("empty-file", "check the path"),
    Kind("not-utf8", "convert the file to UTF-8; --fix reads such lines as Windows-1252"),
    Kind("control-character", "remove it; --fix writes a space instead", ("Invalid control character",)),
    Kind("mojibake", "the text was decoded as Windows-1252 though it was UTF-8; --fix decodes it as UTF-8"),
    Kind("replacement-character", "the original character is lost; take the text from its source", note=True),
    Kind("half-character", DROPPED, ("lone surrogate",)),
    Kind("broken-json", DROPPED, ("broken JSON", " in the array, found ")),
    Kind("not-an-object", DROPPED, ("a JSON object was expected", "expected a JSON object")),
    Kind("columns", DROPPED, ("columns between tabs", "tab-separated", "a list of answers", "query document grade", "rank score tag")),
    Kind("no-id", DROPPED, ("no id;", "no query_id")),
    Kind("id-not-a-word", DROPPED, ("id is not a string",)),
    Kind("blank-id", "give the record an id; --fix deletes the line", ("id is blank",)),
    Kind("id-with-space", "rename it everywhere: a run has one word for an id; --fix deletes the line", ("id with white space",)),
    Kind("duplicate-id", "keep one of them; --fix keeps the first", ("on an earlier line too", "duplicate id", "duplicate query id")),
    Kind("no-text", DROPPED, ("no text;", "no query text", "is missing or not a string")),
    Kind("text-not-a-string", DROPPED, (" is not a string: ", "answers is not a list")),
    Kind("empty-text", "give it a text, or delete it as --fix does, or keep it with --keep-empty", ("is empty; --keep-empty",)),
    Kind("duplicate-text", "one of them may be judged and the other not, which distorts evaluation", note=True),
    Kind("query-in-corpus", "leave the document out when its query is evaluated, or --allow query-in-corpus"),
    Kind("two-texts", "different texts need other ids; --fix deletes the line", ("has two texts",)),
    Kind("grade-not-a-number", DROPPED, ("grade is not a number",)),
    Kind("grade-not-whole", "write a whole number; --fix deletes the line", ("grade is not a whole number",)),
    Kind("duplicate-judgement", "keep one of them; --fix keeps the first"),
    Kind("grades-disagree", "decide which is right; --fix keeps the first"),
    Kind("unknown-query", "remove the line, as --fix does, or name the file that has the query"),
    Kind("unknown-document", "remove it, as --fix does, or name the corpus that has the document"),
    Kind("no-relevant", "every measure of the query is 0; remove its lines or judge more documents", note=True),
    Kind("unjudged-query", "evaluation leaves it out", note=True),
    Kind("not-a-list", DROPPED, (" is not a list",)),
    Kind("no-negatives", DROPPED, ("no negatives;", "no negative_passages", "no negative_scores")),
    Kind("no-positive", "training learns nothing of it; --fix deletes the line", ("has no positive", "no positives;", "no positive_")),
    Kind("positive-among-negatives", "take it out of the negatives, as --fix does", ("is a positive and a negative",)),
    Kind("duplicate-passage", "name it once, as --fix does", (" twice in positive", " twice in negative")),
    Kind("scores-miscounted", "write one score for each document; --fix deletes the line", ("_scores has",)),
    Kind("score-not-finite", "fix the program that wrote it; --fix deletes the line", ("score is not finite", "expected finite numbers")),
    Kind("provenance", DROPPED, ("negative_provenance",)),
    Kind("leaked-query", "remove it from training, as --fix does: it is a dev query"),
    Kind("score-not-a-number", DROPPED, ("score is not a number",)),
    Kind("rank-not-a-number", "write whole numbers from 1; --fix renumbers by score"),
    Kind("rank-order", "number each list from 1, best first; --fix renumbers by score"),
    Kind("unsorted", "sort each list by score, as --fix does"),
    Kind("duplicate-document", "keep one; --fix keeps the higher score"),
    Kind("query-in-parts", "keep the lines of a query together, as --fix does"),
    Kind("ties", "tools order them differently; moeir takes the larger id first, as trec_eval", note=True),
    Kind("several-tags", "moeir keeps the first tag", note=True),
    Kind("query-without-hits", "it scores 0 in every measure", note=True),
    Kind("truncated", "encode with a longer --document-length or --query-length, or cut texts into passages", note=True),
    Kind("not-finite", "encode again; if it recurs, the weights are damaged"),
    Kind("zero-vector", "its score is 0 for every query; check the text"),
    Kind("no-terms", "its score is 0 for every query; check the text, or keep more terms"),
    Kind("collapsed", "the expert maps all texts to nearly the same vector: train it again with another learning rate or other negatives"),
    Kind("duplicate-vector", "equal texts have equal vectors; check the corpus for them", note=True),
    Kind("missing-document", "encode the corpus again"),
    Kind("other-order", "fine for search; another corpus, or another version of it, was encoded", note=True),
    Kind("faulty-line", DROPPED),
)
NAMED = {kind.name: kind for kind in EVERY}


def of_message(message: str) -> str:
    """Kind of fault of a reader's error message.

    >>> classify_message("dev.tsv:3: grade is not a number: 'x'")
    'grade-not-a-number'
    """
    return next((kind.name for kind in EVERY if any(words in message for words in kind.words)), "faulty-line")
