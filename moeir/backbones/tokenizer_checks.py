"""Refusals of tokenizers that would fail, crawl or exhaust memory on texts: their parts, their vocabulary, a first encoding."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from moeir.backbones.json_fields import MAX_VOCABULARY
from moeir.errors import ArtifactError, MoeirError

MAX_REPLACEMENTS = 1000  # of a tokenizer, and the characters that they may make of one
MAX_WORD_CHARACTERS = 1000  # of WordPiece, whose time grows with their cube
PROBE = "An owl, 42 mice! \u00e9\u732b\u0e01\U0001f989\ufffd"


@contextmanager
def refuse_failures(folder: Path, action: str) -> Iterator[None]:
    """ArtifactError for what the tokenizers library raises: bare Exceptions for a broken file or text, and panics, which are none."""
    try:
        yield
    except (MoeirError, OSError, MemoryError):
        raise
    except BaseException as problem:
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise ArtifactError(f"{folder}: its tokenizer cannot {action}: {reason}") from None


def check_tokenizer(tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """The ids of a tokenizer's tokens; ArtifactError for one with a part or a vocabulary that texts cannot be encoded with."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        if part is not None:
            _check_part(json.loads(part.__getstate__()), folder)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    tokens = _check_ids(vocabulary, folder)
    _check_model(tokenizer.model, vocabulary, folder)
    with refuse_failures(folder, "encode a text"):
        encodings = [*tokenizer.encode_batch_fast(["", PROBE]), tokenizer.encode("a", "a")]
    if unknown := [number for encoding in encodings for number in encoding.ids if number not in tokens]:
        raise ArtifactError(f"{folder}: its tokenizer puts the id {unknown[0]} into a text, which no token of its vocabulary has")
    return vocabulary


def _check_part(state: Any, folder: Path) -> None:
    objects = list(_iterate_objects(state))
    for part in objects:
        if "" in (part.get("pattern") or {}).values():
            raise ArtifactError(f"{folder}: its tokenizer has a {part['type']} with an empty pattern; expected one that matches some text")
        if part.get("type") == "FixedLength" and part["length"] < 1:
            raise ArtifactError(f"{folder}: its tokenizer splits texts into pieces of {part['length']} characters; expected at least 1")
    replacements = [part for part in objects if part.get("type") == "Replace"]
    if len(replacements) > MAX_REPLACEMENTS or _longest_replacement(replacements) > MAX_REPLACEMENTS:
        raise ArtifactError(f"{folder}: the replacements of its tokenizer make texts more than {MAX_REPLACEMENTS:,} times as long, or slow")


def _longest_replacement(replacements: Sequence[Mapping[str, Any]]) -> int:
    """At most how many characters replacements, one after the other, make of one that they match."""
    lengths: list[tuple[set[str] | None, int]] = []  # of the later ones: the characters they match (None: of a regular expression)
    for part in reversed(replacements):
        content, literal = part["content"], part["pattern"].get("String")
        later = (length for characters, length in lengths if characters is None or characters & set(content))
        matched = 1 if literal is None else len(literal)
        lengths.append((None if literal is None else set(literal), -(-len(content) // matched) * max(later, default=1)))
    return max((length for _, length in lengths), default=1)


def _iterate_objects(state: Any) -> Iterator[Mapping[str, Any]]:
    """A part of a tokenizer and the parts in it."""
    if isinstance(state, dict):
        yield state
    for child in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from _iterate_objects(child)


def _check_ids(vocabulary: Mapping[str, int], folder: Path) -> dict[int, str]:
    """The tokens by id."""
    if not vocabulary:
        raise ArtifactError(f"{folder}: its tokenizer has an empty vocabulary")
    tokens = dict(zip(vocabulary.values(), vocabulary, strict=True))
    if len(tokens) < len(vocabulary):
        first = next(token for token, number in vocabulary.items() if tokens[number] != token)
        pair = f"{first!r} and {tokens[vocabulary[first]]!r}"
        raise ArtifactError(f"{folder}: its tokenizer has the id {vocabulary[first]} for both {pair}; expected an id for each token")
    if (highest := max(tokens)) >= MAX_VOCABULARY:
        raise ArtifactError(f"{folder}: its tokenizer has the id {highest} for {tokens[highest]!r}; expected ids below {MAX_VOCABULARY:,}")
    return tokens


def _check_model(model: models.Model, vocabulary: Mapping[str, int], folder: Path) -> None:
    if isinstance(model, models.WordPiece) and not 1 <= model.max_input_chars_per_word <= MAX_WORD_CHARACTERS:
        limit = f"max_input_chars_per_word is {model.max_input_chars_per_word}"
        raise ArtifactError(f"{folder}: its tokenizer's {limit}; expected 1 to {MAX_WORD_CHARACTERS:,}")
    if isinstance(model, models.BPE) and model.dropout:
        raise ArtifactError(f"{folder}: its tokenizer encodes a text otherwise each time, with dropout {model.dropout:g}; expected none")
    unknown = None if isinstance(model, models.Unigram) else model.unk_token
    if unknown is not None and unknown not in vocabulary:
        raise ArtifactError(f"{folder}: its tokenizer's vocabulary has no {unknown}, the token of unknown text")
