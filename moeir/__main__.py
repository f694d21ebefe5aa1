"""Entry point of `moeir`, `python -m moeir` and `torchrun -m moeir`."""

import os
from typing import NoReturn


def run_command_line() -> NoReturn:
    """Import the command line and run it. A standard stream that is closed is the null device: no file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    from moeir import cli

    cli.main()


if __name__ == "__main__":
    run_command_line()
