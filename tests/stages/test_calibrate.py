"""`moeir calibrate`: the checkpoint it writes, and that every way to search with it gives the same scaled scores."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import moeir as package
from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.artifacts import manifests
from moeir.errors import ArtifactError
from moeir.records import texts
from moeir.records.runs import read_run
from tests.conftest import run_in_process, run_moeir
from tests.oracles import fusion as by_dictionary

EXPERTS = ("lexical", "local", "global")
CALIBRATE = "calibrate --index idx --queries asked.tsv --dtype float32"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory, toy, came_checkpoint, index, bm25_index):
    """The working folder: 30 queries whose relevant document is the one that `global`, the quietest expert, ranks first, so that scales win
    for sure; the toy checkpoint, `calibrated` so; and runs of the toy queries, `plain` and `scaled` by it."""
    folder = tmp_path_factory.mktemp("calibrate")
    for name, path in {"toy": toy, "came": came_checkpoint, "idx": index, "bm25": bm25_index}.items():
        (folder / name).symlink_to(path)
    words = [word for text in texts.read_texts(toy / "corpus.jsonl") for word in text.content.split()]
    lines = [f"t{number}\t{' '.join(words[3 * number : 3 * number + 4])}" for number in range(30)]
    (folder / "asked.tsv").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runs = search("asked", queries="asked.tsv")
        for name in ("global", "fused"):
            best = runs[name]
            Path(f"{name}.qrels").write_text("".join(f"{query} 0 {best.hits(query)[0][0]} 1\n" for query in best.queries))
        logged = run_moeir(*f"{CALIBRATE} --qrels global.qrels --output calibrated".split()).stderr
        Path("logged").write_text(logged)
        search("plain")
        search("scaled", "--model calibrated")
        yield folder


def search(output, flags="", index="idx", queries="toy/test-queries.tsv"):
    """The runs of queries by name."""
    run_moeir(*f"search --index {index} --queries {queries} --dtype float32 {flags} --output {output}".split())
    return read_runs(output)


def read_runs(folder):
    return {path.stem: read_run(path) for path in Path(folder).glob("*.trec")}


@pytest.fixture(scope="module")
def scales(folder):
    """The scales of the calibrated checkpoint, which are far from one another."""
    scales = json.loads(Path("calibrated/moeir.json").read_text())["calibration"]
    assert len({*scales.values(), 1.0}) == 4 and np.prod(list(scales.values())) == pytest.approx(1, rel=1e-3)
    return scales


def test_scales_that_win_are_applied_and_an_expert_that_is_better_alone_is_named():
    logged, counts = Path("logged").read_text(), manifests.read_counts(Path("calibrated"))
    assert "next: moeir search --index idx --model calibrated --queries QUERIES --output runs" in logged
    assert "on held-out queries" in logged and "; applied" in logged
    assert counts["means"]["global"] == 1.0 > counts["weighted sum"] > counts["sum"]
    assert "global alone has nDCG@10 1.0000, the fused run" in logged and "moeir search --expert global" in logged
    assert [line.split()[0] for line in logged.splitlines() if line.startswith(EXPERTS)][:3] == list(EXPERTS)


def test_scales_that_do_not_win_on_held_out_queries_are_not_applied(tmp_path):
    """The relevant document is the first of the plain sum, so that no scales can be better."""
    result = run_moeir(*CALIBRATE.split(), "--qrels", "fused.qrels", "--output", tmp_path / "ckpt")
    assert "not applied: all weights are 1" in result.stderr
    counts = manifests.read_counts(tmp_path / "ckpt")
    assert counts["accepted"] is False and set(counts["weights"].values()) == {1.0} != set(counts["fitted"].values())
    assert json.loads((tmp_path / "ckpt" / "moeir.json").read_text())["calibration"] == dict.fromkeys(EXPERTS, 1.0)
    search(tmp_path / "again", f"--model {tmp_path}/ckpt")
    assert (tmp_path / "again" / "fused.trec").read_bytes() == Path("plain/fused.trec").read_bytes()


@pytest.mark.parametrize("count", [5, 6])
def test_scales_of_few_queries_are_not_applied(count, tmp_path):
    """With six of these queries they are: all gain."""
    (tmp_path / "few.qrels").write_text("".join(Path("global.qrels").read_text().splitlines(keepends=True)[:count]))
    result = run_moeir(*CALIBRATE.split(), "--qrels", tmp_path / "few.qrels", "--output", tmp_path / "ckpt")
    counts = manifests.read_counts(tmp_path / "ckpt")
    assert (counts["queries"], counts["accepted"]) == (count, count == 6), result.stderr
    assert ("weights of 5 queries cannot be tested on others, expected 6 or more; not applied" in result.stderr) == (count == 5)


def test_the_checkpoint_is_the_same_but_for_its_calibration(scales, came_checkpoint, moeir):
    before, after = (json.loads(Path(name, "moeir.json").read_text()) for name in ("came", "calibrated"))
    assert after == before | {"calibration": scales}
    assert Path("calibrated/model.safetensors").samefile("came/model.safetensors")
    assert manifests.verify_artifact(came_checkpoint, "checkpoint") and manifests.verify_artifact(Path("calibrated"), "checkpoint")
    assert Path("calibrated/settings.yaml").read_text() != Path("came/settings.yaml").read_text()
    counts = manifests.read_counts(Path("calibrated"))
    assert counts["weights"] == scales and counts["uncalibrated"] == manifests.compute_digest(came_checkpoint)
    rows = [line.split() for line in moeir("info", "calibrated").stdout.splitlines()]
    assert ["local", "multivector", "1", f"{scales['local']:g}"] in rows
    assert "calibration" not in moeir("info", "came").stdout


@pytest.mark.parametrize("depth", [3, 1000])
def test_search_scales_every_score_and_fuse_and_python_give_the_same_sum(tmp_path, scales, depth):
    plain, scaled = search(tmp_path / "plain", f"--depth {depth}"), search(tmp_path / "scaled", f"--depth {depth} --model calibrated")
    query = next(iter(texts.read_texts(Path("toy/test-queries.tsv"))))
    searcher = package.open_index("idx", model=package.open_checkpoint("calibrated"), dtype="float32")
    assert depth == 3 or searcher.search([query.content], 3) == [scaled["fused"].hits(query.id)[:3]]
    for name, scale in scales.items():
        for query in plain[name].queries:
            assert scaled[name].documents_of(query) == plain[name].documents_of(query)
            expected = [scale * score for _, score in plain[name].hits(query)]
            assert [score for _, score in scaled[name].hits(query)] == pytest.approx(expected, rel=1e-5)
    arguments = [f"--run={tmp_path}/scaled/{name}.trec" for name in EXPERTS]
    run_moeir("fuse", *arguments, "--method", "came-sum", "--output", tmp_path / "fused.trec")
    fused = read_run(tmp_path / "fused.trec")
    documents = sorted({document for name in EXPERTS for document in plain[name].document_ids})
    for query in fused.queries:
        assert fused.hits(query)[:depth] == scaled["fused"].hits(query)
        lists = [
            {documents.index(document): scale * score for document, score in plain[name].hits(query)} for name, scale in scales.items()
        ]
        total = by_dictionary.came_sum(lists, depth)
        expected = {document: total[documents.index(document)] for document, _ in scaled["fused"].hits(query)}
        assert dict(scaled["fused"].hits(query)) == pytest.approx(expected, rel=1e-5)


def test_the_exact_sum_and_explanations_have_the_scaled_scores(tmp_path, scales):
    plain, why = read_runs("plain"), tmp_path / "why.jsonl"
    scaled = search(tmp_path / "scaled", f"--depth 3 --model calibrated --fuse exact-sum --explain {why}")
    explanations = [json.loads(line) for line in why.read_text().splitlines()]
    assert explanations
    for one in explanations:
        query, document = one["query"], one["document"]
        expected = {name: scales[name] * dict(plain[name].hits(query)).get(document, 0.0) for name in EXPERTS}
        assert {name: one["experts"][name]["part"] for name in EXPERTS} == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert dict(scaled["fused"].hits(query))[document] == pytest.approx(sum(expected.values()), rel=1e-5)
        terms = one["experts"]["lexical"]["terms"]
        assert sum(term["product"] for term in terms) == pytest.approx(expected["lexical"], rel=1e-5, abs=1e-6)


def test_runs_of_two_calibrations_are_not_summed_by_default(run):
    for other, method in (("scaled", "came-sum"), ("plain", "rrf")):
        assert f"--method {method}: " in run(f"fuse --run {other}/lexical.trec --run scaled/global.trec").stderr


def test_a_report_explains_calibrated_runs(tmp_path, run, refuse):
    report = f"report --qrels toy/test-qrels.tsv --queries toy/test-queries.tsv --output {tmp_path}/page.html --force"
    plain, scaled = (" ".join(f"--run {folder}/{name}.trec" for name in (*EXPERTS, "fused")) for folder in ("plain", "scaled"))
    logged = run(f"{report} {scaled} --index idx --model calibrated").stderr
    assert "parts are left out" not in logged and "without explanations" not in logged
    refuse(2, "", f"{report} {scaled} --model calibrated")
    other = run(f"{report} {scaled} --index idx").stderr  # the index's own checkpoint has other scores than these runs
    assert "fused: shown without explanations: not an expert's run" in other
    assert "its checkpoint (--model names a calibrated one)" in other
    assert "without explanations" in run(f"{report} {plain} --index idx --model calibrated").stderr
    assert "without explanations" not in run(f"{report} {plain} --index idx").stderr


def test_an_index_of_a_calibrated_checkpoint_is_the_same_index(tmp_path, run):
    run(f"encode --model calibrated --corpus toy/corpus.jsonl --dtype float32 --output {tmp_path}/enc")
    run(f"index --encodings {tmp_path}/enc --output {tmp_path}/idx")
    plain, scaled = (read_runs(folder)["fused"] for folder in ("plain", "scaled"))
    own, without = (search(tmp_path / name, flags, tmp_path / "idx")["fused"] for name, flags in (("own", ""), ("no", "--model came")))
    for query in plain.queries:
        assert own.hits(query) == scaled.hits(query) != plain.hits(query) == without.hits(query)
    run(f"{CALIBRATE.replace('idx', f'{tmp_path}/idx')} --qrels global.qrels --output {tmp_path}/again")
    for name in ("moeir.json", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == Path("calibrated", name).read_bytes()
    search(tmp_path / "other", f"--model {tmp_path}/again", tmp_path / "idx")


def test_training_goes_on_without_the_calibration(came_checkpoint, caplog):
    with caplog.at_level("INFO", logger="moeir"):
        again = build_checkpoint(Path("calibrated"), None, {})
    assert again.calibration == {} and "its calibration is left out" in caplog.text
    opened, plain = open_checkpoint(Path("calibrated")), open_checkpoint(came_checkpoint)
    tokens = opened.tokenize(["what do owls hunt"], "query")
    with torch.no_grad():  # what the loss is computed from
        trained = opened.architecture.eval()(tokens), plain.architecture.eval()(tokens)
    assert all(torch.equal(one, other) for one, other in zip(*(output.tensors() for output in trained), strict=True))
    for side, factor in (("query", opened.calibration["global"]), ("document", 1.0)):
        vectors = [model.encode(["what do owls hunt"], side)["global"].vectors for model in (opened, plain)]
        assert torch.allclose(vectors[0], factor * vectors[1], rtol=1e-6)


@pytest.mark.parametrize(("flags", "code", "words"), [
    ("--index bm25 --qrels toy/test-qrels.tsv", 2, "has no checkpoint that could hold weights"),
    ("--index one --qrels toy/test-qrels.tsv", 2, "has one expert, global: nothing to calibrate"),
    ("--index idx --qrels other.qrels", 3, "none of its queries is judged in"),
    ("--index idx --qrels none.qrels", 3, "none.qrels: no query has a relevant document among the first 100"),
    ("--index idx --qrels toy/test-qrels.tsv --measure nDGC", 2, "nDGC"),
])  # fmt: skip
def test_what_cannot_be_calibrated_is_refused(flags, code, words, one_expert, refuse):
    Path("other.qrels").write_text("nobody 0 owl 1\n")
    Path("none.qrels").write_text("q1 0 absent 1\n")
    refuse(code, words, f"calibrate --queries toy/test-queries.tsv {flags} --output no")


@pytest.fixture(scope="module")
def one_expert(folder, tiny_model):
    """`one`, an index of a checkpoint with one expert."""
    for command in (
        f"init --model {tiny_model} --arch dense --output dense",
        "encode --model dense --corpus toy/corpus.jsonl --output dense-enc",
        "index --encodings dense-enc --output one",
    ):
        assert run_in_process(*shlex.split(command)).code == 0


def test_a_calibration_of_another_checkpoint_or_a_damaged_one_is_refused(one_expert, tmp_path, refuse):
    refuse(4, "not the checkpoint", "search --index one --queries toy/test-queries.tsv --model calibrated --output no")
    damaged = shutil.copytree("calibrated", tmp_path / "damaged")
    metadata = json.loads((damaged / "moeir.json").read_text())
    for calibration in ({"lexical": 1.0}, *(metadata["calibration"] | {"local": local} for local in (0, 1.5e6, "1")), [1, 2, 3]):
        (damaged / "moeir.json").write_text(json.dumps(metadata | {"calibration": calibration}))
        with pytest.raises(ArtifactError, match="damaged: not what moeir writes"):
            open_checkpoint(damaged)
