"""Entry point of `moeir`, `python -m moeir` and `torchrun -m moeir`: Ctrl-C stops it in one line from the first import on."""

import os
import signal
from typing import Any, NoReturn


def run_command_line() -> NoReturn:
    """Import the command line and run it. A standard stream that is closed is the null device: no file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where the signal is ignored, as in jobs of the background
        signal.signal(signal.SIGINT, _stop)
    from moeir import cli

    signal.signal(signal.SIGINT, handler)
    cli.main()


def _stop(*_: Any) -> NoReturn:
    os.write(2, b"stopped; the same command starts over\n")
    raise SystemExit(130)


if __name__ == "__main__":
    run_command_line()
