"""`moeir learn-fusion`: learn to fuse several experts' lists on judged queries."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEPTH, STREAM, Counts, Facts, Stage, path_or_example
from moeir.stages.run_arguments import name_runs, name_source, read_query_texts, read_runs

FUSION_KINDS = ("gated", "linear")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LearnFusion(Stage):
    """Learn the weights of experts in a fusion on judged queries, for moeir fuse --learned. Use queries the experts were not trained on."""

    default_split: ClassVar[str] = "dev"
    run: tuple[Path, ...] = input_field(
        "run", "One run per expert, in the order of the fusion; repeat the flag.", least_count=2, aliases=("--runs",)
    )
    qrels: Path = input_field("qrels", "Relevance judgements of the queries to learn from.")
    queries: Path | None = input_field(
        "texts", "Query texts, to use the number, length and rarity of their words as features.", None, aliases=("--topics",), only_with=()
    )
    kind: str = option(
        "gated: weights per query, with features of ranks and agreement; linear: one weight for each expert.", "gated", choices=FUSION_KINDS
    )
    depth: int = option("Documents of each list to learn from.", 100, **DEPTH)
    strength: float | None = option("Regularization of gated towards linear [default: the best on held-out queries].", None, above=0)
    seed: int = option("Seed of the cross-validation folds.", 42, minimum=0)
    output: Path = output_field("fusion", "JSON file to write.")

    def check(self) -> None:
        if self.output == STREAM:
            raise UsageError("--output -: expected a file to write")
        for flag, value in {"--strength": self.strength, "--queries": self.queries}.items():
            if self.kind == "linear" and value is not None:
                raise UsageError(f"{flag}: has no effect on linear; leave it out, or use --kind gated")
        name_runs(self.run)

    def summary(self, counts: Facts) -> str:
        return f"learned on {format_count(counts['queries'], 'query')}: {counts['method']}"

    def next_command(self) -> list[object]:
        runs = [word for run in self.run for word in ("--run", run)]
        texts = () if self.queries is None else ("--queries", path_or_example(self.queries, "queries.jsonl"))
        return ["fuse", *runs, "--learned", self.output, *texts, "--output", "fused.trec"]

    def work(self) -> Counts:
        from moeir.fusion import files, gated, tuning
        from moeir.records import qrels

        runs_by_name = read_runs(self.run)
        expert_runs = list(runs_by_name.values())
        grades = qrels.read_qrels(self.qrels)
        query_texts = None if self.queries is None else read_query_texts(self.queries, grades, f"{self.qrels} judges")
        with name_source(self.qrels):
            fit = gated.learn_fusion(
                expert_runs, grades, self.kind, depth=self.depth, strength=self.strength, seed=self.seed, texts=query_texts
            )
        longest = [int((run.starts[1:] - run.starts[:-1]).max()) for run in expert_runs]
        provenance = {"by": "moeir learn-fusion", "loss": "listwise softmax", "depth": self.depth, "longest lists": longest, **fit.details}
        method = files.GATED if fit.gated is not None else f"linear:weights={tuning.format_weights(fit.weights)}"
        files.write_fusion(files.SavedFusion(method, tuple(runs_by_name), provenance, fit.gated), self.output)
        for name, loss in fit.details.get("held-out loss", {}).items():
            log.info("held-out loss: %.4f  %s", loss, name)
        return {"method": method, **fit.details}
