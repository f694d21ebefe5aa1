"""The scripts of the declared experiments run whole at toy size, and a second run does no work."""

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moeir.records import qrels
from tests.examples.shell import CommandServer

FOLDER = Path(__file__).parents[1] / "benchmarks" / "evidence"


def run(script: str, server: CommandServer, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MOEIR": str(server.client), "PYTHON": str(server.python), "SIZE": "toy"}
    environment |= {name: str(value) for name, value in settings.items()}
    command = [str(FOLDER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)


def run_whole(script: str, server: CommandServer, *arguments: object, times: int = 1, **settings: object) -> str:
    """Messages of the last of several runs, which all end well."""
    for _ in range(times):
        completed = run(script, server, *arguments, **settings)
        assert completed.returncode == 0, completed.stderr
    return completed.stderr


def read_lines(records: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(records.read_bytes()).splitlines()]


def read_rows(results: Path, name: str) -> dict[str, dict[str, Any]]:
    """The records of an experiment by row."""
    return {line["row"]: line for line in read_lines(results / f"{name}.jsonl.gz") if "row" in line}


def change_rows(results: Path, name: str, rows: dict[str, dict[str, Any]]) -> None:
    """Replace the records of an experiment."""
    text = "".join(json.dumps(row) + "\n" for row in rows.values())
    (results / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("script", ["came_parts.sh", "taser.sh", "lce.sh", "sbmoe.sh", "mote.sh", "came_fork.sh"])
def test_a_wrong_call_is_one_line(script: str, articles: Path, tiny_model: Path, server: CommandServer, tmp_path: Path) -> None:
    def refuse(data: Path, model: Path, row: str = "prepare", **settings: str) -> str:
        completed = run(script, server, data, tmp_path / "work", model, row, RESULTS=tmp_path / "results", **settings)
        assert completed.returncode == 2
        assert completed.stderr.count("\n") == 1
        return completed.stderr

    assert refuse(articles, tiny_model, "best-2").startswith("best-2: no such row; expected prepare, ")
    if script == "came_fork.sh":  # what steps.sh refuses for all
        assert refuse(articles, tiny_model, SIZE="large") == "SIZE=large: expected cores, h200 or toy\n"
        for word in ("../x", "h200"):
            expected = f"REPEAT={word}: expected small letters and digits, and not the name of a size; e.g. amx\n"
            assert refuse(articles, tiny_model, REPEAT=word) == expected
        assert refuse(tmp_path / "none", tiny_model).startswith(f"{tmp_path / 'none'}: no such folder; expected DATA_FOLDER")
        assert refuse(articles, articles).startswith(f"{articles}: no config.json; expected MODEL_FOLDER")


def test_the_fork(articles: Path, tiny_model: Path, server: CommandServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    messages = run_whole("came_fork.sh", server, articles, tmp_path / "work", tiny_model, times=2, RESULTS=results)
    rows = read_rows(results, "came_fork-toy")
    assert rows.keys() == {"bm25", "start", "gate", "standardised-2", "competitive-2", "permuted-2", "temperature-1-2"}
    assert messages.count("is recorded") == 5, "all rows but prepare"
    row = rows["permuted-2"]
    assert "permuted=true" in row["trainings"][""]["settings"]["objective"]
    assert row["variables"]["STEPS"] == "2" and row["variables"]["BAND"] == "first=0,last=20"
    scores = row["scores"]
    assert row["sets"].keys() == {"test", "description", "name", "dev"}
    assert row["sets"]["test"]["questions"] == row["sets"]["description"]["questions"] + row["sets"]["name"]["questions"]
    assert scores["test"].keys() == {"lexical", "local", "global", "fused", "documents"}
    assert len(scores["test"]["fused"]) == row["sets"]["test"]["questions"] > 0
    parts = {part: set(qrels.read_qrels(tmp_path / "work/data" / f"{part}.tsv")) for part in ("first", "second", "dev", "test")}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values())), "no question in two parts"
    assert row["curves"].keys() == {"dev.fused.nDCG@10", "entropy.shares", "loss"}
    starts = [rows[name]["trainings"][""]["sources"] for name in ("standardised-2", "competitive-2")]
    assert starts[0] == starts[1]
    rows["start"]["trainings"][""]["weights"] = "others"
    del rows["permuted-2"]
    change_rows(results, "came_fork-toy", rows)
    completed = run("came_fork.sh", server, articles, tmp_path / "work", tiny_model, "permuted-2", RESULTS=results)
    assert completed.returncode == 1 and "recorded with other weights than ckpt/start" in completed.stderr
    completed = run("came_fork.sh", server, articles, tmp_path / "work", tiny_model, "gate", RESULTS=results, BATCH=3)
    assert "BATCH is set: records go to" in completed.stderr and "permuted-2" not in read_rows(results, "came_fork-toy")
    completed = run("came_fork.sh", server, articles, tmp_path / "again", tiny_model, "prepare", RESULTS=results, REPEAT="amx")
    assert completed.returncode == 0 and read_rows(results, "came_fork-toy-amx").keys() == {"bm25", "start"}


def test_the_mixture_and_its_parts(articles: Path, tiny_model: Path, server: CommandServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_whole("came_parts.sh", server, articles, tmp_path / "work", tiny_model, RESULTS=results)
    rows = read_rows(results, "came_parts-toy")
    assert rows.keys() == {"bm25", "came-1", "models-1"}
    trainings = {
        "came-1": {"first", "second"},
        "models-1": {f"{expert}{part}" for expert in ("lexical", "local", "global") for part in ("", "-first")},
    }
    for row, names in trainings.items():
        assert rows[row]["trainings"].keys() == names
        assert rows[row]["sets"]["test"]["means"].keys() == {"lexical", "local", "global", "fused", "calibrated", "with-bm25"}


def test_taser(articles: Path, tiny_model: Path, server: CommandServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_whole("taser.sh", server, articles, tmp_path / "work", tiny_model, RESULTS=results)
    rows = read_rows(results, "taser-toy")
    assert rows.keys() == {"bm25", "separate-1", "shared-1", "role-1", "sequence-1"}
    assert rows["role-1"]["sets"].keys() == {"squad", "nfcorpus", "scifact", "cacm", "cranfield"}
    objective = rows["sequence-1"]["trainings"][""]["settings"]["objective"]
    assert "load_balance=0.01" in objective


def test_lce(articles: Path, tiny_model: Path, server: CommandServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run_whole("lce.sh", server, articles, tmp_path / "work", tiny_model, RESULTS=results)
    rows = read_rows(results, "lce-toy")
    assert rows.keys() == {"dense", "start", "lce-1", "bce7-1", "bce-1", "bce2-1"}
    trainings = {row: rows[f"{row}-1"]["trainings"][""] for row in ("lce", "bce7", "bce", "bce2")}
    settings = {row: one["settings"] for row, one in trainings.items()}
    assert {row: (one["batch-size"], one["negatives"]) for row, one in settings.items()} == {
        "lce": (2, 7), "bce7": (2, 7), "bce": (8, 1), "bce2": (2, 1),
    }  # fmt: skip
    assert len({one["sources"]["model"][0] for one in trainings.values()}) == 1
