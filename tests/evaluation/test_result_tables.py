import json

import pytest

from moeir.evaluation import measures, result_tables

VALUES = {"RR": {"a": 1.0, "b": 0.0, "c": 0.5}, "P@1": {"a": 1.0, "b": 0.0, "c": 0.0}}
SETS = {"a": "x", "b": "x", "c": "y", "unasked": "z"}
SAMPLES = result_tables.group_samples(VALUES, SETS, "set")
BETTER = result_tables.group_samples({"RR": {"a": 1.0, "b": 0.5, "c": 1.0}, "P@1": VALUES["P@1"]}, SETS, "set")


def test_groups_their_mean_and_the_mean_of_all_by_hand():
    assert {label: measures.aggregate_values(one) for label, one in SAMPLES.items()} == {
        "set=x": {"RR": 0.5, "P@1": 0.5},
        "set=y": {"RR": 0.5, "P@1": 0.0},
        "macro": {"RR": 0.5, "P@1": 0.25},
        "micro": {"RR": 0.5, "P@1": pytest.approx(1 / 3)},
    }


def test_lines_name_groups_and_means_of_either_kind():
    assert list(result_tables.to_lines({"bm25": SAMPLES}, "tsv"))[:4] == [
        *("RR\tset=x\t0.500000", "RR\tset=y\t0.500000", "RR\tmacro\t0.500000", "RR\tall\t0.500000"),
    ]
    records = [json.loads(line) for line in result_tables.to_lines({"bm25": SAMPLES, "other": SAMPLES}, "jsonl", per_query=True)]
    assert [one["query"] for one in records[:7]] == ["a", "b", "c", "set=x", "set=y", "macro", "all"]
    assert [one["run"] for one in records[::14]] == ["bm25", "other"]
    assert len(records) == 2 * 2 * 7


def test_a_table_has_a_row_for_each_group_and_run():
    rows = [line.split() for line in result_tables.to_table({"bm25": SAMPLES, "other": BETTER}).splitlines()]
    assert rows[0] == ["group", "n", "run", "RR", "p", "(Holm)", "P@1", "p", "(Holm)"]
    assert [row[:4] for row in rows[2:]] == [
        *(["set=x", "2", "bm25", "0.5000"], ["set=x", "2", "other", "0.7500"], ["set=y", "1", "bm25", "0.5000"]),
        *(["set=y", "1", "other", "1.0000"], ["macro", "2", "bm25", "0.5000"], ["macro", "2", "other", "0.8750"]),
        *(["micro", "3", "bm25", "0.5000"], ["micro", "3", "other", "0.8333"]),
    ]
    assert rows[-1][4] == "0.367"  # twice 0.184, for two measures; differences 0, 1/2, 1/2: t = 2 with two degrees of freedom
