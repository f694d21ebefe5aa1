"""Named prompts of a checkpoint: made by `init`, kept by `encode`, chosen by `search`, and nowhere else."""

import json

import pytest

import moeir as package
from tests.conftest import run_in_process

PROMPTS = {"sts": "a bat: ", "Retrieval-query": "who hunts: "}


def build(model, output, *flags):
    flags = ("--document-prefix", "an owl: ", *(part for name, text in PROMPTS.items() for part in ("--prompt", f"{name}={text}")), *flags)
    return run_in_process("init", "--model", model, "--arch", "dense:pooling=mean", *flags, "--output", output)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, toy):
    """ckpt, enc and idx of a checkpoint with prompts; sts, the same with one of them as its query prefix."""
    folder = tmp_path_factory.mktemp("prompts")
    for result in (
        build(tiny_model, folder / "ckpt", "--query-prefix", "mice: "),
        build(tiny_model, folder / "sts", "--query-prefix", PROMPTS["sts"]),
        run_in_process("encode", "--model", folder / "ckpt", "--corpus", toy / "corpus.jsonl", "--output", folder / "enc"),
        run_in_process("index", "--encodings", folder / "enc", "--output", folder / "idx"),
    ):
        assert result.code == 0, result.stderr
    return folder


def test_a_checkpoint_keeps_its_prompts_and_an_encoding_the_name_of_the_documents(folder, tmp_path):
    shown = json.loads(run_in_process("info", folder / "ckpt", "--form", "json").stdout)
    assert shown["prompts"] == PROMPTS and shown["reading"]["query"]["prefix"] == "mice: "
    assert json.loads((folder / "enc/manifest.json").read_text())["counts"]["prompt"] == "document"
    prompts = ("--prompt", "sts=ants ", "--prompt", "new=")
    changed = run_in_process("init", "--model", folder / "ckpt", *prompts, "--output", tmp_path / "again")
    reading = package.open_checkpoint(tmp_path / "again").input_config
    assert changed.code == 0 and reading.prompts == PROMPTS | {"sts": "ants ", "new": ""} and reading.query_prefix == "mice: "


def test_a_search_with_a_prompt_is_that_of_a_checkpoint_with_this_prefix(folder, toy, tmp_path):
    runs = {}
    for name, flags in {"sts": ("--prompt", "sts"), "query": ("--prompt", "query"), "none": ()}.items():
        output = tmp_path / f"{name}.trec"
        result = run_in_process("search", "--index", folder / "idx", "--queries", toy / "test-queries.tsv", *flags, "--output", output)
        assert result.code == 0, result.stderr
        runs[name] = output.read_text()
    assert runs["query"] == runs["none"] != runs["sts"]
    documents, queries = (
        json.loads(path.read_text())["counts"] for path in (folder / "enc/manifest.json", tmp_path / "sts.trec.manifest.json")
    )
    assert documents["dtype"] == queries["dtype"], "queries are encoded in the precision of documents by default"
    query, *_, score, _ = runs["sts"].splitlines()[0].split()
    text = dict(line.split("\t") for line in (toy / "test-queries.tsv").read_text().splitlines())[query]
    vector = package.open_checkpoint(folder / "sts").encode([text], "query")["global"].vectors
    documents = [json.loads(line) for line in (toy / "corpus.jsonl").read_text().splitlines()]
    contents = [f"{one['title']} {one['text']}" for one in documents]
    best = (vector @ package.open_checkpoint(folder / "ckpt").encode(contents)["global"].vectors.T).max()
    assert float(score) == pytest.approx(float(best), rel=1e-2)  # stored in half precision


def test_prompts_that_are_not_of_queries_or_without_a_checkpoint_or_a_name_are_refused(bm25_index, tiny_model, folder, tmp_path):
    for name in ("unknown", "document", "passage"):
        result = run_in_process("search", "--index", folder / "idx", "--query", "bats", "--prompt", name, "--output", "-")
        prompts = "the checkpoint's prompts for queries are query, sts, Retrieval-query; moeir init --prompt adds one"
        assert result == (2, "", f"error: --prompt {name}: {prompts}\n")
    result = run_in_process("search", "--index", bm25_index, "--query", "bats", "--prompt", "sts", "--output", "-")
    assert result.code == 2 and "this index has no checkpoint; leave --prompt out" in result.stderr
    for flag in ("owl: ", "=owl: ", "query=owl: ", "passage=owl: "):
        result = build(tiny_model, tmp_path / "out", "--prompt", flag)
        assert result.code == 2 and f"--prompt {flag}: expected NAME=TEXT" in result.stderr and result.stderr.count("\n") == 1
