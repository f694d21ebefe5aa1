"""Tables and curves of the declared experiments, from their records alone.

    python tables.py [NAME...] [--check]

NAME is that of a declaration, or with the size or the REPEAT of other records: came_fork-h200, came_fork-amx. Where ../results/evidence
has records of NAME, NAME.jsonl.gz, it writes, between two marked lines of NAME.md, what was declared, the means, and the declared
contrasts. What a person wrote outside the marked lines stays. --check writes nothing and fails
if a page is not what its records say.

Standard errors are clustered by relevant document, because questions about one document are not independent. Records of unlike settings,
collections or starts are an error.

Where a declaration says `starts: random effects`, each seed has a start of its own, the test is over starts, and p alone claims a
difference.

A contrast is [A, B], the mean of A - B over questions, or [A, B, C, D], (A - B) - (C - D); each is ROW/RUN, averaged over
the declared seeds question by question. The run `best` takes the best expert of each question. Over several sets the sets count alike.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
import yaml
from numpy.typing import NDArray
from record import SUMS, read_lines

from moeir.errors import DataError
from moeir.evaluation.significance import confidence_interval, correct_p_values, format_p
from moeir.evaluation.tables import format_markdown

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "evidence"
BEGIN, END = "<!-- written by tables.py, from the records -->", "<!-- end of what tables.py writes -->"
DOCUMENTS = "documents"  # beside the runs: the number of each question's first relevant document
WAITING = "not run yet"
RANDOM_EFFECTS = "random effects"  # of `starts`: the test is over starts, not over questions
SMOOTHED = 10  # steps of a mean in a curve that has a point for every step
Floats: TypeAlias = NDArray[np.float64]
_format_table = partial(format_markdown, escape=False)  # cells have marks of their own


@dataclass(frozen=True)
class Contrast:
    """A declared difference: its mean with a 95 % interval, Cohen's d, p of a two-sided t-test, and the means of single seeds."""

    label: str
    mean: float
    low: float
    high: float
    effect: float
    p: float
    by_seed: Mapping[int, float]
    whole: bool  # whether all declared seeds have run
    over_starts: bool = False

    @property
    def is_claimed(self) -> bool:
        """p below .05 with all seeds run, each with the sign of the mean."""
        return self.whole and self.p < 0.05 and (self.over_starts or all(value * self.mean > 0 for value in self.by_seed.values()))


def estimate_difference(sets: Sequence[Floats], clusters: Sequence[Floats]) -> tuple[float, float, float, float, float]:
    """Mean, interval, Cohen's d and p of differences per question, clustered; of several sets that of their means (Welch, Satterthwaite).

    With clusters of one question it is the paired t-test.

    >>> [round(value, 4) for value in estimate_difference([np.array([0.2, 0.1, 0.3])], [np.arange(3)])]
    [0.2, -0.0484, 0.4484, 2.0, 0.0742]
    """
    variances, counts = [], []
    for values, documents in zip(sets, clusters, strict=True):
        sums = np.bincount(documents.astype(int), weights=values - values.mean())
        sums = sums[np.bincount(documents.astype(int)) > 0]
        counts.append(len(sums))
        variances.append(float((sums**2).sum()) / len(values) ** 2 * len(sums) / (len(sums) - 1))
    mean, error = float(np.mean([values.mean() for values in sets])), math.sqrt(sum(variances)) / len(sets)
    if not error:
        return mean, mean, mean, 0.0 if not mean else math.copysign(math.inf, mean), 1.0 if not mean else 0.0
    freedom = sum(variances) ** 2 / sum(variance**2 / (count - 1) for variance, count in zip(variances, counts, strict=True))
    reach = float(scipy.stats.t.ppf(0.975, freedom)) * error
    spread = math.sqrt(float(np.mean([values.var(ddof=1) for values in sets])))
    return mean, mean - reach, mean + reach, mean / spread, 2 * float(scipy.stats.t.sf(abs(mean) / error, freedom))


class Experiment:
    """A declaration and the records of its rows."""

    def __init__(self, name: str, declarations: Path = HERE / "declarations", results: Path = RESULTS) -> None:
        self.name, self.results = name, results
        declaration, _, other = name.partition("-")
        self.declared: dict[str, Any] = yaml.safe_load((declarations / f"{declaration}.yaml").read_text(encoding="utf-8"))
        self.declaration, self.title = f"{declaration}.yaml", self.declared["title"] + (f" ({other})" if other else "")
        self.file = results / f"{name}.jsonl.gz"
        lines = read_lines(self.file)
        self.records: dict[str, Any] = {line["row"]: line for line in sorted(lines, key=lambda line: line.get("row", "")) if "row" in line}
        self.choices = sorted((line for line in lines if "choice" in line), key=lambda line: line["choice"])
        if other:  # it may have more seeds
            others = {int(seed) for one in self.records if (seed := one.rpartition("-")[2]).isdigit()}
            self.declared["seeds"] = sorted(others.union(self.declared["seeds"]))

    @property
    def sets(self) -> list[str]:
        return list(self.declared["sets"])

    def seeds_of(self, row: str) -> dict[int, str]:
        """The records of a row by seed; the seed 0 is that of a row without seeds."""
        if row in self.records:
            return {0: row}
        return {seed: f"{row}-{seed}" for seed in self.declared["seeds"] if f"{row}-{seed}" in self.records}

    def records_of(self, row: str) -> list[str]:
        """The records of a row: one for each seed that has run, or its own."""
        return list(self.seeds_of(row).values())

    def check(self) -> None:
        """DataError if records that a table would compare are of unlike sizes, variables, collections or starts."""
        rows = [*self.declared["rows"], *self.declared.get("references", [])]
        records = {name: self.records[name] for row in rows for name in self.records_of(row)}

        def compare(what: str, facts: Mapping[str, Any]) -> None:
            first = next(iter(facts), "")
            if unlike := [name for name in facts if facts[name] != facts[first]]:
                raise DataError(f"{self.file}: {unlike[0]} and {first} differ in {what}: a table would mix them; remove one, run again")

        compare("size", {name: record["size"] for name, record in records.items()})
        compare("variables", {name: record["variables"] for name, record in records.items()})
        for of_set in [*self.sets, *self.declared.get("other_sets", [])]:
            tested = {name: record["sets"][of_set] for name, record in records.items() if of_set in record["sets"]}
            for what in ("qrels", "corpus"):
                compare(f"{what} of {of_set}", {name: facts[what] for name, facts in tested.items()})
        common = [name for row in self.declared.get("common_start", []) for name in self.records_of(row)]
        for what in ("model", "train"):
            compare(f"what they start from ({what})", {name: records[name]["trainings"][""]["sources"].get(what) for name in common})

    def scores(self, record: str, run: str, of_set: str) -> Floats:
        """nDCG@10 of each question."""
        runs = self.records[record]["scores"][of_set]
        if run == "best":
            return np.max([values for name, values in runs.items() if name not in (*SUMS, DOCUMENTS)], axis=0)
        return np.array(runs[run])

    def contrast(self, terms: Sequence[str], sets: Sequence[str]) -> Contrast | None:
        """A declared contrast, of the seeds that all its rows have; None without any."""
        rows = [self.seeds_of(term.rpartition("/")[0]) for term in terms]
        seeded = [set(row) for row in rows if list(row) != [0]]
        seeds = sorted(set.intersection(*seeded)) if seeded else [0]
        if not all(rows) or not seeds:
            return None
        signs = (1, -1, -1, 1)[: len(terms)]

        def differences(seed: int, of_set: str) -> Floats:
            names = [row.get(seed, row.get(0, "")) for row in rows]
            scores = [self.scores(name, term.rpartition("/")[2], of_set) for name, term in zip(names, terms, strict=True)]
            return np.sum([sign * values for sign, values in zip(signs, scores, strict=True)], axis=0)

        by_seed = {seed: [differences(seed, of_set) for of_set in sets] for seed in seeds}
        means = [np.mean([by_seed[seed][number] for seed in seeds], axis=0) for number in range(len(sets))]
        clusters = [self.scores(next(iter(rows[0].values())), DOCUMENTS, of_set) for of_set in sets]
        of_seeds = {seed: float(np.mean([values.mean() for values in of_sets])) for seed, of_sets in by_seed.items()}
        whole = not seeded or len(seeds) == len(self.declared["seeds"])
        over_starts = self.declared.get("starts") == RANDOM_EFFECTS
        if over_starts:  # a start is one observation
            means, clusters = [np.array(list(of_seeds.values()))], [np.arange(len(of_seeds))]
            if len(seeds) < 2:
                return None
        label = label_contrast(terms, sets if len(self.sets) > 1 else ())
        return Contrast(label, *estimate_difference(means, clusters), of_seeds, whole, over_starts)

    def contrasts(self, kind: str) -> list[Contrast | str]:
        """The declared contrasts of a kind, primary or secondary; those that have not run as their labels."""
        results: list[Contrast | str] = []
        for entry in self.declared.get(kind) or []:
            terms, sets = (entry["of"], entry["sets"]) if isinstance(entry, dict) else (entry, self.sets)
            results.append(self.contrast(terms, sets) or label_contrast(terms, sets if len(self.sets) > 1 else ()))
        return results


def label_contrast(terms: Sequence[str], sets: Sequence[str] = ()) -> str:
    """A contrast as a table shows it."""
    label = f"{terms[0]} − {terms[1]}" if len(terms) == 2 else f"({terms[0]} − {terms[1]}) − ({terms[2]} − {terms[3]})"
    return f"{label}, {'mean of ' if len(sets) > 1 else ''}{', '.join(sets)}" if sets else label


def means_table(experiment: Experiment, of_set: str, rows: Iterable[str]) -> str:
    """A line for each run of each row that is tested: nDCG@10 with its interval, other measures, all averaged over seeds."""
    lines = []
    for row in rows:
        all_records = experiment.records_of(row)
        records = [name for name in all_records if of_set in experiment.records[name]["sets"]]
        if all_records and not any(experiment.records[name]["sets"] for name in all_records):
            continue  # a training whose product others start from
        if not records:
            lines.append([row, 0, WAITING, "", "", ""])
            continue
        means = [experiment.records[name]["sets"][of_set]["means"] for name in records]
        runs = [*means[0], *(["best"] if len(set(means[0]) - set(SUMS)) > 1 else [])]
        for run in runs:
            scores = np.mean([experiment.scores(name, run, of_set) for name in records], axis=0)
            low, high = confidence_interval(scores)
            others = [np.mean([of_record[run][measure] for of_record in means]) if run != "best" else "" for measure in ("RR@10", "R@100")]
            lines.append([f"{row}/{run}", len(records), float(scores.mean()), f"{low:.4f}–{high:.4f}", *others])
    return _format_table(["row", "seeds", "nDCG@10", "95 %", "RR@10", "R@100"], lines)


def contrasts_table(contrasts: Sequence[Contrast | str], correction: str) -> str:
    """A line for each contrast; p only of those with all seeds, corrected over all that are declared."""
    p_values = [1.0 if isinstance(one, str) or not one.whole else one.p for one in contrasts]
    lines: list[list[object]] = []
    for one, corrected in zip(contrasts, correct_p_values(p_values, correction), strict=True):
        if isinstance(one, str):
            lines.append([one, WAITING, "", "", "", "", ""])
            continue
        seeds = " ".join(f"{value:+.4f}" for value in one.by_seed.values())
        cells = [f"{one.mean:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}", f"{one.effect:+.3f}"]
        tests = [format_p(one.p), format_p(corrected)] if one.whole else ["seeds missing", ""]
        lines.append([one.label, *cells, *tests, seeds])
    return _format_table(["contrast (nDCG@10)", "difference", "95 %", "d", "p", f"p ({correction})", "by seed"], lines)


def judge(one: Contrast | str, smallest: float) -> str:
    """What the primary contrast says by the declared rule."""
    if isinstance(one, str) or not one.whole:
        return "Not all declared seeds have run: nothing is concluded yet."
    if one.is_claimed:
        size = "at least" if abs(one.mean) >= smallest else "below"
        agree = "" if one.over_starts else ", and every seed has the sign of the mean"
        return f"p < .05{agree}: the difference is claimed. It is {size} {smallest}, what would matter."
    excluded = max(abs(one.low), abs(one.high))
    beyond = (
        f"the interval excludes differences of {smallest} and more"
        if excluded < smallest
        else f"differences up to {excluded:.4f} are not excluded"
    )
    rule = "p < .05 was declared" if one.over_starts else "p < .05 and the same sign in every seed were declared"
    return f"No difference is claimed ({rule}); {beyond}."


def experts_table(experiment: Experiment, of_set: str) -> str | None:
    """Of each row with several experts: overlap of their lists, and the share of questions on which one alone is best."""
    header: list[str] = []
    lines = []
    for row in [*experiment.declared["rows"], *experiment.declared.get("references", [])]:
        records = [name for name in experiment.records_of(row) if experiment.records[name]["sets"].get(of_set, {}).get("rbo")]
        if not records:
            continue
        overlaps = {
            pair: np.mean([experiment.records[name]["sets"][of_set]["rbo"][pair] for name in records])
            for pair in experiment.records[records[0]]["sets"][of_set]["rbo"]
        }
        experts = [name for name in experiment.records[records[0]]["sets"][of_set]["means"] if name not in SUMS]
        wins = np.mean([_shares_won([experiment.scores(name, expert, of_set) for expert in experts]) for name in records], axis=0)
        header = [*(f"RBO {pair}" for pair in overlaps), *(f"{expert} alone best" for expert in experts)]
        lines.append([row, *overlaps.values(), *wins])
    return _format_table(["row", *header], lines, ".3f") if lines else None


def _shares_won(scores: Sequence[Floats]) -> Floats:
    stacked = np.stack(scores)
    return ((stacked == stacked.max(axis=0)) & (np.sum(stacked == stacked.max(axis=0), axis=0) == 1)).mean(axis=1)


def choices_table(experiment: Experiment) -> str:
    """nDCG@10 on held-out training questions of each tried setting, a line for each row and similarity; bold: chosen."""
    tried: dict[str, dict[tuple[str, str], float]] = {}
    for choice in experiment.choices:
        tried.setdefault(choice["group"], {})[choice["similarity"], choice["rate"]] = choice["nDCG@10"]
    rates = sorted({rate for values in tried.values() for _, rate in values}, key=float)
    lines = []
    for group, values in tried.items():
        for similarity in sorted({similarity for similarity, _ in values}):
            cells = {rate: values.get((similarity, rate)) for rate in rates}
            best = max(values.values())
            lines.append([group, similarity, *("" if (cell := cells[rate]) is None else _mark(cell, cell == best) for rate in rates)])
    return _format_table(["row and collection", "similarity", *(f"rate {rate}" for rate in rates)], lines)


def _mark(value: float, is_best: bool) -> str:
    return f"**{value:.4f}**" if is_best else f"{value:.4f}"


def runs_table(experiment: Experiment) -> str:
    """Date, commit, machine and time of each record."""
    lines = []
    for name, record in experiment.records.items():
        if "/" in name:  # a trial on another collection, which a change of the declaration tells
            continue
        trainings = list(record["trainings"].values())
        counts = trainings[0]["settings"] if trainings else {}
        machine = record["machine"]
        what = f"{machine['processor']} ({', '.join(machine['extensions']) or 'none'}), {machine['threads']} threads"
        steps = f"{counts['steps']} × {counts['batch-size']}" if counts.get("steps") else ""
        steps += f" × (1 + {counts['negatives']})" if "negatives" in counts else ""  # a pre-training has none
        lines.append(
            [
                name,
                steps,
                f"{sum(one['seconds'] for one in trainings) / 60:.0f}" if trainings else "",
                record["date"],
                record["commit"],
                what,
            ]
        )
    return _format_table(["record", "steps", "minutes", "date", "commit", "machine"], lines)


def describe(experiment: Experiment) -> str:
    """Everything between the marked lines."""
    declared = experiment.declared
    rows = "\n".join(f"* `{row}`: {text}" for row, text in declared["rows"].items())
    parts = [
        f"**Question.** {declared['question'].strip()}",
        f"**Declared {declared['declared']}** (declarations/{experiment.declaration}), before the first row was trained.",
    ]
    parts += [
        f"**{name.replace('_', ' ').capitalize()}.** {str(declared[name]).strip()}"
        for name in ("data", "start", "steps", "choice", "runs", "gate", "test", "null_result")
        if name in declared
    ]
    parts += [f"**Rows**, seeds {', '.join(map(str, declared['seeds']))}:\n\n{rows}"]
    if declared.get("changes"):
        parts += ["**Changes** of the declaration, with their reasons:\n\n" + "\n".join(f"* {change}" for change in declared["changes"])]
    primary = experiment.contrasts("primary")
    parts += ["### The primary contrast", contrasts_table(primary, "none"), judge(primary[0], declared["smallest_effect"])]
    parts += ["### The secondary contrasts", contrasts_table(experiment.contrasts("secondary"), "holm")]
    whole = [*declared["rows"], *declared.get("references", [])]
    for of_set in [*experiment.sets, *declared.get("other_sets", [])]:
        parts += [f"### Means on {of_set}", means_table(experiment, of_set, whole)]
        if (overlap := experts_table(experiment, of_set)) is not None:
            parts += [f"### The experts on {of_set}", overlap]
    for title, other in (declared.get("tables") or {}).items():
        parts += [f"### {title}", means_table(experiment, other["set"], other["rows"])]
    if experiment.choices:
        parts += ["### Settings tried on held-out training questions, nDCG@10", choices_table(experiment)]
    if curves := curves_table(experiment):
        parts += ["### Curves of the trainings, means over the seeds", curves]
    return "\n\n".join([*parts, "### What ran", runs_table(experiment)])


def curve(records: Iterable[Mapping[str, Sequence[Sequence[float]]]], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, averaged over the seeds' curves; of metrics of every step the mean of ten steps."""
    logs = [{int(step): value for step, value in of_one[metric]} for of_one in records if metric in of_one]
    steps = sorted(set.intersection(*(set(log) for log in logs))) if logs else []
    values = [float(np.mean([log[step] for log in logs])) for step in steps]
    if len(steps) <= 5 * SMOOTHED:
        return steps, values
    ends = range(SMOOTHED, len(steps) + 1, SMOOTHED)
    return [steps[end - 1] for end in ends], [float(np.mean(values[end - SMOOTHED : end])) for end in ends]


def curves_table(experiment: Experiment) -> str:
    """Of each declared metric and row: the values of its curve at the first point, a third, two thirds and the last."""
    lines = []
    for metric in experiment.declared["curves"]:
        trainings = {row: experiment.records_of(row) for row in experiment.declared["rows"]}  # and the pre-trainings that they start from
        before = {row: f"pre-{row}" for row in trainings if f"pre-{row}" not in trainings}
        trainings |= {name: [one for one in experiment.records if one.startswith(f"{name}-")] for name in before.values()}
        for row, names in trainings.items():
            steps, values = curve([experiment.records[name]["curves"] for name in names], metric)
            if steps:
                points = [round(part * (len(steps) - 1) / 3) for part in range(4)]
                lines.append([metric, row, *(f"{values[point]:.4g} ({steps[point]})" for point in points)])
    return _format_table(["metric", "row", "first (step)", "a third", "two thirds", "last"], lines) if lines else ""


def write_page(page: Path, title: str, text: str, *, check: bool) -> bool:
    """Replace what stands between the marked lines; whether the page was as it should be."""
    old = page.read_text(encoding="utf-8") if page.exists() else f"# {title}\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    new = f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
    if not check:
        page.write_text(new, encoding="utf-8")
    return new == old


def main(names: Sequence[str], write: Callable[[str], object] = sys.stdout.write, *, check: bool = False) -> int:
    """Write or check the pages; how many differ."""
    different = 0
    for name in names or sorted(path.name.removesuffix(".jsonl.gz") for path in RESULTS.glob("*.jsonl.gz")):
        experiment = Experiment(name)
        if not experiment.records:
            continue
        experiment.check()
        same = write_page(RESULTS / f"{name}.md", experiment.title, describe(experiment), check=check)
        if check and not same:
            different += 1
            write(f"{name}.md is not what its records say; run: python tests/benchmarks/evidence/tables.py {name}\n")
    return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.names, check=options.check))
