"""Peak memory of a moeir command: all resident memory, and the anonymous part of it.

    python -m tests.benchmarks.memory encode --model CKPT --corpus CORPUS --output ENC

`resident` is the kernel's ru_maxrss: it counts pages of mapped files, which the kernel takes back when others need memory. `own` is the
peak of Anonymous in /proc/PID/smaps_rollup, polled: the memory that the command allocated.
"""

import os
import subprocess
import sys
import time

from tests.test_load import own_bytes

POLL_SECONDS = 0.1
MIB = 2**20


def measure_command(command: list[str]) -> tuple[float, int, int]:
    """Seconds, resident and anonymous bytes of a command that must succeed."""
    start, peak_own = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "moeir", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_own = max(peak_own, own_bytes(process.pid))
        time.sleep(POLL_SECONDS)
    if ended[1]:
        sys.exit(f"moeir {' '.join(command)}: ended with {os.waitstatus_to_exitcode(ended[1])}")
    return time.monotonic() - start, ended[2].ru_maxrss * 1024, peak_own


if __name__ == "__main__":
    seconds, resident, anonymous = measure_command(sys.argv[1:])
    print(f"| {sys.argv[1]} | {resident / MIB:,.0f} | {anonymous / MIB:,.0f} | {seconds:,.0f} |")
