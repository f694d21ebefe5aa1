"""Files of artifacts cut at every 4 KiB, and bits flipped anywhere: how much of it the command that reads them lets pass. It must be none.

    python damage.py ARTIFACT... [--flips 1000 --seed 1]

ARTIFACT: encodings or an index; a copy beside it is harmed. A cut is a length, the last byte and every multiple of 4,096; a flip is one bit
of one byte, drawn over all bytes of all files. What reads an artifact verifies it first (`manifests.verify`), so that is what is called
here, and each refusal must name the file and what to run.
"""

import argparse
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moeir.artifacts import manifests
from moeir.errors import ArtifactError

STEP = 4096


def refused(folder: Path, kind: str, file: Path) -> bool:
    """Whether it is not taken, with a line that names the file and the way out."""
    try:
        manifests.verify(folder, kind)
    except ArtifactError as problem:
        return str(file) in str(problem) and "again with --force" in str(problem) and "\n" not in str(problem)
    return False


@contextmanager
def cut(file: Path, length: int) -> Iterator[None]:
    """A file without its end."""
    with open(file, "rb") as whole:
        whole.seek(length)
        end = whole.read()
    os.truncate(file, length)
    yield
    with open(file, "ab") as shorter:
        shorter.write(end)


@contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    """A file with one bit that is another."""
    _flip(file, bit)
    yield
    _flip(file, bit)


def _flip(file: Path, bit: int) -> None:
    with open(file, "r+b") as held:
        held.seek(bit // 8)
        byte = held.read(1)[0]
        held.seek(bit // 8)
        held.write(bytes([byte ^ 1 << bit % 8]))


def main() -> None:
    """A line of a table for each artifact, and exit with 1 if any damage passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    passed = 0
    for artifact in given.artifacts:
        harmed, dice = artifact.with_name(f"{artifact.name}.harmed"), random.Random(given.seed)
        shutil.rmtree(harmed, ignore_errors=True)
        shutil.copytree(artifact, harmed)
        kind = manifests.read_manifest(harmed)["kind"]
        files = {file: file.stat().st_size for file in sorted(harmed.rglob("*")) if file.is_file()}
        cuts = [(file, length) for file, size in files.items() for length in {*range(0, size, STEP), size - 1}]
        flips = zip(dice.choices(list(files), list(files.values()), k=given.flips), range(given.flips), strict=True)
        missed = 0
        for file, length in cuts:
            with cut(file, length):
                missed += not refused(harmed, kind, file)
        for file, _ in flips:
            with flipped(file, dice.randrange(8 * files[file])):
                missed += not refused(harmed, kind, file)
        manifests.verify(harmed, kind)
        shutil.rmtree(harmed)
        passed += missed
        sys.stdout.write(f"| {artifact.name} | {len(files)} | {sum(files.values()):,} | {len(cuts):,} | {given.flips:,} | {missed} |\n")
        sys.stdout.flush()
    sys.exit(passed > 0)


if __name__ == "__main__":
    main()
