"""Rule-based sentence splitting: a full stop ends a sentence unless it belongs to an abbreviation, an initial or a number."""

import re
from itertools import pairwise

_OPENING, _CLOSING = "\"'“‘«([{", "\"'”’»)\\]}"
_BOUNDARY = re.compile(
    rf"(?<![.!?…])(?P<mark>[.!?…؟۔।॥]++)[{_CLOSING}]*+(?=\s)"  # a mark and closing quotes or brackets, before white space
    r"|[。！？｡]++[」』”’）】》]*+"  # CJK: no white space required
    r"|(?P<blank>\n)(?:[^\S\n]*+\n)++"  # empty lines
)
_NEXT_WORD = re.compile(rf"\s*[{re.escape(_OPENING)}]*(\w*)")
_ACRONYM = re.compile(r"(?:\w\.)+\w")
_MAX_WORD_LENGTH = 24


def _word_set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Abbreviations whose full stop never ends a sentence.
_ABBREVIATIONS = _word_set(
    "mr mrs ms dr prof rev hon gen col capt lt sgt maj cmdr adm gov sen rep pres st mt ft messrs mme mlle vs cf viz fig figs eq eqs",
    "ref refs e.g i.e ca approx resp univ dept est ave blvd jan feb mar apr jun jul aug sep sept oct nov dec",
)
# Abbreviations only before a number.
_NUMBER_ABBREVIATIONS = _word_set("no nos p pp vol vols ch sec art par para cap op sect")
# Abbreviations that end a sentence only before a word that usually begins one.
_FINAL_ABBREVIATIONS = _word_set("etc inc ltd co corp jr sr bros al a.m p.m ph.d")
_SENTENCE_OPENERS = _word_set(
    "a an and as at but by for from he her his how however i if in it its many most my no on one our she since so some such that the their",
    "then there these they this those though thus to we what when where while who why with you your",
)


def find_sentence_starts(text: str) -> list[int]:
    """Character offsets at which sentences begin, 0 first; white space between two belongs to the later one.

    >>> breaks('Dr. Owl slept. "Why?" he asked. It was 3.5 km.')
    [0, 14, 31]
    """
    begins, last = [0], len(text.rstrip())
    for match in _BOUNDARY.finditer(text):
        boundary = match.start() if match["blank"] else match.end()
        if not begins[-1] < boundary < last:
            continue
        if match["mark"] is None or _is_sentence_end(text, begins[-1], match.end("mark") - 1, boundary, match["mark"]):
            begins.append(boundary)
    return begins


def split_sentences(text: str) -> list[str]:
    """The sentences of a text; concatenated, they are the text."""
    return [text[begin:end] for begin, end in pairwise([*find_sentence_starts(text), len(text)])]


def _is_sentence_end(text: str, begin: int, stop: int, boundary: int, mark: str) -> bool:
    """Whether a mark at `stop`, followed by closing quotes up to `boundary`, ends the sentence that begins at `begin`."""
    following = _NEXT_WORD.match(text, boundary)
    word = following[1] if following else ""
    if word[:1].islower():
        return False
    if mark != ".":
        return True
    before = text[max(begin, stop - _MAX_WORD_LENGTH) : stop].split()[-1:]
    last = before[0].lstrip(_OPENING) if before else ""
    if last.isdigit() and not text[begin : stop - len(last)].strip():
        return False  # "1. Heat the oven."
    if (len(last) == 1 and last.isalpha() and last.isupper()) or last.lower() in _ABBREVIATIONS:
        return False
    if last.lower() in _NUMBER_ABBREVIATIONS:
        return not word[:1].isdigit()
    if last.lower() in _FINAL_ABBREVIATIONS or _ACRONYM.fullmatch(last):
        return word.lower() in _SENTENCE_OPENERS
    return True
