from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import shell
from tests.oracles import divergence as by_loops

program = shell.load_program("divergence")
values = st.floats(-3, 3).filter(lambda value: abs(value) > 0.01)
pairs = st.integers(2, 6).flatmap(lambda n: st.lists(st.tuples(*[st.tuples(values, values, values)] * 2), min_size=n, max_size=n))


@given(pairs, st.sampled_from([0.2, 1.0, 3.0]))
def test_divergences_are_those_of_the_text(pairs, bandwidth):
    queries, documents = (np.array(side) for side in zip(*pairs, strict=True))
    expected = by_loops.divergences(queries.tolist(), documents.tolist(), bandwidth)
    assert program.estimate_divergences(queries, documents, bandwidth=bandwidth) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_worked_example():
    """Queries both along x; documents along x and y: rows (0, 1), (0, 1), columns (0, 0), (1, 1)."""
    queries, documents = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 1.0]])
    assert program.cosine_distances(queries, documents).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert program.kernel_weights(program.cosine_distances(queries, documents), 1.0).tolist() == pytest.approx([0.5, 0.5])
    assert program.kernel_weights(program.cosine_distances(queries, documents).T, 1.0).tolist() == pytest.approx([0.5, 0.5])
    assert program.estimate_divergences(queries, documents) == pytest.approx((0.0, 0.0), abs=1e-15)


def test_far_points_do_not_underflow():
    points = np.array([[0.0], [1e6], [2e6]])
    assert program.kernel_weights(points, 1.0).tolist() == pytest.approx([1 / 3] * 3)


def test_a_pair_is_a_query_and_its_best_document_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("a\tfirst\nb\tsecond\nc\tthird\nd\tfourth\n")
    (tmp_path / "corpus.tsv").write_text("x\tan x\ny\ta y\nz\ta z\n")
    (tmp_path / "qrels").write_text("a 0 x 1\na 0 y 2\na 0 w 3\nb 0 z 0\nc 0 w 1\nd 0 z 1\nd 0 x 1\ne 0 x 1\n")
    paths = (tmp_path / "queries.tsv", tmp_path / "corpus.tsv", tmp_path / "qrels")

    def sample(count: int, seed: int) -> list[tuple[str, str]]:
        return [(query.content, document.content) for query, document in program.sample_pairs(*paths, count, seed)]

    assert sorted(sample(2, 42)) == [("first", "a y"), ("fourth", "a z")]
    assert {sample(1, seed)[0] for seed in range(9)} == {("first", "a y"), ("fourth", "a z")}
    assert sample(2, 3) == sample(2, 3)


def test_a_line_has_the_divergence_of_the_vectors_of_pairs(came_checkpoint: Path, toy: Path) -> None:
    from moeir import open_checkpoint

    texts = ("--queries", toy / "test-queries.tsv", "--corpus", toy / "corpus.jsonl", "--qrels", toy / "test-qrels.tsv")
    result = shell.run_program("divergence.py", "--model", came_checkpoint, *texts, "--pairs", 5, "--seed", 7)
    assert result.code == 0, result.stderr
    pairs, checkpoint = program.sample_pairs(*texts[1::2], 5, 7), open_checkpoint(came_checkpoint)
    sides = [np.asarray(checkpoint.encode([text.content for text in side], name)["global"].vectors.detach())
             for name, side in zip(("query", "document"), zip(*pairs, strict=True), strict=True)]  # fmt: skip
    header, line = result.stdout.splitlines()
    assert header == "model\texpert\tpairs\tKL\tJS" and line.split("\t")[:3] == [came_checkpoint.name, "global", "5"]
    assert [float(word) for word in line.split("\t")[3:]] == pytest.approx(program.estimate_divergences(*sides), rel=1e-3)
    refused = shell.run_program("divergence.py", "--model", came_checkpoint, *texts, "--pairs", 7)
    assert refused.code != 0 and "6 queries have a relevant document with both texts in" in refused.stderr


def test_pairs_are_drawn_and_drawn_alike(came_checkpoint: Path, toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    texts = ("--queries", toy / "test-queries.tsv", "--corpus", toy / "corpus.jsonl", "--qrels", toy / "test-qrels.tsv", "--pairs", 5)
    command = ("project_vectors.py", "--model", came_checkpoint, *texts)
    for name in ("one.svg", "two.svg"):
        result = shell.run_program(*command, "--perplexity", 3, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes() and ">came<" in (tmp_path / "one.svg").read_text()
    refused = shell.run_program(*command, "--output", tmp_path / "three.svg")
    assert refused.code != 0 and "--perplexity 30: expected 1 to less than the number of points, 10" in refused.stderr
