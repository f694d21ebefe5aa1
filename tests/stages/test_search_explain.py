"""Explanations against oracles: parts add up to the score in the run; terms and tokens are those of plain loops."""

import json
from pathlib import Path

import numpy as np
import pytest

import moeir as package
from moeir.artifacts import manifests
from moeir.indexes.base import Index
from moeir.records import texts
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.oracles import evidence
from tests.split_encodings import build_index, split_encodings

EXPERTS = ("lexical", "local", "global")


@pytest.fixture
def explain(work_folder, run):
    """`explain(flags)`: explanations of the toy queries; the runs are in `runs`."""

    def explain_queries(flags="", index="idx"):
        search = f"search --index {index} --queries toy/test-queries.tsv --dtype float32 --explain why.jsonl --output runs --force"
        run(f"{search} {flags}")
        return [json.loads(line) for line in Path("why.jsonl").read_text(encoding="utf-8").splitlines()]

    return explain_queries


def float32_sum(*parts):
    """The float32 of a float64 sum, in order."""
    total = 0.0
    for part in parts:
        total += part
    return float(np.float32(total))


@pytest.mark.parametrize(("fuse", "oracle", "depth"), [
    ("came-sum", evidence.came_parts, 3), ("came-sum", evidence.came_parts, 1000), ("rrf", evidence.rrf_parts, 4), ("combsum", None, 100),
    ("zscore", None, 3), ("exact-sum", None, 3),
])  # fmt: skip
def test_the_parts_are_those_of_the_formula_and_add_up_to_the_score_of_the_run(explain, fuse, oracle, depth):
    lines = explain(f"--fuse {fuse} --depth {depth}")
    runs = {name: package.read_run(f"runs/{name}.trec") for name in (*EXPERTS, "fused")}
    fused = [(query, *hit, rank) for query in runs["fused"].queries for rank, hit in enumerate(runs["fused"].hits(query), 1)]
    assert [(one["query"], one["document"], one["rank"]) for one in lines] == [(query, name, rank) for query, name, _, rank in fused]
    for one, (query, document, score, _) in zip(lines, fused, strict=True):
        assert float(np.float32(one["score"])) == score
        parts = [one["experts"][name]["part"] for name in EXPERTS]
        assert float32_sum(*parts) == score
        if oracle:
            assert parts == pytest.approx(oracle([runs[name].hits(query) for name in EXPERTS], document, depth), rel=1e-12)
        for name in EXPERTS:
            listed = {other: (rank, own) for rank, (other, own) in enumerate(runs[name].hits(query), 1)}
            result = one["experts"][name]["score"]
            own = (one["experts"][name]["rank"], None if result is None else float(np.float32(result)))
            assert own == listed.get(document, (None, None))


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


def test_the_terms_are_those_both_have_and_their_products_are_the_score(explain, sides):
    queries, documents = sides
    for one in explain("--fuse exact-sum --depth 2"):
        expected = evidence.shared_terms(queries[one["query"]]["terms"], documents[one["document"]]["terms"])
        result = one["experts"]["lexical"]
        numbers = {term["term"]: (term["query"], term["document"], term["product"]) for term in result["terms"]}
        assert numbers == {term: pytest.approx(own, rel=1e-6) for term, own in expected.items()}
        products = [term["product"] for term in result["terms"]]
        assert products == sorted(products, reverse=True) and sum(products) == pytest.approx(result["part"], rel=1e-6)


def test_the_tokens_are_the_best_ones_and_their_similarities_are_the_score(explain, sides):
    queries, documents = sides
    contents = {text.id: text.content.lower() for text in texts.read_texts(Path("toy/corpus.jsonl"))}
    lines = explain("--fuse exact-sum --depth 2 --corpus toy/corpus.jsonl")
    assert lines
    for one in lines:
        part, tokens = one["experts"]["local"]["part"], one["experts"]["local"]["tokens"]
        expected = evidence.token_alignment(queries[one["query"]]["tokens"], documents[one["document"]]["tokens"])
        assert [token["position"] for token in tokens] == [position for position, _ in expected]
        assert [token["similarity"] for token in tokens] == pytest.approx([value for _, value in expected], rel=1e-6, abs=1e-7)
        assert sum(token["similarity"] for token in tokens) == pytest.approx(part, rel=1e-5)
        assert tokens[0]["query"] == "[CLS]" and tokens[-1]["query"] == "[SEP]"
        words = (token["document"] for token in tokens if token["document"] not in ("[CLS]", "[SEP]"))
        assert all(word.removeprefix("##") in contents[one["document"]] for word in words)


def test_parts_of_a_collection_are_explained_as_one_index_is(explain, encodings, tmp_path):
    parts = map(build_index, split_encodings(encodings, tmp_path / "cut", 3))
    assert explain("--depth 3") == explain("--depth 3", " ".join(map(str, parts)))


def test_bm25_is_explained_word_by_word(explain):
    lines = explain(index="bm25")
    assert lines
    for one in lines:
        terms = one["experts"]["bm25"]["terms"]
        assert sum(term["product"] for term in terms) == pytest.approx(one["score"], rel=1e-5)
        assert all(term["document"] > 0 for term in terms)


def test_an_engine_that_scores_no_chosen_documents_leaves_ranks_and_scores(work_folder, run, monkeypatch):
    monkeypatch.setattr("moeir.indexes.inverted.Inverted._score_pairs", Index._score_pairs)
    result = run("search --index idx --queries toy/test-queries.tsv --depth 2 --explain why.jsonl --output run.trec")
    assert result.stderr.count("lexical: ranks and scores only: ") == 1
    one = json.loads(Path("why.jsonl").read_text().splitlines()[0])
    assert set(one["experts"]["lexical"]) == {"rank", "score", "part"} and one["experts"]["local"]["tokens"]


def test_coil_says_which_tokens_met(explain, run):
    run("init --model tiny --arch coil:dim=8,cls_dim=16 --query-length 16 --document-length 32 --output coil")
    run("encode --model coil --corpus toy/corpus.jsonl --dtype float32 --output coil-enc")
    run("index --encodings coil-enc --output coil-idx")
    exact_parts = [one["experts"]["exact"] for one in explain("--depth 3", "coil-idx")]
    assert any(result["tokens"] for result in exact_parts)
    for result in exact_parts:
        assert sum(token["similarity"] for token in result["tokens"]) == pytest.approx(result["part"], rel=1e-5, abs=1e-6)


def test_without_a_corpus_positions_stand_alone(explain):
    one = explain("--depth 1")[0]
    assert {key for token in one["experts"]["local"]["tokens"] for key in token} == {"query", "position", "similarity"}
    assert set(one["experts"]["global"]) == {"rank", "score", "part"}
