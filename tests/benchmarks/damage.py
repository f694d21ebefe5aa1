"""Artifacts with truncated files and flipped bits: how many of the damages pass verification. It must be none.

    python damage.py ARTIFACT... [--flips 1000 --seed 1]

ARTIFACT: encodings or an index; a copy beside it is damaged. Files are truncated by their last byte and at every multiple of 4,096; a flip
is one random bit of all files. Every reader of an artifact verifies it first (`manifests.verify`), so that is called here, and each error
must name the file and the command to run.
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


def is_refused(folder: Path, kind: str, file: Path) -> bool:
    """Whether verification fails with one line that names the file and the remedy."""
    try:
        manifests.verify_artifact(folder, kind)
    except ArtifactError as error:
        return str(file) in str(error) and "again with --force" in str(error) and "\n" not in str(error)
    return False


@contextmanager
def truncate_file(file: Path, length: int) -> Iterator[None]:
    """A file without its end."""
    with open(file, "rb") as whole:
        whole.seek(length)
        end = whole.read()
    os.truncate(file, length)
    yield
    with open(file, "ab") as shorter:
        shorter.write(end)


@contextmanager
def flip_bit(file: Path, bit: int) -> Iterator[None]:
    """A file with one bit flipped."""
    _flip(file, bit)
    yield
    _flip(file, bit)


def _flip(file: Path, bit: int) -> None:
    with open(file, "r+b") as opened_file:
        opened_file.seek(bit // 8)
        byte = opened_file.read(1)[0]
        opened_file.seek(bit // 8)
        opened_file.write(bytes([byte ^ 1 << bit % 8]))


def main() -> None:
    """A line of a table for each artifact, and exit with 1 if any damage passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    undetected_in_all = 0
    for artifact in arguments.artifacts:
        damaged_copy, rng = artifact.with_name(f"{artifact.name}.harmed"), random.Random(arguments.seed)
        shutil.rmtree(damaged_copy, ignore_errors=True)
        shutil.copytree(artifact, damaged_copy)
        kind = manifests.read_manifest(damaged_copy)["kind"]
        files = {file: file.stat().st_size for file in sorted(damaged_copy.rglob("*")) if file.is_file()}
        cuts = [(file, length) for file, size in files.items() for length in {*range(0, size, STEP), size - 1}]
        flips = zip(rng.choices(list(files), list(files.values()), k=arguments.flips), range(arguments.flips), strict=True)
        undetected = 0
        for file, length in cuts:
            with truncate_file(file, length):
                undetected += not is_refused(damaged_copy, kind, file)
        for file, _ in flips:
            with flip_bit(file, rng.randrange(8 * files[file])):
                undetected += not is_refused(damaged_copy, kind, file)
        manifests.verify_artifact(damaged_copy, kind)
        shutil.rmtree(damaged_copy)
        undetected_in_all += undetected
        sys.stdout.write(
            f"| {artifact.name} | {len(files)} | {sum(files.values()):,} | {len(cuts):,} | {arguments.flips:,} | {undetected} |\n"
        )
        sys.stdout.flush()
    sys.exit(undetected_in_all > 0)


if __name__ == "__main__":
    main()
