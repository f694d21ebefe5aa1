"""Named prompts of a checkpoint: made by `init`, kept by `encode`, chosen by `search`, and nowhere else."""

import json

import pytest

import moeir as package
from tests.conftest import run_in_process, run_moeir

PROMPTS = {"sts": "a bat: ", "Retrieval-query": "who hunts: "}


@pytest.fixture(scope="module")
def init(tiny_model):
    """The words of a command that builds a checkpoint with prompts; more flags and --output follow."""
    prompts = (part for name, text in PROMPTS.items() for part in ("--prompt", f"{name}={text}"))
    return ("init", "--model", tiny_model, "--arch", "dense:pooling=mean", "--document-prefix", "an owl: ", *prompts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, init, toy):
    """ckpt, enc and idx of a checkpoint with prompts; sts, the same with one of them as its query prefix."""
    folder = tmp_path_factory.mktemp("prompts")
    run_moeir(*init, "--query-prefix", "mice: ", "--output", folder / "ckpt")
    run_moeir(*init, "--query-prefix", PROMPTS["sts"], "--output", folder / "sts")
    run_moeir("encode", "--model", folder / "ckpt", "--corpus", toy / "corpus.jsonl", "--output", folder / "enc")
    run_moeir("index", "--encodings", folder / "enc", "--output", folder / "idx")
    return folder


def test_a_checkpoint_keeps_its_prompts_and_an_encoding_the_name_of_the_documents(folder, tmp_path):
    shown = json.loads(run_moeir("info", folder / "ckpt", "--form", "json").stdout)
    assert shown["prompts"] == PROMPTS and shown["reading"]["query"]["prefix"] == "mice: "
    assert json.loads((folder / "enc/manifest.json").read_text())["counts"]["prompt"] == "document"
    run_moeir("init", "--model", folder / "ckpt", "--prompt", "sts=ants ", "--prompt", "new=", "--output", tmp_path / "again")
    reading = package.open_checkpoint(tmp_path / "again").input_config
    assert reading.prompts == PROMPTS | {"sts": "ants ", "new": ""} and reading.query_prefix == "mice: "


def test_a_search_with_a_prompt_is_that_of_a_checkpoint_with_this_prefix(folder, toy, tmp_path):
    search = ("search", "--index", folder / "idx", "--queries", toy / "test-queries.tsv")
    sts, query, plain = (run_moeir(*search, *flags).stdout for flags in (("--prompt", "sts"), ("--prompt", "query"), ()))
    assert query == plain != sts
    run_moeir(*search, "--output", tmp_path / "run.trec")
    documents, queries = (
        json.loads(path.read_text())["counts"] for path in (folder / "enc/manifest.json", tmp_path / "run.trec.manifest.json")
    )
    assert documents["dtype"] == queries["dtype"], "queries are encoded in the precision of documents by default"
    query, *_, score, _ = sts.splitlines()[0].split()
    text = dict(line.split("\t") for line in (toy / "test-queries.tsv").read_text().splitlines())[query]
    vector = package.open_checkpoint(folder / "sts").encode([text], "query")["global"].vectors
    contents = [f"{one['title']} {one['text']}" for one in map(json.loads, (toy / "corpus.jsonl").read_text().splitlines())]
    best = (vector @ package.open_checkpoint(folder / "ckpt").encode(contents)["global"].vectors.T).max()
    assert float(score) == pytest.approx(float(best), rel=1e-2)  # stored in half precision


def test_prompts_that_are_not_of_queries_or_without_a_checkpoint_or_a_name_are_refused(bm25_index, init, folder, tmp_path):
    for name in ("unknown", "document", "passage"):
        result = run_in_process("search", "--index", folder / "idx", "--query", "bats", "--prompt", name)
        prompts = "the checkpoint's prompts for queries are query, sts, Retrieval-query; moeir init --prompt adds one"
        assert result == (2, "", f"error: --prompt {name}: {prompts}\n")
    result = run_in_process("search", "--index", bm25_index, "--query", "bats", "--prompt", "sts")
    assert result.code == 2 and "this index has no checkpoint; leave --prompt out" in result.stderr
    for flag in ("owl: ", "=owl: ", "query=owl: ", "passage=owl: "):
        result = run_in_process(*init, "--prompt", flag, "--output", tmp_path / "out")
        assert result.code == 2 and f"--prompt {flag}: expected NAME=TEXT" in result.stderr and result.stderr.count("\n") == 1
