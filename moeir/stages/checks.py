"""Checks of single flags that several stages share."""

from collections.abc import Sequence

from moeir.errors import UsageError


def check_seed(seed: int) -> None:
    """UsageError unless the seed is one that random generators accept."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: expected 0 to {2**32 - 1}")


def check_single_word(flag: str, text: str) -> None:
    """UsageError unless `text` is one word, as a column of a run must be."""
    if text.split() != [text]:
        raise UsageError(f"{flag} {text!r}: expected a word without spaces")


def check_depth(depth: int) -> None:
    """UsageError unless `depth` is at least 1 and less than 2**31."""
    if not 1 <= depth < 2**31:
        raise UsageError(f"--depth {depth}: expected at least 1" + (f" and less than {2**31}" if depth > 1 else ""))


def check_choice(flag: str, value: str, choices: Sequence[str]) -> None:
    """UsageError unless `value` is one of the choices."""
    if value not in choices:
        raise UsageError(f"{flag} {value}: expected {', '.join(choices[:-1])} or {choices[-1]}")
