"""Rows by the expert each chose, in one grouped product: values and gradients are those of one product an expert."""

import pytest
import torch

from moeir.kernels.grouped_linear import ROW_ALIGNMENT, ExpertGroups, grouped_linear

pytestmark = pytest.mark.skipif(torch.__version__ < "2.10", reason="torch has grouped products from 2.10 on")


def plain(rows, weights, biases, choice):
    """A product for each expert, of bfloat16 factors added up in float32."""
    mapped = torch.zeros(len(rows), weights.shape[1])
    for expert in range(len(weights)):
        own = choice == expert
        product = (rows[own].bfloat16().float() @ weights[expert].bfloat16().float().T).bfloat16()
        mapped[own] = (product if biases is None else product + biases[expert].bfloat16()).float()
    return mapped


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("experts, used", [(3, 3), (4, 2), (2, 1)])
def test_grouped_products_are_those_of_each_expert(experts, used, biased):
    torch.manual_seed(1)
    rows, weights = torch.randn(50, 16, requires_grad=True), torch.randn(experts, 24, 16, requires_grad=True)
    biases = torch.randn(experts, 24, requires_grad=True) if biased else None
    choice, slopes = torch.randint(used, (50,)), torch.randn(50, 24)
    leaves = [rows, weights, *([biases] if biased else [])]
    outputs = grouped_linear(rows, weights, biases, ExpertGroups.from_choice(choice, experts))
    expected = plain(rows, weights, biases, choice)
    assert outputs.dtype == torch.bfloat16 and torch.allclose(outputs.float(), expected, atol=0.05, rtol=0.02)
    gradients, expected_gradients = (torch.autograd.grad((mapped.float() * slopes).sum(), leaves) for mapped in (outputs, expected))
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(one, other, atol=0.1, rtol=0.05)
    assert not gradients[1][used:].any(), "an expert that no row chose has a gradient of zero"


def test_rows_of_an_expert_are_neighbours_and_groups_begin_where_memory_is_aligned_and_none_is_empty():
    choice = torch.tensor([2, 0, 2, 2, 0, 3])
    groups = ExpertGroups.from_choice(choice, 4)
    assert groups.ends.tolist() == [8, 16, 24, 32] and groups.ends.dtype == torch.int32
    assert groups.slots.tolist() == [16, 0, 17, 18, 1, 24]
    assert groups.size >= int(groups.ends[-1]) and all(end % ROW_ALIGNMENT == 0 for end in groups.ends.tolist())
