"""Whole-word masking: 80 % of masked tokens become [MASK], 10 % a random token but a special one, 10 % stay unchanged. (The released
code of CoT-MAE draws special tokens too, and masks nothing in a text none of whose words fits its budget, where here the shortest is.)

Masking is the last step of preparing a text: it is truncated before, so masks and tokens always align.
"""

import unicodedata
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import UsageError
from moeir.kernels.splitmix import HALF_BITS, Int64Array, UInt64Array, randint_low, random_bits

BoolArray = npt.NDArray[np.bool_]
MASK_THRESHOLD, RANDOM_THRESHOLD = int(0.8 * 2**32), int(0.9 * 2**32)
UNSPACED_SCRIPTS = (("\u2e80", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))  # written without spaces


@dataclass(frozen=True)
class WordVocabulary:
    """Word boundaries of a vocabulary: tokens that `starts_word` [V], tokens that are a word alone `is_word` [V], tokens never masked
    `is_special` [V]; `ordinary_ids` [n] of all others, `mask_id` of [MASK]."""

    starts_word: BoolArray
    is_word: BoolArray
    is_special: BoolArray
    ordinary_ids: Int64Array
    mask_id: int

    @classmethod
    def from_tokenizer(cls, tokenizer: TextTokenizer) -> Self:
        """From a tokenizer: word pieces mark the continuation of a word (##), other models a preceding space (Ġ, ▁).

        Unmarked punctuation and ideographs are words of their own; letters after letters continue a word.
        """
        if tokenizer.special_tokens.mask is None:
            raise UsageError(f"{tokenizer.folder}: its vocabulary has no [MASK], which pre-training needs")
        if (tokenizer.special_tokens.leading, tokenizer.special_tokens.trailing) != (1, 1):
            raise UsageError(f"{tokenizer.folder}: its tokenizer does not add a first and a last token to a text, which pre-training needs")
        pieces = list(tokenizer.vocabulary_pieces())
        special_ids = list(tokenizer.special_ids)
        ordinary_ids = np.array(sorted(number for number, _, _ in pieces), dtype=np.int64)
        starts_word, is_word, is_special = np.zeros((3, 1 + max(*special_ids, int(ordinary_ids[-1]))), dtype=np.bool_)
        for number, letters, spacing in pieces:
            starts_word[number] = spacing == "apart"
            is_word[number] = spacing != "joined" and _is_single_word(letters)
        is_word[special_ids] = is_special[special_ids] = True
        return cls(starts_word, is_word, is_special, ordinary_ids, tokenizer.special_tokens.mask)

    def find_word_starts(self, ids: Int64Array, starts: Int64Array) -> BoolArray:
        """[T] whether a token starts a word, for texts ids[starts[b]:starts[b+1]]."""
        is_start = self.starts_word[ids] | self.is_word[ids]
        is_start[1:] |= self.is_word[ids[:-1]]
        is_start[starts[:-1][np.diff(starts) > 0]] = True
        return is_start


def _is_single_word(letters: str) -> bool:
    """Whether a token is always a word alone: punctuation, a symbol or an ideograph, but not a part of a character."""
    if not letters or "\ufffd" in letters:
        return False
    first = letters[0]
    return unicodedata.category(first)[0] in "PSZC" or any(low <= first <= high for low, high in UNSPACED_SCRIPTS)


def mask_tokens(ids: Int64Array, starts: Int64Array, keys: UInt64Array, rate: float, words: WordVocabulary) -> tuple[Int64Array, BoolArray]:
    """The masked ids [T], and which tokens are to be predicted [T].

    ids [T] of the texts end to end without special tokens, starts [B+1], random keys [B]. Each text has a budget of
    max(1, round(rate · length)) tokens; its words are visited in random order and each that fits into the remaining budget is chosen
    whole; if none fits, the shortest is. Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay. Devlin et al. 2019.
    """
    sizes = np.diff(starts)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(len(ids)) - starts[owners]
    first = np.flatnonzero(words.find_word_starts(ids, starts))  # [W] the words, by their first tokens
    lengths = np.diff(np.append(first, len(ids)))
    candidates = np.flatnonzero(~words.is_special[ids[first]])
    budgets = np.maximum(1, np.rint(rate * sizes)).astype(np.int64)
    order = random_bits(keys[owners[first[candidates]]], 2 * positions[first[candidates]])
    chosen_words = np.zeros(len(first), dtype=np.bool_)
    chosen_words[candidates] = _choose_words(lengths[candidates], owners[first[candidates]], order, budgets)
    is_masked = np.repeat(chosen_words, lengths)
    masked_ids = ids.copy()
    rows = np.flatnonzero(is_masked)
    masked_ids[rows] = _sample_replacements(ids[rows], random_bits(keys[owners[rows]], 2 * positions[rows] + 1), words)
    return masked_ids, is_masked


def _choose_words(lengths: Int64Array, owners: Int64Array, order: UInt64Array, budgets: Int64Array) -> BoolArray:
    """[W] which words are masked: in the order of their bits, each that fits into the remaining budget of its text.

    Texts are processed in parallel, the words of a text one after the other.
    """
    counts = np.bincount(owners, minlength=len(budgets))
    sorted_words = np.lexsort((order, owners))
    ranks = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    grid = np.full((counts.max(initial=0), len(budgets)), np.iinfo(np.int64).max)  # [most words, B]
    fits = np.zeros(grid.shape, dtype=np.bool_)
    grid[ranks, owners[sorted_words]] = lengths[sorted_words]
    remaining = budgets.copy()
    for rank, row in enumerate(grid):
        fits[rank] = row <= remaining
        remaining -= np.where(fits[rank], row, 0)
    untouched = np.flatnonzero((remaining == budgets) & (counts > 0))
    if len(untouched):
        fits[grid[:, untouched].argmin(axis=0), untouched] = True
    result = np.zeros(len(owners), dtype=np.bool_)
    result[sorted_words] = fits[ranks, owners[sorted_words]]
    return result


def _sample_replacements(original_ids: Int64Array, random_values: UInt64Array, words: WordVocabulary) -> Int64Array:
    """[m] the replacement of each masked token."""
    fraction = (random_values >> HALF_BITS).astype(np.int64)
    random_ids = words.ordinary_ids[randint_low(random_values, len(words.ordinary_ids))]
    return np.select(
        [fraction < MASK_THRESHOLD, fraction < RANDOM_THRESHOLD], [np.full_like(original_ids, words.mask_id), random_ids], original_ids
    )
