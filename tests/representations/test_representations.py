"""Dense, Sparse, MultiVector, ExactMatch: scores against loops; selecting, concatenating, saving and padding change none; pruning."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.representations.base import RepresentationWriter
from moeir.representations.dense import Dense
from moeir.representations.encodings import Pruning
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector, ward_clusters
from moeir.representations.sparse import Sparse
from tests.architectures.folders import assert_refused
from tests.oracles import representations as oracles

TERMS, WIDTH = 5, 3
KINDS = ("dense", "sparse", "multivector", "exact-match")
seeds, sizes = st.integers(0, 10_000), st.integers(1, 5)
quick = settings(deadline=None, max_examples=25)


def random_texts(kind, count, seed=0, *, width=WIDTH, vocabulary=TERMS, fewest=1):
    """`count` random texts of few numbers, which float16 represents exactly, so that ties occur; at least `fewest` token vectors each."""
    generator = np.random.default_rng([seed, count])
    numbers = lambda *shape: torch.tensor(generator.integers(-8, 9, shape) / 4, dtype=torch.float32)  # noqa: E731
    if kind == "dense":
        return Dense(numbers(count, width))
    if kind == "sparse":
        return Sparse.from_matrix(numbers(count, vocabulary).clamp(min=0.5) - 0.5)
    lengths = generator.integers(fewest if kind == "multivector" else 0, 5, count)
    starts, tokens = torch.tensor([0, *lengths]).cumsum(0), numbers(int(lengths.sum()), width)
    terms = torch.tensor(generator.integers(0, vocabulary, len(tokens)), dtype=torch.int32)
    return MultiVector(tokens, starts) if kind == "multivector" else ExactMatch(terms, tokens, starts)


def to_lists(representation):
    """Each text as Python values."""
    if isinstance(representation, Dense):
        return representation.vectors.tolist()
    bounds = list(zip(representation.starts[:-1].tolist(), representation.starts[1:].tolist(), strict=True))
    if isinstance(representation, Sparse):
        return [
            dict(zip(representation.terms[first:last].tolist(), representation.weights[first:last].tolist(), strict=True))
            for first, last in bounds
        ]
    vectors = [representation.vectors[first:last].tolist() for first, last in bounds]
    if isinstance(representation, ExactMatch):
        terms = [representation.terms[first:last].tolist() for first, last in bounds]
        return [list(zip(*text, strict=True)) for text in zip(terms, vectors, strict=True)]
    return vectors


SCORES = {"dense": oracles.dense, "sparse": oracles.sparse, "multivector": oracles.late_interaction, "exact-match": oracles.exact_match}


@quick
@given(kind=st.sampled_from(KINDS), queries=sizes, documents=sizes, seed=seeds)
def test_scores_and_paired_are_those_of_the_loops(kind, queries, documents, seed):
    left, right = random_texts(kind, queries, seed), random_texts(kind, documents, seed + 1)
    expected = [[SCORES[kind](query, document) for document in to_lists(right)] for query in to_lists(left)]
    scores = left.scores(right)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores, torch.tensor(expected), atol=1e-5)
    other = random_texts(kind, queries, seed + 2)
    one_by_one = [SCORES[kind](query, document) for query, document in zip(to_lists(left), to_lists(other), strict=True)]
    assert torch.allclose(left.score_pairs(other), torch.tensor(one_by_one), atol=1e-5)


@quick
@given(kind=st.sampled_from(KINDS), seed=seeds, data=st.data())
def test_select_takes_texts_in_any_order_and_any_number(kind, seed, data):
    encoded = random_texts(kind, 4, seed)
    rows = data.draw(st.lists(st.integers(0, 3), max_size=6))
    assert to_lists(encoded.select(torch.tensor(rows, dtype=torch.int64))) == [to_lists(encoded)[row] for row in rows]


@quick
@given(kind=st.sampled_from(KINDS), counts=st.lists(sizes, min_size=1, max_size=3), seed=seeds)
def test_what_is_concatenated_or_written_in_blocks_and_opened_is_one(kind, counts, seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    parts = [random_texts(kind, count, seed + number) for number, count in enumerate(counts)]
    writer = RepresentationWriter(folder)
    for part in parts:
        writer.append(part)
    writer.close()
    for joined in (type(parts[0]).open(folder), type(parts[0]).concatenate(parts)):
        assert to_lists(joined) == [text for part in parts for text in to_lists(part)] and len(joined) == sum(counts)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_open_is_the_identity_up_to_float16(kind, tmp_path):
    with pytest.raises(ArtifactError, match=f"cannot be read as a {kind} representation") as caught:
        type(random_texts(kind, 1)).open(tmp_path)
    assert "\n" not in str(caught.value)
    encoded = random_texts(kind, 4).scale(1 / 3)
    encoded.save(tmp_path / "here")
    opened = type(encoded).open(tmp_path / "here")
    for name, column in encoded.columns().items():
        expected = column.half() if encoded.files[name] == "float16" else column
        assert torch.equal(opened.columns()[name], expected.to(opened.columns()[name].dtype))
    assert [getattr(opened, name) for name in encoded.sizes] == [getattr(encoded, name) for name in encoded.sizes]
    assert torch.allclose(opened.scores(opened), encoded.scores(encoded), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_goes_on_from_its_marks_and_forgets_what_came_after_them(kind, tmp_path):
    first, lost, second = random_texts(kind, 3, 1), random_texts(kind, 2, 2), random_texts(kind, 2, 3)
    writer = RepresentationWriter(tmp_path)
    writer.append(first)
    row_counts = writer.flush()
    writer.append(lost)
    writer.flush()
    again = RepresentationWriter(tmp_path, row_counts)
    again.append(second)
    again.close()
    assert to_lists(type(first).open(tmp_path)) == to_lists(first) + to_lists(second)


def test_texts_without_a_single_term_can_be_saved_and_opened(tmp_path):
    nothing = Sparse.from_matrix(torch.zeros(2, TERMS))
    nothing.save(tmp_path / "here")
    opened = Sparse.open(tmp_path / "here")
    assert len(opened) == 2 and torch.equal(opened.scores(random_texts("sparse", 3)), torch.zeros(2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_scale_stay_float32_under_autocast_and_have_gradients(kind):
    queries, documents = random_texts(kind, 3, 4).scale(1 / 3), random_texts(kind, 5, 5).scale(1 / 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = queries.scores(documents), queries.score_pairs(documents.select(torch.arange(3)))
    assert torch.equal(inside[0], queries.scores(documents))
    assert torch.equal(inside[1], queries.score_pairs(documents.select(torch.arange(3))))
    assert torch.allclose(queries.scale(2.5).scores(documents), 2.5 * queries.scores(documents))
    assert to_lists(queries.map(lambda tensor: tensor.clone())) == to_lists(queries)
    assert all(column.dtype == torch.float64 for column in queries.map(lambda tensor: tensor.double()).columns().values())
    queries = random_texts(kind, 3)
    column = queries.weights if kind == "sparse" else queries.vectors
    column.requires_grad_()
    queries.select(torch.tensor([2, 0])).scores(random_texts(kind, 9, 1)).sum().backward()
    assert column.grad is not None and bool(column.grad.abs().sum() > 0)


@pytest.mark.parametrize("value", [1e5, float("inf"), float("nan")])
def test_a_value_that_the_file_cannot_hold_is_refused(value, tmp_path):
    name = "NaN" if value != value else f"{value:g}"
    with pytest.raises(DataError, match=rf"global: text 1 holds {re.escape(name)}, which is no finite float16 number"):
        Dense(torch.tensor([[1.0, 2.0], [1.0, value]])).save(tmp_path / "global")


def test_weights_of_zero_are_dropped():
    texts = Sparse(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 0]), torch.tensor([0.0, 3.0, 2.0]), 3).drop_zero_weights()
    assert (texts.starts.tolist(), texts.terms.tolist(), texts.weights.tolist()) == ([0, 1, 2], [2, 0], [3.0, 2.0])


def test_a_weight_that_is_nan_is_never_dropped():
    texts = Sparse.from_matrix(torch.tensor([[1.0, 0.0, 3.0], [2.0, float("nan"), 0.0]]))
    for kept in (texts, texts.drop_zero_weights(), texts.prune({"least_weight": 1.5}), texts.prune({"terms": 1})):
        assert kept.weights[kept.starts[1] :].isnan().any()
        assert_refused(DataError, "text 1 holds NaN", kept.check_finite, "text {}".format)


def test_the_heaviest_terms_by_hand():
    encoded = Sparse.from_matrix(torch.tensor([[0.5, 2.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0, 0.0]]))
    assert to_lists(encoded.prune({"terms": 3})) == [{0: 0.5, 1: 2.0, 4: 1.0}, {}, {0: pytest.approx(0.1)}]
    assert to_lists(encoded.prune({"least_weight": 0.5})) == [{0: 0.5, 1: 2.0, 3: 0.5, 4: 1.0}, {}, {}]
    assert to_lists(encoded.prune({"terms": 1, "least_weight": 0.5})) == [{1: 2.0}, {}, {}]


@quick
@given(seed=seeds, most=st.none() | st.integers(1, 6), least=st.none() | st.floats(0.03125, 2.0, width=32))
def test_the_heaviest_terms_are_those_of_a_sort(seed, most, least):
    encoded = random_texts("sparse", 4, seed)
    options = {name: value for name, value in (("terms", most), ("least_weight", least)) if value is not None}
    assert to_lists(encoded.prune(options)) == [oracles.prune_terms(text, most, least) for text in to_lists(encoded)]


def test_pooling_by_hand():
    """Two tokens point up and one right, another text is one token: ⌈3/2⌉ and ⌈1/2⌉ vectors stay."""
    encoded = MultiVector(torch.tensor([[0.0, 2.0], [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]]), torch.tensor([0, 3, 4]))
    assert to_lists(encoded.prune({"pool_factor": 2})) == [[[0.0, 3.0], [4.0, 0.0]], [[1.0, 1.0]]]
    assert to_lists(encoded.prune({"pool_factor": 9})) == [[[pytest.approx(4 / 3), 2.0]], [[1.0, 1.0]]]
    assert to_lists(encoded.prune({"pool_factor": 1})) == to_lists(encoded)


@quick
@given(seed=seeds, count=st.integers(2, 9), data=st.data())
def test_clusters_are_those_of_joining_the_two_that_cost_least_again_and_again(seed, count, data):
    points = np.random.default_rng(seed).normal(size=(count, 3))
    cluster_count = data.draw(st.integers(1, count))
    assert ward_clusters(points, cluster_count).tolist() == oracles.ward_clusters(points, cluster_count)


def test_equal_tokens_lose_nothing_and_a_text_without_tokens_stays_one():
    encoded = MultiVector(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4), torch.tensor([0, 0, 8]))
    pooled = encoded.prune({"pool_factor": 4})
    assert to_lists(pooled) == [[], [[1.0, 0.0], [0.0, 1.0]]]
    query = MultiVector(torch.tensor([[0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 2]))
    assert torch.allclose(query.scores(pooled.select(torch.tensor([1]))), query.scores(encoded.select(torch.tensor([1]))))


def test_an_option_changes_its_own_kind_and_says_so():
    pruning = Pruning(terms=1, pool_factor=3)
    assert pruning.active_options() == {"terms": 1, "pool_factor": 3} and Pruning().active_options() == {}
    encoded = random_texts("dense", 3)
    assert pruning(encoded) is encoded and isinstance(encoded, Dense)
    assert all(len(text) <= 1 for text in to_lists(pruning(random_texts("sparse", 3))))
    encoded = random_texts("multivector", 5)
    assert [len(text) for text in to_lists(pruning(encoded))] == [-(-len(text) // 3) for text in to_lists(encoded)]
    assert Pruning()(random_texts("sparse", 3)).columns().keys() == {"terms", "weights"}
    for options, kinds, words in (
        (Pruning(terms=1), {"global": "dense"}, "--terms 1: is for sparse experts; the checkpoint has global dense"),
        (Pruning(least_weight=0.5), {"global": "dense", "local": "multivector"}, "--least-weight 0.5: is for sparse"),
        (Pruning(pool_factor=2), {"lexical": "sparse"}, "--pool-factor 2: is for multivector experts"),
    ):
        assert_refused(UsageError, words, options.check_kinds, kinds)
