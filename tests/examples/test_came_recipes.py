"""Run every CAME script whole, in a shell, on toy data with tiny weights and two steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeir.records import qrels, texts
from tests.conftest import CommandResult
from tests.examples import toy_collections
from tests.examples.shell import CommandServer, parse_tables, run_program, run_script

SMALL = {"STEPS": 2, "QUERY_LENGTH": 8, "DOCUMENT_LENGTH": 16, "BATCH": 2, "NEGATIVES": 2, "LAYERS": 2}
SHALLOW = {"BM25_DEPTH": 5, "MINING_DEPTH": 2, "DEPTH": 10}  # two of twelve: often no expert finds the positive, so all share the query
SHALLOW |= {"QUERIES": 12, "HELD_OUT": 6, "BASELINE": "--batch-size 2 --query-length 8 --document-length 16"}  # of the presets of Table 1
EXPERTS = ("lexical", "local", "global")

SCRIPTS = {
    "msmarco": "table1 table3 table4_fusion table4_learning overlap",
    "nq": "table1 batch nq table2 costs",
}
FOUR = ("fused", *EXPERTS)
TABLE_1 = ["bm25", *(f"came-{run}" for run in FOUR), *(f"came-bm25-{run}" for run in FOUR)]
LEARNT = ("competitive", "all-independent", "suit-independent")
METHODS = ("came-sum", "normsum", "normmax", "sumrr", "maxrr", "linear")
TABLE_3 = [
    *(f"{model}-{run}" for model in ("came-bm25", "no-sharing") for run in FOUR),
    *(f"without-{gone}-{run}" for gone in EXPERTS for run in FOUR if run != gone),
    *(f"only-{expert}-{expert}" for expert in EXPERTS),
]
ARMS = ["came", "came-bm25", "standardised-only", "specialised-only", "came-bm25-added", "standardised-only-added"]
BATCHES = ["passages-2-5e-6-fused", "queries-6-5e-6-fused"]
ROWS = {
    "came_msmarco.sh": [[TABLE_1[0], "bm25-tuned-bm25", *TABLE_1[1:]]],
    "came_nq.sh": [TABLE_1],
    "came_table1.sh": [["bm25", "splade", "colbert", "coil", "dpr", "came"]],
    "came_table2.sh": [*[ARMS] * 4, [f"{arm}-{run}" for arm in ARMS for run in FOUR]],
    "came_table3.sh": [TABLE_3],
    "came_table4_fusion.sh": [[f"competitive-{method}" for method in METHODS]],
    "came_table4_learning.sh": [[f"{way}-{merge}" for way in LEARNT for merge in ("came-sum", "sumrr", "linear")]],
}
MEASURES = {"dev": ["RR@10", "R@1000", "R@100"], "dl19": ["nDCG@10", "R(rel=2)@1000"], "nq": ["Success@20", "Success@100"]}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """The toy texts as the files of MS MARCO, one training query without judgements among them, and as those of NQ."""
    root, small = tmp_path_factory.mktemp("collections"), toy_collections.ToyTexts(toy)
    toy_collections.write_msmarco(small, root / "msmarco")
    toy_collections.write_nq(small, root / "nq")
    return root


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder per collection, shared by the scripts as in real use."""
    return tmp_path_factory.mktemp("work")


def expected(script: str, collection: str) -> list[tuple[list[str], list[str]]]:
    parts = [MEASURES["nq"]] if collection == "nq" else [MEASURES["dev"], MEASURES["dl19"]]
    if script == "came_costs.sh":
        header = ["step", "threads", "batch", "queries/s", "p50", "ms", "p95", "ms", "p99", "ms", "index", "MiB", "memory", "MiB"]
        return [(header, ["bm25", *sorted(2 * EXPERTS, key=EXPERTS.index), *3 * ["fused"]])]  # encode, search; fuse
    if script == "came_batch.sh":
        rows = [row.replace("5e-6", "1e-5") if collection == "nq" else row for row in BATCHES]
        return [(measures, rows) for measures in [parts[0][:1], *parts]]
    if script == "came_overlap.sh":
        both = [(["other", "queries", f"rbo:persistence={value}"], ["lexical", "lexical", "local"]) for value in ("0.9", "0.98")]
        return both * len(parts) * 2  # independent experts, those of one model
    return [(measures, table) for table in ROWS[script] for measures in parts]


def toy_settings(server: CommandServer, weights: Path, data: Path, folder: Path) -> dict[str, Any]:
    settings = {"MOEIR": server.client, "MODEL": weights, "COLLECTION": data.name, **SMALL, **SHALLOW, "DATA": data, "WORK": folder}
    return settings | dict.fromkeys(("BERT", "DISTILBERT"), weights)


@pytest.mark.parametrize(("script", "collection"), [(f"came_{name}.sh", one) for one, names in SCRIPTS.items() for name in names.split()])
def test_a_script_ends_in_the_tables_of_the_paper(
    script: str, collection: str, server: CommandServer, collections: Path, work: Path, shallow_model: Path
) -> None:
    settings = toy_settings(server, shallow_model, collections / collection, work / collection)
    first = run_script(script, **settings)
    assert first.returncode == 0, first.stderr
    assert parse_tables(first.stdout) == expected(script, collection)
    if (script, collection) == ("came_table1.sh", "nq"):
        before = len(server.calls())
        second = run_script(script, **settings)
        assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
        with_product = [call for call in server.calls()[before:] if "--output" in call]
        assert second.stderr.count("already made") == len(with_product), "a second run makes nothing"


def test_figure_3_is_drawn_with_the_best_temperature(server: CommandServer, collections: Path, work: Path, shallow_model: Path) -> None:
    settings = toy_settings(server, shallow_model, collections / "nq", work / "nq")
    settings |= {"TEMPERATURES": "0.5 2", "RATIOS": 0.4, "SHARED_LAYERS": 12}
    completed = run_script("came_figure3.sh", **settings)
    assert completed.returncode == 0, completed.stderr
    drawn = sorted(path.name for path in (work / "nq/figure3").glob("*.svg"))
    assert drawn == ["ratio-test.svg", "shared-test.svg", "temperature-test.svg"]
    validation = [line.split() for line in completed.stdout.splitlines() if line.startswith("temperature-")][-2:]
    best = max(validation, key=lambda row: float(row[1]))[0]  # of equal ones the first, which is the recipe's
    assert f"best on the validation set: {best}\n" in completed.stderr
    figure = (work / "nq/figure3/ratio-test.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in figure for name in (*FOUR, "Success@20"))


def test_figure_4_has_a_query_for_each_model_that_alone_wins_one(
    server: CommandServer, collections: Path, work: Path, shallow_model: Path
) -> None:
    settings = toy_settings(server, shallow_model, collections / "msmarco", work / "msmarco")
    names = [f"{kind}-{expert}" for kind in ("single", "expert") for expert in EXPERTS] + ["came"]
    completed = run_script("came_figure4.sh", **settings)
    assert completed.returncode == 0, completed.stderr
    header, _, *rows = [line.split() for line in completed.stdout.splitlines()]
    assert header == ["query", "text", "document", *names]
    wins = [line.split("\t") for line in (work / "msmarco/figure4/wins.tsv").read_text(encoding="utf-8").splitlines()]
    first_wins = [next((query for query, winner, *_ in wins if winner == name), None) for name in names[:3]]
    assert {row[0] for row in rows} == set(filter(None, first_wins))
    chosen = run_script("came_figure4.sh", **settings, CASES="q3 q1")
    assert list(dict.fromkeys(line.split()[0] for line in chosen.stdout.splitlines()[2:])) == ["q3", "q1"]


def test_judgements_from_answers_count_as_answers_do(collections: Path, moeir: Callable[..., CommandResult], tmp_path: Path) -> None:
    nq, run = collections / "nq", tmp_path / "some.trec"
    documents = [document.id for document in texts.read_texts(nq / "corpus.jsonl")][:5]  # some answers are in none of them
    hits = [(question.id, document) for question in texts.read_texts(nq / "test-queries.jsonl") for document in documents]
    run.write_text("".join(f"{query} Q0 {document} 1 {-row} x\n" for row, (query, document) in enumerate(hits)), encoding="utf-8")
    inputs = ["--answers", nq / "test-queries.jsonl", "--corpus", nq / "corpus.jsonl"]
    assert run_program("answer_qrels.py", run, *inputs, "--output", tmp_path / "answers.qrels").code == 0
    measures = ["--run", run, "--measure", "Success@2", "--measure", "RR@10", "--form", "tsv", "--output", "-"]
    by_answers, by_qrels = moeir("evaluate", *measures, *inputs), moeir("evaluate", *measures, "--qrels", tmp_path / "answers.qrels")
    assert (by_answers.code, by_qrels.code) == (0, 0), by_answers.stderr + by_qrels.stderr
    assert by_answers.stdout == by_qrels.stdout != ""


def test_all_judged_training_queries_but_those_held_out_are_searched_and_no_others(
    server: CommandServer, collections: Path, tmp_path: Path, shallow_model: Path
) -> None:
    settings = {"MOEIR": server.client, "MODEL": shallow_model, **SMALL, **SHALLOW, "KEEP": "no"}
    completed = run_script("came_msmarco.sh", DATA=collections / "msmarco", WORK=tmp_path, **settings)
    assert completed.returncode == 0, completed.stderr
    assert parse_tables(completed.stdout) == expected("came_msmarco.sh", "msmarco")
    for name in ("bm25/train/bm25", "came-bm25/train/fused"):
        lines = (tmp_path / "runs" / f"{name}.trec").read_text(encoding="utf-8").splitlines()
        assert {line.split()[0] for line in lines} == {"t2", "t3", "t4", "t5", "t6"}, "t1, one of six, is held out"
    assert list(qrels.read_qrels(tmp_path / "validation.qrels")) == ["t1"]
    held_out = (tmp_path / "runs/came-bm25/validation/fused.trec").read_text(encoding="utf-8").splitlines()
    assert {line.split()[0] for line in held_out} == {"t1"}
    assert not list(tmp_path.glob("enc/came*")) and not list(tmp_path.glob("idx/came*"))
    again = run_script("came_msmarco.sh", DATA=collections / "msmarco", WORK=tmp_path, **settings)
    assert again.returncode == 0, again.stderr
    assert again.stdout == completed.stdout


def test_the_folders_of_dpr_become_a_collection(tmp_path: Path) -> None:
    positive = {"title": "Owl", "text": "An owl hunts.", "score": 1, "passage_id": "1"}
    entries = [{"question": "no positive", "answers": ["a"]}, {"question": "who hunts", "answers": ["owl"], "positive_ctxs": [positive]}]
    files = {f"retriever/nq-{name}.json": json.dumps([{"positive_ctxs": []} | entry for entry in entries]) for name in ("train", "dev")}
    files["wikipedia_split/psgs_w100.tsv"] = 'id\ttext\ttitle\n1\t"An ""owl"" hunts."\tOwl\n'
    toy_collections.write_files(tmp_path / "dpr", files | {"retriever/qas/nq-test.csv": "who hunts\t['owl', \"the owl's\"]\n"})
    assert run_program("nq_from_dpr.py", tmp_path / "dpr", tmp_path / "nq").code == 0
    assert [text.content for text in texts.read_texts(tmp_path / "nq/corpus.jsonl")] == ['Owl An "owl" hunts.']
    assert [(text.id, text.answers) for text in texts.read_texts(tmp_path / "nq/test-queries.jsonl")] == [("test0", ("owl", "the owl's"))]
    assert qrels.read_qrels(tmp_path / "nq/dev.qrels") == {"dev1": {"1": 1}}
    assert [text.text for text in texts.read_texts(tmp_path / "nq/train-queries.jsonl")] == ["who hunts"]


def test_a_query_belongs_to_every_expert_that_ranks_its_positive_best(tmp_path: Path) -> None:
    lists = {"lexical": {"q1": "da", "q2": "ad"}, "local": {"q1": "ad", "q2": "da"}, "global": {"q1": "da", "q2": "ad"}, "fused": {}}
    for expert, hits in lists.items():
        lines = [f"{query} Q0 {document} 1 {-index} x\n" for query, documents in hits.items() for index, document in enumerate(documents)]
        (tmp_path / f"{expert}.trec").write_text("".join(lines), encoding="utf-8")
    qrels.write_qrels({query: {"d": 1} for query in ("q1", "q2", "q3")}, tmp_path / "qrels")
    rows = [{"query_id": query, "positive_ids": ["d"], "negative_ids": ["a"]} for query in ("q1", "q2", "q3")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {"--examples": "train.jsonl", "--qrels": "qrels", "--runs": ".", "--output": "parts"}
    arguments = [word for flag, name in files.items() for word in (flag, str(tmp_path / name))]
    completed = run_program("suit_split.py", *arguments)
    parts = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "parts").glob("*.jsonl")}
    queries = {expert: [json.loads(line)["query_id"] for line in part.splitlines()] for expert, part in parts.items()}
    assert queries == {"lexical": ["q1", "q3"], "local": ["q2", "q3"], "global": ["q1", "q3"]}, "no list has q3, so all experts share it"
    assert "2 of them shared" in completed.stderr
