"""Splits of collections, decided by a seed and not by the order of lines."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from moeir.errors import DataError, UsageError
from moeir.formats.base import Collection

TRAIN = "train"
_SPLIT_NAME = re.compile(r"\w[-.\w]*")  # FOLDER#SPLIT and qrels/SPLIT.tsv can name it


def _digest(text: str, seed: int) -> bytes:
    """Random bytes for a text."""
    return hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()


def parse_shares(words: Iterable[str]) -> dict[str, float]:
    """The share of each split, from NAME=SHARE and commas.

    >>> parse_shares(["dev=0.1,test=0.2"])
    {'dev': 0.1, 'test': 0.2}
    """
    shares: dict[str, float] = {}
    for word in (part for text in words for part in text.split(",")):
        name, _, number = word.partition("=")
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1 or not _SPLIT_NAME.fullmatch(name) or name.casefold() in map(str.casefold, shares):
            expected = "expected NAME=SHARE, a name of letters, digits, - and _, a share above 0 and up to 1, each name once"
            raise UsageError(f"--split {word}: {expected}, as in dev=0.1,test=0.2")
        shares[name] = share
    total = sum(shares.values())
    if total > 1 + 1e-9:
        raise UsageError(f"--split: the shares add up to {total:g}; expected 1 or less")
    return shares


def assign_splits(texts: Mapping[str, str], shares: Mapping[str, float], rest: str, seed: int) -> dict[str, str]:
    """The split of each query, given the texts by id; queries with equal texts (but for case and white space) are in the same one.

    >>> assign_splits({"1": "who?", "2": "why?", "3": "Who?", "4": "how?"}, {"dev": 0.5}, "train", seed=1)
    {'2': 'dev', '1': 'train', '3': 'train', '4': 'dev'}
    """
    if rest in shares and (total := sum(shares.values())) < 1 - 1e-9:
        raise UsageError(f"--split: the shares add up to {total:g}; expected 1, as there is a share of {rest}, which is the rest")
    groups: dict[str, list[str]] = {}
    for query in sorted(texts):
        groups.setdefault(" ".join(texts[query].split()).casefold(), []).append(query)
    sizes = {split: round(share * len(texts)) for split, share in shares.items()}
    assigned, counts = dict[str, str](), Counter[str]()
    for text in sorted(groups, key=lambda text: _digest(text, seed)):
        size = len(groups[text])
        split = next((name for name in sizes if counts[name] + size <= sizes[name]), rest)
        counts[split] += size
        assigned |= dict.fromkeys(groups[text], split)
    if texts and (empty := next((split for split in shares if not counts[split]), None)):
        problem = f"none of {len(texts):,} queries is in it, as those with equal texts stay together; choose a larger share"
        raise UsageError(f"--split {empty}={shares[empty]:g}: {problem}")
    return assigned


def split_collection(collection: Collection, shares: Mapping[str, float], seed: int) -> Collection:
    """A collection whose split `train`, or only one, is divided; what is not in a new split stays in it."""
    names = list(collection.qrels)
    if not names or (len(names) > 1 and TRAIN not in names):
        raise UsageError(f"--split: divides the split {TRAIN!r} or the only one; this collection has {', '.join(names) or 'none'}")
    divided = TRAIN if TRAIN in names else names[0]
    if taken := next((name for name in shares if name in names and name != divided), None):
        raise UsageError(f"--split {taken}: the collection has this split already; choose another name")
    queries = list(collection.queries)
    grades, texts = collection.qrels[divided], {text.id: text.content for text in queries}
    if missing := next((query for query in grades if query not in texts), None):
        raise DataError(f"query {missing!r} is judged in {divided} and has no text")
    assigned = assign_splits({query: texts[query] for query in grades}, shares, divided, seed)
    parts = {name: {query: grades[query] for query in grades if assigned[query] == name} for name in dict.fromkeys((divided, *shares))}
    qrels = {name: part for name, part in (dict(collection.qrels) | parts).items() if part}
    return replace(collection, queries=queries, qrels=qrels)
