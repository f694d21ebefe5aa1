"""`moeir report` through the command line: one training or several, finished or not, as text."""

import json

import pytest


def write_metrics(folder, steps):
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": number, **facts}) + "\n" for number, facts in enumerate(steps, start=1)]
    (folder / "metrics.jsonl").write_text("".join(lines))


def competition_step(number):
    """A step of a competition that lexical wins more and more."""
    share = 0.5 + number / 2000
    facts = {"loss": 600.0 - number, "entropy.shares": 0.6, "tokens": 50, "seconds": 0.5}
    for name, value in (("lexical", share), ("local", 1 - share)):
        facts |= {f"share.{name}": value, f"wins.{name}": float(name == "lexical"), f"loss.{name}": 2.0, f"rank.{name}": 1.5}
    return facts | ({"dev.fused.RR@10": number / 1000} if number % 100 == 0 else {})


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """Trainings: `came` has ended, `router` is in progress, `one` has one step, `mlm` is a pre-training."""
    folder = tmp_path_factory.mktemp("trainings")
    write_metrics(folder / "came", map(competition_step, range(1, 601)))
    routed = {"loss": 1.0, "loss.global": 1.0, "entropy.gate": 0.25, "usage.gate.0": 0.75, "usage.gate.1": 0.25}
    write_metrics(folder / ".router.partial" / "router", [routed] * 30)
    write_metrics(folder / "one", [{"loss": 1.25}])
    write_metrics(folder / "mlm", [{"loss": 2.0, "loss.mlm": 2.0, "accuracy.mlm": 0.5, "tokens": 5, "seconds": 0.1}] * 3)
    return folder


@pytest.fixture
def report(room, moeir):
    return lambda *names, output="-": moeir("report", "--training", *(room / name for name in names), "--output", output)


def test_a_competition_is_told_in_tables(report):
    result = report("came")
    assert (result.code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["training", "steps", "loss", "course", "tokens/s", "time", "best"]
    assert " ".join(lines[2].split()) == "came 600 249.5000 ███▇▇▇▆▆▆▅▅▅▄▄▄▃▃▃▂▂▂▁▁▁ 100 5 min 00 s dev.fused.RR@10 0.6000 after step 600"
    rows = {tuple(line.split("  ")[0:1] + line.split()[-4:-1]): line.split()[-1] for line in lines[4:] if line}
    assert rows["share", "lexical", "came", "0.675"].startswith("▁▁▁▂▂▂▃")
    assert {("largest share, of queries", "local", "came", "0.000"), ("loss", "lexical", "came", "2.000")} <= rows.keys()
    alarm = "step 500: lexical had the largest share of 100.0% of the queries of the last 500 steps, and the others learn little; raise"
    assert sum(line.startswith(alarm) for line in lines) == 1


def test_several_trainings_stand_beside_one_another(report, room, tmp_path):
    alone = report("one").stdout
    assert alone.splitlines()[2].split() == ["one", "1", "1.2500", "▁", "-", "-", "-"] and "No alarm." in alone
    write_metrics(tmp_path / "one", [{"loss": 3.0}])
    lines = report("one", tmp_path / "one").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == [str(room / "one"), str(tmp_path / "one")], "equal names are told apart"
    assert report("one", "one").stderr == "error: --training: the same training is given twice\n"
    lines = report("came", "router", "mlm", "one").stdout.splitlines()
    starts = ["came 600 249.5000", "router 30 unfinished", "mlm 3 2.0000", "one 1 1.2500"]
    assert [line.split()[:3] for line in lines[2:6]] == [start.split() for start in starts]
    losses = [" ".join(line.split()[1:4]) for line in lines if line.startswith("loss  ")]
    assert losses[:4] == ["all came 249.500", "all router 1.000", "all mlm 2.000", "all one 1.250"]
    assert losses[4:] == ["lexical came 2.000", "local came 2.000", "global router 1.000", "mlm mlm 2.000"]
    usage = [line.split()[-4:-1] for line in lines if line.startswith("usage, of an equal part")]
    assert usage == [["gate.0", "router", "1.500"], ["gate.1", "router", "0.500"]]
    assert "came: step 500: lexical had" in "\n".join(lines)


def test_the_text_is_written_into_a_file_or_refused_for_another_name(report, tmp_path):
    assert report("came", output=tmp_path / "came.txt.gz").code == 0
    assert "already made" in report("came", output=tmp_path / "came.txt.gz").stderr
    refused = report("came", output=tmp_path / "came.svg")
    assert refused.code == 2 and "came.svg: expected a name that ends with .html for a page, or .txt" in refused.stderr
    write_metrics(tmp_path / "empty", [{}])
    assert report(tmp_path / "empty").code == 0
