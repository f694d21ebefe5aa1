"""Errors a user can cause, and their exit codes.

A message is one line: where, what was found, what was expected, and the command that repairs it if there is one.
"""

import re
from typing import ClassVar

_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|failed to map segment")  # in the messages of torch and of the loader


class MoeirError(Exception):
    """An error that ends a command with one line instead of a traceback."""

    exit_code: ClassVar[int] = 1


class UsageError(MoeirError):
    """A flag, option, or specification that does not make sense."""

    exit_code: ClassVar[int] = 2


class DataError(MoeirError):
    """A missing or faulty text file."""

    exit_code: ClassVar[int] = 3


class ArtifactError(MoeirError):
    """A checkpoint, encoding, or index that is missing, unfinished, damaged, of another kind, or made from other sources."""

    exit_code: ClassVar[int] = 4


class OutputInUse(ArtifactError):
    """An output that another process is writing at this moment."""


class OutOfMemory(MoeirError):
    """The CPU or a device is out of memory."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an exception of Python or torch means that memory has run out."""
    matches = isinstance(problem, RuntimeError | ImportError) and (
        type(problem).__name__ == "OutOfMemoryError" or _OUT_OF_MEMORY.search(str(problem))
    )
    return isinstance(problem, MemoryError) or bool(matches)
