"""Texts by id as a training reads them: tokens in memory, in the place of a cache on disk; and examples that name short texts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.layers import set_attention_dropout
from moeir.backbones.tokens import Tokens
from moeir.learning.dealing import Dealt
from moeir.learning.texts import Rows
from moeir.learning.tokens import TokenCache, TokenTexts
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.records.examples import Example

ANIMALS = ("owl", "bat", "bee", "fox", "cat", "hen", "oak", "eel")


def held(checkpoint: OpenCheckpoint, queries: Mapping[str, str], documents: Mapping[str, str], sets: int = 1) -> TokenTexts:
    """One text after the other; `sets` sets that all have the same texts."""
    ids, silent = [], []
    for side, texts in (("query", queries), ("document", documents)):
        for text in texts.values():
            found, quiet = checkpoint.ids([text], side)
            ids.append(found[0])
            silent.append(quiet[0] if quiet else 0)
    rows = Rows({name: row for row, name in enumerate(queries)}, {name: row for row, name in enumerate(documents, len(queries))})
    starts = np.cumsum([0, *map(len, ids)])
    return TokenTexts(TokenCache(np.concatenate(ids).astype(np.uint16), starts, np.array(silent)), [rows] * sets)


def content(row: int) -> str:
    """A text of 1 to 13 animals and some verbs."""
    return " ".join(ANIMALS[(row + place) % 8] + " hunts" * (place % 2) for place in range(1 + row % 13))


def table(folder: Path, name: str, count: int, shift: int = 0) -> tuple[Path, dict[str, str]]:
    """A collection of such texts: its place, and what it holds."""
    held = {f"{name[0]}{row}": content(row + shift) for row in range(count)}
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{one}\t{text}\n" for one, text in held.items()))
    return path, held


def examples(count: int, negatives: int = 4) -> list[Example]:
    """Queries q0, … over documents d0, …: two positives each."""
    pools = [tuple(f"d{(n + 2 + more) % (count + 1)}" for more in range(negatives)) for n in range(count)]
    return [Example(f"q{n}", (f"d{n}", f"d{n + 1}"), pool) for n, pool in enumerate(pools)]


def whole(texts: Tokens | Dealt) -> Tokens:
    """The texts of a batch that is neither shared nor cut."""
    if isinstance(texts, Tokens):
        return texts
    (part,) = texts.parts
    assert texts.back is None and texts.count == len(part.ids)
    return part


def same(read: Iterable[Tokens | Dealt], expected: Iterable[Tokens | Dealt]) -> None:
    """Token for token, sorted by length."""
    for one, other in zip(map(whole, read), map(whole, expected), strict=True):
        other = other.sort_by_length()
        assert (one.order is None) == (other.order is None) and (one.order is None or torch.equal(one.order, other.order))
        assert one.side == other.side and one.lengths == other.lengths and one.segments is other.segments is None
        assert one.ids.dtype == other.ids.dtype and one.starts.dtype == other.starts.dtype
        assert torch.equal(one.ids, other.ids) and torch.equal(one.starts, other.starts)
        assert (one.silent is None) == (other.silent is None) and (one.silent is None or torch.equal(one.silent, other.silent))


def drop_nothing(model: nn.Module) -> None:
    """No dropout, and no noise at an embedding's gate."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, EmbeddingMixture):
            module.noise = None
    set_attention_dropout(model, 0.0)
