"""`python -m tests.benchmarks.gpu PART`, as gpu.sh calls it; `… stage [--kill-after N] -- ARGUMENTS` is `moeir ARGUMENTS`.

Nothing here or in `results` imports torch at the top: the pretended device has to be there before it.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.gpu.results import PAGE, PARTS, Context, Piece, describe_run, log
from tests.device import guard

NEED_ALL_CARDS = ("1", "7")


def read_arguments() -> argparse.Namespace:
    """The command line; what follows `--` is for moeir."""
    parser = argparse.ArgumentParser(prog="tests/benchmarks/gpu.sh", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "stage"])
    parser.add_argument("--force", action="store_true", help="measure again what is done")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    parser.add_argument("--pretend", action="store_true", help="the pretended device of tests/device")
    parser.add_argument("--kill-after", type=int, help="of `stage`: end this process after so many optimiser steps, as a power cut would")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.arguments = words[end + 1 :]
    return options


@contextlib.contextmanager
def device(options: argparse.Namespace) -> Iterator[None]:
    """Make the first card visible, or all cards for a part that needs them, or pretended ones."""
    several = options.part in NEED_ALL_CARDS
    if not several and not options.pretend:  # the trainers that are compared would use all there are
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not options.pretend:
        yield
        return
    guard.load()
    from tests.device import fake_cuda

    with fake_cuda.activate(cards=2 if several else 1):
        yield


def measure(options: argparse.Namespace) -> bool:
    """Run a part unless it is done; true if it succeeded."""
    import torch

    work = Path(os.environ.get("WORK", "build/gpu")).resolve()
    default = work / "results" if options.toy or options.pretend else PAGE.parent
    results = Path(os.environ.get("RESULTS", default)).resolve()
    path, part = results / "gpu" / f"{options.part}.json", PARTS[options.part]
    if path.exists() and not options.force and (piece := Piece.read(path)).done:
        log(f"part {options.part} is done ({piece.facts['date']}, commit {piece.facts['commit']}); --force measures it again")
        return True
    if not torch.cuda.is_available():
        log(f"torch {torch.__version__} finds no CUDA device: nothing is measured")
        return False
    log(f"part {options.part}: {part.title}")
    flags = "".join(f" --{name}" for name in ("toy", "pretend") if getattr(options, name))
    piece = Piece(options.part, describe_run(f"tests/benchmarks/gpu.sh {options.part}{flags}"))
    context = Context(piece, work, results, options.toy, options.pretend, float(os.environ.get("MINUTES", 8)))
    shutil.rmtree(context.folder, ignore_errors=True)
    context.folder.mkdir(parents=True)
    context.save()
    with context.attempt("the part"):
        getattr(importlib.import_module(f"tests.benchmarks.gpu.{part.module}"), part.function)(context)
    piece.finished = True
    context.save()
    shutil.rmtree(context.folder, ignore_errors=True)
    sys.stdout.write(piece.to_markdown())
    return not piece.failures


def main() -> None:
    """Measure a part, or run a stage."""
    options = read_arguments()
    try:
        stack = contextlib.ExitStack()
        stack.enter_context(device(options))
    except guard.Unavailable as problem:
        log(f"--pretend: {problem}")
        sys.exit(2)
    with stack:
        if options.part != "stage":
            sys.exit(not measure(options))
        from tests.benchmarks.gpu import stages

        sys.exit(stages.run_killed(options.arguments, options.kill_after))


if __name__ == "__main__":
    main()
