"""End with exit code 1 unless every decoder of a pre-training uses the vectors that it decodes.

    python examples/gate.py CHECKPOINT LEAST

A decoder's loss with the vectors of other texts minus that with the right ones must be LEAST nats per token, on average over the last
measurements; see "What the bottleneck is worth" in docs/training.md.
"""

import sys
from pathlib import Path

from moeir.analysis.training_monitor import bottleneck_gains, find_metrics, read_metrics
from moeir.errors import MoeirError

MEASUREMENTS = 5


def main(checkpoint: Path, least: float) -> None:
    measured = [gains for step in read_metrics(find_metrics(checkpoint)) if (gains := bottleneck_gains(step))][-MEASUREMENTS:]
    if not measured:
        sys.exit(f"error: {checkpoint}: has no decoder whose use of its vectors was measured")
    means = {name.partition(".")[2]: sum(gains[name] for gains in measured) / len(measured) for name in measured[0]}
    values = ", ".join(f"{mean:.4f} ({name})" for name, mean in means.items())
    sys.stderr.write(f"{checkpoint}: the right vector saves {values} nats per token\n")
    if min(means.values()) < least:
        advice = "raise the decoder's rate (--group-rate decoder=RATE) or the steps of the gate, or go on with GATE=no"
        sys.exit(f"error: {checkpoint}: the bottleneck is hardly used, expected {least:g} nats per token or more of each; {advice}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), float(sys.argv[2]))
    except MoeirError as fault:
        sys.exit(f"error: {fault}")
