"""The Python functions do the same as the command line."""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import moeir
from moeir import settings
from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.runs import Run
from moeir.stages import STAGES, stage_class

ROOT = Path(__file__).parents[1]


def test_every_name_is_there_and_has_a_type() -> None:
    """For mypy and editors: in the block that only they read, imported or declared."""
    source = (ROOT / "moeir" / "__init__.py").read_text(encoding="utf-8")
    names = set(re.findall(r"^    (\w+): Callable|^    from \S+ import (\w+) as ", source, re.MULTILINE))
    assert {one or other for one, other in names} == set(moeir.__all__) - {"__version__"}
    assert set(dir(moeir)) == set(moeir.__all__) and all(getattr(moeir, name) for name in moeir.__all__)
    with pytest.raises(AttributeError, match="open_checkpoint"):
        _ = moeir.open_ckpt


def test_every_stage_is_a_function_with_the_names_of_its_flags() -> None:
    for name in STAGES:
        if name != "variants":  # the module of this name lists them: moeir.variants.list_variants
            function = getattr(moeir, name.replace("-", "_"))
            stage_settings = (*settings.list_settings(stage_class(name)), *settings.list_shorthands(stage_class(name)))
            assert set(inspect.signature(function).parameters) == {setting.name for setting in stage_settings} | {"force"}
            assert all(setting.help in function.__doc__ for setting in stage_settings)


def test_what_is_in_memory_gives_the_files_that_paths_give(
    index: Path, came_checkpoint: Path, toy: Path, tmp_path: Path, moeir: Callable[..., object]
) -> None:
    import moeir as package

    corpus, qrels = list(package.read_texts(toy / "corpus.jsonl")), package.read_qrels(toy / "test-qrels.tsv")
    queries = {query.id: query.content for query in package.read_texts(toy / "test-queries.tsv")}
    moeir("encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "command")
    encodings = package.encode(model=package.open_checkpoint(came_checkpoint), corpus=corpus, dtype="float32", output=tmp_path / "function")
    for file in (tmp_path / "command").rglob("*.npy"):
        assert file.read_bytes() == (tmp_path / "function" / file.relative_to(tmp_path / "command")).read_bytes()
    assert encodings.ids == [text.id for text in corpus] and list(encodings) == ["lexical", "local", "global"] and len(encodings) == 3
    searcher = package.index(encodings=encodings, output=tmp_path / "index")
    moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--dtype", "float32", "--output", tmp_path / "runs")
    runs = package.search(index=searcher, queries=queries, dtype="float32", output=tmp_path / "function-runs")
    for name in ("lexical", "local", "global", "fused"):
        assert (tmp_path / "runs" / f"{name}.trec").read_bytes() == (tmp_path / "function-runs" / f"{name}.trec").read_bytes()
    assert repr(runs["fused"]) == repr(package.search(index=searcher, queries=queries, dtype="float32"))
    for name, expert, depth in (("fused", None, 1), ("fused", None, 5), ("local", "local", 5)):  # lists that are fused are whole
        run = package.read_run(tmp_path / "runs" / f"{name}.trec").top(depth)
        opened = package.open_index(index, dtype="float32")
        assert opened.search(list(queries.values()), depth, expert) == [run.hits(query) for query in queries]
    run_paths = [argument for name in ("lexical", "fused") for argument in ("--run", tmp_path / "runs" / f"{name}.trec")]
    table = moeir("evaluate", *run_paths, "--qrels", toy / "test-qrels.tsv", "--test", "none").stdout  # type: ignore[attr-defined]
    two = {name: runs[name] for name in ("lexical", "fused")}
    assert package.evaluate(run=two, qrels=qrels, form="table", test="none") == table
    evaluation = package.evaluate(run=two, qrels=qrels)
    assert str(evaluation) == table.rstrip("\n")
    assert f"{evaluation['fused']['nDCG@10']:.4f}" in table and list(evaluation) == ["lexical", "fused"]
    assert package.info(searcher)["kind"] == "index"


def test_several_runs_in_memory_keep_their_names_and_a_single_one_is_one() -> None:
    run = {"q1": {"a": 2.0, "b": 1.0}}
    qrels = {"q1": {"a": 1}}
    assert list(moeir.evaluate(run=Run.from_hits(run, tag="mine"), qrels=qrels)) == ["mine"]
    assert list(moeir.evaluate(run=run, qrels=qrels)) == ["moeir"]
    assert list(moeir.evaluate(run={"one": run, "my other run": Run.from_hits(run)}, qrels=qrels)) == ["one", "my other run"]
    assert len(moeir.evaluate(run=[Run.from_hits(run), Run.from_hits(run)], qrels=qrels)) == 2
    fused = moeir.fuse(run=[run, {"q1": {"b": 5.0}}], method="combsum")
    assert fused.hits("q1") == [("b", 6.0), ("a", 2.0)]
    assert moeir.analyze("overlap", run={"one": run, "two": run})[0]["rbo"] == pytest.approx(1.0)


def test_encoder_output_is_a_mapping_of_its_experts(came_checkpoint: Path) -> None:
    encoded = moeir.open_checkpoint(came_checkpoint).encode(["owls", "bats at night"])
    assert isinstance(encoded, Mapping) and list(encoded) == list(encoded.keys()) == ["lexical", "local", "global"]
    assert len(encoded) == 3 and "local" in encoded and encoded.text_count == 2
    assert dict(encoded.items())["global"] is encoded["global"]
    assert repr(encoded) == "EncoderOutput(2 texts, lexical sparse, local multivector, global dense)"


def test_runs_that_are_paths_keep_the_names_of_their_mapping(bm25_index: Path, toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    run = moeir.search(index=bm25_index, queries=toy / "test-queries.tsv", output=path)
    runs = {"k1=0.9 b=0.4": run, "ünï": run, "other": path}
    evaluation = moeir.evaluate(run=runs, qrels=toy / "test-qrels.tsv")
    assert list(evaluation) == list(runs)
    for name in ("a/b", "", 1, "a" * 300):
        with pytest.raises(UsageError, match="run: the name of a run is a short text"):
            moeir.evaluate(run={name: run}, qrels=toy / "test-qrels.tsv")


def test_values_of_numpy_whole_floats_and_none_are_read(bm25_index: Path, tmp_path: Path) -> None:
    searcher = moeir.open_index(bm25_index)
    run = searcher.search(np.array(["owl", "bat"]), 2, ids=np.array([1, 2]))
    assert run.queries == ["1", "2"]
    assert moeir.search(index=[searcher], queries={np.int64(1): np.str_("owl")}, depth=1).queries == ["1"]
    assert moeir.search(index=searcher, query=(text for text in ["owl"]), depth=1).hits("q1")[0][0] == "owl"
    assert moeir.search(index=bm25_index, query="owl", depth=1, output=None, queries=None).hits("q1")[0][0] == "owl"
    assert len(moeir.search(index=bm25_index, query="zzz").scores) == 0, "a search that finds nothing gives an empty run"
    assert len(moeir.search(index=bm25_index, query="zzz", output=tmp_path / "runs")["bm25"].scores) == 0
    numbered = moeir.index(corpus={1: "owl", 2: "owl owl"}, engine="bm25", output=tmp_path / "idx")
    assert numbered.filter_ids([np.int64(1)]).search(["owl"])[0][0][0] == "1"
    qrels = {1: {"owl": np.float32(1)}, 2: {"bat": 1.0}}
    assert moeir.evaluate(run=run, qrels=qrels, measure="P@1")["bm25"] == {"P@1": 1.0}
    assert moeir.evaluate(run={1: {"owl": 0.5}}, qrels=qrels, measure="P@1", per_query=False, form=None)["moeir"] == {"P@1": 0.5}


QUERIES: list[tuple[Any, str]] = [
    (["owl"], "queries: expected paths"),
    (5, "queries: expected paths, records or an id → text mapping, found int"),
    ({"a": 3}, "^in-memory/queries.jsonl:1: text is not a string: 3"),
    ([{"_id": "a", "text": b"owl"}], "^queries: record 1: text cannot be written as JSON: \"b'owl'\""),
    ([{"_id": "a", "text": "owl"}, {"_id": "b", "text": pd.NA}], '^queries: record 2: text cannot be written as JSON: "<NA>"'),
    ({1: "owl", "1": "bat"}, "^in-memory/queries.jsonl:2: duplicate id '1'"),
    ([], "^in-memory/queries.jsonl: holds no text"),
]
EVALUATED: list[tuple[dict[str, Any], str]] = [
    ({"run": {"q": ["owl"]}}, "query 'q': expected document → score"),
    ({"run": [[("owl", 1.0)]]}, "run: expected a run or query → document → score, found list"),
    ({"run": {None: {"owl": 1.0}}}, "run: query: id is not a string: null"),
    ({"run": {1: {"owl": 1.0}, "1": {"owl": 2.0}}}, "run: query '1' has two lists"),
    ({"run": {"q": {1: 1.0, "1": 2.0}}}, "run: document '1' is listed twice for query 'q'"),
    ({"run": {"q": {"owl": float("nan")}}}, "run: score of document 'owl' is not a finite float32 number"),
    ({"qrels": {"q": {"owl": None}}}, "in-memory/qrels.tsv: query 'q', document 'owl': grade is not a whole number"),
    ({"qrels": {"q": {1: 1, "1": 0}}}, "in-memory/qrels.tsv:2: query 'q', document '1': grade 0 here, 1 on an earlier line"),
    ({"qrels": {"q": ["owl"]}}, "qrels: expected a path or query → document → grade"),
    ({"qrels": {"#q": {"owl": 1}}}, "in-memory/qrels.tsv: query '#q' cannot be written to judgements"),
    ({"measure": object()}, "measure: expected one plain value, found object"),
    ({"output": 3}, "output: expected a path, found int"),
]


def test_wrong_values_are_refused_by_the_name_of_the_input(bm25_index: Path) -> None:
    for queries, message in QUERIES:
        with pytest.raises((UsageError, DataError), match=message):
            moeir.search(index=bm25_index, queries=queries)
    for values, message in EVALUATED:
        with pytest.raises((UsageError, DataError), match=message):
            moeir.evaluate(**{"run": {"q": {"owl": 1.0}}, "qrels": {"q": {"owl": 1}}, **values})
    depths: tuple[Any, ...] = (1 << 20_000, 2**31, 0, True, 2.0, "3", None)
    for depth in depths:
        with pytest.raises(UsageError, match="depth: expected a whole number, 1 to 2147483647"):
            moeir.open_index(bm25_index).search(["owl"], depth)


def test_arguments_of_another_kind_are_refused_in_one_line(bm25_index: Path, came_checkpoint: Path) -> None:
    searcher, checkpoint = moeir.open_index(bm25_index), moeir.open_checkpoint(came_checkpoint)
    calls: dict[str, Callable[[], Any]] = {
        "evaluate has no 'runs'; did you mean 'run'": lambda: moeir.evaluate(runs="x"),
        "too many positional arguments": lambda: moeir.evaluate("x"),
        "multiple values for argument 'path'": lambda: moeir.info(bm25_index, path="other"),
        "queries: expected paths, records or an id → text mapping, found int": lambda: moeir.search(index=bm25_index, queries=[1, 2]),
        "index: expected a path, found int": lambda: moeir.search(index=3, queries={"a": "b"}),
        "expected 2 different ids": lambda: searcher.search(["a", "b"], ids=["1", "1"]),
        "expected a list of query texts, found one str": lambda: searcher.search("a question"),
        "expected a list of query texts, found one dict": lambda: searcher.search({"a": "owl"}),
        "expected a list of query texts, found one int": lambda: searcher.search(5),
        "search: query 2: half a character": lambda: searcher.search(["owl", "owl \ud800"]),
        r"--expert \['bm25'\]: .* has bm25": lambda: searcher.search(["owl"], 1, ["bm25"]),
        "fusion has no '5'": lambda: searcher.search(["owl"], 1, None, 5),
        "filter_ids: id is not a string: null": lambda: searcher.filter_ids([None]),
        r"filter_ids: id is not a string: 1\.0": lambda: searcher.filter_ids([1.0]),
        "open_index: expected the path of an index": lambda: moeir.open_index([]),
        "depth: expected a whole number of 64 bits": lambda: moeir.search(index=searcher, query="owl", depth=10**5000),
        "--threads 10000000000: expected 1 to 4096": lambda: moeir.search(index=searcher, query="owl", threads=10**10),
        "encode: max_tokens: expected a whole number": lambda: checkpoint.encode(["owl"], max_tokens=0),
        "encode: text 2: half a character": lambda: checkpoint.encode(["owl", "\udfff"]),
        "encode: text 1 is not a string: null": lambda: checkpoint.encode([None]),
        "expected a list of texts, found one text": lambda: checkpoint.encode("owl"),
    }
    for message, call in calls.items():
        with pytest.raises((UsageError, DataError, TypeError), match=message):
            call()
    for value in (None, texts.Text("a", "owl"), b"owl", 3, np.nan):
        with pytest.raises(DataError, match="search: query 2 is not a string: "):
            searcher.search(["owl", value])
    for name in (None, float("nan"), "a b"):
        with pytest.raises(DataError, match="search: ids: id"):
            searcher.search(["owl"], ids=[name])
    with pytest.raises(DataError, match=r"^1 fault in in-memory/queries\.jsonl") as raised:
        moeir.check(queries=[{"_id": "a", "text": ""}])
    assert raised.value.__notes__[0].startswith("in-memory/queries.jsonl: empty-text, 1"), "the findings are notes of the error"
    assert len(checkpoint.encode(text for text in ["owl", "bat"])["global"]) == 2


def test_values_go_through_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    monkeypatch.chdir(tmp_path)
    run, qrels = {"q1": {"owl": 2.0, "bat": 1.0}}, {"q1": {"owl": 1}}
    fused = moeir.fuse(run=[run, run], method="rrf")
    assert moeir.evaluate(run={"fused": fused}, qrels=qrels, measure="RR@10")["fused"] == {"RR@10": 1.0}
    assert moeir.check(queries={"q1": "owls"}) == "" and list(tmp_path.iterdir()) == []
