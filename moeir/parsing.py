"""Parse and format typed option values: those of flags, of specs, of YAML and of callers in Python."""

import difflib
import json
import math
import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from moeir.errors import UsageError


def parse_value(text: str, annotation: str, where: str) -> Any:
    """Parse a value of type int, float, str, bool, tuple[str, ...] or `X | None`.

    >>> parse_value("lexical+local", "tuple[str, ...]", "experts"), parse_value("none", "int | None", "limit")
    (('lexical', 'local'), None)
    """
    kind = annotation.removesuffix("| None").strip()
    if kind != annotation and (text.lower() == "none" or (not text and kind != "str")):
        return None
    if kind == "bool":
        return _parse_bool(text, where)
    if kind.startswith("tuple"):
        return tuple(filter(None, text.split("+")))
    if kind in ("int", "float"):
        return _parse_number(text, kind, where)
    return text


def _parse_number(text: str, kind: str, where: str) -> float:
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        number = math.inf
    if not -math.inf < number < math.inf:  # math.isfinite overflows for integers of 400 digits
        raise UsageError(f"{where}: expected {'a whole number' if kind == 'int' else 'a number'}, found {text!r}")
    if kind == "int" and abs(number) > LARGEST_INTEGER:
        raise UsageError(f"{where}: expected a whole number of 64 bits, found {text}")
    return number


def check_count(value: Any, where: str, maximum: int = 2**31 - 1) -> int:
    """A count that a caller in Python gives, from 1 to `maximum`, as the flags take it."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= maximum:
        found = f", found {value!r}" if not is_whole or abs(value) < 2**64 else ""  # Python refuses to print very large numbers
        raise UsageError(f"{where}: expected a whole number, 1 to {maximum}{found}")
    return int(value)


def is_count(text: str) -> bool:
    """Whether a text is a whole number from 1 that fits 32 bits, of few enough digits for Python to read.

    >>> is_count("12"), is_count("0"), is_count("9" * 5000)
    (True, False, False)
    """
    return text.isdecimal() and len(text) <= 9 and int(text) > 0


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """UsageError if the value of an option is none of its choices."""
    if value not in choices:
        raise UsageError(f"{name}={value}: expected one of {', '.join(choices)}")


def _parse_bool(text: str, where: str) -> bool:
    truths = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if text.lower() not in truths:
        raise UsageError(f"{where}: expected true or false, found {text!r}")
    return truths[text.lower()]


def format_value(value: Any) -> str:
    """The text that `parse_value` turns back into `value`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "+".join(value)
    return "none" if value is None else str(value)


def suggest(name: str, known: Any) -> str:
    """Suggestion for an error message about an unknown name: the closest known name, or all of them."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""


def kebab_case(name: str) -> str:
    """The name of a class as people type it.

    >>> kebab_case("MineNegatives")
    'mine-negatives'
    """
    return "".join("-" * (letter.isupper() and index > 0) + letter.lower() for index, letter in enumerate(name))


LARGEST_INTEGER = 2**63 - 1  # of numpy and torch
# also line breaks of Unicode, what changes the direction of text, and halves of characters
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_WORD, LONGEST_MESSAGE, SHOWN = 400, 4000, 80  # characters


def escape_controls(text: str) -> str:
    r"""Text from outside for a line of a log, a table or a terminal, which it could split: control characters as Python writes them.

    >>> print(escape_controls("two\nlines \x1b[2J"))
    two\nlines \x1b[2J
    """
    return text if text.isprintable() else CONTROL_CHARACTERS.sub(lambda match: repr(match[0])[1:-1], text)


def dump_json(value: Any, indent: int | None = None) -> str:
    """JSON for a terminal: control characters that JSON leaves as they are become escapes, too."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROL_CHARACTERS.sub(lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def preview(value: Any) -> str:
    """The first characters of a value as JSON, for a message."""
    return clip(json.dumps(value, ensure_ascii=not str(value).isprintable(), skipkeys=True, default=repr))


def clip(text: str) -> str:
    """The first characters of a text, for a message."""
    return text if len(text) <= 60 else text[:57] + "..."


def shorten_message(text: str) -> str:
    """A message on one line, with its endless words cut, and itself.

    >>> shorten_message(f"id {'x' * 1000} is too long").replace(80 * "x", "xx")
    'id xx… (1,000 characters) is too long'
    """
    words = (word if len(word) <= LONGEST_WORD else f"{word[:SHOWN]}… ({len(word):,} characters)" for word in text.split())
    line = " ".join(words)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]}…"
