"""The `moeir` commands of the papers' scripts have the papers' values: those of paper_values.txt, and what a table cannot say."""

import fnmatch
import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.examples import toy_collections
from tests.examples.shell import CommandServer, record_calls

VALUES = Path(__file__).with_suffix(".txt").with_stem("paper_values")
Call = tuple[str, list[str]]
RECORDER = """
case "$*" in evaluate*tsv) printf '1.0\\tmacro\\tSuccess@20\\t0.4\\n1.1\\tmacro\\tSuccess@20\\t0.5\\n' ;; esac
if [ "$1" = finetune ]; then # with the rate 5e-5 the second epoch is the best; an epoch has two steps of 2 seconds
  output="${@: -1}" value=0.3
  [[ $output != *5e-5 ]] || value=0.4
  mkdir -p "$output"
  for epoch in 0.2 $value; do
    printf '{"step": 1, "seconds": 2.0}\\n{"step": 2, "tokens_per_second": 9, "seconds": 2.0, "dev.fused.RR@100": %s}\\n' "$epoch"
  done >"$output/metrics.jsonl"
  printf ' "settings": {\\n },\\n "seconds": %s,\\n' "$([[ $output == */dpr-* ]] && echo 20 || echo 15)" >"$output/manifest.json"
fi
"""


@pytest.fixture
def calls(collections: Path, server: CommandServer, tmp_path: Path) -> Any:
    """`calls(script, **settings)`: the commands of a script, recorded by a fake `moeir`."""
    toy_collections.write_files(tmp_path / "work/data", {"spans.jsonl": '{"_id": "s", "text": "a span"}\n'})

    def record(script: str, recorder: str = RECORDER, code: int = 0, **settings: object) -> list[Call]:
        data = "odqa" if script.startswith("taser") else "nq" if settings.get("COLLECTION") == "nq" else "msmarco"
        values = {"MODEL": "base", "STAR": "star", "DATA": collections / data, "BEIR": collections / "beir"} | settings
        return [(call[0], call[1:]) for call in record_calls(script, tmp_path, server.python, recorder, code=code, **values)]

    return record


def flag_values(call: Call, flag: str) -> list[str]:
    """Every value of a flag."""
    return [value for name, value in itertools.pairwise(call[1]) if name == f"--{flag}"]


def matches(call: Call, flag: str) -> bool:
    """Whether a command has `flag=value|value`, patterns of whole values or of names of files, or lacks `-flag`."""
    if flag.startswith("-"):
        return not flag_values(call, flag[1:])
    name, _, patterns = flag.partition("=")
    values, wanted = flag_values(call, name), patterns.split("|")
    pairs = zip(values, wanted, strict=False)
    return len(values) == len(wanted) and all(fnmatch.fnmatchcase(one, each) or Path(one).match(each) for one, each in pairs)


def read_values() -> dict[str, list[str]]:
    """The lines of each script and its settings."""
    lines_by_script: dict[str, list[str]] = {}
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            list(lines_by_script.values())[-1].append(line)
        elif line and not line.startswith("#"):
            lines_by_script[line] = []
    return lines_by_script


@pytest.mark.parametrize("script", read_values())
def test_what_is_not_said_is_as_in_the_paper(script: str, calls: Any) -> None:
    name, *settings = shlex.split(script)
    recorded = calls(name, **dict(one.split("=", 1) for one in settings))
    for line in read_values()[script]:
        count, stage, output, *flags = line.split()
        of_stage = [call for call in recorded if call[0] == stage and (output == "*" or matches(call, f"output={output}"))]
        matching = [call for call in of_stage if all(matches(call, flag) for flag in flags)]
        wanted = f"{len(of_stage)}/{len(of_stage)}" if count == "all" else count
        assert of_stage and f"{len(matching)}/{len(of_stage)}" == wanted, (line, [call for call in of_stage if call not in matching])


def test_taser_on_five_sets_takes_the_rate_that_is_best_on_the_validation_sets_and_times_an_epoch(calls: Any, tmp_path: Path) -> None:
    def chosen(**settings: object) -> set[str]:
        calls("taser_multiset.sh", **settings)
        return {(tmp_path / "work/ckpt" / name).readlink().name for name in ("dpr", "taser")}

    assert chosen() == {"dpr-5e-5", "taser-5e-5"}
    rows = [line.split() for line in (tmp_path / "stdout").read_text(encoding="utf-8").splitlines()][-3:]
    assert rows == [["model", "training", "all", "ratio"], ["dpr", "4.0", "10.0", "1.00"], ["taser", "4.0", "7.5", "0.75"]]
    assert chosen(RATES="3e-5 1e-5", GRID=1) == {"dpr-3e-5", "taser-3e-5"}, "of equal rates the first"
    assert chosen(RATES="3e-5 5e-5", DEV_MEASURE="loss", GRID=1) == {"dpr-3e-5", "taser-3e-5"}, "the lowest loss: both rates have 0.2"


def test_a_grid_has_every_cell_of_the_table_or_figure(calls: Any) -> None:
    settings = {"MODEL": "", "BACKBONES": "small contriever mine=own/weights", "COLLECTIONS": "msmarco cs"}
    backbones, rows = ("small", "contriever", "mine"), ("fine-tuned", "random-gate", "adapter", "top1", "all")
    retrievers = ("bm25", "tuned", "indri", "hdct")
    table = {f"{one}-{row}/{column}" for one in backbones for row in rows for column in ("dev", "dl19", "dl20", "cs")}
    heat_map = {f"{model}-{arm}/{run}" for arm in ("bce", "bce7", "lce") for model in retrievers for run in retrievers}
    figure = calls("lce_msmarco_doc.sh", RETRIEVERS=" ".join(retrievers))
    for cells, recorded in ((table, calls("sbmoe_table1.sh", **settings)), (heat_map, figure)):
        runs = flag_values(next(call for call in recorded if call[0] == "grid"), "run")
        assert sorted(run.partition("=")[0] for run in runs) == sorted(cells)


def test_the_first_training_of_mote_has_the_negatives_of_the_training_set(calls: Any, toy: Path, tmp_path: Path) -> None:
    calls("cot_mote_msmarco.sh", MOTE="base", ROWS="mote")
    judged, documents = toy_collections.ToyTexts(toy).train_qrels, len(toy_collections.ToyTexts(toy).documents)
    lines = [line.split() for line in (tmp_path / "work/runs/triples/train/triples.trec").read_text(encoding="utf-8").splitlines()]
    assert {line[0] for line in lines} == set(judged), "t99 is not judged"
    for query in judged:
        own = [line for line in lines if line[0] == query]
        assert len({line[2] for line in own}) == len(own) >= documents - len(judged[query])
        assert [int(line[3]) for line in own] == list(range(1, len(own) + 1)) == [-int(line[4]) for line in own]


@pytest.mark.parametrize(("gain", "passes"), [(0.03, True), (0.019, False)])
def test_a_pre_training_that_does_not_use_the_bottleneck_stops_before_its_80000_steps(
    gain: float, passes: bool, calls: Any, tmp_path: Path
) -> None:
    recorder = f"""
if [ "$1" = pretrain ]; then
  mkdir -p "${{@: -1}}"
  printf '{{"step": 1, "bottleneck_gain.dense.query": 0.5, "bottleneck_gain.sparse.query": {gain}}}\\n' >"${{@: -1}}/metrics.jsonl"
fi
"""
    recorded = calls("cot_mote_msmarco.sh", recorder, int(not passes), ROWS="mote")
    assert [flag_values(call, "steps") for call in recorded if call[0] == "pretrain"] == [["2000"], *[["80000"]] * passes]
    messages = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert f"0.5000 (dense.query), {gain:.4f} (sparse.query) nats per token" in messages
    assert passes or "the bottleneck is hardly used, expected 0.02 nats per token or more of each" in messages


def test_every_training_and_nothing_else_is_launched_by_launch(calls: Any, tmp_path: Path) -> None:
    launcher, launched = tmp_path / "launcher", tmp_path / "launched"
    launcher.write_text(f'#!/bin/bash\necho "$1" >>{launched}\nshift\nexec {tmp_path}/recorder "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    settings = {"cot_mote_msmarco.sh": {"ROWS": "mote", "GATE": "no"}, "lce_msmarco_doc.sh": {"RETRIEVERS": "bm25"}, "came_table1.sh": {}}
    for script, of_script in settings.items():
        launched.unlink(missing_ok=True)
        recorded = calls(script, LAUNCH=f"{launcher} -m", **of_script)
        trainings = [call for call in recorded if call[0] in ("finetune", "pretrain")]
        assert launched.read_text(encoding="utf-8").split() == ["-m"] * len(trainings) != []
