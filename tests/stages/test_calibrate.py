"""`moeir calibrate`: the checkpoint it writes, and that every way to search with it gives the same scaled scores."""

import json
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


@pytest.fixture(scope="module")
def judged(index, toy, tmp_path_factory):
    """Flags of 30 queries whose relevant document is the one that `global`, the quietest expert, ranks first: scales win for sure."""
    folder = tmp_path_factory.mktemp("judged")
    words = [word for text in texts.read_texts(toy / "corpus.jsonl") for word in text.content.split()]
    lines = [f"t{number}\t{' '.join(words[3 * number : 3 * number + 4])}" for number in range(30)]
    (folder / "queries.tsv").write_text("\n".join(lines) + "\n")
    run_moeir("search", "--index", index, "--queries", folder / "queries.tsv", "--dtype", "float32", "--output", folder / "runs")
    best = read_run(folder / "runs" / "global.trec")
    (folder / "best.qrels").write_text("".join(f"{query} 0 {best.hits(query)[0][0]} 1\n" for query in best.queries))
    return "--queries", folder / "queries.tsv", "--qrels", folder / "best.qrels"


@pytest.fixture(scope="module")
def calibrated(index, judged, tmp_path_factory):
    """The toy checkpoint with scales that are far from one another; `global`, which alone is better than the fused run, is named."""
    output = tmp_path_factory.mktemp("calibrated") / "ckpt"
    result = run_moeir("calibrate", "--index", index, *judged, "--dtype", "float32", "--output", output)
    assert f"next: moeir search --index {index} --model {output} --queries QUERIES --output runs" in result.stderr
    assert "on held-out queries" in result.stderr and "; applied" in result.stderr
    counts = manifests.read_manifest(output)["counts"]
    assert counts["means"]["global"] == 1.0 > counts["weighted sum"] > counts["sum"]
    assert "global alone has nDCG@10 1.0000, the fused run" in result.stderr and "moeir search --expert global" in result.stderr
    assert [line.split()[0] for line in result.stderr.splitlines() if line.startswith(EXPERTS)][:3] == list(EXPERTS)
    return output


@pytest.fixture(scope="module")
def scales(calibrated):
    read: dict[str, float] = json.loads((calibrated / "moeir.json").read_text())["calibration"]
    assert len({*read.values(), 1.0}) == 4 and np.prod(list(read.values())) == pytest.approx(1, rel=1e-3)
    return read


def search(index, toy, output, *more):
    run_moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--dtype", "float32", *more, "--output", output)
    return {path.stem: read_run(path) for path in output.glob("*.trec")}


@pytest.fixture(scope="module")
def folder(index, toy, calibrated, tmp_path_factory):
    """The runs of the toy queries, `plain` and `scaled` by the calibrated checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    search(index, toy, folder / "plain")
    search(index, toy, folder / "scaled", "--model", calibrated)
    return folder


def read_runs(folder):
    return {path.stem: read_run(path) for path in folder.glob("*.trec")}


def test_scales_that_do_not_win_on_held_out_queries_are_not_applied(index, toy, tmp_path, judged):
    """The relevant document is the first of the plain sum, so that no scales can be better."""
    run_moeir("search", "--index", index, "--queries", judged[1], "--dtype", "float32", "--output", tmp_path / "fused.trec")
    fused = read_run(tmp_path / "fused.trec")
    (tmp_path / "fused.qrels").write_text("".join(f"{query} 0 {fused.hits(query)[0][0]} 1\n" for query in fused.queries))
    options = ("--queries", judged[1], "--qrels", tmp_path / "fused.qrels", "--dtype", "float32", "--output", tmp_path / "ckpt")
    result = run_moeir("calibrate", "--index", index, *options)
    assert "not applied: all weights are 1" in result.stderr
    counts = manifests.read_manifest(tmp_path / "ckpt")["counts"]
    assert counts["accepted"] is False and set(counts["weights"].values()) == {1.0} != set(counts["fitted"].values())
    assert json.loads((tmp_path / "ckpt" / "moeir.json").read_text())["calibration"] == dict.fromkeys(EXPERTS, 1.0)
    search_options = ("--queries", judged[1], "--dtype", "float32", "--output", tmp_path / "again.trec")
    run_moeir("search", "--index", index, "--model", tmp_path / "ckpt", *search_options)
    assert (tmp_path / "again.trec").read_bytes() == (tmp_path / "fused.trec").read_bytes()


def test_scales_of_few_queries_are_not_applied(index, judged, tmp_path):
    """With six of these queries they are: all gain."""
    for count in (5, 6):
        lines = Path(str(judged[3])).read_text().splitlines()[:count]
        (tmp_path / f"{count}.qrels").write_text("\n".join(lines) + "\n")
        flags = ("--queries", judged[1], "--qrels", tmp_path / f"{count}.qrels", "--dtype", "float32", "--output", tmp_path / str(count))
        result = run_moeir("calibrate", "--index", index, *flags)
        counts = manifests.read_manifest(tmp_path / str(count))["counts"]
        assert (counts["queries"], counts["accepted"]) == (count, count == 6), result.stderr
        assert ("weights of 5 queries cannot be tested on others, expected 6 or more; not applied" in result.stderr) == (count == 5)


def test_the_checkpoint_is_the_same_but_for_its_calibration(calibrated, scales, came_checkpoint, moeir):
    before, after = (json.loads((path / "moeir.json").read_text()) for path in (came_checkpoint, calibrated))
    assert after == before | {"calibration": scales}
    assert (calibrated / "model.safetensors").samefile(came_checkpoint / "model.safetensors")
    assert manifests.verify_artifact(came_checkpoint, "checkpoint") and manifests.verify_artifact(calibrated, "checkpoint")
    assert (calibrated / "settings.yaml").read_text() != (came_checkpoint / "settings.yaml").read_text()
    counts = manifests.read_manifest(calibrated)["counts"]
    assert counts["weights"] == scales and counts["uncalibrated"] == manifests.compute_digest(came_checkpoint)
    rows = [line.split() for line in moeir("info", calibrated).stdout.splitlines()]
    assert ["local", "multivector", "1", f"{scales['local']:g}"] in rows
    assert "calibration" not in moeir("info", came_checkpoint).stdout


@pytest.mark.parametrize("depth", [3, 1000])
def test_search_scales_every_score_and_fuse_and_python_give_the_same_sum(index, toy, tmp_path, calibrated, scales, depth):
    plain = search(index, toy, tmp_path / "plain", "--depth", depth)
    scaled = search(index, toy, tmp_path / "scaled", "--depth", depth, "--model", calibrated)
    query = next(iter(texts.read_texts(toy / "test-queries.tsv")))
    searcher = package.open_index(index, model=package.open_checkpoint(calibrated), dtype="float32")
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
        assert dict(scaled["fused"].hits(query)) == pytest.approx(
            {document: total[documents.index(document)] for document, _ in scaled["fused"].hits(query)}, rel=1e-5
        )


def test_the_exact_sum_and_explanations_have_the_scaled_scores(index, toy, tmp_path, calibrated, scales, folder):
    plain, why = read_runs(folder / "plain"), tmp_path / "why.jsonl"
    scaled = search(index, toy, tmp_path / "scaled", "--depth", 3, "--model", calibrated, "--fuse", "exact-sum", "--explain", why)
    explanations = [json.loads(line) for line in why.read_text().splitlines()]
    assert explanations
    for one in explanations:
        query, document = one["query"], one["document"]
        expected = {name: scales[name] * dict(plain[name].hits(query)).get(document, 0.0) for name in EXPERTS}
        assert {name: one["experts"][name]["part"] for name in EXPERTS} == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert dict(scaled["fused"].hits(query))[document] == pytest.approx(sum(expected.values()), rel=1e-5)
        terms = one["experts"]["lexical"]["terms"]
        assert sum(term["product"] for term in terms) == pytest.approx(expected["lexical"], rel=1e-5, abs=1e-6)


def test_runs_of_two_calibrations_are_not_summed_by_default(folder, tmp_path):
    for folders, method in ((("scaled", "scaled"), "came-sum"), (("plain", "scaled"), "rrf")):
        runs = [f"--run={folder / one / name}.trec" for one, name in zip(folders, ("lexical", "global"), strict=True)]
        assert f"--method {method}: " in run_moeir("fuse", *runs, "--output", tmp_path / f"{method}.trec").stderr


def test_a_report_explains_calibrated_runs(index, toy, tmp_path, calibrated, folder):
    runs, plain = ([f"--run={folder / one / name}.trec" for name in (*EXPERTS, "fused")] for one in ("scaled", "plain"))
    judged = ("--qrels", toy / "test-qrels.tsv", "--queries", toy / "test-queries.tsv")
    common = (*judged, "--index", index, "--output", tmp_path / "page.html", "--force")
    result = run_moeir("report", *runs, *common, "--model", calibrated)
    assert "parts are left out" not in result.stderr and "without explanations" not in result.stderr
    assert run_in_process("report", *runs, *judged, "--model", calibrated, "--output", tmp_path / "no.html").code == 2
    other = run_moeir("report", *runs, *common).stderr  # the index's own checkpoint has other scores than these runs
    assert "fused: shown without explanations: not an expert's run" in other
    assert "its checkpoint (--model names a calibrated one)" in other
    assert "without explanations" in run_moeir("report", *plain, *common, "--model", calibrated).stderr
    assert "without explanations" not in run_moeir("report", *plain, *common).stderr


def test_an_index_of_a_calibrated_checkpoint_is_the_same_index(folder, toy, tmp_path, calibrated, came_checkpoint, judged):
    run_moeir("encode", "--model", calibrated, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc")
    run_moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx")
    plain, scaled = read_runs(folder / "plain"), read_runs(folder / "scaled")
    own = search(tmp_path / "idx", toy, tmp_path / "own")
    without = search(tmp_path / "idx", toy, tmp_path / "no", "--model", came_checkpoint)
    for query in plain["fused"].queries:
        assert own["fused"].hits(query) == scaled["fused"].hits(query) != plain["fused"].hits(query) == without["fused"].hits(query)
    run_moeir("calibrate", "--index", tmp_path / "idx", *judged, "--dtype", "float32", "--output", tmp_path / "again")
    assert (tmp_path / "again" / "moeir.json").read_bytes() == (calibrated / "moeir.json").read_bytes()
    assert (tmp_path / "again" / "README.md").read_text() == (calibrated / "README.md").read_text()
    search(tmp_path / "idx", toy, tmp_path / "other", "--model", tmp_path / "again")


def test_training_goes_on_without_the_calibration(calibrated, came_checkpoint, caplog):
    with caplog.at_level("INFO", logger="moeir"):
        again = build_checkpoint(calibrated, None, {})
    assert again.calibration == {} and "its calibration is left out" in caplog.text
    opened, plain = open_checkpoint(calibrated), open_checkpoint(came_checkpoint)
    tokens = opened.tokenize(["what do owls hunt"], "query")
    with torch.no_grad():  # what the loss is computed from
        trained = opened.architecture.eval()(tokens), plain.architecture.eval()(tokens)
    assert all(torch.equal(one, other) for one, other in zip(*(output.tensors() for output in trained), strict=True))
    for side, factor in (("query", opened.calibration["global"]), ("document", 1.0)):
        vectors = [model.encode(["what do owls hunt"], side)["global"].vectors for model in (opened, plain)]
        assert torch.allclose(vectors[0], factor * vectors[1], rtol=1e-6)


def test_what_cannot_be_calibrated_is_refused(index, bm25_index, toy, tmp_path, tiny_model, calibrated, moeir):
    run_moeir("init", "--model", tiny_model, "--arch", "dense", "--output", tmp_path / "dense")
    run_moeir("encode", "--model", tmp_path / "dense", "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "enc")
    run_moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "one")
    (tmp_path / "other.qrels").write_text("nobody 0 owl 1\n")
    (tmp_path / "none.qrels").write_text("q1 0 absent 1\n")
    queries, qrels = ("--queries", toy / "test-queries.tsv"), ("--qrels", toy / "test-qrels.tsv")
    for place, judged, code, words in (
        (bm25_index, qrels, 2, "has no checkpoint that could hold weights"),
        (tmp_path / "one", qrels, 2, "has one expert, global: nothing to calibrate"),
        (index, ("--qrels", tmp_path / "other.qrels"), 3, "none of its queries is judged in"),
        (index, ("--qrels", tmp_path / "none.qrels"), 3, "none.qrels: no query has a relevant document among the first 100"),
        (index, (*qrels, "--measure", "nDGC"), 2, "nDGC"),
    ):
        result = moeir("calibrate", "--index", place, *queries, *judged, "--output", tmp_path / "no")
        assert result.code == code and words in result.stderr
    refused = moeir("search", "--index", tmp_path / "one", *queries, "--model", calibrated, "--output", tmp_path / "runs")
    assert refused.code == 4 and "not the checkpoint" in refused.stderr
    (tmp_path / "damaged").mkdir()
    for file in calibrated.iterdir():
        (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes())
    metadata = json.loads((calibrated / "moeir.json").read_text())
    for calibration in ({"lexical": 1.0}, *(metadata["calibration"] | {"local": local} for local in (0, 1.5e6, "1")), [1, 2, 3]):
        (tmp_path / "damaged" / "moeir.json").write_text(json.dumps(metadata | {"calibration": calibration}))
        with pytest.raises(ArtifactError, match="damaged: not what moeir writes"):
            open_checkpoint(tmp_path / "damaged")
