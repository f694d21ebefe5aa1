"""What remains of a distribution after top-k and top-p, and a draw from it, token by token; and queries written without a cache."""

import math
from collections.abc import Sequence

import torch


def shares(logits: Sequence[float], top_k: int, top_p: float, temperature: float) -> list[tuple[int, float]]:
    """Tokens and their probabilities, the likeliest first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: top_k or None]
    weights = [math.exp((logits[token] - logits[order[0]]) / temperature) for token in order]
    kept, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if reached >= top_p * sum(weights):
            break
        kept.append((token, weight))
        reached += weight
    return [(token, weight / reached) for token, weight in kept]


def drawn(logits: Sequence[float], number: float, top_k: int, top_p: float, temperature: float) -> int:
    kept = shares(logits, top_k, top_p, temperature)
    reached = 0.0
    for token, share in kept:
        reached += share
        if number < reached:
            return token
    return kept[-1][0]


def query(model, ids: Sequence[int], numbers: Sequence[float], vocabulary: int, **sampling) -> list[int]:
    """The tokens of one query of one passage, everything computed anew for each."""
    written = [model.config.decoder_start_token_id]
    for number in numbers:
        with torch.no_grad():
            said = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([written]), use_cache=False)
        token = drawn(said.logits[0, -1, :vocabulary].tolist(), number, **sampling)
        if token == model.config.eos_token_id:
            break
        written.append(token)
    return written[1:]
