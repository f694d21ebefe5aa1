"""Log lines and speed facts of search."""

import json
import time

import pytest

from moeir.artifacts.manifests import manifest_path
from moeir.kernels.int8_linear import supports_int8
from moeir.records.runs import read_run


def test_queries_that_find_nothing_are_counted_aloud(bm25_index, tmp_path, moeir):
    (tmp_path / "queries.tsv").write_text("1\tthe of\n2\tcats\n", encoding="utf-8")
    result = moeir("search", "--index", bm25_index, "--queries", tmp_path / "queries.tsv", "--output", "-")
    assert result.code == 0
    assert "bm25: 1 of 2 queries found no document" in result.stderr
    assert all(line.startswith("2 Q0 ") for line in result.stdout.splitlines()) and result.stdout


def test_latency_and_throughput_are_said_and_kept_with_the_machine(index, toy, tmp_path, moeir):
    result = moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--batch-size", 1, "--output", tmp_path / "runs")
    assert result.code == 0
    line = next(line for line in result.stderr.splitlines() if line.startswith("made "))
    assert "batches of 1: encode " in line and "; search " in line and line.count("p50 ") == line.count("p99 ") == 2
    speed = json.loads((tmp_path / "runs" / "manifest.json").read_text())["counts"]["speed"]
    assert speed["batch_size"] == 1
    for step in ("encode", "search"):
        facts = speed[step]
        assert facts["queries_per_second"] > 0 and 0 < facts["p50_ms"] <= facts["p95_ms"] <= facts["p99_ms"]
    assert set(speed["machine"]) == {"processor", "cores", "threads", "device", "index_bytes", "peak_memory_bytes"}
    files = json.loads((index / "manifest.json").read_text())["files"]
    assert speed["machine"]["index_bytes"] == sum(facts["bytes"] for facts in files.values())
    moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--expert", "global", "--output", tmp_path / "global.trec")
    machine = json.loads((tmp_path / "global.trec.manifest.json").read_text())["counts"]["speed"]["machine"]
    assert machine["index_bytes"] == sum(facts["bytes"] for name, facts in files.items() if not name.startswith(("lexical/", "local/")))


def test_percentiles_are_those_of_queries_that_were_measured_one_by_one(bm25_index, toy, tmp_path, moeir):
    for size, part in ((1, ", p50 "), (4, ", 2 batches of "), (256, ", one batch in ")):
        search = ("search", "--index", bm25_index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / f"{size}.trec")
        result = moeir(*search, "--batch-size", size)
        assert part in result.stderr and ("p50" in result.stderr) == (size == 1)
        facts = json.loads((tmp_path / f"{size}.trec.manifest.json").read_text())["counts"]["speed"]["search"]
        assert ("p50_ms" in facts) == (size == 1) and facts["batches"] == -(-6 // size)
    assert "dtype" not in result.stderr, "an index of words has no precision"
    assert "dtype" not in json.loads((tmp_path / "256.trec.manifest.json").read_text())["counts"]


def test_a_folder_may_have_the_name_of_a_suffix(index, toy, tmp_path, moeir):
    for name in ("run", "trec", "runs.d"):
        result = moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / name)
        assert result.code == 0, result.stderr
        assert (tmp_path / name / "fused.trec").is_file()


@pytest.mark.skipif(not supports_int8(), reason="this processor has no exact products of 8-bit integers")
def test_documents_and_queries_in_int8_are_ranked_nearly_as_in_float32_and_their_files_say_so(came_checkpoint, toy, tmp_path, moeir):
    for dtype in ("float32", "int8"):
        enc, idx, runs = (tmp_path / f"{name}-{dtype}" for name in ("enc", "idx", "runs"))
        made = [
            moeir("encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", dtype, "--output", enc),
            moeir("index", "--encodings", enc, "--output", idx),
            moeir("search", "--index", idx, "--queries", toy / "test-queries.tsv", "--dtype", dtype, "--output", runs),
        ]
        assert [result.code for result in made] == [0, 0, 0], made[-1].stderr
        facts = [json.loads((folder / "manifest.json").read_text())["counts"]["dtype"] for folder in (enc, idx, runs)]
        assert facts == [f"torch.{dtype}"] * 3
    for name in ("lexical", "local", "global", "fused"):
        exact, rounded = (read_run(tmp_path / f"runs-{dtype}" / f"{name}.trec").top(10) for dtype in ("float32", "int8"))
        shared = [len(set(exact.documents_of(query)) & set(rounded.documents_of(query))) for query in exact.queries]
        assert sum(shared) >= 0.8 * len(exact.scores), name
    refused = moeir(
        "finetune", "--model", came_checkpoint, "--train", tmp_path, "--corpus", toy / "corpus.jsonl", "--dtype", "int8",
        "--output", tmp_path / "ckpt",
    )  # fmt: skip
    assert refused.code == 2 and "--dtype" in refused.stderr and "int8" in refused.stderr and not (tmp_path / "ckpt").exists()


def test_queries_come_from_standard_input_where_plain_lines_have_numbers_or_from_the_command_line(bm25_index, moeir):
    command = ("search", "--index", bm25_index, "--queries", "-")
    piped = moeir(*command, stdin="who hunts mice\n\n  ants \n")
    assert piped.code == 0 and {line.split()[0] for line in piped.stdout.splitlines()} == {"1", "2"}
    for form in ("1\twho hunts mice\n2\tants\n", '{"_id": 1, "text": "who hunts mice"}\n{"_id": 2, "text": "ants"}\n'):
        assert moeir(*command, stdin=form).stdout == piped.stdout
    typed = moeir("search", "--index", bm25_index, "--query", "who hunts mice", "--query", "ants")
    assert typed.code == 0 and typed.stdout == piped.stdout.replace("2 Q0", "q2 Q0").replace("1 Q0", "q1 Q0")
    for flags, words in (
        (("--query", "ants", "--queries", "-"), "--queries and --query exclude one another"),
        (("--query", " "), "--query: expected words, found none"),
        ((), "search needs --queries or --query"),
    ):
        result = moeir("search", "--index", bm25_index, *flags)
        assert (result.code, result.stdout) == (2, "") and words in result.stderr


def test_what_happens_once_at_the_start_is_no_latency(bm25_index, tmp_path, moeir, monkeypatch):
    from moeir.indexes.bm25 import Bm25

    (tmp_path / "queries.tsv").write_text("".join(f"{number}\tants and mice\n" for number in range(40)), encoding="utf-8")
    search_into, batches = Bm25._search_into, []

    def load_first(self, queries, *arguments):
        time.sleep(0.0 if batches else 0.4)
        batches.append(len(queries))
        search_into(self, queries, *arguments)

    monkeypatch.setattr(Bm25, "_search_into", load_first)
    command = ("search", "--index", bm25_index, "--queries", tmp_path / "queries.tsv", "--batch-size", 10)
    result = moeir(*command, "--output", tmp_path / "run.trec")
    speed = json.loads((tmp_path / "run.trec.manifest.json").read_text())["counts"]["speed"]
    assert batches == [2, 10, 10, 10, 10] and speed["warm_up_queries"] == 2 and speed["search"]["seconds"] < 0.4
    assert "not counted: a warm-up with 2 queries" in result.stderr


@pytest.mark.parametrize(("output", "fuse"), [("runs", "exact-sum"), ("run.trec.gz", "came-sum")])
def test_a_killed_search_goes_on_after_the_last_block_it_has_saved(output, fuse, index, toy, tmp_path, moeir, monkeypatch):
    from moeir.retrieval.searcher import Searcher

    common = ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--fuse", fuse, "--depth", 5, "--batch-size", 2)
    common = (*common, "--dtype", "float32", "--output")
    assert moeir(*common, tmp_path / "whole" / output).code == 0  # in one block
    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 2)
    monkeypatch.setattr("moeir.retrieval.run_files.SECONDS_BETWEEN_SAVES", 0.0)
    search_runs, searched, limit = Searcher.search_runs, list[str](), [0]

    def search_and_stop(self, names, *arguments, **options):
        if len(searched) == limit[0]:
            raise KeyboardInterrupt
        searched.append(names[0])
        return search_runs(self, names, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_runs", search_and_stop)
    killed = tmp_path / "killed" / output
    for limit[0] in (1, 2):
        assert moeir(*common, killed).code == 130 and not killed.exists()
    limit[0] = 10
    assert moeir(*common, killed).code == 0
    assert len(searched) == len(set(searched)) == 3  # each block once
    files = (output,) if output != "runs" else ("runs/lexical.trec", "runs/local.trec", "runs/global.trec", "runs/fused.trec")
    for name in files:
        assert read_run(tmp_path / "killed" / name).hits("q1")
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    counts = [json.loads(manifest_path(tmp_path / folder / output).read_text())["counts"] for folder in ("whole", "killed")]
    for facts in counts:
        assert facts.pop("speed") and facts["queries"] == 6
    assert counts[0] == counts[1]
    assert not list(killed.parent.glob(".*"))


def test_a_search_holds_one_block_of_queries_and_checks_all_of_them_first(bm25_index, tmp_path, moeir, monkeypatch):
    from moeir.retrieval.searcher import Searcher

    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 3)
    search_runs, blocks = Searcher.search_runs, list[int]()

    def count_and_search(self, names, *arguments, **options):
        blocks.append(len(names))
        return search_runs(self, names, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_runs", count_and_search)
    queries = "".join(f"{number}\tants and mice\n" for number in range(8))
    (tmp_path / "queries.tsv").write_text(queries, encoding="utf-8")
    command = ("search", "--index", bm25_index, "--batch-size", 3, "--queries")
    printed = moeir(*command, tmp_path / "queries.tsv")
    assert blocks == [3, 3, 2] and moeir(*command, "-", stdin=queries).stdout == printed.stdout
    assert list(dict.fromkeys(line.split()[0] for line in printed.stdout.splitlines())) == list("01234567")
    blocks.clear()
    (tmp_path / "queries.tsv").write_text(f"{queries}7\tagain\n", encoding="utf-8")
    result = moeir(*command, tmp_path / "queries.tsv", "--output", tmp_path / "run.trec")
    assert result.code == 3 and "queries.tsv:9: duplicate id '7'" in result.stderr and not blocks
