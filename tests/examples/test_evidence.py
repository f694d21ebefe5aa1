"""The scripts of the declared experiments run whole at toy size, and a second run does no work."""

import os
from pathlib import Path

import pytest

from moeir.records import qrels
from tests.examples.shell import EVIDENCE, Experiment


@pytest.mark.parametrize("script", ["came_parts.sh", "taser.sh", "lce.sh", "sbmoe.sh", "mote.sh", "came_fork.sh"])
def test_a_wrong_call_is_one_line(script: str, experiment: Experiment, tmp_path: Path) -> None:
    def refuse(changed: Experiment, row: str = "prepare", **settings: str) -> str:
        messages = changed.run(script, row, code=2, **settings)
        assert messages.count("\n") == 1
        return messages

    assert os.access(EVIDENCE / script, os.X_OK)
    assert refuse(experiment, "best-2").startswith("best-2: no such row; expected prepare, ")
    if script == "came_fork.sh":  # what steps.sh refuses for all
        assert refuse(experiment, SIZE="large") == "SIZE=large: expected cores, h200 or toy\n"
        for word in ("../x", "h200"):
            expected = f"REPEAT={word}: expected small letters and digits, and not the name of a size; e.g. amx\n"
            assert refuse(experiment, REPEAT=word) == expected
        none = tmp_path / "none"
        assert refuse(experiment._replace(data=none)).startswith(f"{none}: no such folder; expected DATA_FOLDER")
        assert refuse(experiment._replace(model=tmp_path)).startswith(f"{tmp_path}: no config.json; expected MODEL_FOLDER")


def test_the_fork(experiment: Experiment, tmp_path: Path) -> None:
    experiment.run("came_fork.sh")
    assert experiment.run("came_fork.sh").count("is recorded") == 5, "all rows but prepare"
    rows = experiment.rows("came_fork-toy")
    assert rows.keys() == {"bm25", "start", "gate", "standardised-2", "competitive-2", "permuted-2", "temperature-1-2"}
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
    tested = {document for grades in qrels.read_qrels(tmp_path / "work/data/test.tsv").values() for document in grades}
    assert not any(f'"{document}"' in (tmp_path / "work/data/second.jsonl").read_text() for document in tested), "negatives"
    assert row["curves"].keys() == {"dev.fused.nDCG@10", "entropy.shares", "loss"}
    starts = [rows[name]["trainings"][""]["sources"] for name in ("standardised-2", "competitive-2")]
    assert starts[0] == starts[1]
    rows["start"]["trainings"][""]["weights"] = "others"
    del rows["permuted-2"]
    experiment.change_rows("came_fork-toy", rows)
    assert "recorded with other weights than ckpt/start" in experiment.run("came_fork.sh", "permuted-2", code=1)
    assert "BATCH is set: records go to" in experiment.run("came_fork.sh", "gate", code=2, BATCH=3)
    assert "permuted-2" not in experiment.rows("came_fork-toy")
    experiment.run("came_fork.sh", "gate", REPEAT="amx")
    assert experiment.rows("came_fork-toy-amx").keys() == {"gate"}


def test_the_mixture_and_its_parts(experiment: Experiment) -> None:
    experiment.run("came_parts.sh")
    rows = experiment.rows("came_parts-toy")
    assert rows.keys() == {"bm25", "came-1", "models-1"}
    models = {f"{expert}{part}" for expert in ("lexical", "local", "global") for part in ("", "-first")}
    for row, trainings in {"came-1": {"first", "second"}, "models-1": models}.items():
        assert rows[row]["trainings"].keys() == trainings
        assert rows[row]["sets"]["test"]["means"].keys() == {"lexical", "local", "global", "fused", "calibrated", "with-bm25"}


def test_taser(experiment: Experiment) -> None:
    experiment.run("taser.sh")
    rows = experiment.rows("taser-toy")
    assert rows.keys() == {"bm25", "separate-1", "shared-1", "role-1", "sequence-1"}
    assert rows["role-1"]["sets"].keys() == {"squad", "nfcorpus", "scifact", "cacm", "cranfield"}
    assert "load_balance=0.01" in rows["sequence-1"]["trainings"][""]["settings"]["objective"]


def test_lce(experiment: Experiment) -> None:
    experiment.run("lce.sh")
    rows = experiment.rows("lce-toy")
    assert rows.keys() == {"dense", "start", "lce-1", "bce7-1", "bce-1", "bce2-1"}
    trainings = {row: rows[f"{row}-1"]["trainings"][""] for row in ("lce", "bce7", "bce", "bce2")}
    sizes = {row: tuple(one["settings"][name] for name in ("batch-size", "negatives")) for row, one in trainings.items()}
    assert sizes == {"lce": (2, 7), "bce7": (2, 7), "bce": (8, 1), "bce2": (2, 1)}
    assert len({one["sources"]["model"][0] for one in trainings.values()}) == 1
