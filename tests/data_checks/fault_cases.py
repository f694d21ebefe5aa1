"""Cases of faulty data: a faulty line after valid ones, and the finding that `check` reports."""

import json
from typing import Any, NamedTuple

CORPUS = (
    '{"_id": "owl", "text": "An owl hunts mice."}',
    '{"_id": "cat", "text": "A cat sleeps."}',
    '{"_id": "bat", "text": "A bat flies."}',
)
QUERIES = ('{"_id": "q1", "text": "who hunts mice"}', '{"_id": "q2", "text": "who sleeps"}')
QRELS = ("q1 0 owl 1", "q2 0 cat 1")
TRAIN = ('{"query_id": "q1", "positive_ids": ["owl"], "negative_ids": ["cat", "bat"]}',)
RUN = ("q1 Q0 owl 1 3.0 t", "q1 Q0 cat 2 2.0 t", "q2 Q0 cat 1 2.5 t", "q2 Q0 owl 2 0.5 t")
GOOD = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "dev.qrels": QRELS, "train.jsonl": TRAIN, "dev.trec": RUN}
FLAGS = {"--corpus": "corpus.jsonl", "--queries": "queries.jsonl", "--qrels": "dev.qrels", "--train": "train.jsonl", "--run": "dev.trec"}


class FaultCase(NamedTuple):
    """Lines after the valid ones of a file: the expected kind, line (from 1, after the valid ones; None for none), and message part."""

    kind: str
    file: str
    lines: tuple[str | bytes, ...]
    line: int | None
    words: str
    note: bool = False


def example(query: str = "q2", **fields: Any) -> str:
    return json.dumps({"query_id": query, "positive_ids": ["cat"], "negative_ids": ["bat"]} | fields)


def inline(query: str, *sides: list[dict[str, str]]) -> str:
    passages = dict(zip(("positive_passages", "negative_passages"), sides, strict=True))
    return json.dumps({"query_id": "q2", "query": query} | passages)


OWL, COW = {"docid": "owl", "title": "", "text": "An owl."}, {"docid": "owl", "title": "", "text": "A cow."}

TEXTS = [
    FaultCase("not-utf8", "corpus.jsonl", (b'{"_id": "x", "text": "caf\xe9"}',), 1, "byte 0xe9"),
    FaultCase("faulty-line", "corpus.jsonl", (b'{"_id": "x", "text": "zero\0byte"}',), 1, "broken JSON"),
    FaultCase("control-character", "corpus.jsonl", ('{"_id": "x", "text": "ring\\u0007bell"}',), 1, "'ring\\x07bell' should"),
    FaultCase("mojibake", "corpus.jsonl", ('{"_id": "x", "text": "the worldâ€™s cafÃ©"}',), 1, "should be 'the world’s café'"),
    FaultCase("mojibake", "corpus.jsonl", ('{"_id": "x", "text": "Ð¿Ñ€Ð¸Ð²ÐµÑ‚"}',), 1, "should be 'привет'"),
    FaultCase("faulty-line", "corpus.jsonl", ('{"_id": "x", "text": "no end',), 1, "broken JSON at column 22"),
    FaultCase("duplicate", "corpus.jsonl", ('{"_id": "owl", "text": "Another."}',), 1, "'owl' occurs on an earlier line"),
    FaultCase("empty-text", "corpus.jsonl", ('{"_id": "x", "title": " ", "text": ""}',), 1, "'x' has no text"),
    FaultCase("duplicate-text", "corpus.jsonl", ('{"_id": "x", "text": "a  BAT flies."}',), 1, "'x' has the text of", note=True),
    FaultCase("query-in-corpus", "corpus.jsonl", ('{"_id": "x", "text": "who sleeps"}',), 1, "document 'x' is the text of query 'q2'"),
    FaultCase("duplicate", "queries.jsonl", ('{"_id": "q1", "text": "again"}',), 1, "'q1' occurs on an earlier line"),
]
JUDGEMENTS = [
    FaultCase("faulty-line", "dev.qrels", ("q1 owl",), 1, "found 2"),
    FaultCase("duplicate", "dev.qrels", ("q1 0 bat 1", "q1 0 owl 1"), 2, "query 'q1', document 'owl': judged"),
    FaultCase("grades-disagree", "dev.qrels", ("q1 0 owl 2",), 1, "2 here, 1 on an earlier line"),
    FaultCase("unknown-query", "dev.qrels", ("q9 0 owl 1",), 1, "query 'q9'"),
    FaultCase("unknown-document", "dev.qrels", ("q1 0 yak 1",), 1, "document 'yak' of query 'q1'"),
    FaultCase("not-utf8", "dev.qrels", (b"q1 0 caf\xe9 0",), 1, "byte 0xe9"),
]
EXAMPLES = [
    FaultCase("faulty-line", "train.jsonl", (example(positive_ids=[]),), 1, "'q2' has no positive"),
    FaultCase(
        "positive-among-negatives",
        "train.jsonl",
        (inline("who", [OWL], [{**OWL, "docid": "twin"}, COW | {"docid": "cow"}]),),
        1,
        "'twin' has the text of a positive",
    ),
    FaultCase("duplicate", "train.jsonl", (example("q1"),), 1, "query 'q1' occurs on an earlier line"),
    FaultCase("unknown-query", "train.jsonl", (example("q9"),), 1, "query 'q9'"),
    FaultCase("unknown-document", "train.jsonl", (example(negative_ids=["yak", "bat", "gnu"]),), 1, "'yak' (and 1 more) of query 'q2'"),
]
LISTS = [
    FaultCase("faulty-line", "dev.trec", ("q2 Q0 bat 3 0.1",), 1, "found 5"),
    FaultCase("faulty-line", "dev.trec", ("q2 Q0 bat third 0.1 t",), 1, "rank is not a whole number: 'third'"),
    FaultCase("rank-order", "dev.trec", ("q2 Q0 bat 2 0.1 t",), 1, "rank 2, score 0.100000001 under rank 2, score 0.5"),
    FaultCase("rank-order", "dev.trec", ("q2 Q0 bat 3 9.0 t",), 1, "rank 3, score 9 under rank 2, score 0.5"),
    FaultCase("duplicate", "dev.trec", ("q2 Q0 cat 3 0.1 t",), 1, "document 'cat' occurs twice in the list of 'q2'"),
    FaultCase("duplicate", "dev.trec", ("q1 Q0 owl 3 0.1 t",), 1, "document 'owl' occurs twice in the list of 'q1'"),
    FaultCase("unknown-query", "dev.trec", ("q9 Q0 bat 1 0.1 t",), 1, "query 'q9'"),
    FaultCase("unknown-document", "dev.trec", ("q2 Q0 yak 3 0.1 t",), 1, "document 'yak' of query 'q2'"),
]
FAULT_CASES = [*TEXTS, *JUDGEMENTS, *EXAMPLES, *LISTS]
