"""Run the scripts of TASER, SB-MoE, CoT-MoTE and LCE whole, in a shell, on toy data with tiny weights and two steps."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.examples import toy_collections
from tests.examples.shell import CommandServer, parse_tables, run_program, run_script

QUESTIONS = ("nq", "trivia", "webq", "curatedtrec", "squad1")
SETS = ("scifact", "cqadupstack/android")
SHALLOW = {"STEPS": 2, "QUERY_LENGTH": 8, "DOCUMENT_LENGTH": 16, "LENGTH": 16, "BATCH": 2, "NEGATIVES": 2}
SHALLOW |= {"PAIRS": 4, "PERPLEXITY": 3, "COUNTS": "3 6"}
SHALLOW |= {"LEARN_STEPS": 2, "COTMAE_STEPS": 2, "GATE": -100, "GATE_STEPS": 2, "COTMAE_GATE_STEPS": 2, "CHECKPOINT_EVERY": 1}
SHALLOW |= {"LEARN_BATCH": 4, "COTMAE_BATCH": 4, "SPAN_LENGTH": 16, "PER_SPAN": 2}  # of pre-training
SHALLOW |= {"BM25_DEPTH": 8, "MINING_DEPTH": 8, "DEPTH": 10, "VALIDATION": 0.4, "THRESHOLD": 1}
SHALLOW |= {"ROUTINGS": "dpr role token-2", "HARD": "role", "RATES": "3e-5 5e-5", "GRID": "0.5 2.0", "ROWS": "mote siamese separate"}
REPEATED = ("lce_msmarco_doc.sh", "cot_mote_msmarco.sh")
WITHOUT_PRODUCT = ("evaluate", "info", "analyze")

ANSWERED, SB, DEV = ["Success@20", "Success@100"], ["R@100", "nDCG@10"], ["RR@10", "R@1", "R@50", "R@1000"]
ALONE = [f"nq-{routing}" for routing in ("dpr", "role", "token-2", "role-hard")]
TABLE_1 = ["bm25", "dpr-first", "dpr", "dpr-bm25", "dpr-star", "taser", "taser-bm25", "taser-star", "taser-star-bm25"]
GROUPS = [name for name in ("relation=P17", "relation=P36", "macro", "micro") for _ in range(4)]
USAGE = ["of", "expert", "chosen", "share", "probability", "entropy"]
WAYS = ("dense", "sparse", "hybrid")
MOTE = ["bm25", *(f"{model}-{way}" for model in ("mote", "mote-bm25", "siamese", "separate") for way in WAYS)]
DIVERGING = ["cotmae-siamese", "cotmae-separate", "siamese", "mote", "separate"]
SB_TABLES = [(SB, ["fine-tuned", "random-gate", "top1", "all"]), (SB, ["top1", "random-gate", "adapter"])]
SB_ROWS = [f"tinybert-{row}" for row in ("fine-tuned", "random-gate", "adapter", "top1", "all")]
ADAPTED, ADAPTER_MEASURES = [f"came-{expert}" for expert in ("lexical", "local", "global")], [["RR@10", "R@1000"], ["nDCG@10"], ["nDCG@10"]]
LCE_MODELS = [f"{retriever}-{arm}" for retriever in ("bm25", "indri") for arm in ("bce", "bce2", "lce")]

EXPECTED: dict[tuple[str, str], list[tuple[list[str], list[str]]]] = {
    ("taser_nq.sh", ""): [*[(ANSWERED, ["bm25", *ALONE])] * 2, (["parameters"], ALONE)],
    ("taser_multiset.sh", ""): [
        *[(ANSWERED, TABLE_1)] * 5,
        (["parameters"], ["dpr", "taser"]),
        (["training", "all", "ratio"], ["dpr", "taser"]),
    ],
    ("taser_entityquestions_beir.sh", ""): [
        *[(["nDCG@10"], ["bm25", "dpr", "taser", "taser-star"])] * 2,
        (["n", "run", *ANSWERED], GROUPS),
    ],
    ("sbmoe_table1.sh", "msmarco nq"): [
        *(table for table in SB_TABLES for _ in range(3)),
        *SB_TABLES,
        *[(["dev", "dl19", "dl20", "nq"], SB_ROWS)] * 2,
    ],
    ("sbmoe_table2_zeroshot.sh", "msmarco"): [
        *[(SB, ["fine-tuned", "top1", "all"])] * 2,
        *[(["scifact", "cqadupstack-android"], [f"tinybert-{row}" for row in ("fine-tuned", "top1", "all")])] * 2,
    ],
    ("sbmoe_figure2.sh", "msmarco"): [(SB, ["fine-tuned", "all-3", "all-6"])] * 3,
    ("sbmoe_figures3_4.sh", "msmarco"): [],
    ("sbmoe_table3_usage.sh", "msmarco"): [(["router", *USAGE], ["document"] * (count + 1)) for count in (3, 6)],
    ("lce_msmarco_doc.sh", ""): [
        *[(["RR@100"], [retriever, *LCE_MODELS]) for retriever in ("bm25", "indri")],
        (["RR@100"], ["indri", "group-2", "indri-lce"]),
        (["RR@100"], ["indri", "indri-lce", "other", "ensemble"]),
    ],
    ("cot_mote_msmarco.sh", ""): [(DEV, MOTE), (["nDCG@10"], MOTE), (["nDCG@10"], MOTE)],
    ("cot_mote_figure1.sh", ""): [(["statistic", "value"], ["query"] * 7 + ["document"] * 7)],
    ("cot_mote_figure4_divergence.sh", ""): [
        (["RR@10"], ["cotmae-siamese", "cotmae-separate"]),
        (["expert", "pairs", "KL", "JS"], DIVERGING),
    ],
    ("cot_mote_table6_beir.sh", ""): [(["nDCG@10"], [f"mote-{way}" for way in WAYS])] * 2,
    ("adapters_came.sh", ""): [(measures, ["bm25", "dense-global", *ADAPTED, "came"]) for measures in ADAPTER_MEASURES],
    ("adapters_taser.sh", ""): [
        *[(measures, ["bm25", "one", "token", "sequence", "role"]) for measures in ADAPTER_MEASURES],
        *[(["router", *USAGE], ["query"] * 15)] * 2,
    ],
    ("adapters_reranker.sh", ""): [(measures, ["bm25", "untrained", "reranker", "alone", "distilled"]) for measures in ADAPTER_MEASURES],
}


FIGURES = {
    "sbmoe_figure2.sh": ["figure2-R.svg", "figure2-nDCG.svg"],
    "sbmoe_figures3_4.sh": [f"figures3-4-tinybert-{name}{part}.svg" for name in ("dev", "dl19", "dl20") for part in ("", "-block")],
    "lce_msmarco_doc.sh": ["figure1.svg", "figure2.svg"],
    "cot_mote_figure1.sh": ["figure1.svg"],
}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """odqa, converted by the examples' programs from DPR's and EntityQuestions' files; msmarco; and beir with a few sets."""
    root, small = tmp_path_factory.mktemp("collections"), toy_collections.ToyTexts(toy)
    toy_collections.write_dpr(small, root / "downloads", QUESTIONS)
    toy_collections.write_entity_questions(small, root / "entityquestions")
    toy_collections.write_msmarco(small, root / "msmarco")
    for name in (*SETS, "nq", "nq-train"):
        toy_collections.write_beir(small, root / "beir" / name)
    programs = {"taser_sets.py": ["downloads", "odqa"], "entityquestions.py": ["entityquestions", "odqa/entityquestions.jsonl"]}
    for program, (source, product) in programs.items():
        assert run_program(program, root / source, root / product).code == 0
    return root


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder per paper, shared by its scripts as in real use."""
    return tmp_path_factory.mktemp("work")


def settings(script: str, collection: str, root: Path, weights: Path, t5: Path, server: CommandServer) -> dict[str, Any]:
    values = {"MOEIR": server.client, "MODEL": weights, "STAR": weights, "T5": t5, "SETS": " ".join(SETS), **SHALLOW, "BEIR": root / "beir"}
    data = "odqa" if script.startswith("taser") else "msmarco"
    return values | {"DATA": root / data} | ({"COLLECTIONS": collection} if collection else {})


@pytest.mark.parametrize(("script", "collection"), EXPECTED)
def test_a_script_ends_in_the_tables_of_the_paper(
    script: str,
    collection: str,
    server: CommandServer,
    collections: Path,
    work: Path,
    shallow_model: Path,
    tiny_model: Path,
    tiny_model_with_head: Path,
    tiny_decoder: Path,
    t5_model: Path,
) -> None:
    weights = tiny_model_with_head if script.startswith("taser") else shallow_model  # two shared layers to one with experts
    values = settings(script, collection, collections, weights, t5_model, server)
    values |= {"WORK": work / script.split("_")[0]}
    if script.startswith(("taser_multiset", "taser_entity")):
        values |= {"RATES": "3e-5"}
    if script.startswith("adapters"):
        values |= {"MODEL": tiny_decoder, "SHARED_LAYERS": 1, "STUDENT": shallow_model, "STUDENT_LAYERS": 1, "PAIR_LENGTH": 240, "RANK": 4}
        values |= {"ROUTINGS": "token sequence role"}
    if script.startswith("lce"):
        values |= {"RETRIEVERS": "bm25 indri", "GROUPS_OF": "2 3", "ENSEMBLE": f"bert={values['MODEL']} other={tiny_model}"}
    if script.endswith("_beir.sh") and script.startswith("cot_mote"):
        values |= {"WORK": work / "wiki", "DOCUMENTS": collections / "odqa/corpus.jsonl"}
    first = run_script(script, **values)
    assert first.returncode == 0, first.stderr
    assert parse_tables(first.stdout) == EXPECTED[script, collection]
    if script == "sbmoe_table3_usage.sh":
        used = re.findall(r"== (\d+) of (\d+) experts used", first.stderr)
        assert [of for _, of in used] == ["3", "6"] and all(0 < int(count) <= int(of) for count, of in used), first.stderr
    assert all((values["WORK"] / "figures" / name).stat().st_size for name in FIGURES.get(script, []))
    if script in REPEATED:
        before = len(server.calls())
        second = run_script(script, **values | {"ROWS": "mote"})
        assert second.returncode == 0 and (script.startswith("cot") or second.stdout == first.stdout), second.stderr
        calls = server.calls()[before:]
        with_product = [call for call in calls if call[0] not in WITHOUT_PRODUCT or ("--output" in call and "--force" not in call)]
        assert second.stderr.count("already made") == len(with_product), "a second run makes nothing"


def test_encodings_that_are_not_kept_are_not_needed_again(
    server: CommandServer, collections: Path, tmp_path: Path, tiny_model_with_head: Path, t5_model: Path
) -> None:
    values = settings("taser_nq.sh", "", collections, tiny_model_with_head, t5_model, server)
    values |= {"WORK": tmp_path / "work", "KEEP": "no", "ROUTINGS": "role", "HARD": " ", "RATES": "3e-5"}
    first, before = run_script("taser_nq.sh", **values), len(server.calls())
    second = run_script("taser_nq.sh", **values)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == first.stdout
    assert list(tmp_path.glob("work/runs/*")) and not list(tmp_path.glob("work/enc/*/*/*")), "encodings are gone"
    assert "encode" not in {call[0] for call in server.calls()[before:]}
