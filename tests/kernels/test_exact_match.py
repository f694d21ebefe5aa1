"""Matches of equal terms: the best pairs in blocks of any size, and the gradients of the plain form."""

import pytest
import torch

from moeir.kernels import exact_match, gathered_products
from moeir.kernels.exact_match import find_best_matches
from moeir.kernels.gathered_products import gather_dot
from moeir.representations.exact_match import ExactMatch


def texts(count, seed, terms=4, width=5):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (count,), generator=generator)
    total = int(lengths.sum())
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    vectors = torch.randn(total, width, generator=generator).requires_grad_()
    return ExactMatch(torch.randint(0, terms, (total,), generator=generator), vectors, starts)


def plain(queries, documents):
    """Scores [Q, N] from all products [T, U], those of other terms filled with 0."""
    products = queries.vectors @ documents.vectors.T
    products = products.masked_fill(queries.terms[:, None] != documents.terms, 0.0).relu()
    lengths = (documents.starts[1:] - documents.starts[:-1]).tolist()
    best = [part.amax(1) if part.shape[1] else products.new_zeros(len(products)) for part in products.split(lengths, 1)]
    rows = torch.stack(best, 1).split((queries.starts[1:] - queries.starts[:-1]).tolist())
    return torch.stack([part.sum(0) for part in rows])


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_values_and_gradients_are_those_of_the_plain_form(monkeypatch, at_once):
    monkeypatch.setattr(exact_match, "PAIRS_AT_ONCE", at_once)
    monkeypatch.setitem(gathered_products.BYTES_AT_ONCE, "cpu", at_once)
    results = []
    for form in (plain, ExactMatch.scores):
        queries, documents = texts(6, 0), texts(9, 1)
        scores = form(queries, documents)
        (scores * torch.randn(6, 9, generator=torch.Generator().manual_seed(2))).sum().backward()
        results.append([scores.detach(), queries.vectors.grad, documents.vectors.grad])
    for expected, value in zip(*results, strict=True):
        assert (value - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_by_hand():
    """Query tokens cat (twice), owl; document 0: cat, cat, fox; document 1: owl, and nothing for cat."""
    cat, owl, fox = 1, 2, 3
    queries = ExactMatch(torch.tensor([cat, cat, owl]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]), torch.tensor([0, 3]))
    vectors = torch.tensor([[2.0, -1.0], [1.0, 0.5], [9.0, 9.0], [2.0, 1.0]])
    documents = ExactMatch(torch.tensor([cat, cat, fox, owl]), vectors, torch.tensor([0, 3, 4]))
    assert queries.scores(documents).tolist() == [[2.5, 0.0]]  # 2 + 0.5; owl's only product is −1
    tokens = find_best_matches(queries.vectors, queries.terms, vectors, documents.terms, documents.text_indices())
    assert [part.tolist() for part in tokens] == [[0, 1], [0, 1]]


def test_of_equal_products_the_first_learns():
    queries = ExactMatch(torch.tensor([1]), torch.ones(1, 2), torch.tensor([0, 1]))
    documents = ExactMatch(torch.ones(3, dtype=torch.int64), torch.ones(3, 2).requires_grad_(), torch.tensor([0, 3]))
    queries.scores(documents).sum().backward()
    assert documents.vectors.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_nothing_but_the_winners_is_kept_for_the_gradient():
    queries, documents = texts(20, 3, terms=2), texts(30, 4, terms=2)
    with torch.no_grad():
        pairs = len(find_best_matches(queries.vectors, queries.terms, documents.vectors, documents.terms, documents.text_indices())[0])
    saved_sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved_sizes.append(tensor.numel()) or tensor, lambda tensor: tensor):
        queries.scores(documents)
    assert max(saved_sizes) <= max(pairs, documents.vectors.numel(), queries.vectors.numel())


def test_products_of_no_pairs_are_none():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert gather_dot(torch.eye(2), torch.eye(2), nothing, nothing).tolist() == []


@pytest.mark.parametrize("side", ["query", "document"])
def test_a_product_that_is_nan_makes_the_score_nan(side):
    queries, documents = (ExactMatch(torch.tensor([1, 2]), torch.ones(2, 2), torch.tensor([0, 2])) for _ in range(2))
    (queries if side == "query" else documents).vectors[0, 0] = float("nan")
    assert queries.scores(documents).isnan().all()
