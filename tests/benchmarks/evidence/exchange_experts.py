"""CoT-MoTE with the experts of queries and passages exchanged, which is what its pre-training with `switch_corpus=true` gives.

    python exchange_experts.py CHECKPOINT OUTPUT_FOLDER

Both experts of a layer begin as copies of one feed-forward, so the two pre-trainings are one with the names of its experts exchanged: the
same weights, bit for bit without clipping of gradients, whose norm is summed in the order of the names.
"""

import shutil
import sys
from pathlib import Path

from torch import nn

from moeir.architectures.checkpoint import open_checkpoint


def exchange_experts(checkpoint: Path, output: Path) -> None:
    """Write the folder, in one step."""
    model = open_checkpoint(checkpoint)
    for layer in model.architecture.encoder.layers:
        first, second = layer.feedforward.experts
        layer.feedforward.experts = nn.ModuleList([second, first])
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save(partial)
    partial.replace(output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    exchange_experts(Path(sys.argv[1]), Path(sys.argv[2]))
