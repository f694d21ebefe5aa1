"""Losses, ranks, expert shares and regularizers by slow, obvious loops, in Python numbers."""

import math


def info_nce(scores, positive, masked=()):
    """Negative log-likelihood of the positive among the candidates that are not masked."""
    candidates = [score for index, score in enumerate(scores) if index not in masked]
    return math.log(math.fsum(math.exp(score - scores[positive]) for score in candidates))


def positive_rank(scores, positive, masked=(), ties="average"):
    """Rank of the positive: the best, worst or middle rank of those it ties with."""
    others = [score for index, score in enumerate(scores) if index != positive and index not in masked]
    best = 1 + sum(score > scores[positive] for score in others)
    worst = 1 + sum(score >= scores[positive] for score in others)
    return {"optimistic": best, "pessimistic": worst, "average": (best + worst) / 2}[ties]


def expert_shares(ranks, temperature):
    """softmax((1 / rank) / temperature) over the experts."""
    powers = [math.exp(1 / rank / temperature) for rank in ranks]
    return [power / math.fsum(powers) for power in powers]


def flops_penalty(texts, terms):
    """Σ over terms of (mean weight in the batch)²; texts are dictionaries term -> weight."""
    return math.fsum((math.fsum(text.get(term, 0.0) for text in texts) / len(texts)) ** 2 for term in range(terms))


def negative_entropy(rows):
    """Mean over the rows of Σ p log p."""
    return math.fsum(chance * math.log(chance) for row in rows for chance in row if chance > 0) / len(rows)


def load_balance(rows):
    """I · Σ over experts of (share of rows it is the arg-max of) · (its mean probability)."""
    experts = range(len(rows[0]))
    wins = [sum(row.index(max(row)) == expert for row in rows) / len(rows) for expert in experts]
    means = [math.fsum(row[expert] for row in rows) / len(rows) for expert in experts]
    return len(means) * math.fsum(win * mean for win, mean in zip(wins, means, strict=True))


def kl_divergence(scores, teacher, temperature):
    """Σ p log(p / q) of two softmaxes at a temperature, times the temperature squared."""
    chances = []
    for side in (teacher, scores):
        powers = [math.exp(score / temperature) for score in side]
        chances.append([power / math.fsum(powers) for power in powers])
    return temperature**2 * math.fsum(p * math.log(p / q) for p, q in zip(*chances, strict=True))


def margin_mse(scores, teacher):
    """Mean squared difference of (positive - negative) between both; the positive comes first."""
    errors = [(scores[0] - scores[index]) - (teacher[0] - teacher[index]) for index in range(1, len(scores))]
    return math.fsum(error * error for error in errors) / len(errors)


def learning_rate_at(step, steps, highest, warmup):
    """Linear warmup over the first steps, then linear decay to zero at the end."""
    rising = max(1, round(warmup * steps)) if warmup else 0
    return highest * (step + 1) / rising if step < rising else highest * (steps - step) / (steps - rising)
