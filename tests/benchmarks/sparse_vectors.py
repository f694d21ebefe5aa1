"""Synthetic SPLADE-like sparse vectors of any number, from the word pieces of real texts.

    python -m tests.benchmarks.sparse_vectors TOKENIZER QUERIES CORPUS… --documents 100000 --output FOLDER

A document is a real passage without some of its pieces, plus pieces of two passages near it in its file (files are sorted by topic), plus a
few pieces sampled by frequency: about 120 terms. A query is a real one plus pieces of a passage with its rarest piece: about 25 terms, or
--query-terms. A weight is log(1 + x), x log-normal around the term's rarity, smaller for added terms. Written as `moeir encode` writes a
sparse expert, with `queries/` beside `documents/`. The first documents do not depend on --documents.
"""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from moeir.records import texts
from moeir.representations.base import RepresentationWriter
from moeir.representations.sparse import Sparse
from tests.benchmarks.rounds import make_parser

CHUNK_TEXTS = 20_000
OWN, NEAR, STRAY = 1.0, 0.45, 0.25  # strength of a term of the text, of a near text, and of another


def word_pieces(tokenizer: Tokenizer, paths: list[Path]) -> list[np.ndarray]:
    """The distinct word pieces among the first 180 of every text."""
    contents = [text.content for path in paths for text in texts.read_texts(path)]
    encoded = tokenizer.encode_batch(contents, add_special_tokens=False)
    return [np.unique(np.array(one.ids[:180], dtype=np.int64)) for one in encoded]


class TextSampler:
    """Samples documents and queries from the pieces of real texts."""

    def __init__(self, passages: list[np.ndarray], vocabulary: int) -> None:
        self.passages, self.vocabulary = [one for one in passages if len(one) > 8], vocabulary
        counts = np.bincount(np.concatenate(self.passages), minlength=vocabulary)
        self.rarity = np.log1p(len(self.passages) / (counts + 1.0)) / 3.0
        self.stray = np.cumsum(counts**0.75) / np.sum(counts**0.75)
        self.holders: dict[int, list[int]] = {}
        for row, terms in enumerate(self.passages):
            for term in terms[counts[terms] < 2000]:
                self.holders.setdefault(int(term), []).append(row)

    def weights(self, terms: np.ndarray, strength: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """float32 [n] weights of terms [n] with strengths [n]."""
        raw_weights = np.exp(rng.normal(0.0, 0.8, len(terms))) * self.rarity[terms] * strength * 1.2
        return np.log1p(raw_weights).astype(np.float32)

    def document(self, rng: np.random.Generator, most: int = 170) -> tuple[np.ndarray, np.ndarray]:
        """Terms and strengths of one document."""
        row = int(rng.integers(len(self.passages)))
        own = self.passages[row]
        own = own[rng.random(len(own)) < 0.85]
        near = [self.passages[(row + int(step)) % len(self.passages)] for step in rng.integers(1, 6, 2)]
        near = [one[rng.random(len(one)) < 0.45] for one in near]
        stray = np.searchsorted(self.stray, rng.random(18))
        return self._join(own, np.concatenate(near), stray, most)

    def query(self, own: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Terms and strengths of one query with `count` terms at most."""
        rare_terms = [term for term in own.tolist() if term in self.holders]
        near = np.empty(0, np.int64)
        if rare_terms:
            holder_rows = self.holders[min(rare_terms, key=lambda term: len(self.holders[term]))]
            near = rng.permutation(self.passages[holder_rows[int(rng.integers(len(holder_rows)))]])[: max(count - len(own), 0)]
        stray = np.searchsorted(self.stray, rng.random(max(count - len(own) - len(near), 0)))
        return self._join(own, near, stray, count)

    def _join(self, own: np.ndarray, near: np.ndarray, stray: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        terms, first = np.unique(np.concatenate([own, near, stray]), return_index=True)
        strength = np.where(first < len(own), OWN, np.where(first < len(own) + len(near), NEAR, STRAY))
        strongest = np.sort(np.argsort(-strength, kind="stable")[:most])
        return terms[strongest], strength[strongest]

    def pack(self, drawn_texts: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> Sparse:
        """Texts as a Sparse representation."""
        terms, strengths = (np.concatenate(column) for column in zip(*drawn_texts, strict=True))
        starts = np.concatenate([[0], np.cumsum([len(own) for own, _ in drawn_texts])])
        weights = self.weights(terms, strengths, rng)
        return Sparse(torch.from_numpy(starts), torch.from_numpy(terms), torch.from_numpy(weights), self.vocabulary)


def main() -> None:
    """Write documents and queries."""
    parser = make_parser(__doc__, ("tokenizer", "queries"), documents=100_000, asked=1000, query_terms=25)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    maker = TextSampler(word_pieces(tokenizer, arguments.corpora), tokenizer.get_vocab_size())
    writer = RepresentationWriter(arguments.output / "documents")
    for number, first in enumerate(range(0, arguments.documents, CHUNK_TEXTS)):
        rng = np.random.default_rng([1, number])
        documents = [maker.document(rng) for _ in range(min(CHUNK_TEXTS, arguments.documents - first))]
        writer.append(maker.pack(documents, np.random.default_rng([2, number])))
    writer.close()
    rng = np.random.default_rng(3)
    query_terms = [one for one in word_pieces(tokenizer, [arguments.queries]) if len(one)][: arguments.asked]
    maker.pack([maker.query(own, arguments.query_terms, rng) for own in query_terms], rng).save(arguments.output / "queries")


if __name__ == "__main__":
    main()
