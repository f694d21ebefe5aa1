"""Run every script of the papers whole, in a shell, on toy data with tiny weights and two steps."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples.shell import CommandServer, parse_tables, run_script

COMMON = {"STEPS": 2, "QUERY_LENGTH": 8, "DOCUMENT_LENGTH": 16, "BATCH": 2, "NEGATIVES": 2, "DEPTH": 10}
CAME = {"BM25_DEPTH": 5, "MINING_DEPTH": 2, "LAYERS": 2}  # two of twelve: often no expert finds the positive, so all share the query
CAME |= {"QUERIES": 12, "HELD_OUT": 6, "BASELINE": "--batch-size 2 --query-length 8 --document-length 16"}  # of the presets of Table 1
OTHERS = {"LENGTH": 16, "PAIRS": 4, "PERPLEXITY": 3, "COUNTS": "3 6", "SETS": "scifact cqadupstack/android"}
OTHERS |= {"LEARN_STEPS": 2, "COTMAE_STEPS": 2, "GATE": -100, "GATE_STEPS": 2, "COTMAE_GATE_STEPS": 2, "CHECKPOINT_EVERY": 1}
OTHERS |= {"LEARN_BATCH": 4, "COTMAE_BATCH": 4, "SPAN_LENGTH": 16, "PER_SPAN": 2}  # of pre-training
OTHERS |= {"BM25_DEPTH": 8, "MINING_DEPTH": 8, "VALIDATION": 0.4, "THRESHOLD": 1}
OTHERS |= {"ROUTINGS": "dpr role token-2", "HARD": "role", "RATES": "3e-5 5e-5", "GRID": "0.5 2.0", "ROWS": "mote siamese separate"}

SCRIPTS = {  # the scripts of each folder of work, in the order of use, with their collections
    "came-msmarco": "came_table1 came_table3 came_table4_fusion came_table4_learning came_overlap",
    "came-nq": "came_table1 came_batch came_nq came_table2 came_costs",
    "taser": "taser_nq taser_multiset taser_entityquestions_beir",
    "sbmoe": "sbmoe_table1 sbmoe_table2_zeroshot sbmoe_figure2 sbmoe_figures3_4 sbmoe_table3_usage",
    "lce": "lce_msmarco_doc",
    "cot": "cot_mote_msmarco cot_mote_figure1 cot_mote_figure4_divergence",
    "wiki": "cot_mote_table6_beir",
    "adapters": "adapters_came adapters_taser adapters_reranker",
}
FIGURES = {
    "sbmoe_figure2": ["figure2-R.svg", "figure2-nDCG.svg"],
    "sbmoe_figures3_4": [f"figures3-4-tinybert-{name}{part}.svg" for name in ("dev", "dl19", "dl20") for part in ("", "-block")],
    "lce_msmarco_doc": ["figure1.svg", "figure2.svg"],
    "cot_mote_figure1": ["figure1.svg"],
}
REPEATED = ("came_table1-nq", "lce_msmarco_doc", "cot_mote_msmarco")
WITHOUT_PRODUCT = ("evaluate", "info", "analyze")


@pytest.fixture
def settings(
    server: CommandServer,
    collections: Path,
    work: Path,
    shallow_model: Path,
    tiny_model: Path,
    tiny_model_with_head: Path,
    tiny_decoder: Path,
    t5_model: Path,
) -> Callable[[str, str], dict[str, Any]]:
    """`settings(script, folder)`: the variables of a script at toy size, with its folder of work."""

    def of_script(script: str, folder: str) -> dict[str, Any]:
        paper, _, collection = folder.partition("-")
        data = collection or ("odqa" if paper == "taser" else "msmarco")
        values = {"MOEIR": server.client, "MODEL": shallow_model, "STAR": shallow_model, "T5": t5_model}
        values |= COMMON | (CAME if paper == "came" else OTHERS)
        values |= {"DATA": collections / data, "BEIR": collections / "beir", "WORK": work / folder}
        if paper == "came":
            values |= {"COLLECTION": collection, "BERT": shallow_model, "DISTILBERT": shallow_model}
        if paper == "taser":  # two shared layers to one with experts
            values |= {"MODEL": tiny_model_with_head, "STAR": tiny_model_with_head} | ({} if script == "taser_nq" else {"RATES": "3e-5"})
        if paper == "sbmoe":
            values |= {"COLLECTIONS": "msmarco nq" if script == "sbmoe_table1" else "msmarco"}
        if paper == "adapters":
            values |= {"MODEL": tiny_decoder, "SHARED_LAYERS": 1, "STUDENT": shallow_model, "STUDENT_LAYERS": 1, "PAIR_LENGTH": 240}
            values |= {"RANK": 4, "ROUTINGS": "token sequence role"}
        if paper == "lce":
            values |= {"RETRIEVERS": "bm25 indri", "GROUPS_OF": "2 3", "ENSEMBLE": f"bert={shallow_model} other={tiny_model}"}
        if paper == "wiki":
            values |= {"DOCUMENTS": collections / "odqa/corpus.jsonl"}
        return values

    return of_script


@pytest.mark.parametrize(("folder", "script"), [(folder, one) for folder, scripts in SCRIPTS.items() for one in scripts.split()])
def test_a_script_ends_in_the_tables_of_the_paper(
    folder: str,
    script: str,
    settings: Callable[[str, str], dict[str, Any]],
    server: CommandServer,
    check_golden: Callable[[str, str], None],
) -> None:
    values, name = settings(script, folder), f"{script}-{folder.removeprefix('came-')}" if folder.startswith("came") else script
    first = run_script(f"{script}.sh", **values)
    assert first.returncode == 0, first.stderr
    tables = [f"{' '.join(measures)} | {' '.join(rows)}\n" for measures, rows in parse_tables(first.stdout)]
    check_golden(f"paper_tables/{name}.txt", "".join(tables))
    if script == "sbmoe_table3_usage":
        used = re.findall(r"== (\d+) of (\d+) experts used", first.stderr)
        assert [of for _, of in used] == ["3", "6"] and all(0 < int(count) <= int(of) for count, of in used), first.stderr
    assert all((values["WORK"] / "figures" / figure).stat().st_size for figure in FIGURES.get(script, []))
    if name in REPEATED:
        before = len(server.calls())
        second = run_script(f"{script}.sh", **values | {"ROWS": "mote"})
        assert second.returncode == 0 and (folder == "cot" or second.stdout == first.stdout), second.stderr
        calls = server.calls()[before:]
        with_product = [call for call in calls if call[0] not in WITHOUT_PRODUCT or ("--output" in call and "--force" not in call)]
        assert second.stderr.count("already made") == len(with_product), "a second run makes nothing"


def test_encodings_that_are_not_kept_are_not_needed_again(
    settings: Callable[[str, str], dict[str, Any]], server: CommandServer, tmp_path: Path
) -> None:
    values = settings("taser_nq", "taser") | {"WORK": tmp_path / "work", "KEEP": "no", "ROUTINGS": "role", "HARD": " ", "RATES": "3e-5"}
    first, before = run_script("taser_nq.sh", **values), len(server.calls())
    second = run_script("taser_nq.sh", **values)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == first.stdout
    assert list(tmp_path.glob("work/runs/*")) and not list(tmp_path.glob("work/enc/*/*/*")), "encodings are gone"
    assert "encode" not in {call[0] for call in server.calls()[before:]}


def test_figure_3_is_drawn_with_the_best_temperature(settings: Callable[[str, str], dict[str, Any]]) -> None:
    values = settings("came_figure3", "came-nq") | {"TEMPERATURES": "0.5 2", "RATIOS": 0.4, "SHARED_LAYERS": 12}
    completed = run_script("came_figure3.sh", **values)
    assert completed.returncode == 0, completed.stderr
    drawn = sorted(path.name for path in (values["WORK"] / "figure3").glob("*.svg"))
    assert drawn == ["ratio-test.svg", "shared-test.svg", "temperature-test.svg"]
    validation = [line.split() for line in completed.stdout.splitlines() if line.startswith("temperature-")][-2:]
    best = max(validation, key=lambda row: float(row[1]))[0]  # of equal ones the first, which is the recipe's
    assert f"best on the validation set: {best}\n" in completed.stderr
    figure = (values["WORK"] / "figure3/ratio-test.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in figure for name in ("fused", "lexical", "local", "global", "Success@20"))


def test_figure_4_has_a_query_for_each_model_that_alone_wins_one(settings: Callable[[str, str], dict[str, Any]]) -> None:
    values = settings("came_figure4", "came-msmarco")
    names = [f"{kind}-{expert}" for kind in ("single", "expert") for expert in ("lexical", "local", "global")] + ["came"]
    completed = run_script("came_figure4.sh", **values)
    assert completed.returncode == 0, completed.stderr
    header, _, *rows = [line.split() for line in completed.stdout.splitlines()]
    assert header == ["query", "text", "document", *names]
    wins = [line.split("\t") for line in (values["WORK"] / "figure4/wins.tsv").read_text(encoding="utf-8").splitlines()]
    first_wins = [next((query for query, winner, *_ in wins if winner == name), None) for name in names[:3]]
    assert {row[0] for row in rows} == set(filter(None, first_wins))
    chosen = run_script("came_figure4.sh", **values, CASES="q3 q1")
    assert list(dict.fromkeys(line.split()[0] for line in chosen.stdout.splitlines()[2:])) == ["q3", "q1"]


def test_all_judged_training_queries_but_those_held_out_are_searched_and_no_others(
    settings: Callable[[str, str], dict[str, Any]], check_golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    def queries_of(file: str) -> set[str]:
        return {line.split()[0] for line in (tmp_path / file).read_text(encoding="utf-8").splitlines()}

    values = settings("came_msmarco", "came-msmarco") | {"WORK": tmp_path, "KEEP": "no"}
    first, again = (run_script("came_msmarco.sh", **values) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert again.stdout == first.stdout
    tables = [f"{' '.join(measures)} | {' '.join(rows)}\n" for measures, rows in parse_tables(first.stdout)]
    check_golden("paper_tables/came_msmarco-msmarco.txt", "".join(tables))
    for name in ("bm25/train/bm25", "came-bm25/train/fused"):
        assert queries_of(f"runs/{name}.trec") == {"t2", "t3", "t4", "t5", "t6"}, "t1, one of six, is held out"
    assert queries_of("validation.qrels") == queries_of("runs/came-bm25/validation/fused.trec") == {"t1"}
    assert not list(tmp_path.glob("enc/came*")) and not list(tmp_path.glob("idx/came*"))
