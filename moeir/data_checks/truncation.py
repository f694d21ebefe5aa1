"""How many texts a maximum length cuts, and how many of their tokens are lost."""

from collections import Counter
from collections.abc import Iterable, Mapping


def count_truncation(sizes: Iterable[int], limit: int) -> Counter[str]:
    """Texts and tokens of texts of `sizes` tokens, how many texts are longer than `limit` (`cut`), and how many tokens lie beyond (`lost`).

    >>> dict(count_truncation([3, 8, 10], 8))
    {'texts': 3, 'tokens': 21, 'cut': 1, 'lost': 2}
    """
    sizes = list(sizes)
    beyond = [size - limit for size in sizes if size > limit]
    return Counter(texts=len(sizes), tokens=sum(sizes), cut=len(beyond), lost=sum(beyond))


def describe_truncation(counts: Mapping[str, int], kind: str, limit: int) -> str:
    """The counts in words: how many of the texts, and what share of all tokens, about where long texts are not read to their end."""
    cut, texts = counts["cut"], counts["texts"]
    share = f"about {counts['lost'] / counts['tokens']:.1%} of all tokens are lost"
    return f"{cut:,} of {texts:,} {kind} ({cut / texts:.1%}) are cut at {limit} tokens, {share}"
