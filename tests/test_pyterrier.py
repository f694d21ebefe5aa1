"""Transformers of PyTerrier against the command line, on the same texts."""

import pandas as pd
import pyterrier as pt
import pytest

from moeir.errors import DataError, UsageError
from moeir.pyterrier import Indexer, Reranker, Retriever
from moeir.records import runs, texts


@pytest.fixture(scope="module")
def queries(toy):
    return pd.DataFrame([(query.id, query.content) for query in texts.read_texts(toy / "test-queries.tsv")], columns=["qid", "query"])


@pytest.fixture(scope="module")
def documents(toy):
    return [{"docno": text.id, "title": text.title, "text": text.text} for text in texts.read_texts(toy / "corpus.jsonl")]


def lists_of(frame):
    """Documents and scores of each query, in the order of the ranks."""
    assert all((part["rank"] == range(len(part))).all() for _, part in frame.groupby("qid"))
    return {qid: list(zip(part["docno"], part["score"], strict=True)) for qid, part in frame.groupby("qid")}


def same_lists(frame, path, depth=1000):
    """Whether a frame has the first documents of a run in its order, with its nine digits of the scores."""
    run = runs.read_run(path).top(depth)
    expected = {query: run.hits(query) for query in run.queries}
    actual = lists_of(frame)
    return actual.keys() == expected.keys() and all(
        [docno for docno, _ in actual[query]] == [docno for docno, _ in hits]
        and [score for _, score in actual[query]] == pytest.approx([score for _, score in hits], rel=1e-6)
        for query, hits in expected.items()
    )


def test_a_retriever_finds_what_search_finds(moeir, tmp_path, index, toy, queries):
    search = ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--dtype", "float32")  # fuses lists of 1,000
    assert moeir(*search, "--output", tmp_path / "all").code == 0
    assert same_lists(Retriever(index, num_results=7, dtype="float32")(queries), tmp_path / "all" / "fused.trec", 7)
    assert same_lists(Retriever(index, expert="local", num_results=7, dtype="float32")(queries), tmp_path / "all" / "local.trec", 7)
    assert same_lists((Retriever(index, dtype="float32") % 7)(queries), tmp_path / "all" / "fused.trec", 7)
    with pytest.raises(UsageError, match=r"--expert glob: .* has lexical, local, global"):
        Retriever(index, expert="glob")


def test_a_pipeline_equals_the_command_line(moeir, tmp_path, index, bm25_index, came_checkpoint, toy, queries, documents):
    common = ("--queries", toy / "test-queries.tsv", "--dtype", "float32")
    both = ("search", "--index", index, "--index", bm25_index, "--fuse", "rrf:constant=10")
    assert moeir(*both, *common, "--output", tmp_path / "fused.trec").code == 0
    reranked = ("rerank", "--model", came_checkpoint, "--run", tmp_path / "fused.trec", "--expert", "local", "--depth", 5)
    assert moeir(*reranked, *common, "--corpus", toy / "corpus.jsonl", "--output", tmp_path / "reranked.trec").code == 0

    fused = Retriever([index, bm25_index], fuse="rrf:constant=10", dtype="float32")
    assert same_lists(fused(queries), tmp_path / "fused.trec")
    titles = pd.DataFrame(documents)
    with_text = pt.apply.generic(lambda frame: frame.merge(titles, on="docno"))
    pipeline = fused % 5 >> with_text >> Reranker(came_checkpoint, expert=["local"], dtype="float32")
    result = pipeline(queries)
    assert same_lists(result, tmp_path / "reranked.trec", 5)
    assert result["text"].notna().all() and (result["query"] == result["qid"].map(dict(queries.values))).all()


def test_an_indexer_makes_what_encode_and_index_make(tmp_path, came_checkpoint, index, bm25_index, queries, documents):
    retriever = Indexer(came_checkpoint, tmp_path / "came", dtype="float32").index(documents)
    assert lists_of(retriever(queries)) == lists_of(Retriever(index, dtype="float32")(queries))
    assert lists_of(Indexer(None, tmp_path / "bm25").index(iter(documents))(queries)) == lists_of(Retriever(bm25_index)(queries))
    made_at = (tmp_path / "bm25" / "index" / "manifest.json").stat().st_mtime_ns
    assert Indexer(None, tmp_path / "bm25").index(documents).searcher.ids == [document["docno"] for document in documents]
    assert (tmp_path / "bm25" / "index" / "manifest.json").stat().st_mtime_ns == made_at  # already made
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "corpus.jsonl").write_text("mine")
    Indexer(None, tmp_path / "own").index(documents)
    assert (tmp_path / "own" / "corpus.jsonl").read_text() == "mine" and len(list((tmp_path / "own").iterdir())) == 2
    with pytest.raises(DataError, match=r"document 1 \('d2'\): no text; expected one of text"):
        Indexer(None, tmp_path / "other").index([documents[0], {"docno": "d2"}])


def test_frames_without_rows_and_own_columns(index, came_checkpoint, queries):
    retriever = Retriever(index, num_results=3)
    assert retriever(queries.iloc[:0]).empty and list(retriever(queries.iloc[:0])) == ["qid", "query", "docno", "score", "rank"]
    marked = retriever(queries.assign(query_0="as it was", other=1))
    assert (marked["query_0"] == "as it was").all() and "other" not in marked
    assert Reranker(came_checkpoint)(pd.DataFrame(columns=["qid", "query", "docno", "text"])).empty
    with pytest.raises(KeyError, match="text"):
        Reranker(came_checkpoint)(retriever(queries))


@pytest.mark.parametrize("missing", [None, pd.NA])
def test_missing_values_are_refused_by_row_and_column(index, came_checkpoint, missing, tmp_path):
    rows = pd.DataFrame({"qid": "q1", "query": "owls", "docno": ["owl", "bat"], "text": ["an owl", "a bat"]}, dtype=object)
    retriever, reranker = Retriever(index, num_results=2), Reranker(came_checkpoint)
    for column, message in {
        "qid": "row 1, column 'qid': id is not a string",
        "query": "row 1: query is not a string",
        "docno": "row 1, column 'docno': id is not a string",
        "text": "row 1: text is not a string",
    }.items():
        faulty = rows.assign(**{column: pd.Series([rows[column][0], missing], dtype=object)})
        with pytest.raises(DataError, match=message):
            reranker(faulty)
        if column in ("qid", "query"):
            with pytest.raises(DataError, match=message):
                retriever(faulty[["qid", "query"]])
    for column in ("docno", "text"):
        documents = [{"docno": "a", "text": "an owl"}, {"docno": "b", "text": "a bat", column: missing}]
        with pytest.raises(DataError, match=f"document 1.*: {'id' if column == 'docno' else 'text'} is not a string"):
            Indexer(None, tmp_path / "never-made").index(documents)
    titled = rows.assign(title=pd.Series(["Owl", missing], dtype=object))
    if missing is None:  # as null in JSON lines: no title
        assert len(reranker(titled)) == 2
    else:
        with pytest.raises(DataError, match="row 1: title is not a string"):
            reranker(titled)


def test_an_id_has_one_text_and_a_pair_one_row(index, came_checkpoint):
    columns = ["qid", "query", "docno", "text"]
    rows = pd.DataFrame([("q1", "owls", "owl", "an owl"), ("q1", "owls", "bat", "a bat"), ("q2", "bats", "owl", "an owl")], columns=columns)
    reranker = Reranker(came_checkpoint)
    assert len(reranker(rows)) == 3  # equal texts are fine
    for faulty, message in (
        (rows.assign(text=["an owl", "a bat", "another owl"]), "row 2: docno 'owl' has another text in an earlier row"),
        (rows.assign(query=["owls", "bats", "bats"]), "row 1: qid 'q1' has another query in an earlier row"),
        (rows.iloc[[0, 1, 0]], "document 'owl' is listed twice for query 'q1'"),
        (rows.assign(docno=["an owl", "bat", "owl"]), "row 0, column 'docno': id with white space: 'an owl'"),
        (rows.assign(text=[3, 4, 3]), "row 0: text is not a string: 3"),
    ):
        with pytest.raises(DataError, match=message):
            reranker(faulty)
    with pytest.raises(DataError, match="row 1: qid 'q1' has another query in an earlier row"):
        Retriever(index)(pd.DataFrame({"qid": ["q1", "q1"], "query": ["owls", "bats"]}))


def test_whole_numbers_are_ids_and_come_back_as_they_are(index, came_checkpoint):
    rows = pd.DataFrame({"qid": [2, 2, 1], "query": ["owls", "owls", "bats"], "docno": [7, 8, 7], "text": ["an owl", "a bat", "an owl"]})
    ranked = Reranker(came_checkpoint)(rows.assign(other=[1, 2, 3]))
    words = Reranker(came_checkpoint)(rows.assign(qid=["2", "2", "1"], docno=["7", "8", "7"], other=[1, 2, 3]))
    assert ranked["score"].tolist() == words["score"].tolist() and ranked["other"].tolist() == words["other"].tolist()
    assert ranked["qid"].tolist() == [2, 2, 1] and ranked["docno"].astype(str).tolist() == words["docno"].tolist()
    assert Retriever(index, num_results=2)(rows[["qid", "query"]])["qid"].tolist() == [2, 2, 1, 1]
    with pytest.raises(DataError, match=r"row 0, column 'qid': id is not a string: 2\.0"):
        Reranker(came_checkpoint)(rows.assign(qid=[2.0, 2.0, 1.0]))
