"""Late interaction of packed texts: scores and gradients of the plain form, in a small part of its memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.kernels import late_interaction as kernel
from moeir.representations.multivector import MultiVector
from tests.kernels.peak_memory import peak_bytes
from tests.oracles.representations import pad


def texts(lengths, seed=0, width=3, values=None):
    """Packed vectors of texts with these numbers of tokens; with `values`, of few distinct integers."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(lengths), width, generator=generator)
    if values is not None:
        vectors = torch.randint(values, (sum(lengths), width), generator=generator).float()
    return MultiVector(vectors.requires_grad_(), torch.tensor([0, *lengths]).cumsum(0))


def packed(queries, documents):
    return kernel.late_interaction(queries.vectors, queries.starts, documents.vectors, documents.starts)


def plain(queries, documents):
    """All products, padded; the gradient of ties goes to the first token."""
    (query_vectors, query_mask), (tokens, document_mask) = pad(queries), pad(documents)
    similarity = torch.einsum("qld,nmd->qnlm", query_vectors, tokens).masked_fill(~document_mask[None, :, None], float("-inf"))
    return similarity.max(-1).values.masked_fill(~query_mask[:, None], 0.0).sum(-1)


def outcome(form, queries, documents, seed=5):
    scores = form(queries, documents)
    factors = torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed))
    (scores * factors).sum().backward()
    return scores.detach(), queries.vectors.grad, documents.vectors.grad


def sized(patch, at_once):
    patch.setitem(kernel.PRODUCTS_AT_ONCE, "cpu", at_once)
    patch.setitem(kernel.WINNERS_AT_ONCE, "cpu", at_once)


def test_a_worked_example():
    """Tokens (1, 0) and (0, 1) against a document of (2, 0) and (-1, 3): 2 and 3; against one of (-4, -5): -4 and -5."""
    queries = MultiVector(torch.eye(2), torch.tensor([0, 2]))
    documents = MultiVector(torch.tensor([[2.0, 0.0], [-1.0, 3.0], [-4.0, -5.0]]), torch.tensor([0, 2, 3]))
    assert packed(queries, documents).tolist() == [[5.0, -9.0]]


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(
    queries=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    documents=lengths,
    seed=st.integers(0, 99),
    at_once=st.sampled_from([1, 40, 10**6]),
    values=st.sampled_from([None, 2, 3]),
)
def test_scores_and_gradients_are_those_of_the_plain_form(queries, documents, seed, at_once, values):
    """Texts of any lengths, queries without tokens among them, tokens that are equal or equally good."""
    inputs = [[texts(queries, seed, values=values), texts(documents, seed + 1, values=values)] for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        sized(patch, at_once)
        results = outcome(packed, *inputs[0])
    for value, expected in zip(results, outcome(plain, *inputs[1]), strict=True):
        assert value.dtype == torch.float32 and torch.allclose(value, expected, atol=1e-5)


def test_a_document_without_tokens_scores_less_than_any():
    query = texts([2, 0])
    documents = texts([0, 2, 0])
    scores = packed(query, documents)
    assert torch.isneginf(scores[0]).tolist() == [True, False, True] and torch.isfinite(scores[0, 1])
    scores[0, 1].backward()
    assert bool(torch.isfinite(query.vectors.grad).all()) and bool(torch.isfinite(documents.vectors.grad).all())


def test_nothing_against_nothing():
    assert packed(texts([0, 0]), texts([1, 2])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert packed(texts([1, 2]), texts([])).shape == (2, 0)


def test_what_is_no_number_stays_so():
    query, document = texts([2]), texts([3])
    with torch.no_grad():
        document.vectors[1] = float("nan")
    scores = packed(query, document)
    scores.sum().backward()
    assert bool(scores.isnan().all())


def test_memory_is_a_twentieth_of_the_similarity():
    """16 queries of 32 tokens against 16 x 8 passages of at most 180: beyond texts and their gradients, forward and backward."""
    lengths = torch.randint(60, 181, (128,), generator=torch.Generator().manual_seed(3)).tolist()
    queries, documents = texts([32] * 16, 1, 128), texts([*lengths[1:], 180], 2, 128)
    own = queries.vectors.nbytes + documents.vectors.nbytes
    similarity = 16 * 128 * 32 * 180 * 4
    assert peak_bytes(lambda: outcome(packed, queries, documents)) - own <= similarity / 20


def test_texts_of_real_lengths_agree_with_the_plain_form():
    """Query tokens in several parts, documents in several runs, with no size changed."""
    sizes = ([32] * 40, torch.randint(1, 181, (30,), generator=torch.Generator().manual_seed(1)).tolist())
    results, expected = (outcome(form, *(texts(each, width=32) for each in sizes)) for form in (packed, plain))
    for value, reference in zip(results, expected, strict=True):
        assert (value - reference).abs().max() <= 1e-5 * reference.abs().max()
