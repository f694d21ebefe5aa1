"""What experts gain without competition on questions that they lose, from the records of two runs of one experiment.

    python moderator.py RECORDS RECORDS [--set test] [--start start] [--row standardised]

Who loses a question (a lower nDCG@10 than the best expert of the start) is decided by the start of one run; the gain, of the mean of
ROW's seeds over the start, is measured in the other, less the mean gain of those that own the question; then the runs change places. So a
chance that the runs do not share is no gain; `moeir analyze competition` is for the lists of a single training. Prints a row for each
expert and all: lost questions (of both runs), value at the start, gain, owners' gain, the difference and its 95 % interval, clustered by
relevant document.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from record import SUMS, read_records
from tables import DOCUMENTS, estimate_difference

from moeir.evaluation.tables import format_table

Numbers = NDArray[np.float64]


def read_gains(records: Path, of_set: str, start: str, row: str) -> tuple[list[str], Numbers, Numbers, Numbers]:
    """The experts, their values at the start, their gains [E, Q], and the document of each question [Q]."""
    lines = read_records(records)
    before = lines[start]["scores"][of_set]
    experts = [name for name in before if name not in (*SUMS, DOCUMENTS)]
    seeds = [line["scores"][of_set] for name, line in lines.items() if name.rpartition("-")[0] == row]
    values = np.array([before[name] for name in experts])
    after = np.mean([[one[name] for name in experts] for one in seeds], axis=0)
    return experts, values, after - values, np.array(before[DOCUMENTS])


def compare(deciding: Numbers, start: Numbers, gain: Numbers) -> tuple[NDArray[np.bool_], Numbers, Numbers, Numbers]:
    """Who loses each question [E, Q] by the values `deciding`, and the value, the gain and the owners' gain there.

    >>> lost, *_, owners = compare(np.array([[1.0, 0.5], [0.0, 0.5]]), np.zeros((2, 2)), np.array([[0.3, 0.2], [0.1, 0.2]]))
    >>> lost.tolist(), owners.tolist()
    ([[False, False], [True, False]], [[0.3, 0.2], [0.3, 0.2]])
    """
    owned = deciding == deciding.max(0)
    owners = np.broadcast_to((gain * owned).sum(0) / owned.sum(0), gain.shape)
    return ~owned, start, gain, owners


def describe(records: Sequence[Path], of_set: str, start: str, row: str) -> str:
    """The table."""
    experts, *first = read_gains(records[0], of_set, start, row)
    _, *second = read_gains(records[1], of_set, start, row)
    sides = [(compare(one[0], other[0], other[1]), other[2]) for one, other in ((first, second), (second, first))]
    lines = []
    for number, name in enumerate([*experts, "all"]):
        rows = [number] if number < len(experts) else list(range(len(experts)))
        parts, clusters = [], []
        for (lost, values, gain, owners), documents in sides:
            for expert in rows:
                chosen = lost[expert]
                parts.append(np.stack([values[expert][chosen], gain[expert][chosen], owners[expert][chosen]]))
                clusters.append(documents[chosen])
        values, gains, of_owners = np.concatenate(parts, axis=1)
        mean, low, high, _, _ = estimate_difference([gains - of_owners], [np.concatenate(clusters)])
        lines.append([name, len(values), values.mean(), gains.mean(), of_owners.mean(), mean, low, high])
    return format_table(["expert", "lost", "start", "gain", "owners' gain", "difference", "low", "high"], lines, ".4f")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs=2, type=Path)
    for name, default in (("set", "test"), ("start", "start"), ("row", "standardised")):
        parser.add_argument(f"--{name}", default=default)
    options = parser.parse_args()
    print(describe(options.records, options.set, options.start, options.row))
