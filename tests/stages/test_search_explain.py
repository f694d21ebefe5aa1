"""Explanations against oracles: parts add up to the score in the run; terms and tokens are those of plain loops."""

import json

import numpy as np
import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.indexes.base import Index
from moeir.records import texts
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.conftest import run_in_process
from tests.oracles import evidence
from tests.split_encodings import build_index, split_encodings

EXPERTS = ("lexical", "local", "global")


def explain(index, toy, folder, *more):
    """Explanations of the toy queries; the runs are in folder/runs."""
    explanation_file = folder / "why.jsonl"
    common = ("--index", index, "--queries", toy / "test-queries.tsv", "--output", folder / "runs")
    completed = run_in_process("search", "--dtype", "float32", *common, "--explain", explanation_file, *more)
    assert completed.code == 0, completed.stderr
    return [json.loads(line) for line in explanation_file.read_text(encoding="utf-8").splitlines()]


def float32_sum(*parts):
    """The float32 of a float64 sum, in order."""
    total = 0.0
    for part in parts:
        total += part
    return float(np.float32(total))


@pytest.mark.parametrize(("fuse", "depth"), [("came-sum", 3), ("combsum", 100), ("zscore", 3), ("exact-sum", 3)])
def test_the_parts_add_up_to_the_score_of_the_run(index, toy, tmp_path, fuse, depth):
    lines = explain(index, toy, tmp_path, "--fuse", fuse, "--depth", depth)
    runs = {name: package.read_run(tmp_path / "runs" / f"{name}.trec") for name in (*EXPERTS, "fused")}
    fused = [
        (query, document, rank, score)
        for query in runs["fused"].queries
        for rank, (document, score) in _enumerate_hits(runs["fused"], query)
    ]
    assert [(one["query"], one["document"], one["rank"]) for one in lines] == [hit[:3] for hit in fused]
    for one, (query, document, _, score) in zip(lines, fused, strict=True):
        assert float(np.float32(one["score"])) == score
        assert float32_sum(*(one["experts"][name]["part"] for name in EXPERTS)) == score
        for name in EXPERTS:
            listed = {found: (rank, own) for rank, (found, own) in _enumerate_hits(runs[name], query)}
            rank, own = listed.get(document, (None, None))
            result = one["experts"][name]["score"]
            assert (one["experts"][name]["rank"], None if result is None else float(np.float32(result))) == (rank, own)


def _enumerate_hits(run, query):
    return list(enumerate(run.hits(query), 1))


@pytest.mark.parametrize(
    ("fuse", "oracle", "depth"),
    [("came-sum", evidence.came_parts, 4), ("came-sum", evidence.came_parts, 1000), ("rrf", evidence.rrf_parts, 4)],
)
def test_the_parts_are_those_of_the_formula(index, toy, tmp_path, fuse, oracle, depth):
    for one in explain(index, toy, tmp_path, "--fuse", fuse, "--depth", depth):
        lists = [package.read_run(tmp_path / "runs" / f"{name}.trec").hits(one["query"]) for name in EXPERTS]
        assert [one["experts"][name]["part"] for name in EXPERTS] == pytest.approx(oracle(lists, one["document"], depth), rel=1e-12)


@pytest.fixture(scope="module")
def sides(came_checkpoint, encodings, toy):
    """Queries and documents by id, each with its weighted terms by name and its token vectors."""
    checkpoint = package.open_checkpoint(came_checkpoint)
    query_texts = list(texts.read_texts(toy / "test-queries.tsv"))
    encoded = checkpoint.encode([query.content for query in query_texts], "query")
    stored = {"lexical": Sparse.open(encodings / "lexical"), "local": MultiVector.open(encodings / "local")}
    ids = manifests.read_lines(encodings / "ids.txt")

    def of(sparse, local, names):
        evidence = {}
        for row, name in enumerate(names):
            terms = slice(int(sparse.starts[row]), int(sparse.starts[row + 1]))
            words = [checkpoint.tokenizer.id_to_token(number) for number in sparse.terms[terms].tolist()]
            vectors = local.vectors[int(local.starts[row]) : int(local.starts[row + 1])].double().tolist()
            evidence[name] = {"terms": dict(zip(words, sparse.weights[terms].tolist(), strict=True)), "tokens": vectors}
        return evidence

    queries = of(encoded["lexical"], encoded["local"], [query.id for query in query_texts])
    return queries, of(stored["lexical"], stored["local"], ids)


def test_the_terms_are_those_both_have_and_their_products_are_the_score(index, toy, tmp_path, sides):
    queries, documents = sides
    for one in explain(index, toy, tmp_path, "--fuse", "exact-sum", "--depth", 2):
        expected = evidence.shared_terms(queries[one["query"]]["terms"], documents[one["document"]]["terms"])
        result = one["experts"]["lexical"]
        products_by_term = {term["term"]: (term["query"], term["document"], term["product"]) for term in result["terms"]}
        assert products_by_term.keys() == expected.keys()
        for term, numbers in expected.items():
            assert products_by_term[term] == pytest.approx(numbers, rel=1e-6)
        assert sum(product for *_, product in products_by_term.values()) == pytest.approx(result["part"], rel=1e-6)
        products = [term["product"] for term in result["terms"]]
        assert products == sorted(products, reverse=True)


def test_the_tokens_are_the_best_ones_and_their_similarities_are_the_score(index, toy, tmp_path, sides):
    queries, documents = sides
    pieces = {"tokens": 0}
    for one in explain(index, toy, tmp_path, "--fuse", "exact-sum", "--depth", 2, "--corpus", toy / "corpus.jsonl"):
        result = one["experts"]["local"]
        expected = evidence.token_alignment(queries[one["query"]]["tokens"], documents[one["document"]]["tokens"])
        assert [token["position"] for token in result["tokens"]] == [position for position, _ in expected]
        assert [token["similarity"] for token in result["tokens"]] == pytest.approx([value for _, value in expected], rel=1e-6, abs=1e-7)
        assert sum(token["similarity"] for token in result["tokens"]) == pytest.approx(result["part"], rel=1e-5)
        assert result["tokens"][0]["query"] == "[CLS]" and result["tokens"][-1]["query"] == "[SEP]"
        words = next(text for text in texts.read_texts(toy / "corpus.jsonl") if text.id == one["document"]).content.lower()
        for token in result["tokens"]:
            assert token["document"] in ("[CLS]", "[SEP]") or token["document"].removeprefix("##") in words
            pieces["tokens"] += 1
    assert pieces["tokens"]


def test_parts_of_a_collection_are_explained_as_one_index_is(index, encodings, toy, tmp_path):
    expected = explain(index, toy, tmp_path / "one", "--depth", 3)
    flags = [word for part in split_encodings(encodings, tmp_path / "cut", 3)[1:] for word in ("--index", build_index(part))]
    explanations = explain(build_index(tmp_path / "cut" / "part0"), toy, tmp_path / "three", "--depth", 3, *flags)
    assert explanations == expected


def test_bm25_is_explained_word_by_word(bm25_index, toy, tmp_path):
    lines = explain(bm25_index, toy, tmp_path)
    assert lines
    for one in lines:
        result = one["experts"]["bm25"]
        assert sum(term["product"] for term in result["terms"]) == pytest.approx(one["score"], rel=1e-5)
        assert all(term["document"] > 0 for term in result["terms"])


def test_an_engine_that_scores_no_chosen_documents_leaves_ranks_and_scores(index, toy, tmp_path, moeir, monkeypatch):
    monkeypatch.setattr("moeir.indexes.inverted.Inverted._score_pairs", Index._score_pairs)
    common = ("--index", index, "--queries", toy / "test-queries.tsv", "--depth", 2)
    result = moeir("search", *common, "--explain", tmp_path / "why.jsonl", "--output", tmp_path / "run.trec")
    assert result.code == 0 and result.stderr.count("lexical: ranks and scores only: ") == 1
    one = json.loads((tmp_path / "why.jsonl").read_text().splitlines()[0])
    assert set(one["experts"]["lexical"]) == {"rank", "score", "part"} and one["experts"]["local"]["tokens"]


def test_coil_says_which_tokens_met(toy, tiny_model, tmp_path):
    lengths = ("--query-length", 16, "--document-length", 32)
    for command in (
        ("init", "--model", tiny_model, "--arch", "coil:dim=8,cls_dim=16", *lengths, "--output", tmp_path / "coil"),
        ("encode", "--model", tmp_path / "coil", "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc"),
        ("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx"),
    ):
        assert run_in_process(*command).code == 0
    lines = explain(tmp_path / "idx", toy, tmp_path, "--depth", 3)
    exact_parts = [one["experts"]["exact"] for one in lines]
    assert any(result["tokens"] for result in exact_parts)
    for result in exact_parts:
        assert sum(token["similarity"] for token in result["tokens"]) == pytest.approx(result["part"], rel=1e-5, abs=1e-6)


def test_without_a_corpus_positions_stand_alone(index, toy, tmp_path):
    one = explain(index, toy, tmp_path, "--depth", 1)[0]
    assert {key for token in one["experts"]["local"]["tokens"] for key in token} == {"query", "position", "similarity"}
    assert set(one["experts"]["global"]) == {"rank", "score", "part"}
