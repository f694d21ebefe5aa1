"""Sparse vectors of any number of texts that look like SPLADE's, from real texts: their word pieces, pieces of texts that share a rare one.

    python -m tests.benchmarks.sparse_vectors TOKENIZER QUERIES CORPUS… --documents 100000 --output FOLDER

A document is a real passage with a part of its pieces left out, pieces of two passages near it in its file (files go by topic), and a few
of all pieces by their frequency: about 120 terms. A query is a real one with pieces of a passage that holds its rarest piece: about 25
terms, or --query-terms. A weight is log(1 + x), x log-normal around the term's rarity, smaller for what was added. Written as
`moeir encode` writes a sparse expert, with `queries/` beside `documents/`. Documents are the same whatever how many are asked for.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from moeir.representations.base import Writer
from moeir.representations.sparse import Sparse

AT_ONCE = 20_000
OWN, NEAR, STRAY = 1.0, 0.45, 0.25  # how strong a term is that the text holds, that a near text holds, and another


def lines(path: Path) -> Iterator[str]:
    """The texts of a file of JSON lines, packed or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield f"{record.get('title') or ''} {record.get('text') or record.get('contents') or ''}"


def pieces(tokenizer: Tokenizer, paths: list[Path]) -> list[np.ndarray]:
    """The distinct word pieces of every text, those of the first 180."""
    encoded = tokenizer.encode_batch([text for path in paths for text in lines(path)], add_special_tokens=False)
    return [np.unique(np.array(one.ids[:180], dtype=np.int64)) for one in encoded]


class Maker:
    """Draws documents and queries from the pieces of real texts."""

    def __init__(self, passages: list[np.ndarray], vocabulary: int) -> None:
        self.passages, self.vocabulary = [one for one in passages if len(one) > 8], vocabulary
        counts = np.bincount(np.concatenate(self.passages), minlength=vocabulary)
        self.rarity = np.log1p(len(self.passages) / (counts + 1.0)) / 3.0
        self.stray = np.cumsum(counts**0.75) / np.sum(counts**0.75)
        self.holders: dict[int, list[int]] = {}
        for place, terms in enumerate(self.passages):
            for term in terms[counts[terms] < 2000]:
                self.holders.setdefault(int(term), []).append(place)

    def weights(self, terms: np.ndarray, strength: np.ndarray, dice: np.random.Generator) -> np.ndarray:
        """float32 [n] of terms [n], each with how strong it is there [n]."""
        drawn = np.exp(dice.normal(0.0, 0.8, len(terms))) * self.rarity[terms] * strength * 1.2
        return np.log1p(drawn).astype(np.float32)

    def document(self, dice: np.random.Generator, most: int = 170) -> tuple[np.ndarray, np.ndarray]:
        """Terms and strengths of one document."""
        place = int(dice.integers(len(self.passages)))
        own = self.passages[place]
        own = own[dice.random(len(own)) < 0.85]
        near = [self.passages[(place + int(step)) % len(self.passages)] for step in dice.integers(1, 6, 2)]
        near = [one[dice.random(len(one)) < 0.45] for one in near]
        stray = np.searchsorted(self.stray, dice.random(18))
        return self._joined(own, np.concatenate(near), stray, most)

    def query(self, own: np.ndarray, count: int, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Terms and strengths of one query with `count` terms at most."""
        held = [term for term in own.tolist() if term in self.holders]
        near = np.empty(0, np.int64)
        if held:
            places = self.holders[min(held, key=lambda term: len(self.holders[term]))]
            near = dice.permutation(self.passages[places[int(dice.integers(len(places)))]])[: max(count - len(own), 0)]
        stray = np.searchsorted(self.stray, dice.random(max(count - len(own) - len(near), 0)))
        return self._joined(own, near, stray, count)

    def _joined(self, own: np.ndarray, near: np.ndarray, stray: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        terms, first = np.unique(np.concatenate([own, near, stray]), return_index=True)
        strength = np.where(first < len(own), OWN, np.where(first < len(own) + len(near), NEAR, STRAY))
        kept = np.sort(np.argsort(-strength, kind="stable")[:most])
        return terms[kept], strength[kept]

    def packed(self, drawn: list[tuple[np.ndarray, np.ndarray]], dice: np.random.Generator) -> Sparse:
        """Texts as a representation."""
        terms, strengths = (np.concatenate(column) for column in zip(*drawn, strict=True))
        starts = np.concatenate([[0], np.cumsum([len(own) for own, _ in drawn])])
        weights = self.weights(terms, strengths, dice)
        return Sparse(torch.from_numpy(starts), torch.from_numpy(terms), torch.from_numpy(weights), self.vocabulary)


def main() -> None:
    """Write documents and queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("queries", type=Path)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--asked", type=int, default=1000, help="queries")
    parser.add_argument("--query-terms", type=int, default=25)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.tokenizer / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    maker = Maker(pieces(tokenizer, given.corpora), tokenizer.get_vocab_size())
    writer = Writer(given.output / "documents")
    for number, first in enumerate(range(0, given.documents, AT_ONCE)):
        dice = np.random.default_rng([1, number])
        drawn = [maker.document(dice) for _ in range(min(AT_ONCE, given.documents - first))]
        writer.append(maker.packed(drawn, np.random.default_rng([2, number])))
    writer.close()
    dice = np.random.default_rng(3)
    asked = [one for one in pieces(tokenizer, [given.queries]) if len(one)][: given.asked]
    maker.packed([maker.query(own, given.query_terms, dice) for own in asked], dice).save(given.output / "queries")


if __name__ == "__main__":
    main()
