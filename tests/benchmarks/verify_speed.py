"""Speed of the verification of an artifact before its use: a checksum over every byte.

    python verify_speed.py WORK_FOLDER [--bytes 1000000000 --rounds 5]

One file of random bytes, in the page cache after the first round: by one thread over the whole file, and block by block in all threads.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from moeir.artifacts import manifests


def time_rounds(work: Callable[[], object], rounds: int) -> str:
    """Median, least and most."""
    durations = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return f"{statistics.median(durations):.2f} ({min(durations):.2f} to {max(durations):.2f})"


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    file = arguments.work / "drawn.bin"
    with open(file, "wb") as opened_file:
        for first in range(0, arguments.bytes, manifests.HASH_BLOCK_BYTES):
            opened_file.write(os.urandom(min(manifests.HASH_BLOCK_BYTES, arguments.bytes - first)))
    entry = manifests.compute_checksums([file])[0]
    sys.stdout.write(f"whole {time_rounds(lambda: manifests.compute_sha256(file), arguments.rounds)} s\n")
    sys.stdout.write(f"blocks {time_rounds(lambda: manifests.first_mismatch({file: entry}), arguments.rounds)} s\n")
    sys.stdout.write(f"making {time_rounds(lambda: manifests.compute_checksums([file]), arguments.rounds)} s\n")
    file.unlink()


if __name__ == "__main__":
    main()
