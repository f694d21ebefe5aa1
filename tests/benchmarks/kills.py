"""A command killed at random moments and restarted until it ends: are its files those of an undisturbed run? Differing ones are named.

    python kills.py WORK_FOLDER [--kills 20 --seed 1 --suffix .trec] -- COMMAND... {output}

{output} stands for the path of the command's product. One run is undisturbed; the moments are uniform over its duration after the first
tenth, which starts Python. Each killed run is restarted and killed again, at a new moment, until it ends before its moment or was killed
three times; the last one runs to the end. SIGKILL prevents any cleanup. A product that exists after a kill must be complete, and no
temporary files may be left beside it in the end.
"""

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from moeir.artifacts import manifests
from moeir.errors import ArtifactError

MAX_KILLS = 3  # kills of one product
TIMED = {"seconds", "tokens_per_second"}  # metrics that differ between runs


def file_digests(product: Path) -> dict[str, str]:
    """Digest of every file of a product, without its own path, times and speeds."""
    files = sorted(path for path in product.rglob("*") if path.is_file()) if product.is_dir() else [product]
    compared_files = (path for path in files if path.name not in ("manifest.json", "README.md"))
    return {
        str(path.relative_to(product)): hashlib.sha256(comparable_bytes(path).replace(bytes(product), b"")).hexdigest()
        for path in compared_files
    }


def comparable_bytes(path: Path) -> bytes:
    """A file's bytes; metrics without times."""
    if path.name != "metrics.jsonl":
        return path.read_bytes()
    steps = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return json.dumps([{name: value for name, value in step.items() if name not in TIMED} for step in steps]).encode()


def kill_after(command: list[str], moment: float) -> bool:
    """Run a command and kill it after `moment` seconds; false if it ended before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if process.wait(timeout=moment):
            sys.exit(f"{' '.join(command)}: ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def is_intact(product: Path) -> bool:
    """Whether the files of a product agree with its manifest."""
    try:
        files = manifests.read_manifest(product)["files"]
    except ArtifactError:
        return False
    entry_by_path = {product / name if product.is_dir() else product: entry for name, entry in files.items()}
    sizes = all(path.is_file() and path.stat().st_size == entry["bytes"] for path, entry in entry_by_path.items())
    return sizes and manifests.first_mismatch(entry_by_path) is None


def main() -> None:
    """Print a line for each product, and exit with 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suffix", default="", help="suffix of the product's name")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    def command(name: str) -> list[str]:
        return [word.replace("{output}", str(arguments.work / name)) for word in arguments.command]

    start = time.monotonic()
    subprocess.run(command(f"whole{arguments.suffix}"), check=True, stderr=subprocess.DEVNULL)
    duration = time.monotonic() - start
    expected, rng, kills, products, differing_products = (
        file_digests(arguments.work / f"whole{arguments.suffix}"),
        random.Random(arguments.seed),
        0,
        0,
        0,
    )
    while kills < arguments.kills:
        name = f"killed-{products}{arguments.suffix}"
        moments: list[float] = []
        while len(moments) < MAX_KILLS and kills < arguments.kills and kill_after(command(name), moment := rng.uniform(0.1, 1) * duration):
            moments.append(moment)
            kills += 1
            if (arguments.work / name).exists() and not is_intact(arguments.work / name):
                sys.exit(f"{arguments.work / name}: exists after a kill, but is incomplete")
        subprocess.run(command(name), check=True, stderr=subprocess.DEVNULL)
        actual = file_digests(arguments.work / name)
        differing = sorted(file for file in expected.keys() | actual.keys() if expected.get(file) != actual.get(file))
        differing += sorted(path.name for path in arguments.work.glob(f".{name}.*"))
        differing_products += bool(differing)
        outcome = f"differs in {', '.join(differing)}" if differing else f"the same {len(actual)} files"
        print(f"killed after {', '.join(f'{moment:.1f}' for moment in moments) or 'nothing'} of {duration:.1f} s: {outcome}", flush=True)
        products += 1
        for path in arguments.work.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"{kills} kills, {products} products, {differing_products} unlike")
    sys.exit(differing_products > 0)


if __name__ == "__main__":
    main()
