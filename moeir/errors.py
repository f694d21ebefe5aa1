"""What a user can get wrong, and the exit code it earns.

A message is one line: where, what was found, what was expected, and the command that repairs it if there is one.
"""

import re
from typing import ClassVar

_OF_MEMORY = re.compile("out of memory|allocate memory")  # what torch says of a processor or a device that has none left


class MoeirError(Exception):
    """Anything that ends a command with one line instead of a traceback."""

    code: ClassVar[int] = 1


class UsageError(MoeirError):
    """A flag, option, or specification that does not make sense."""

    code: ClassVar[int] = 2


class DataError(MoeirError):
    """A missing or faulty text file."""

    code: ClassVar[int] = 3


class ArtifactError(MoeirError):
    """A checkpoint, encoding, or index that is missing, unfinished, damaged, of another kind, or of another parent."""

    code: ClassVar[int] = 4


class OutOfMemory(MoeirError):
    """A processor or a device that has no memory left."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether memory has run out, as Python or torch says it."""
    matches = isinstance(problem, RuntimeError) and (type(problem).__name__ == "OutOfMemoryError" or _OF_MEMORY.search(str(problem)))
    return isinstance(problem, MemoryError) or bool(matches)
