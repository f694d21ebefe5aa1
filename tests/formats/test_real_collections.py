"""Collections and training rows of real text: there and back through every format that can hold them."""

from pathlib import Path

from tests.formats.sets import COLLECTIONS, EXAMPLES
from tests.formats.test_round_trips import REAL, SHARED, Moeir, convert_file, check_round_trips


@REAL
def test_real_collections(tmp_path: Path, moeir: Moeir) -> None:
    strict = moeir("convert", "--input", SHARED / "cacm", "--to", "msmarco", "--output", tmp_path / "strict")
    assert strict.code == 2 and "the title as a field of its own would be lost from beir to msmarco" in strict.stderr
    without_titles = convert_file(moeir, SHARED / "cacm", "msmarco", tmp_path / "plain", "--lossy")
    check_round_trips(moeir, without_titles, COLLECTIONS, tmp_path)


@REAL
def test_real_rows(tmp_path: Path, moeir: Moeir) -> None:
    """Each query of SQuAD with its passage, and the passages of the next queries as negatives."""
    import gzip
    import json

    from moeir.records import qrels, texts

    grades_by_query = qrels.read_qrels(SHARED / "squad" / "qrels" / "dev.tsv.gz")
    corpus = texts.read_texts_by_id(SHARED / "squad" / "corpus.jsonl.gz")
    queries = {}
    with gzip.open(SHARED / "squad" / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            if record["_id"] in grades_by_query:
                queries.setdefault(record["text"], record["_id"])
    passages = list(dict.fromkeys(next(iter(grades_by_query[query])) for query in queries.values()))
    with open(tmp_path / "rows.jsonl", "w", encoding="utf-8") as output:
        for index, (question, query) in enumerate(list(queries.items())[:200]):
            positive = next(iter(grades_by_query[query]))
            negatives = [passage for passage in passages[index + 1 : index + 6] if passage != positive][:3]
            sides = {
                name: [" ".join(corpus[passage].text.split()) for passage in ids] for name, ids in (("pos", [positive]), ("neg", negatives))
            }
            output.write(json.dumps({"query": " ".join(question.split()), **sides}, ensure_ascii=False) + "\n")
    check_round_trips(moeir, tmp_path / "rows.jsonl", EXAMPLES, tmp_path, suffix=".tsv")
