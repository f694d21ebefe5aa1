"""`--train` reads the training files of the field as they are; what is no such file is named, with the command that reads it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from moeir.errors import DataError
from moeir.formats import training_files
from moeir.formats.training_files import read_training_examples
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
Sides = dict[str, tuple[list[str], list[str]]]

WANTED = {"who hunts": (["An owl hunts."], ["A cat waits."]), "who flies": (["A bat flies."], ["An eel swims."])}
TRIPLES = [(query, positive, negative) for query, ([positive], [negative]) in WANTED.items()]
PAIRS = [(query, text, label) for query, *sides in TRIPLES for text, label in zip(sides, (1, 0), strict=True)]


def in_columns(*names: str, rows: list[Any] = TRIPLES) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def as_passages(text: str) -> list[dict[str, str]]:
    return [{"docid": text.split()[1], "title": "", "text": text}]


ROWS: dict[str, list[dict[str, Any]]] = {
    "flagembedding": [{"query": query, "pos": [positive], "neg": [negative]} for query, positive, negative in TRIPLES],
    "triplets": in_columns("anchor", "positive", "negative"),
    "triplets of questions": [row | {"source": "web"} for row in in_columns("question", "answer", "negative")],
    "tuples": in_columns("query", "positive", "negative_1"),
    "labelled": in_columns("query", "passage", "label", rows=PAIRS),
    "labelled by score": in_columns("sentence1", "sentence2", "score", rows=[(*row[:2], float(row[2])) for row in PAIRS]),
    "tevatron": [
        {"query_id": query[-5:], "query": query, "positive_passages": as_passages(positive), "negative_passages": as_passages(negative)}
        for query, positive, negative in TRIPLES
    ],
}


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_sides(path: Path | str) -> Sides:
    """Texts of positives and negatives by query."""
    sides = {}
    for example in read_training_examples(Path(path)):
        passages = {passage.id: passage.content for passage in example.passages}
        assert example.query is not None
        sides[example.query.text] = tuple([passages[name] for name in ids] for ids in (example.positive_ids, example.negative_ids))
    return sides  # type: ignore[return-value]


def read_ids(path: Path) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {example.query_id: (example.positive_ids, example.negative_ids) for example in read_training_examples(path)}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_texts_are_read_from_lines_parquet_and_data_sets(name: str, tmp_path: Path) -> None:
    assert read_sides(write_lines(tmp_path / "train.jsonl", ROWS[name])) == WANTED
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[name]), tmp_path / "train.parquet")
    assert read_sides(tmp_path / "train.parquet") == WANTED
    datasets.Dataset.from_list(ROWS[name]).save_to_disk(str(tmp_path / "saved"))
    assert read_sides(f"hf:{tmp_path}/saved") == WANTED


def test_a_text_in_a_csv_may_hold_a_line_that_looks_like_a_row(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('anchor,positive\nwho,"An owl\nhunts,so to speak."\n')
    assert read_sides(tmp_path / "train.csv") == {"who": (["An owl\nhunts,so to speak."], [])}


def test_pairs_have_no_negatives_and_a_query_may_be_its_own_positive(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.jsonl", [{"question": "who", "answer": word} for word in ("who", "an owl", "a bat")])
    assert read_sides(path) == {"who": (["who", "an owl", "a bat"], [])}


def test_triples_of_ids_are_grouped_by_query(tmp_path: Path) -> None:
    (tmp_path / "qidpidtriples.train.tsv").write_text("7\t10\t11\n7\t10\t12\n8\t13\t10\n")
    wanted = {"7": (("10",), ("11", "12")), "8": (("13",), ("10",))}
    assert read_ids(tmp_path / "qidpidtriples.train.tsv") == wanted
    assert read_ids(write_lines(tmp_path / "triples.jsonl", [[7, 10, 11, 12], [8, 13, 10]])) == wanted
    (example,) = read_training_examples(write_lines(tmp_path / "scored.jsonl", [[7, [10, 9.5], [11, 1.5]]]))
    assert (example.positive_scores, example.negative_scores) == ((9.5,), (1.5,))


def test_hard_negatives_of_all_systems_are_united(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"qid": 7, "pos": [10], "neg": {"bm25": [11, 12], "dense": [12, 13, 10]}},
        {"qid": 8, "pos": [], "neg": {"bm25": [11]}},
        {"qid": 9, "pos": [14], "neg": {"bm25": []}},
        {"qid": 6, "pos": [], "neg": {"bm25": [11]}},
    ]
    path = write_lines(tmp_path / "hard.jsonl", rows)
    assert read_ids(path) == {"7": (("10",), ("11", "12", "13")), "9": (("14",), ())}
    assert f"{path}: read as msmarco-hard-negatives, which leaves out, 2 times: a query without a positive" in caplog.messages
    assert f"{path}: read as msmarco-hard-negatives, which leaves out, 1 times: a positive that is a negative elsewhere" in caplog.messages


def test_lines_of_a_query_are_merged_and_what_contradicts_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"query": "who", "pos": ["owl", "owl"], "neg": ["cat", "bat", "owl"], "pos_scores": [9.0, 8.5], "neg_scores": [1.0, 2.0, 2.0]},
        {"query": "other", "pos": ["eel"], "neg": ["cat"], "pos_scores": [3.0], "neg_scores": [0.5]},
        {"query": "who", "pos": ["owl", "bat"], "neg": ["cat", "hen"], "pos_scores": [8.0, 7.0], "neg_scores": [1.0, 0.0]},
    ]
    path = write_lines(tmp_path / "bge.jsonl", rows)
    assert read_sides(path) == {"who": (["owl", "bat"], ["cat", "hen"]), "other": (["eel"], ["cat"])}
    merged = {example.query.text: example for example in read_training_examples(path) if example.query}
    assert (merged["who"].positive_scores, merged["who"].negative_scores) == ((9.0, 2.0), (1.0, 0.0))
    assert f"{path}: read as flagembedding, which leaves out, 2 times: a positive that is a negative elsewhere" in caplog.messages
    assert any(message.endswith(" 2 times: another score of a passage than on an earlier line") for message in caplog.messages)


def test_empty_lists_of_scores_are_no_scores_and_a_query_has_scores_on_all_lines_or_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"query": "who", "pos": ["owl"], "neg": ["cat"], "pos_scores": [], "neg_scores": []}
    (example,) = read_training_examples(write_lines(tmp_path / "bge.jsonl", [row]))
    assert (example.positive_scores, example.negative_scores) == ((), ())
    (example,) = read_training_examples(write_lines(tmp_path / "one.jsonl", [row | {"neg": [], "pos_scores": [2.5]}]))
    assert (example.positive_scores, example.negative_scores) == ((2.5,), ())
    with pytest.raises(DataError, match="1 negatives, but negative_scores has 0 entries"):
        list(read_training_examples(write_lines(tmp_path / "half.jsonl", [row | {"pos_scores": [2.5]}])))
    rows = [row | {"pos_scores": [9.0], "neg_scores": [1.0]}, {"query": "who", "pos": ["bat"]}]
    (example,) = read_training_examples(write_lines(tmp_path / "two.jsonl", rows))
    assert example.positive_scores == () and len(example.positive_ids) == 2
    assert any(message.endswith("1 times: the scores of a query of which only some passages have one") for message in caplog.messages)


def test_converting_merged_lines_is_an_error_where_something_is_lost(tmp_path: Path, moeir: Moeir) -> None:
    same = write_lines(tmp_path / "same.jsonl", [{"query": "who", "pos": [word], "neg": ["cat"]} for word in ("owl", "bat")])
    result = moeir("convert", "--input", same, "--to", "flagembedding")
    assert (result.code, json.loads(result.stdout)) == (0, {"query": "who", "pos": ["owl", "bat"], "neg": ["cat"]})
    other = write_lines(tmp_path / "other.jsonl", [{"query": "who", "pos": [word], "neg": ["bat"]} for word in ("owl", "bat")])
    result = moeir("convert", "--input", other, "--to", "flagembedding")
    assert result.code == 2 and "a positive that is a negative elsewhere would be lost" in result.stderr


def test_nothing_is_read_from_a_pipe_to_know_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(training_files, "detect_examples", None)  # it would read the first lines, which then are gone
    assert training_files.is_own_file(tmp_path / "pipe")


def test_a_similarity_is_no_label(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "sts.jsonl", [{"sentence1": "an owl", "sentence2": "a bird", "score": 0.73}])
    with pytest.raises(DataError, match=r"sts.jsonl:1: label is not 1 or 0: 0.73; 1 is a positive, 0 a negative; a similarity is neither"):
        list(read_training_examples(path))


def test_teacher_scores_inside_tevatrons_passages_are_read(tmp_path: Path) -> None:
    row = ROWS["tevatron"][0]
    row = row | {name: [row[name][0] | {"score": score}] for name, score in (("positive_passages", 3.5), ("negative_passages", 0.5))}
    (example,) = read_training_examples(write_lines(tmp_path / "train.jsonl", [row]))
    assert (example.positive_scores, example.negative_scores) == ((3.5,), (0.5,))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"_id": "a", "text": "An owl."}\n', "is texts, not training examples; moeir convert --input"),
        ("q1\td1\t1\nq1\td2\t0\n", "is beir-qrels, not training examples; moeir convert --input"),
        ("q1\td1\t1\nq2\td1\t1\n", "is beir-qrels, not training examples; moeir convert --input"),
        ("one two three\n", "format not recognised; moeir convert --input"),
        ('{"prompt": "a", "chosen": "b"}\n', "no query_id, found prompt, chosen; moeir convert --to examples reads other formats"),
        ("", "holds no example"),
        ("PAR1, but no more", "expected text, found a parquet file"),
    ],
)
def test_what_is_no_training_file_is_named(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(DataError) as caught:
        list(read_training_examples(tmp_path / "x"))
    assert words in str(caught.value) and str(tmp_path / "x") in str(caught.value)


def test_finetune_trains_on_rows_of_a_data_set(tmp_path: Path, moeir: Moeir, tiny_model: Path) -> None:
    flags = ("finetune", "--model", tiny_model, "--arch", "dense", "--steps", 1, "--batch-size", 2, "--negatives", 1)
    datasets.Dataset.from_list(ROWS["tuples"]).save_to_disk(str(tmp_path / "saved"))
    result = moeir(*flags, "--train", f"hf:{tmp_path}/saved", "--output", tmp_path / "out")
    assert result.code == 0 and "1 step of 2 queries: 1.00 epochs of 2 queries" in result.stderr


def test_finetune_leaves_out_negatives_that_are_the_positive_under_another_id(tmp_path: Path, moeir: Moeir, tiny_model: Path) -> None:
    (tmp_path / "corpus.tsv").write_text("owl\tAn owl hunts.\ntwin\tAn owl hunts.\ncat\tA cat waits.\n")
    (tmp_path / "queries.tsv").write_text("q1\twho hunts\nq2\twho waits\nq3\twho is it\n")
    sides = {"q1": ("owl", ["twin", "cat"]), "q2": ("cat", ["owl"]), "q3": ("twin", ["owl"])}
    rows = [{"query_id": query, "positive_ids": [positive], "negative_ids": ids} for query, (positive, ids) in sides.items()]
    texts = ("--corpus", tmp_path / "corpus.tsv", "--queries", tmp_path / "queries.tsv", "--output", tmp_path / "out")
    flags = ("finetune", "--model", tiny_model, "--arch", "dense", "--steps", 1, "--batch-size", 2, "--negatives", 1, *texts)
    result = moeir(*flags, "--train", write_lines(tmp_path / "train.jsonl", rows))
    assert result.code == 0, result.stderr
    assert "2 negatives have the text of a positive of their query and are left out, with 1 queries that have no other" in result.stderr
    assert "1 step of 2 queries: 1.00 epochs of 2 queries" in result.stderr
    result = moeir(*flags, "--train", write_lines(tmp_path / "only.jsonl", rows[2:]), "--force")
    assert result.code == 3 and "no training examples; each negative has the text of a positive" in result.stderr
