"""Memory of a training step of a sparse model with and without its head.

    MALLOC_MMAP_THRESHOLD_=65536 python -m tests.benchmarks.sparse_head_memory CHECKPOINT    # what is freed is given back

Prints, for texts of some 240 and 960 tokens, the peak above what is held before: of states and their gradients, of lexical weights and
theirs, and what float32 logits of all tokens would take. Each size runs twice: the first step allocates gradients.
"""

import gc
import mmap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from moeir.architectures.checkpoint import open_checkpoint
from moeir.backbones.packed_tokens import PackedTokens
from tests.benchmarks.rounds import make_parser

STATM = Path("/proc/self/statm")
WORDS = "owls hunt mice at night in the wood "


def read_memory() -> int:
    """Bytes in use by this process."""
    return int(STATM.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def measure_peak(step: Callable[[], None]) -> int:
    """The most bytes in use during a step above those before it, looked at every 2 ms."""
    gc.collect()
    start, most, is_over = read_memory(), 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not is_over.is_set():
            most = max(most, read_memory())
            time.sleep(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    step()
    is_over.set()
    thread.join()
    return most - start


def main() -> None:
    """Print one line for each number of tokens."""
    checkpoint = open_checkpoint(make_parser(__doc__, ("checkpoint",)).parse_args().checkpoint)
    model = checkpoint.architecture

    def learn(tokens: PackedTokens, *, with_head: bool) -> None:
        states = model(tokens).tensors() if with_head else model.encode_states(tokens).values()
        torch.stack([part.mean() for part in states if part.requires_grad]).sum().backward()

    for repeats in (30, 30, 120, 120):
        tokens = checkpoint.tokenize([WORDS * repeats] * 4, "document")
        states, weights = (measure_peak(partial(learn, tokens, with_head=with_head)) / 2**20 for with_head in (False, True))
        logits = sum(tokens.lengths) * len(model.encoder.embeddings.words.weight) / 2**18
        print(f"{sum(tokens.lengths):,} tokens: states {states:,.0f} MiB, with the head {weights:,.0f}, all logits {logits:,.0f}")


if __name__ == "__main__":
    main()
