"""How long `moeir` looks for damage in an artifact before it uses it: every byte is read and summed.

    python verify_speed.py WORK_FOLDER [--bytes 1000000000 --rounds 5]

One file of drawn bytes, in the kernel's memory after the first round: by one thread over the whole file, and block by block in all of them.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from moeir.artifacts import checksums


def seconds(work: Callable[[], object], rounds: int) -> str:
    """Median, least and most."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return f"{statistics.median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})"


def main() -> None:
    """Two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    file = given.work / "drawn.bin"
    with open(file, "wb") as held:
        for first in range(0, given.bytes, checksums.BLOCK):
            held.write(os.urandom(min(checksums.BLOCK, given.bytes - first)))
    said = checksums.facts([file])[0]
    sys.stdout.write(f"whole {seconds(lambda: checksums.checksum(file), given.rounds)} s\n")
    sys.stdout.write(f"blocks {seconds(lambda: checksums.changed({file: said}), given.rounds)} s\n")
    sys.stdout.write(f"making {seconds(lambda: checksums.facts([file]), given.rounds)} s\n")
    file.unlink()


if __name__ == "__main__":
    main()
