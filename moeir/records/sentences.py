"""Sentences of a text, split by rules: a full stop ends one unless it belongs to a common abbreviation, an initial or a number."""

import re

_OPENING, _CLOSING = "\"'“‘«([{", "\"'”’»)\\]}"
_BOUNDARY = re.compile(
    rf"(?<![.!?…])(?P<mark>[.!?…؟۔।॥]++)[{_CLOSING}]*+(?=\s)"  # a mark and closing quotes or brackets, before white space
    r"|[。！？｡]++[」』”’）】》]*+"  # CJK: no white space required
    r"|(?P<blank>\n)(?:[^\S\n]*+\n)++"  # empty lines
)
_NEXT_LETTER = re.compile(rf"\s*[{re.escape(_OPENING)}]*(\w?)")
_MAX_WORD_LENGTH = 24
_ABBREVIATIONS = (  # whose full stop ends no sentence
    " mr mrs ms dr prof rev gen col capt lt sgt gov sen rep st mt vs cf fig figs eq eqs ref e.g i.e ca approx univ dept "
    "no vol p pp ch sec art al inc ltd co corp jr sr u.s a.m p.m ph.d jan feb mar apr jun jul aug sep sept oct nov dec "
)


def find_sentence_starts(text: str) -> list[int]:
    """Character offsets at which sentences begin, 0 first; white space between two belongs to the later one.

    >>> find_sentence_starts('Dr. Owl slept. "Why?" he asked. It was 3.5 km.')
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


def _is_sentence_end(text: str, begin: int, stop: int, boundary: int, mark: str) -> bool:
    """Whether a mark at `stop`, followed by closing quotes up to `boundary`, ends the sentence that begins at `begin`."""
    following = _NEXT_LETTER.match(text, boundary)
    if following is not None and following[1].islower():
        return False
    if mark != ".":
        return True
    words = text[max(begin, stop - _MAX_WORD_LENGTH) : stop].split()
    last = words[-1].lstrip(_OPENING) if words else ""
    is_list_number = last.isdigit() and not text[begin : stop - len(last)].strip()  # "1. Heat the oven."
    is_initial = len(last) == 1 and last.isalpha() and last.isupper()
    return not (is_list_number or is_initial or f" {last.lower()} " in _ABBREVIATIONS)
