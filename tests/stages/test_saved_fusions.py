"""Fusions fitted on the command line, saved and reused."""

import json
import re

import numpy as np
import pytest

from moeir.records import qrels, runs
from moeir.records.runs import Run

NAMES = ("one", "two", "three")
RUNS = "--run one.trec --run two.trec --run three.trec"
CALIBRATE = f"calibrate {RUNS} --qrels qrels --output"


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Three runs of 30 queries over 40 documents; the first is good, the second fair, the third is noise on another scale."""
    monkeypatch.chdir(tmp_path)
    generator, grades = np.random.default_rng(2), {}
    hits = {name: {} for name in NAMES}
    for query in range(30):
        relevant = set(generator.choice(40, 3, replace=False).tolist())
        grades[f"q{query}"] = {f"d{document}": 1 for document in sorted(relevant)}
        for name, skill, scale in zip(NAMES, (2.0, 1.0, 0.0), (1.0, 0.1, 50.0), strict=True):
            scores = {document: scale * float(generator.normal() + skill * (document in relevant)) for document in range(40)}
            best = sorted(scores.items(), key=lambda hit: -hit[1])[:15]
            hits[name][f"q{query}"] = {f"d{document}": score for document, score in best}
    for name in NAMES:
        runs.write_run(Run.from_hits(hits[name]), f"{name}.trec")
    qrels.write_qrels(grades, "qrels")
    return tmp_path


@pytest.fixture
def value(run):
    """`value(run)`: the mean nDCG@10 of a run."""
    return lambda name: json.loads(run(f"evaluate --run {name} --qrels qrels --measure nDCG@10 --form jsonl").stdout)["value"]


def test_fitted_weights_are_saved_used_and_beat_the_plain_sum(room, run, value):
    run(f"fuse {RUNS} --method came-sum --output plain.trec")
    logged = run(f"{CALIBRATE} linear.json").stderr
    assert "; applied" in logged and ", from 30 queries" in logged
    run(f"{CALIBRATE} linear2.json")
    assert (room / "linear.json").read_bytes() == (room / "linear2.json").read_bytes()
    assert run(f"fuse {RUNS} --run-depth 15 --learned linear.json --output linear.trec").messages == []
    assert value("linear.trec") > value("plain.trec") + 0.1
    saved_fusion = json.loads((room / "linear.json").read_text())
    method, facts = saved_fusion["method"], saved_fusion["found"]
    assert facts["accepted"] and facts["weights"] == facts["fitted"] and facts["weighted sum"] > facts["sum"] and facts["p"] < 0.05
    assert facts["sum"] == pytest.approx(value("plain.trec")) and list(facts["weights"]) == saved_fusion["runs"] == list(NAMES)
    run(f"fuse {RUNS} --method {method} --output same.trec")
    assert (room / "same.trec").read_text() == (room / "linear.trec").read_text()


def test_weights_that_do_not_win_on_held_out_queries_are_equal(room, run):
    """The second run is a copy of the first, whose sum no weights can beat."""
    copies = "--run one.trec --run copy=one.trec"
    assert "; not applied: all weights are 1" in run(f"calibrate {copies} --qrels qrels --output equal.json").stderr
    saved_fusion = json.loads((room / "equal.json").read_text())
    assert saved_fusion["method"] == "linear:weights=1+1" and saved_fusion["found"]["accepted"] is False
    run(f"fuse {copies} --learned equal.json --output equal.trec")
    run(f"fuse {copies} --method came-sum --output sum.trec")
    assert (room / "equal.trec").read_bytes() == (room / "sum.trec").read_bytes()


def test_a_run_that_is_better_than_the_fused_one_is_named(room, run):
    """Five queries or fewer are not enough to test weights on others."""
    runs.write_run(Run.from_hits({"q0": {"d1": 2.0, "d0": 1.0}}), "wrong.trec")  # which lacks a query
    runs.write_run(Run.from_hits({"q0": {"d0": 1.5, "d1": 1.0}, "q1": {"d0": 1.5, "d1": 1.0}}), "right.trec")
    qrels.write_qrels({"q0": {"d0": 1}, "q1": {"d0": 1}}, "right.qrels")
    logged = run("calibrate --run wrong.trec --run right.trec --qrels right.qrels --output w.json").stderr
    assert "weights of 2 queries cannot be tested on others, expected 6 or more; not applied" in logged
    assert "right alone has nDCG@10 1.0000, the fused run" in logged and "--expert" not in logged


def test_info_describes_a_saved_fusion_and_a_changed_digit_of_it_is_refused(room, run, refuse, moeir):
    run(f"{CALIBRATE} sum.json")
    assert re.search(r"^method +linear:weights=", run("info sum.json").stdout, re.MULTILINE)
    text, fuse = (room / "sum.json").read_text(), f"fuse {RUNS} --learned sum.json --output out.trec"
    digit = next(index for index, sign in enumerate(text) if sign.isdigit())
    (room / "sum.json").write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    refuse(4, "sum.json: damaged", "info sum.json")
    refuse(4, "sum.json: damaged: its checksum is not the one in the manifest; run moeir calibrate again", fuse)
    (room / "sum.json.manifest.json").unlink()  # a file of one's own
    (room / "manifest.json").write_text('{"name": "of something else"}')
    result = moeir(*fuse.split())
    assert result.code in (0, 3, 4) and "checksum" not in result.stderr
