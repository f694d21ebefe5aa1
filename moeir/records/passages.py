"""Documents cut into passages `ID#0`, `ID#1`, …, and ids and runs of passages as those of their documents."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from moeir.errors import DataError
from moeir.records.ids import ByteStrings, Ids, as_byte_strings, dictionary_encode
from moeir.records.runs import Codes, Run
from moeir.records.sentences import find_sentence_starts
from moeir.records.texts import Text

TokenFinder = Callable[[Sequence[str]], list[list[int]]]  # the offset of each token of each text
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"  # Thai … Khmer, Chinese, Japanese
_WORD, _GAP = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+"), re.compile(rf"[\s{_UNSPACED}]")


def find_words(texts: Sequence[str]) -> list[list[int]]:
    """The offset of each word of each text: what stands between white space, or a character of a script without spaces."""
    return [[match.start() for match in _WORD.finditer(text)] for text in texts]


def cut_documents(
    documents: Iterable[Text], max_tokens: int, stride: int | None = None, find_tokens: TokenFinder = find_words, prefix: str = ""
) -> Iterator[Text]:
    """Passages `ID#0`, `ID#1`, … of at most `max_tokens` tokens of prefix, title and text, with the other fields of their documents.

    With a `stride`, a full passage shares with the next one its tokens of text beyond the first `stride`, as far as sentences are whole.
    """
    for document in documents:
        if "#" in document.id:
            raise DataError(f"text {document.id!r}: the id has a '#', as those of passages; cut documents, whose ids have none")
        head = f"{prefix}{document.title} " if document.title else prefix
        [starts] = find_tokens([head + document.text])
        first = bisect_left(starts, len(head))
        offsets = [start - len(head) for start in starts[first:]] or [0]
        room, excess, passages = max_tokens - first, 1, list[Text]()
        while excess > 0:  # again where the tokenizer reads the beginning of a text otherwise
            if room < 1:
                raise DataError(f"text {document.id!r}: its title leaves no room for text; raise --passages, or shorten the title")
            parts = enumerate(_split_text(document.text, offsets, room, room if stride is None else stride))
            passages = [replace(document, id=f"{document.id}#{number}", text=part.strip()) for number, part in parts]
            excess = max(map(len, find_tokens([prefix + passage.content for passage in passages]))) - max_tokens
            room -= excess
        yield from passages


def _split_text(text: str, offsets: Sequence[int], room: int, stride: int) -> Iterator[str]:
    """Parts of at most `room` of the tokens at `offsets`: whole sentences, or words of a sentence, or tokens of a word, that has more."""
    cuts = [*sorted({0, *(bisect_left(offsets, start) for start in find_sentence_starts(text))} - {len(offsets)}), len(offsets)]
    for is_cut in (lambda token: _GAP.search(text[offsets[token] - 1 : offsets[token] + 1]), lambda token: True):
        finer = [filter(is_cut, range(begin + 1, end)) if end - begin > room else () for begin, end in pairwise(cuts)]
        cuts = [token for cut, others in zip(cuts, [*finer, ()], strict=True) for token in (cut, *others)]
    bounds, first, last = [0, *offsets[1:], len(text)], 0, 0
    while last < len(cuts) - 1:
        last = bisect_right(cuts, cuts[first] + room) - 1
        yield text[bounds[cuts[first]] : bounds[cuts[last]]]
        first = bisect_left(cuts, max(cuts[last] - max(0, room - stride), cuts[min(last + 1, len(cuts) - 1)] - room))


def collapse_ids(passages: ByteStrings, where: str) -> tuple[Ids, Codes]:
    """Ids of documents, ascending, and the index among them of each passage's document [N]; DataError, at `where`, for another id."""
    documents = [passage.rpartition(b"#")[0] for passage in passages.tolist()]
    if b"" in documents:
        name = passages[documents.index(b"")].decode()
        raise DataError(
            f"{where}: {name!r} is no passage; expected ID#NUMBER, as of convert --passages; leave --collapse out for documents"
        )
    return dictionary_encode(as_byte_strings(documents))


def find_passage_of(ids: Collection[str], documents: Collection[str]) -> str | None:
    """The first of `ids` that is a passage `ID#NUMBER` of one of `documents`, of which `ids` has none itself; else None.

    >>> find_passage_of(["bat#0", "owl#1"], {"owl"})
    'owl#1'
    """
    if any(name in documents for name in ids):
        return None
    return next((name for name in ids if name.rpartition("#")[0] in documents and name.rpartition("#")[2].isdecimal()), None)


def collapse_run(run: Run, where: str = "run") -> Run:
    """A run of passages as one of their documents, each with the score of its best passage: MaxP of Dai and Callan 2019. A run of documents
    alone, without '#' in its ids, stays as it is.

    A list that had K passages may lack documents, however few it has now: its depth is their number; that of others is one more."""
    if not any("#" in name for name in run.document_ids):
        return run
    ids, codes = collapse_ids(Ids.from_strings(run.document_ids).byte_strings, where)
    owners, documents = np.repeat(np.arange(len(run)), np.diff(run.starts)), codes[run.documents]
    _, first = np.unique(owners * np.int64(len(ids)) + documents, return_index=True)
    depth = np.bincount(owners[first], minlength=len(run)) + (np.diff(run.starts) < run.list_depth)
    return Run.from_columns(run.queries, owners[first], ids, documents[first], run.scores[first], run.tag, depth=depth)
