"""What a server answers is what `moeir search` and `moeir rerank` write, whoever else asks at the same time."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import moeir
from moeir.indexes.base import Index
from moeir.records.runs import format_score
from moeir.records.texts import read_texts
from tests.conftest import CommandResult, run_moeir

Moeir = Callable[..., CommandResult]
QUERIES = {"q1": "Which owl hunts in the night?", "q2": "cats sleep", "q3": "the moon and the sea", "q4": "owl"}


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "queries.tsv"
    path.write_text("".join(f"{name}\t{text}\n" for name, text in QUERIES.items()), encoding="utf-8")
    return path


def ask(client: Any, **fields: Any) -> list[dict[str, Any]]:
    """The results of a search that must succeed."""
    reply = client.post("/search", json={"query": list(QUERIES.values()), "k": 12, **fields})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["results"])


def as_lines(results: list[dict[str, Any]], name: str, tag: str) -> str:
    """A list of an answer as the lines of a run."""
    hits = [(one["query"], hit) for one in results for hit in (one["hits"] if name == "hits" else one["lists"][name])]
    return "".join(f"{query} Q0 {hit['document']} {hit['rank']} {format_score(hit['score'])} {tag}\n" for query, hit in hits)


WAYS: dict[tuple[str, ...], dict[str, Any]] = {
    (): {},
    ("--fuse", "rrf:constant=10"): {"fuse": "rrf:constant=10"},
    ("--fuse", "exact-sum"): {"fuse": "exact-sum"},
    ("--expert", "local", "--expert", "global"): {"expert": ["local", "global"]},
    ("--expert", "lexical"): {"expert": "lexical"},
    ("--filter-ids", "ids.txt"): {"filter_ids": ["owl", "cat", "moon"]},
}


def test_answers_are_the_bytes_of_search(index: Path, queries: Path, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("owl\ncat\nmoon\n")
    client = serve(index=index)
    for number, (flags, fields) in enumerate(WAYS.items()):
        run_moeir("search", "--index", index, "--queries", queries, "--dtype", "float32", *flags, "--output", f"runs{number}")
        results = ask(client, lists=True, **fields)
        written = {path.stem: path.read_text(encoding="utf-8") for path in Path(f"runs{number}").glob("*.trec")}
        assert {name: as_lines(results, name, f"moeir.{name}") for name in results[0]["lists"]} == written, flags
        assert [one["hits"] for one in results] == [list(one["lists"].values())[-1] for one in results]


def test_bm25_beside_a_checkpoint_is_one_more_expert_of_search_and_of_a_server(
    index: Path, bm25_index: Path, queries: Path, tmp_path: Path, serve: Any
) -> None:
    both = ("--index", index, "--index", bm25_index)
    run_moeir(
        "search", *both, "--queries", queries, "--dtype", "float32", "--output", tmp_path / "runs", "--explain", tmp_path / "why.jsonl"
    )
    run_moeir("search", "--index", bm25_index, "--queries", queries, "--output", tmp_path / "bm25.trec")
    lists = [word for name in ("lexical", "local", "global", "bm25") for word in ("--run", tmp_path / "runs" / f"{name}.trec")]
    run_moeir("fuse", *lists, "--method", "rrf", "--tag", "moeir.fused", "--output", tmp_path / "fused.trec")
    assert (tmp_path / "runs" / "bm25.trec").read_bytes() == (tmp_path / "bm25.trec").read_bytes()
    assert (tmp_path / "runs" / "fused.trec").read_bytes() == (tmp_path / "fused.trec").read_bytes()
    results = ask(serve(index=(index, bm25_index)), lists=True, explain=True)
    assert as_lines(results, "fused", "moeir.fused") == (tmp_path / "fused.trec").read_text()
    explained = [json.loads(line) for line in (tmp_path / "why.jsonl").read_text().splitlines()]
    assert [line for one in results for line in one["explanations"]] == explained
    owl = next(line for line in explained if line["experts"]["bm25"]["rank"] == 1)
    assert owl["experts"]["bm25"]["terms"] and abs(sum(one["part"] for one in owl["experts"].values()) - owl["score"]) < 1e-6


def test_an_index_of_other_documents_or_of_the_same_experts_is_not_put_beside(
    index: Path, bm25_index: Path, toy: Path, tmp_path: Path, moeir: Moeir
) -> None:
    lines = (toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "turned.jsonl").write_text("".join(reversed(lines)), encoding="utf-8")
    run_moeir("index", "--corpus", tmp_path / "turned.jsonl", "--engine", "bm25", "--output", tmp_path / "turned")
    turned = moeir("search", "--index", index, "--index", tmp_path / "turned", "--query", "owl")
    twice = moeir("search", "--index", index, "--index", bm25_index, "--index", tmp_path / "turned", "--query", "owl")
    for result, words in ((turned, "the same in another order"), (twice, "has an expert bm25, as ")):
        assert result.code == 4 and f"{tmp_path / 'turned'}: has " in result.stderr and words in result.stderr


def test_who_else_asks_at_the_same_time_changes_no_byte(index: Path, bm25_index: Path, toy: Path, serve: Any) -> None:
    client = serve(index=(index, bm25_index), corpus=toy / "corpus.jsonl")
    texts = [text.content for text in read_texts(toy / "train-queries.jsonl")] + list(QUERIES.values())
    bodies = [{"query": text, "lists": True} for text in texts] + [
        {"query": texts[:5], "fuse": "zscore"},
        {"query": texts, "expert": "bm25"},
    ]
    bodies += [{"query": texts[0], "filter_ids": ["owl", "cat"], "explain": True}, {"query": texts[1], "expert": "none"}]
    alone = [client.post("/search", json=body).text for body in bodies]
    batches = client.service.counts["moeir_batches_total"]
    with ThreadPoolExecutor(len(bodies)) as threads:
        for _ in range(5):
            assert list(threads.map(lambda body: client.post("/search", json=body).text, bodies)) == alone
    assert client.service.counts["moeir_batches_total"] - batches < 5 * len(bodies), "no two requests came into one batch"


def test_a_document_that_no_list_has_is_explained_as_far_as_its_engine_scores_it(
    index: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"query": "owl", "expert": "lexical", "k": 1, "explain": True, "document": ["rain"]}
    [scored] = serve(index=index).post("/search", json=asked).json()["results"][0]["explanations"]
    monkeypatch.setattr("moeir.indexes.inverted.Inverted._score_pairs", Index._score_pairs)
    [unscored] = serve(index=index).post("/search", json=asked).json()["results"][0]["explanations"]
    assert scored["rank"] is unscored["rank"] is None and scored["experts"]["lexical"]["part"] is not None
    assert unscored["experts"]["lexical"] == {"rank": None, "score": None, "part": None}


@pytest.mark.parametrize("options", [{}, {"collapse": "max"}])
def test_loops_are_compiled_before_the_first_request(
    options: dict[str, str], toy: Path, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after a second's work, when somebody waits for them."""
    from moeir.indexes import postings_search

    moeir.convert(input=toy / "corpus.jsonl", passages=8, output=tmp_path / "passages.jsonl")
    moeir.index(corpus=tmp_path / "passages.jsonl", engine="bm25", output=tmp_path / "bm25")
    calls, scan = [], postings_search.scan_windows
    monkeypatch.setattr(postings_search, "scan_windows", lambda *values: calls.append("scan") or scan(*values))
    serve(index=tmp_path / "bm25", **options)
    assert calls


def test_reranked_lists_are_those_of_rerank(
    index: Path, tiny_model_with_head: Path, toy: Path, queries: Path, tmp_path: Path, serve: Any
) -> None:
    run_moeir("init", "--model", tiny_model_with_head, "--arch", "cross-encoder", "--output", tmp_path / "lce")
    run_moeir("search", "--index", index, "--queries", queries, "--dtype", "float32", "--output", tmp_path / "run.trec")
    texts = ("--queries", queries, "--corpus", toy / "corpus.jsonl", "--dtype", "float32")
    command = ("rerank", "--model", tmp_path / "lce", "--run", tmp_path / "run.trec", *texts, "--depth", 3)
    run_moeir(*command, "--output", tmp_path / "reranked.trec")
    client = serve(index=index, corpus=toy / "corpus.jsonl", rerank=tmp_path / "lce", rerank_depth=3)
    assert as_lines(ask(client), "hits", "moeir.rerank") == (tmp_path / "reranked.trec").read_text()
    assert client.get("/health").json()["lists"][-2:] == ["fused", "reranked"]
    assert as_lines(ask(client, rerank=False), "hits", "moeir.fused") == (tmp_path / "run.trec").read_text()
    first = ask(client, explain=True, k=1)[0]
    assert first["explanations"][0]["document"] == first["hits"][0]["document"]


def test_documents_of_passages_are_those_of_search_with_collapse(toy: Path, queries: Path, tmp_path: Path, serve: Any) -> None:
    run_moeir("convert", "--input", toy / "corpus.jsonl", "--passages", 6, "--output", tmp_path / "passages.jsonl")
    run_moeir("index", "--corpus", tmp_path / "passages.jsonl", "--engine", "bm25", "--output", tmp_path / "bm25")
    search = ("search", "--index", tmp_path / "bm25", "--queries", queries, "--collapse", "max")
    run_moeir(*search, "--output", tmp_path / "run.trec")
    client = serve(index=tmp_path / "bm25", corpus=toy / "corpus.jsonl", collapse="max")
    results = ask(client, texts=True)
    assert as_lines(results, "hits", "moeir.bm25") == (tmp_path / "run.trec").read_text()
    texts = {text.id: text.text for text in read_texts(toy / "corpus.jsonl")}
    assert all(hit["text"] == texts[hit["document"]] for one in results for hit in one["hits"])
    reply = client.post("/search", json={"query": "owl", "explain": True})
    assert reply.status_code == 400 and "--collapse" in reply.json()["error"]


def test_documents_have_the_text_of_their_corpus(index: Path, toy: Path, serve: Any) -> None:
    client, plain = serve(index=index, corpus=toy / "corpus.jsonl"), serve(index=index)
    for text in read_texts(toy / "corpus.jsonl"):
        record = client.get(f"/documents/{text.id}").json()
        assert (record["_id"], record["title"], record["text"]) == (text.id, text.title, text.text)
    assert client.get("/documents/none").status_code == plain.get("/documents/owl").status_code == 404
    assert "--corpus" in plain.get("/documents/owl").json()["error"]
    hit = ask(client, texts=True, k=1)[0]["hits"][0]
    assert hit["text"] == client.get(f"/documents/{hit['document']}").json()["text"] and "text" not in ask(plain, texts=True)[0]["hits"][0]


def test_a_corpus_without_the_texts_is_refused(bm25_index: Path, toy: Path, moeir: Moeir, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    result = moeir("serve", "--index", bm25_index, "--corpus", toy / "train-queries.jsonl", "--port", 0)
    assert result.code == 3 and "has no text of 12 of 12 documents" in result.stderr
