"""Run every CAME script whole, in a shell, on toy data with tiny weights and two steps."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moeir.records import qrels, texts
from tests.examples.shell import EXAMPLES, CommandServer, parse_tables, run_script

SMALL = {"STEPS": 2, "QUERY_LENGTH": 8, "DOCUMENT_LENGTH": 16, "BATCH": 2, "NEGATIVES": 2, "LAYERS": 4}
SHALLOW = {"BM25_DEPTH": 5, "MINING_DEPTH": 2, "DEPTH": 10}  # two of twelve: often no expert finds the positive, so all share the query
EXPERTS = ("lexical", "local", "global")
WITHOUT_PRODUCT = ("evaluate",)

COLLECTIONS = {
    "came_msmarco.sh": ("msmarco",),
    "came_nq.sh": ("nq",),
    "came_table2.sh": ("msmarco", "nq"),
    "came_table3.sh": ("msmarco",),
    "came_table4_learning.sh": ("msmarco",),
    "came_figure3.sh": ("msmarco", "nq"),
}
FOUR = ("fused", *EXPERTS)
TABLE_1 = ["bm25", *(f"came-{run}" for run in FOUR), *(f"came-bm25-{run}" for run in FOUR)]
LEARNT = ("came-bm25", "all-independent", "suit-independent")
TABLE_3 = [
    *(f"{model}-{run}" for model in ("came-bm25", "no-sharing") for run in FOUR),
    *(f"without-{gone}-{run}" for gone in EXPERTS for run in FOUR if run != gone),
    *(f"only-{expert}-{expert}" for expert in EXPERTS),
]
ROWS = {
    "came_msmarco.sh": [[TABLE_1[0], "bm25-tuned-bm25", *TABLE_1[1:]]],
    "came_nq.sh": [TABLE_1],
    "came_table2.sh": [[f"{model}-fused" for model in ("came", "came-bm25", "standardised-only", "specialised-only")]],
    "came_table3.sh": [TABLE_3],
    "came_table4_learning.sh": [[f"{way}-{merge}-fused" for way in LEARNT for merge in ("sum", "rr")]],
}
SWEPT = {"msmarco": ("0_2", "1", "1_5", "2", "2_5", "3"), "nq": ("0_2", "0_5", "1", "1_5", "2_5", "3")}
MEASURES = {"dev": ["RR@10", "R@1000", "R@100"], "dl19": ["nDCG@10", "R(rel=2)@1000"], "nq": ["Success@20", "Success@100"]}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """The toy texts as the files of MS MARCO, one training query without judgements among them, and as those of NQ."""
    root = tmp_path_factory.mktemp("collections")
    documents, train, dev = (list(texts.read_texts(toy / name)) for name in ("corpus.jsonl", "train-queries.jsonl", "test-queries.tsv"))
    train_qrels, test_qrels = qrels.read_qrels(toy / "train.qrels"), qrels.read_qrels(toy / "test-qrels.tsv")
    marco, nq = root / "msmarco", root / "nq"
    marco.mkdir()
    nq.mkdir()
    tsv_files = {"collection.tsv": documents, "queries.train.tsv": train, "queries.dev.small.tsv": dev, "msmarco-test2019-queries.tsv": dev}
    for name, split_texts in tsv_files.items():
        (marco / name).write_text("".join(f"{text.id}\t{text.content}\n" for text in split_texts), encoding="utf-8")
    with open(marco / "queries.train.tsv", "a", encoding="utf-8") as queries:
        queries.write("t99\tnobody judged this\n")
    graded = {query: {document: 2 for document in grades} for query, grades in test_qrels.items()}
    for name, grades in {"qrels.train.tsv": train_qrels, "qrels.dev.small.tsv": test_qrels, "2019qrels-pass.txt": graded}.items():
        qrels.write_qrels(grades, marco / name)
    texts.write_texts(documents, nq / "corpus.jsonl")
    qrels.write_qrels(train_qrels, nq / "train.qrels")
    words = {text.id: " ".join(text.text.split()[:3]) for text in documents}  # no other passage begins with these words
    for name, split_texts, split_qrels in (("train", train, train_qrels), ("test", dev, test_qrels)):
        with_answers = [
            replace(text, answers=tuple(words[one] for one in split_qrels[text.id])) for text in split_texts if text.id in split_qrels
        ]
        texts.write_texts(with_answers, nq / f"{name}-queries.jsonl")
    return root


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder per collection, shared by the scripts as in real use."""
    return tmp_path_factory.mktemp("work")


def expected(script: str, collection: str) -> list[tuple[list[str], list[str]]]:
    rows = ROWS.get(script) or [
        ["came-bm25-fused", *(f"temperature-{value}-fused" for value in SWEPT[collection])],
        ["came-bm25-fused", *(f"ratio-{value}-fused" for value in ("0_0667", "0_1333", "0_2667", "0_3333"))],
        ["came-bm25-fused", *(f"shared-{value}-fused" for value in (2, 4))],
    ]
    parts = [MEASURES["nq"]] if collection == "nq" else [MEASURES["dev"], MEASURES["dl19"]]
    return [(measures, table) for table in rows for measures in parts]


@pytest.mark.parametrize(("script", "collection"), [(script, one) for script, both in COLLECTIONS.items() for one in both])
def test_a_script_ends_in_the_tables_of_the_paper_and_a_second_run_makes_nothing(
    script: str, collection: str, server: CommandServer, collections: Path, work: Path, tiny_model_with_head: Path
) -> None:
    settings = {"MOEIR": server.client, "MODEL": tiny_model_with_head, "COLLECTION": collection, **SMALL, **SHALLOW}
    settings |= {"DATA": collections / collection, "WORK": work / collection}
    first = run_script(script, **settings)
    assert first.returncode == 0, first.stderr
    assert parse_tables(first.stdout) == expected(script, collection)
    before = len(server.calls())
    second = run_script(script, **settings)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    with_product = [call for call in server.calls()[before:] if call[0] not in WITHOUT_PRODUCT]
    assert second.stderr.count("already made") == len(with_product)


def test_all_judged_training_queries_are_searched_and_no_others(
    server: CommandServer, collections: Path, tmp_path: Path, tiny_model_with_head: Path
) -> None:
    settings = {"MOEIR": server.client, "MODEL": tiny_model_with_head, **SMALL, **SHALLOW, "KEEP": "no"}
    completed = run_script("came_msmarco.sh", DATA=collections / "msmarco", WORK=tmp_path, **settings)
    assert completed.returncode == 0, completed.stderr
    for name in ("bm25/train/bm25", "came-bm25/train/fused"):
        lines = (tmp_path / "runs" / f"{name}.trec").read_text(encoding="utf-8").splitlines()
        assert {line.split()[0] for line in lines} == {f"t{number}" for number in range(1, 7)}
    assert not list(tmp_path.glob("enc/came*")) and not list(tmp_path.glob("idx/came*"))
    again = run_script("came_msmarco.sh", DATA=collections / "msmarco", WORK=tmp_path, **settings)
    assert again.returncode == 0, again.stderr
    assert again.stdout == completed.stdout


PAPER = {
    "msmarco": {"batch-size": "8", "learning-rate": "5e-6", "epochs": ["5", "3"], "lengths": ["32", "128"], "temperature": "0.5"},
    "nq": {"batch-size": "32", "learning-rate": "1e-5", "epochs": ["15", "10"], "lengths": ["32", "156"], "temperature": "2.0"},
}
DEPTHS = {"msmarco": ["1000", "1000", "1000", "200", *["1000"] * 6], "nq": ["100"] * 5}  # BM25, first, second, tuned BM25; train first
BANDS = {"msmarco": ["band:first=0,last=1000", "band:first=0,last=200"], "nq": ["band:first=0,last=100"] * 2}


@pytest.mark.parametrize("collection", ["msmarco", "nq"])
def test_what_is_not_said_is_as_in_the_paper(collection: str, collections: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "recorder"
    recorder.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n', encoding="utf-8")
    recorder.chmod(0o755)
    completed = run_script(f"came_{collection}.sh", MOEIR=recorder, DATA=collections / collection, WORK=tmp_path / "work")
    assert completed.returncode == 0, completed.stderr
    calls = [line.split() for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()]
    flags_by_call = [(call[0], dict(zip(call[1::2], call[2::2], strict=True))) for call in calls]
    first, second = (flags for stage, flags in flags_by_call if stage == "finetune")
    paper = PAPER[collection]
    for flags in (first, second):
        assert flags["--negatives"] == "7" and flags["--warmup"] == "0.1" and "--steps" not in flags
        assert [flags[f"--{name}"] for name in ("batch-size", "learning-rate")] == [paper["batch-size"], paper["learning-rate"]]
    assert [first["--epochs"], second["--epochs"]] == paper["epochs"]
    assert [first["--query-length"], first["--document-length"]] == paper["lengths"]
    assert first["--arch"] == "came:shared_layers=10,experts=lexical+local+global,local_dim=128"
    rest = f"temperature={paper['temperature']},flops_query=0.01,flops_document=0.01"
    assert first["--objective"] == f"competitive:standardised=0.2,{rest}"
    assert second["--objective"] == f"competitive:standardised=0,{rest}"
    assert second["--model"].endswith("ckpt/came-bm25") and "--arch" not in second
    assert [flags["--method"] for stage, flags in flags_by_call if stage == "mine-negatives"] == BANDS[collection]
    assert [flags["--depth"] for stage, flags in flags_by_call if stage == "search"] == DEPTHS[collection]
    tuned = {"msmarco": ["bm25:k1=0.82,b=0.68"], "nq": []}[collection]  # the paper's MS MARCO row has numbers of both settings
    assert [flags["--engine"] for _, flags in flags_by_call if "--engine" in flags] == ["bm25:k1=0.9,b=0.4", *tuned]


def test_the_folders_of_dpr_become_a_collection(tmp_path: Path) -> None:
    source = tmp_path / "downloads"
    for folder in ("wikipedia_split", "retriever/qas"):
        (source / folder).mkdir(parents=True)
    (source / "wikipedia_split/psgs_w100.tsv").write_text('id\ttext\ttitle\n1\t"An ""owl"" hunts."\tOwl\n', encoding="utf-8")
    positive = {"title": "Owl", "text": "An owl hunts.", "score": 1, "passage_id": "1"}
    entries = [
        {"question": "no positive", "answers": ["a"], "positive_ctxs": []},
        {"question": "who hunts", "answers": ["owl"], "positive_ctxs": [positive]},
    ]
    for name in ("train", "dev"):
        (source / f"retriever/nq-{name}.json").write_text(json.dumps(entries), encoding="utf-8")
    (source / "retriever/qas/nq-test.csv").write_text("who hunts\t['owl', \"the owl's\"]\n", encoding="utf-8")
    subprocess.run([sys.executable, EXAMPLES / "nq_from_dpr.py", source, tmp_path / "nq"], check=True)
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
    completed = subprocess.run([sys.executable, EXAMPLES / "suit_split.py", *arguments], capture_output=True, text=True, check=True)
    parts = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "parts").glob("*.jsonl")}
    queries = {expert: [json.loads(line)["query_id"] for line in part.splitlines()] for expert, part in parts.items()}
    assert queries == {"lexical": ["q1", "q3"], "local": ["q2", "q3"], "global": ["q1", "q3"]}, "no list has q3, so all experts share it"
    assert "2 of them shared" in completed.stderr
