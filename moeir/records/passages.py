"""Documents cut into passages `ID#0`, `ID#1`, …, and ids and runs of passages collapsed to those of their documents."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from moeir.errors import DataError
from moeir.records.ids import ByteStrings, Ids, as_byte_strings, dictionary_encode
from moeir.records.runs import Codes, Run
from moeir.records.sentences import find_sentence_starts
from moeir.records.texts import Text, split_chunks

DELIMITER = "#"  # of Anserini and MS MARCO
TEXTS_PER_BATCH = 64
TokenFinder = Callable[[Sequence[str]], list[list[int]]]
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"  # Thai … Khmer, Chinese, Japanese
_WORD, _GAP = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+"), re.compile(rf"[\s{_UNSPACED}]")


def find_words(contents: Sequence[str]) -> list[list[int]]:
    """The offset of each word of each text: of what stands between white space, or of a character of a script without spaces.

    >>> find_words(["An owl,  a 猫头鹰."])
    [[0, 3, 9, 11, 12, 13, 14]]
    """
    return [[match.start() for match in _WORD.finditer(content)] for content in contents]


def cut_documents(
    documents: Iterable[Text], max_tokens: int, stride: int | None = None, find_tokens: TokenFinder = find_words, prefix: str = ""
) -> Iterator[Text]:
    """The passages of documents, each with the other fields of its document and at most `max_tokens` tokens of prefix, title and text.

    `find_tokens` gives the offset of each token of each text. With a `stride`, a full passage shares with the next one its tokens beyond
    the first `stride`. DataError for an id with a `#`, or a title that leaves no room.

    >>> [passage.text for passage in cut_documents([Text("a", "An owl hunts. It eats. It sleeps now.")], 5, 3)]
    ['An owl hunts. It eats.', 'It eats. It sleeps now.']
    """
    for chunk in split_chunks(documents, TEXTS_PER_BATCH):
        heads = [f"{prefix}{document.title} " if document.title else prefix for document in chunk]
        starts_by_row = find_tokens([head + document.text for head, document in zip(heads, chunk, strict=True)])
        for document, head, starts in zip(chunk, heads, starts_by_row, strict=True):
            if DELIMITER in document.id:
                reason = f"the id has a {DELIMITER!r}, which divides a document's id from a passage's number"
                raise DataError(f"text {document.id!r}: {reason}; cut documents, not passages, or rename it")
            offsets = [start - len(head) for start in starts if start >= len(head)] or [0]
            room, passages = max_tokens - bisect_left(starts, len(head)), list[Text]()
            while not passages or (excess := max(map(len, find_tokens([prefix + one.content for one in passages]))) - max_tokens) > 0:
                room -= excess if passages else 0  # a tokenizer may read the beginning of a text otherwise
                if room < 1:
                    raise DataError(f"text {document.id!r}: its title leaves no room for text; raise --passages, or shorten the title")
                ranges = _split_text(document.text, offsets, room, 0 if stride is None else max(0, room - stride))
                numbered = enumerate(document.text[begin:end].strip() for begin, end in ranges)
                passages = [replace(document, id=f"{document.id}{DELIMITER}{number}", text=text) for number, text in numbered]
            yield from passages


def _split_text(text: str, offsets: Sequence[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Where passages of at most `room` tokens begin and end, for the `offsets` of all tokens.

    A passage ends with the last sentence that fits; if it has to end within one, then between words if there are several. It begins with
    sentences, or words of the one that was cut, of at most `overlap` tokens of the one before; fewer if the next sentence fits then only.
    """
    sentences = [*sorted({bisect_left(offsets, start) for start in find_sentence_starts(text)} - {len(offsets)}), len(offsets)]
    begin, end, ranges = 0, 0, []

    def starts_word(token: int) -> bool:
        return _GAP.search(text[max(0, offsets[token] - 1) : offsets[token] + 1]) is not None

    while end < len(offsets):
        limit = min(begin + room, len(offsets))
        last_sentence = sentences[bisect_right(sentences, limit) - 1]
        end = last_sentence if last_sentence > end else next(filter(starts_word, range(limit, end, -1)), limit)
        ranges.append((begin, end))
        next_sentence = sentences[min(bisect_right(sentences, end), len(sentences) - 1)]
        begin = max(begin + 1, end - overlap, next_sentence - room if next_sentence - last_sentence <= room else 0)
        sentence = sentences[bisect_left(sentences, begin)]
        begin = sentence if sentence <= end else next(filter(starts_word, range(begin, end)), end)
    bounds = [0, *offsets[1:], len(text)]
    return [(bounds[begin], bounds[end]) for begin, end in ranges]


def collapse_ids(passages: ByteStrings, where: str) -> tuple[Ids, Codes]:
    """The ids of documents, ascending, and the index among them of each passage's document [N]; DataError, at `where`, for any other id."""
    documents = [passage.rpartition(DELIMITER.encode())[0] for passage in passages.tolist()]
    if b"" in documents:
        found = passages[documents.index(b"")].decode()
        expected = f"ID{DELIMITER}NUMBER, as moeir convert --passages writes them"
        raise DataError(f"{where}: {found!r} is no passage; expected {expected}; leave --collapse out if these are documents")
    return dictionary_encode(as_byte_strings(documents))


def collapse_run(run: Run, where: str = "run") -> Run:
    """A run of passages as one of their documents, each with the score of its best passage: MaxP of Dai and Callan 2019.

    >>> collapse_run(Run.from_hits({"q": {"a#0": 1.0, "b#0": 2.0, "a#7": 3.0}})).hits("q")
    [('a', 3.0), ('b', 2.0)]
    """
    if not len(run.scores):
        return run
    ids, codes = collapse_ids(Ids.from_strings(run.document_ids).byte_strings, where)
    owners = np.repeat(np.arange(len(run)), np.diff(run.starts))
    _, first = np.unique(owners * np.int64(len(ids)) + codes[run.documents], return_index=True)
    return Run.from_columns(run.queries, owners[first], ids, codes[run.documents[first]], run.scores[first], run.tag)
