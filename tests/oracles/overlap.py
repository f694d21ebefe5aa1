"""Rank-biased overlap, as the paper's sum, set by set."""


def rbo(first: list[str], second: list[str], persistence: float) -> float:
    short, long = sorted((first, second), key=len)
    s, l = len(short), len(long)  # noqa: E741 the letters of the paper

    def common(depth: int) -> int:
        return len(set(short[:depth]) & set(long[:depth]))

    series = sum(common(d) / d * persistence**d for d in range(1, l + 1))
    series += sum(common(s) * (d - s) / (s * d) * persistence**d for d in range(s + 1, l + 1))
    return (1 - persistence) / persistence * series + ((common(l) - common(s)) / l + common(s) / s) * persistence**l
