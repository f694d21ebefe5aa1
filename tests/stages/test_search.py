"""What search logs and writes into its manifest; queries of any source; searches that are killed."""

import json
import time
from pathlib import Path

import pytest

from moeir.artifacts.manifests import manifest_path, read_counts
from moeir.indexes.bm25 import Bm25
from moeir.kernels.int8_linear import supports_int8
from moeir.records.runs import read_run
from moeir.retrieval.searcher import Searcher

pytestmark = pytest.mark.usefixtures("work_folder")
TOY_QUERIES = "--queries toy/test-queries.tsv"


def test_queries_that_find_nothing_are_counted_aloud(run):
    Path("queries.tsv").write_text("1\tthe of\n2\tcats\n", encoding="utf-8")
    result = run("search --index bm25 --queries queries.tsv --output -")
    assert "bm25: 1 of 2 queries found no document" in result.stderr
    assert all(line.startswith("2 Q0 ") for line in result.stdout.splitlines()) and result.stdout


def test_latency_and_throughput_are_said_and_kept_with_the_machine(run):
    result = run(f"search --index idx {TOY_QUERIES} --batch-size 1 --output runs")
    line = next(line for line in result.stderr.splitlines() if line.startswith("made "))
    assert "batches of 1: encode " in line and "; search " in line and line.count("p50 ") == line.count("p99 ") == 2
    speed = read_counts(Path("runs"))["speed"]
    assert speed["batch_size"] == 1
    for step in ("encode", "search"):
        facts = speed[step]
        assert facts["queries_per_second"] > 0 and 0 < facts["p50_ms"] <= facts["p95_ms"] <= facts["p99_ms"]
    assert set(speed["machine"]) == {"processor", "cores", "threads", "device", "index_bytes", "peak_memory_bytes"}
    files = json.loads(Path("idx/manifest.json").read_text())["files"]
    assert speed["machine"]["index_bytes"] == sum(facts["bytes"] for facts in files.values())
    run(f"search --index idx {TOY_QUERIES} --expert global --output global.trec")
    own = sum(facts["bytes"] for name, facts in files.items() if not name.startswith(("lexical/", "local/")))
    assert read_counts(Path("global.trec"))["speed"]["machine"]["index_bytes"] == own


@pytest.mark.parametrize(("size", "part"), [(1, ", p50 "), (4, ", 2 batches of "), (256, ", one batch in ")])
def test_percentiles_are_those_of_queries_that_were_measured_one_by_one(size, part, run):
    result = run(f"search --index bm25 {TOY_QUERIES} --batch-size {size} --output run.trec")
    assert part in result.stderr and ("p50" in result.stderr) == (size == 1)
    counts = read_counts(Path("run.trec"))
    assert ("p50_ms" in counts["speed"]["search"]) == (size == 1) and counts["speed"]["search"]["batches"] == -(-6 // size)
    assert "dtype" not in result.stderr and "dtype" not in counts, "an index of words has no precision"


@pytest.mark.parametrize("name", ["run", "trec", "runs.d"])
def test_a_folder_may_have_the_name_of_a_suffix(name, run):
    run(f"search --index bm25 {TOY_QUERIES} --output {name}")
    assert Path(name, "bm25.trec").is_file()


@pytest.mark.skipif(not supports_int8(), reason="this processor has no exact products of 8-bit integers")
def test_documents_and_queries_in_int8_are_ranked_nearly_as_in_float32_and_their_files_say_so(run, refuse):
    for dtype in ("float32", "int8"):
        run(f"encode --model came --corpus toy/corpus.jsonl --dtype {dtype} --output enc-{dtype}")
        run(f"index --encodings enc-{dtype} --output idx-{dtype}")
        run(f"search --index idx-{dtype} {TOY_QUERIES} --dtype {dtype} --output runs-{dtype}")
        assert [read_counts(Path(f"{name}-{dtype}"))["dtype"] for name in ("enc", "idx", "runs")] == [f"torch.{dtype}"] * 3
    for name in ("lexical", "local", "global", "fused"):
        exact, rounded = (read_run(f"runs-{dtype}/{name}.trec").top(10) for dtype in ("float32", "int8"))
        shared = [len(set(exact.documents_of(query)) & set(rounded.documents_of(query))) for query in exact.queries]
        assert sum(shared) >= 0.8 * len(exact.scores), name
    refuse(2, "--dtype int8: ", "finetune --model came --train x --corpus toy/corpus.jsonl --dtype int8 --output ckpt")


def test_queries_come_from_standard_input_where_plain_lines_have_numbers_or_from_the_command_line(moeir, run, refuse):
    command = ("search", "--index", "bm25", "--queries", "-")
    piped = moeir(*command, stdin="who hunts mice\n\n  ants \n")
    assert piped.code == 0 and {line.split()[0] for line in piped.stdout.splitlines()} == {"1", "2"}
    for form in ("1\twho hunts mice\n2\tants\n", '{"_id": 1, "text": "who hunts mice"}\n{"_id": 2, "text": "ants"}\n'):
        assert moeir(*command, stdin=form).stdout == piped.stdout
    typed = run("search --index bm25 --query 'who hunts mice' --query ants")
    assert typed.stdout == piped.stdout.replace("2 Q0", "q2 Q0").replace("1 Q0", "q1 Q0")
    refuse(2, "--queries and --query exclude one another", "search --index bm25 --query ants --queries -")
    refuse(2, "--query: expected words, found none", "search --index bm25 --query ' '")
    refuse(2, "search needs --queries or --query", "search --index bm25")


def test_what_happens_once_at_the_start_is_no_latency(run, monkeypatch):
    Path("queries.tsv").write_text("".join(f"{number}\tants and mice\n" for number in range(40)), encoding="utf-8")
    search_into, batches = Bm25._search_into, []

    def load_first(self, queries, *arguments):
        time.sleep(0.0 if batches else 0.4)
        batches.append(len(queries))
        search_into(self, queries, *arguments)

    monkeypatch.setattr(Bm25, "_search_into", load_first)
    result = run("search --index bm25 --queries queries.tsv --batch-size 10 --output run.trec")
    speed = read_counts(Path("run.trec"))["speed"]
    assert batches == [2, 10, 10, 10, 10] and speed["warm_up_queries"] == 2 and speed["search"]["seconds"] < 0.4
    assert "not counted: a warm-up with 2 queries" in result.stderr


@pytest.fixture
def search_runs(monkeypatch):
    """The queries of each call of a searcher: `calls`; a call beyond `limit` is interrupted."""
    search = Searcher.search_runs

    class Calls(list):
        limit = 10

    calls = Calls()

    def search_and_stop(self, names, *arguments, **options):
        if len(calls) == calls.limit:
            raise KeyboardInterrupt
        calls.append(tuple(names))
        return search(self, names, *arguments, **options)

    monkeypatch.setattr(Searcher, "search_runs", search_and_stop)
    return calls


@pytest.mark.parametrize(("output", "fuse"), [("runs", "exact-sum"), ("run.trec.gz", "came-sum")])
def test_a_killed_search_goes_on_after_the_last_block_it_has_saved(output, fuse, run, moeir, monkeypatch, search_runs):
    command = f"search --index idx {TOY_QUERIES} --fuse {fuse} --depth 5 --batch-size 2 --dtype float32 --output"
    run(f"{command} whole/{output}")  # in one block
    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 2)
    monkeypatch.setattr("moeir.retrieval.run_files.SECONDS_BETWEEN_SAVES", 0.0)
    search_runs.clear()
    for search_runs.limit in (1, 2):
        assert moeir(*command.split(), f"killed/{output}").code == 130 and not Path("killed", output).exists()
    search_runs.limit = 10
    run(f"{command} killed/{output}")
    assert len(search_runs) == len(set(search_runs)) == 3  # each block once
    for file in Path("whole").rglob("*.trec*") if output == "runs" else [Path("whole", output)]:
        assert read_run(file).hits("q1") and file.read_bytes() == Path("killed", file.relative_to("whole")).read_bytes()
    counts = [json.loads(manifest_path(Path(folder, output)).read_text())["counts"] for folder in ("whole", "killed")]
    assert all(facts.pop("speed") and facts["queries"] == 6 for facts in counts) and counts[0] == counts[1]
    assert not list(Path("killed").glob(".*"))


def test_a_search_holds_one_block_of_queries_and_checks_all_of_them_first(run, moeir, refuse, monkeypatch, search_runs):
    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 3)
    queries = "".join(f"{number}\tants and mice\n" for number in range(8))
    Path("queries.tsv").write_text(queries, encoding="utf-8")
    command = "search --index bm25 --batch-size 3 --queries"
    printed = run(f"{command} queries.tsv")
    assert list(map(len, search_runs)) == [3, 3, 2]
    assert moeir(*command.split(), "-", stdin=queries).stdout == printed.stdout
    assert list(dict.fromkeys(line.split()[0] for line in printed.stdout.splitlines())) == list("01234567")
    search_runs.clear()
    Path("queries.tsv").write_text(f"{queries}7\tagain\n", encoding="utf-8")
    refuse(3, "queries.tsv:9: duplicate id '7'", f"{command} queries.tsv --output run.trec")
    assert not search_runs
