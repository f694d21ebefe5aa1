"""Slow, obvious routed experts: token by token, text by text."""

import torch
import torch.nn.functional as F


def routed_feedforward(experts, states, choice, weight=None):
    """Each token through the expert chosen for it: norm(states + weight · change)."""
    rows = []
    for number, state in enumerate(states):
        layer = experts[int(choice[number])]
        change = layer.down(layer.activation(layer.up(state)))
        rows.append(layer.norm(state + (1.0 if weight is None else weight[number]) * change))
    return torch.stack(rows)


def straight_through(experts, states, weights):
    """Σ z_i · expert_i(h) with the one-hot z whose gradient is that of `weights` [T, I]."""
    rows = []
    for state, row in zip(states, weights, strict=True):
        hard = torch.zeros_like(row)
        hard[row.argmax()] = 1.0
        strengths = hard + row - row.detach()
        changes = [layer.down(layer.activation(layer.up(state))) for layer in experts]
        wholes = [layer.norm(state + change) for layer, change in zip(experts, changes, strict=True)]
        rows.append(sum(strengths[number] * whole for number, whole in enumerate(wholes)))
    return torch.stack(rows)


def gated_block(mixture, vector, weights, combine, selected):
    """One vector [D] refined: by the experts in `selected` with their weights [n], combined as `combine` names."""
    outputs = {number: mixture.experts[number].down(F.relu(mixture.experts[number].up(vector))) for number in selected}
    if combine == "norm_expert":
        return vector + sum(weights[number] * outputs[number] / outputs[number].norm() for number in selected)
    mixed = sum(weights[number] * outputs[number] for number in selected)
    return vector + (mixed / mixed.norm() if combine == "release" else mixed)
