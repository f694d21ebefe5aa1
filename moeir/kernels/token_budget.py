"""Batches of neighbouring texts, each of at most so many tokens."""

import math
from collections.abc import Iterator, Sequence


def split_by_tokens(lengths: Sequence[int], max_tokens: int, max_padding_ratio: float = math.inf) -> Iterator[tuple[int, int]]:
    """Split neighbouring texts into batches of at most `max_tokens` tokens, or of one text: (first text, last + 1) of each.

    Padded to its longest text, a batch has at most `max_padding_ratio` rows per token. The texts after a batch are split like those alone.

    >>> list(split_by_tokens([3, 3, 5], 6)), list(split_by_tokens([5, 3, 3, 9], 6))
    ([(0, 2), (2, 3)], [(0, 1), (1, 3), (3, 4)])
    >>> list(split_by_tokens([1, 1, 4], 100, 1.25))
    [(0, 2), (2, 3)]
    """
    first = total = longest = 0
    for text, length in enumerate(lengths):
        total, longest = total + length, max(longest, length)
        if text > first and (total > max_tokens or (text + 1 - first) * longest > max_padding_ratio * total):
            yield first, text
            first, total, longest = text, length, length
    if len(lengths):
        yield first, len(lengths)
