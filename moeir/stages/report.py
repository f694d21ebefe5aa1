"""`moeir report`: what a training did, drawn from its `metrics.jsonl`; several beside one another."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import making
from moeir.errors import UsageError
from moeir.settings import product, source
from moeir.stages.base import STREAM, Counts, Stage

TEXTS, LISTS, PICTURES = ("", ".txt"), (".tsv", ".jsonl"), (".svg", ".png")


@dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """Show trainings, finished or not: shares and losses of experts, usage of routers, development values, alarms."""

    training: tuple[Path, ...] = source("training", "Folder that finetune or pretrain writes; repeat the flag to see several together.")
    output: Path = product("report", "Where to write: .svg or .png is a picture, .tsv or .jsonl a list, else text; - is stdout.", STREAM)

    def check(self) -> None:
        known = (*TEXTS, *LISTS, *PICTURES)
        if self._suffix() not in known:
            raise UsageError(f"--output {self.output}: expected a name that ends with {', '.join(known[1:-1])} or {known[-1]}")
        if self._suffix() in PICTURES and importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"--output {self.output}: pictures need the package matplotlib; pip install 'moeir[report]'")

    def _suffix(self) -> str:
        """What the name ends with, before .gz or .zst of what is a text."""
        from moeir.records import lines

        place = making.place_of(self.output)
        inner = lines.stem(place).suffix
        return inner if self.output != STREAM and inner not in PICTURES else place.suffix

    def work(self) -> Counts:
        from moeir.evaluation import tables
        from moeir.records import lines
        from moeir.report import training

        found = training.opened(self.training)
        if (suffix := self._suffix()) in PICTURES:
            from moeir.report import pictures

            pictures.drawn(found, self.output, suffix.removeprefix("."))
        else:
            with lines.writer(self.output) as output:
                if suffix in TEXTS:
                    output.write(training.text(found))
                else:
                    listed = tables.in_file(training.NAMES, list(training.rows(found)), suffix.removeprefix("."))
                    output.writelines(f"{line}\n" for line in listed)
        return {"trainings": len(found), "steps": sum(one.watch.step for one in found)}
