"""Late interaction in blocks: scores and gradients of the plain form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.kernels import late_interaction as kernel
from moeir.representations.multivector import maxsim


def inputs(queries, documents, seed=0, width=3):
    """Padded vectors and masks of texts with these numbers of tokens."""
    made = torch.Generator().manual_seed(seed)
    found = []
    for lengths in (queries, documents):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        found += [(torch.randn(len(lengths), max(lengths), width, generator=made) * mask[..., None]).requires_grad_(), mask]
    return found


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@settings(deadline=None, max_examples=30)
@given(queries=lengths, documents=lengths, seed=st.integers(0, 99), at_once=st.sampled_from([1, 40, 10**6]))
def test_scores_and_gradients_are_those_of_the_plain_form(queries, documents, seed, at_once):
    weigh = torch.randn(len(queries), len(documents), generator=torch.Generator().manual_seed(5))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "NUMBERS_AT_ONCE", at_once)
        for form in (maxsim, kernel.late_interaction):
            given_ = inputs(queries, documents, seed)
            scores = form(*given_)
            (scores * weigh).sum().backward()
            found.append((scores.detach(), given_[0].grad, given_[2].grad))
    for expected, value in zip(*found, strict=True):
        assert torch.allclose(value, expected, atol=1e-5)


def test_of_equal_tokens_one_learns():
    query, document = torch.ones(1, 1, 2), torch.ones(1, 3, 2, requires_grad=True)
    kernel.late_interaction(query, torch.ones(1, 1, dtype=torch.bool), document, torch.ones(1, 3, dtype=torch.bool)).sum().backward()
    assert sorted(document.grad.sum(-1).tolist()[0]) == [0.0, 0.0, 2.0]
