"""The default `moeir` commands of the scripts of TASER, SB-MoE, CoT-MoTE and LCE have the papers' values."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.examples import toy_collections
from tests.examples.shell import CommandServer, record_calls

QUESTIONS = ("nq", "trivia", "webq", "curatedtrec", "squad1")
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
def calls(toy: Path, server: CommandServer, tmp_path: Path) -> Any:
    """`calls(script, **settings)`: the commands of a script, recorded by a fake `moeir`."""
    small = toy_collections.ToyTexts(toy)
    toy_collections.write_msmarco(small, tmp_path / "msmarco")
    for name in ("nq", "nq-train", "cs"):
        toy_collections.write_beir(small, tmp_path / "beir" / name)
    for name in ("nq", "trivia"):
        (tmp_path / "odqa" / name).mkdir(parents=True)
        for file in ("dev-queries.jsonl", "dev.qrels", "dev-corpus.jsonl", "dev-answers.jsonl"):
            (tmp_path / "odqa" / name / file).write_text(f"{file}\n", encoding="utf-8")
    (tmp_path / "work/data").mkdir(parents=True)
    (tmp_path / "work/data/spans.jsonl").write_text('{"_id": "s", "text": "a span"}\n', encoding="utf-8")

    def made(script: str, recorder: str = RECORDER, code: int = 0, **settings: object) -> list[Call]:
        data = tmp_path / ("odqa" if script.startswith("taser") else "msmarco")
        values = {"MODEL": "base", "STAR": "star", "DATA": data, "BEIR": tmp_path / "beir"} | settings
        return [(call[0], call[1:]) for call in record_calls(script, tmp_path, server.python, recorder, code=code, **values)]

    return made


def flag_values(call: Call, flag: str) -> list[str]:
    """Every value of a flag."""
    return [value for name, value in itertools.pairwise(call[1]) if name == f"--{flag}"]


def has_values(call: Call, values: dict[str, str]) -> bool:
    """Whether each of these flags has this one value."""
    return all(flag_values(call, flag) == [value] for flag, value in values.items())


def finetune_calls(recorded: list[Call]) -> dict[str, Call]:
    return {Path(flag_values(call, "output")[0]).name: call for call in recorded if call[0] == "finetune"}


def file_names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_taser_on_one_set_unites_both_kinds_of_negatives_and_starts_again(calls: Any) -> None:
    recorded = calls("taser_nq.sh")
    trainings = finetune_calls(recorded)
    assert len(trainings) == 18, "nine models, each at two rates"
    assert all(flag_values(call, "learning-rate") == [name[-4:]] for name, call in trainings.items())
    assert all(flag_values(call, "positives") == ["first"] for call in trainings.values())
    trainings_by_name = {name.removesuffix("-5e-5"): call for name, call in trainings.items() if name.endswith("-5e-5")}
    for name, call in trainings_by_name.items():
        hard = name.endswith("-hard")
        assert file_names(flag_values(call, "train")) == ["bm25-nq.jsonl", *([f"{name.removesuffix('-hard')}-nq.jsonl"] if hard else [])]
        assert has_values(call, {"model": "base", "dev-measure": "RR@100"}) and not flag_values(call, "steps")
    assert flag_values(trainings_by_name["nq-sequence-4"], "arch") == ["taser:routing=sequence,experts=4,every=2,gradient=full"]
    mined = [call for call in recorded if call[0] == "mine-negatives"]
    assert [flag_values(call, "method") for call in mined] == [["band:first=0,last=100"]] * 3
    assert all(flag_values(call, "exclude-answers") and flag_values(call, "match") == ["string"] for call in mined)
    assert {flag_values(call, "depth")[0] for call in recorded if call[0] == "search"} == {"100"}
    assert [flag_values(call, "engine") for call in recorded if "--engine" in call[1]] == [["bm25:k1=0.9,b=0.4"]]


def test_taser_on_five_sets_mines_for_three_tunes_one_alpha_chooses_a_rate_and_times_an_epoch(calls: Any, tmp_path: Path) -> None:
    recorded = calls("taser_multiset.sh")
    assert {(tmp_path / "work/ckpt" / name).readlink().name for name in ("dpr", "taser")} == {"dpr-5e-5", "taser-5e-5"}
    rows = [line.split() for line in (tmp_path / "stdout").read_text(encoding="utf-8").splitlines()][-3:]
    assert rows == [["model", "training", "all", "ratio"], ["dpr", "4.0", "10.0", "1.00"], ["taser", "4.0", "7.5", "0.75"]]
    trainings_by_name = {name.removesuffix("-5e-5"): call for name, call in finetune_calls(recorded).items() if name.endswith("-5e-5")}
    assert {name: flag_values(call, "model")[0] for name, call in trainings_by_name.items()} == {
        **dict.fromkeys(("taser-first", "dpr-first", "dpr", "taser"), "base"),
        **dict.fromkeys(("dpr-star", "taser-star"), "star"),
    }
    for name, call in trainings_by_name.items():
        first = "bm25" if name.endswith("first") else "taser-first"
        expected = [f"{first if index < 3 else 'bm25'}-{set_name}.jsonl" for index, set_name in enumerate(QUESTIONS)]
        assert file_names(flag_values(call, "train")) == expected
        assert flag_values(call, "sampling-rate") == ["1.0"] * 5 and len(flag_values(call, "queries")) == 5
        assert has_values(call, {"warmup": "0.04"})
    mined = {file_names(flag_values(call, "output"))[0]: flag_values(call, "match")[0] for call in recorded if call[0] == "mine-negatives"}
    assert mined["bm25-curatedtrec.jsonl"] == "regex" and list(mined.values()).count("regex") == 1
    assert [name for name in mined if name.startswith("taser")] == [f"taser-first-{set_name}.jsonl" for set_name in QUESTIONS[:3]]
    fused = [call for call in recorded if call[0] == "fuse"]
    tried = [call for call in fused if "tuning" in flag_values(call, "output")[0]]
    grid = [f"hybrid:alpha={step / 10}" for step in range(5, 21)]
    assert [flag_values(call, "method")[0] for call in tried] == grid * 3
    assert [flag_values(call, "method")[0] for call in fused if call not in tried] == ["hybrid:alpha=1.1"] * 15
    evaluated = [call for call in recorded if call[0] == "evaluate"]
    chosen = [call for call in evaluated if flag_values(call, "group-by")]
    assert [(flag_values(call, "measure"), flag_values(call, "group-by")) for call in chosen] == [(["Success@20"], ["set"])] * 3
    matches = [flag_values(call, "match")[0] for call in evaluated if call not in chosen]
    assert matches == ["string", "string", "string", "regex", "string"]
    calls("taser_multiset.sh", RATES="3e-5 1e-5", GRID=1)
    assert (tmp_path / "work/ckpt/taser").readlink().name == "taser-3e-5", "of equal rates the first"
    calls("taser_multiset.sh", RATES="3e-5 5e-5", DEV_MEASURE="loss", GRID=1)
    assert (tmp_path / "work/ckpt/taser").readlink().name == "taser-3e-5", "the lowest loss is the best: both rates have 0.2"


@pytest.mark.parametrize(
    ("settings", "epochs", "model_scale"),
    [({}, "30", "1"), ({"BACKBONE": "small"}, "20", "1"), ({"BACKBONE": "contriever", "COLLECTION": "cs"}, "10", "20")],
)
def test_sbmoe_trains_the_block_faster_than_the_encoder(calls: Any, settings: dict[str, str], epochs: str, model_scale: str) -> None:
    recorded = calls("sbmoe_table1.sh", **settings)
    trainings_by_name = finetune_calls(recorded)
    block = "combine=norm_expert"
    specs = {"fine-tuned": "dense:encoders=siamese", "random-gate": f"sbmoe:experts=6,{block},gate=random"}
    specs |= {"adapter": f"sbmoe:experts=1,{block}", "top1": f"sbmoe:experts=6,{block}"}
    assert list(trainings_by_name) == list(specs)
    for name, call in trainings_by_name.items():
        assert has_values(call, {"epochs": epochs, "learning-rate": "1e-6", "negatives": "0"})
        assert flag_values(call, "group-rate") == ([] if name == "fine-tuned" else ["mixture=1e-4"])
        assert flag_values(call, "arch") == [f"{specs[name]},pooling=mean,scale={model_scale}"]
        assert flag_values(call, "dev-measure") == ["loss"], "the checkpoint with the lowest validation loss"
    (init_call,) = (call for call in recorded if call[0] == "init")
    assert flag_values(init_call, "model") == flag_values(trainings_by_name["top1"], "output")
    assert flag_values(init_call, "arch") == ["sbmoe:inference=all"]
    assert {flag_values(call, "depth")[0] for call in recorded if call[0] == "search"} == {"1000"}
    evaluated = [call for call in recorded if call[0] == "evaluate"]
    assert {flag_values(call, "correction")[0] for call in evaluated} == {"bonferroni"}
    assert [file_names(flag_values(call, "run")) for call in evaluated[:: len(evaluated) // 2]] == [
        ["fine-tuned.trec", "random-gate.trec", "top1.trec", "all.trec"],
        ["top1.trec", "random-gate.trec", "adapter.trec"],
    ]


def test_sbmoe_makes_a_cell_for_each_backbone_and_collection(calls: Any, tmp_path: Path) -> None:
    recorded = calls("sbmoe_table1.sh", MODEL="", BACKBONES="small contriever mine=own/weights", COLLECTIONS="msmarco cs")
    trainings = [call for call in recorded if call[0] == "finetune" and flag_values(call, "output")[0].endswith("top1")]
    weights = {"small": "google/bert_uncased_L-4_H-512_A-8", "contriever": "facebook/contriever", "mine": "own/weights"}
    assert [[flag_values(call, flag)[0] for flag in ("output", "model", "epochs")] for call in trainings] == [
        [f"{tmp_path}/work/{backbone}-{collection}/ckpt/top1", model, epochs]
        for backbone, model in weights.items()
        for collection, epochs in (("msmarco", "20"), ("cs", "10"))
    ]
    recall, ndcg = (call for call in recorded if call[0] == "grid")
    assert (flag_values(recall, "measure"), flag_values(ndcg, "measure")) == (["R@100"], ["nDCG@10"])
    cells = [run.partition("=")[0] for run in flag_values(ndcg, "run")]
    assert len(cells) == len(set(cells)) == 3 * 5 * 4 and {"mine-all/cs", "small-fine-tuned/dl20"} < set(cells)
    assert [one.partition("=")[0] for one in flag_values(ndcg, "qrels")] == ["dev", "dl19", "dl20", "cs"]


ROWS_OF_MOTE = ("mote", "siamese", "separate", "switched")


def test_each_row_of_mote_is_pre_trained_by_itself_on_queries_of_the_spans(calls: Any) -> None:
    """A row whose weights are given is not; both trainings of a row start from its own weights."""
    recorded = calls("cot_mote_msmarco.sh", SEPARATE="other", SHARDS=2, GATE="no", STEPS=7)
    generations = [call for call in recorded if call[0] == "generate-queries"]
    assert [flag_values(call, "shard") for call in generations] == [["0/2"], ["1/2"]] * 3
    values = {"queries-per-passage": "5", "top-k": "25", "top-p": "0.95", "max-output": "64", "seed": "42"}
    assert all(has_values(call, values) for call in generations)
    pretrainings = {Path(flag_values(call, "output")[0]).name: call for call in recorded if call[0] == "pretrain"}
    assert list(pretrainings) == ["mote", "siamese", "switched"], "separate encoders are given"
    values = {"steps": "80000", "batch-size": "1024", "accumulate": "2", "checkpoint-every": "20000", "learning-rate": "3e-4"}
    values |= {"warmup": "0.1", "document-length": "144", "model": "base"}
    for name, call in pretrainings.items():
        assert file_names(flag_values(call, "queries")) == ["asked-0.jsonl", "asked-1.jsonl"] and has_values(call, values)
        assert file_names(flag_values(call, "corpus")) == ["spans.jsonl"]
        assert flag_values(call, "arch") == [f"mote:encoders={'siamese' if name == 'siamese' else 'mote'}"]
        assert flag_values(call, "objective") == ["mote:switch_corpus=true" if name == "switched" else "mote"]
    trainings_by_name = finetune_calls(recorded)
    assert list(trainings_by_name) == [f"{encoders}{stage}" for encoders in ROWS_OF_MOTE for stage in ("-bm25", "")]
    for name, call in trainings_by_name.items():
        row = name.removesuffix("-bm25")
        assert flag_values(call, "model")[0].endswith("other" if row == "separate" else f"work/pre/{row}")
        assert file_names(flag_values(call, "train")) == ["bm25.jsonl" if name.endswith("-bm25") else f"{name}-bm25.jsonl"]
        assert flag_values(call, "objective") == ["contrastive:flops_query=0,flops_document=0"]
        assert file_names(flag_values(call, "corpus")) == ["titled.tsv"]
    mined = [(file_names(flag_values(call, "run")), flag_values(call, "method")) for call in recorded if call[0] == "mine-negatives"]
    assert mined == [(["triples.trec"], ["band:first=0,last=1000"]), *[(["fused.trec"], ["band:first=0,last=200"])] * 4]
    assert [flag_values(call, "engine") for call in recorded if "--engine" in call[1]] == [["bm25:k1=0.82,b=0.68"]]


def test_table_1_pre_trains_cot_mae_on_spans_of_the_documents_themselves(calls: Any) -> None:
    recorded = calls("cot_mote_figure4_divergence.sh", MOTE="a", SIAMESE="b", SEPARATE="c", GATE="no")
    (call,) = (call for call in recorded if call[0] == "pretrain")
    assert file_names(flag_values(call, "corpus")) == ["msmarco-docs.tsv"] and not flag_values(call, "queries")
    values = {"arch": "dense", "objective": "cotmae", "steps": "800000", "batch-size": "512"}
    assert has_values(call, values | {"learning-rate": "1e-4", "document-length": "128"})


def test_the_first_training_of_mote_has_the_negatives_of_the_training_set_or_of_our_bm25(calls: Any, toy: Path, tmp_path: Path) -> None:
    calls("cot_mote_msmarco.sh", MOTE="base", ROWS="mote")
    judged, documents = toy_collections.ToyTexts(toy).train_qrels, len(toy_collections.ToyTexts(toy).documents)
    lines = [line.split() for line in (tmp_path / "work/runs/triples/train/triples.trec").read_text(encoding="utf-8").splitlines()]
    assert {line[0] for line in lines} == set(judged), "t99 is not judged"
    for query in judged:
        own = [line for line in lines if line[0] == query]
        assert len({line[2] for line in own}) == len(own) >= documents - len(judged[query])
        assert [int(line[3]) for line in own] == list(range(1, len(own) + 1)) == [-int(line[4]) for line in own]
    recorded = calls("cot_mote_msmarco.sh", MOTE="base", ROWS="mote", TRIPLES="no")
    (mined, _) = (call for call in recorded if call[0] == "mine-negatives")
    assert file_names(flag_values(mined, "run")) == ["bm25.trec"]
    assert "train" in [Path(flag_values(call, "output")[0]).name for call in recorded if call[0] == "search"]


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


def test_lce_trains_on_each_retrievers_top_hundred_and_reranks_every_list(calls: Any, tmp_path: Path) -> None:
    retrievers = ("bm25", "tuned", "indri", "hdct")
    recorded = calls("lce_msmarco_doc.sh", RETRIEVERS=" ".join(retrievers), RULE="mean")
    trainings_by_name = finetune_calls(recorded)
    pairs = {"lce": ("lce", "4", "7"), "bce": ("bce", "16", "1"), "bce7": ("bce:positive_weight=7", "4", "7")}
    for retriever in retrievers:
        for name, (objective, batch, negatives) in pairs.items():
            call = trainings_by_name[f"{retriever}-{name}"]
            assert file_names(flag_values(call, "train")) == [f"{retriever}.jsonl"]
            own_values = {"arch": "cross-encoder", "objective": objective, "batch-size": batch, "negatives": negatives}
            assert has_values(call, own_values)
    values = {"epochs": "2", "learning-rate": "1e-5", "warmup": "0.1", "weight-decay": "0.01", "document-length": "512"}
    assert all(has_values(call, values) for call in trainings_by_name.values())
    assert [flag_values(trainings_by_name[f"group-{size}"], "negatives") for size in (2, 4, 6)] == [["1"], ["3"], ["5"]]
    rows = [name for name in trainings_by_name if not name.endswith(tuple(pairs))]
    assert rows == ["group-2", "group-4", "group-6", "roberta", "electra"], "groups of 8 and BERT of the ensemble are hdct-lce"
    mined = [call for call in recorded if call[0] == "mine-negatives"]
    assert [flag_values(call, "method") for call in mined] == [["band:first=0,last=100"]] * 4
    reranked = [call for call in recorded if call[0] == "rerank"]
    assert len(reranked) == 12 * 4 + 3 + 2 + 1 and {flag_values(call, "depth")[0] for call in reranked} == {"100"}
    assert file_names(flag_values(reranked[-1], "model")) == ["hdct-lce", "roberta", "electra"]
    assert flag_values(reranked[-1], "ensemble") == ["mean"]
    assert file_names(flag_values(reranked[-1], "run")) == ["hdct.trec"]
    assert [flag_values(call, "engine")[0] for call in recorded if call[0] == "index"] == ["bm25:k1=0.9,b=0.4", "bm25:k1=3.44,b=0.87"]
    heat_map, curve = (call for call in recorded if call[0] == "grid")
    assert [flag_values(call, "plot") for call in (heat_map, curve)] == [["heatmap"], ["lines"]]
    cells = itertools.product(("bce", "bce7", "lce"), retrievers, retrievers)
    assert [cell.partition("=")[0] for cell in flag_values(heat_map, "run")] == [f"{model}-{arm}/{run}" for arm, model, run in cells]
    models = {2: "group-2", 4: "group-4", 6: "group-6", 8: "hdct-lce"}
    assert flag_values(curve, "run") == [f"lce/{size}={tmp_path}/work/runs/{model}/dev/hdct.trec" for size, model in models.items()]
