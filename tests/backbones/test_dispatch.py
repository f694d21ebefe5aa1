"""Dispatch of rows to experts and back, and router outputs per text."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from moeir.backbones.dispatch import RouterOutput, check_expert_count, dispatch_to_experts
from moeir.errors import UsageError
from tests.architectures.folders import assert_refused


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_each_row_meets_the_expert_it_chose_and_comes_back_to_its_place(choices):
    states, choice = torch.arange(len(choices), dtype=torch.float32)[:, None], torch.tensor(choices)
    rows_by_expert = {}

    def apply(expert, own, rows):
        rows_by_expert[expert] = list(range(len(choices))) if rows is None else rows.tolist()
        return own * 10 + expert

    output = dispatch_to_experts(states, choice, 5, apply)
    assert output[:, 0].tolist() == [10 * row + expert for row, expert in enumerate(choices)]
    assert rows_by_expert == {expert: [row for row, one in enumerate(choices) if one == expert] for expert in sorted(set(choices))}


def test_rows_that_all_choose_one_expert_go_to_it_as_they_are():
    states, calls = torch.rand(4, 2), []

    def apply(expert, own, rows):
        calls.append((expert, own is states, rows))
        return own

    assert dispatch_to_experts(states, torch.tensor([1, 1, 1, 1]), 3, apply) is states
    assert calls == [(1, True, None)]


def test_texts_keep_their_decisions_when_they_move():
    routing = RouterOutput(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 4, 6]))
    permuted = routing.select(torch.tensor([2, 0, 1]))
    assert permuted.probabilities[:, 0].tolist() == [8.0, 10.0, 0.0, 2.0, 4.0, 6.0] and permuted.starts.tolist() == [0, 2, 3, 6]
    both = RouterOutput.concatenate([routing, RouterOutput.from_text_probabilities(torch.tensor([[1.0, 0.0]])), permuted])
    assert len(both) == 7 and both.starts.tolist() == [0, 1, 4, 6, 7, 9, 10, 13]
    assert torch.equal(both.select(torch.tensor([1])).probabilities, routing.select(torch.tensor([1])).probabilities)


def test_a_mixture_has_1024_experts_at_most():
    check_expert_count(1024)
    assert_refused(UsageError, "experts=1025: expected 2 to 1024", check_expert_count, 1025)
