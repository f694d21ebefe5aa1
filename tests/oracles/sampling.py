"""Top-k and top-p sampling token by token, and query generation without a cache."""

import math
from collections.abc import Sequence

import torch


def truncated_distribution(logits: Sequence[float], top_k: int, top_p: float, temperature: float) -> list[tuple[int, float]]:
    """Tokens and their probabilities, the likeliest first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: top_k or None]
    weights = [math.exp((logits[token] - logits[order[0]]) / temperature) for token in order]
    tokens, total = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if total >= top_p * sum(weights):
            break
        tokens.append((token, weight))
        total += weight
    return [(token, weight / total) for token, weight in tokens]


def sample_token(logits: Sequence[float], number: float, top_k: int, top_p: float, temperature: float) -> int:
    tokens = truncated_distribution(logits, top_k, top_p, temperature)
    total = 0.0
    for token, share in tokens:
        total += share
        if number < total:
            return token
    return tokens[-1][0]


def generate_query(model, ids: Sequence[int], numbers: Sequence[float], vocabulary: int, **sampling) -> list[int]:
    """The tokens of one query of one passage, everything recomputed for each token."""
    tokens = [model.config.decoder_start_token_id]
    for number in numbers:
        with torch.no_grad():
            output = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([tokens]), use_cache=False)
        token = sample_token(output.logits[0, -1, :vocabulary].tolist(), number, **sampling)
        if token == model.config.eos_token_id:
            break
        tokens.append(token)
    return tokens[1:]
