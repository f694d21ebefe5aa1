"""`moeir learn-fusion`: learn to fuse several experts' lists on judged queries."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEPTH, STREAM, Counts, Facts, Stage, suggest_output
from moeir.stages.run_arguments import log_guessed_depths, name_runs, name_source, read_runs, run_paths, short_run_names


@dataclass(frozen=True, kw_only=True)
class LearnFusion(Stage):
    """Learn the weights of experts in a fusion on judged queries, for moeir fuse --learned. Use queries the experts were not trained on."""

    default_split: ClassVar[str] = "dev"
    run: tuple[Path, ...] = input_field(
        "run", "One run per expert, in the order of the fusion; repeat the flag.", least_count=2, aliases=("--runs",)
    )
    qrels: Path = input_field("qrels", "Relevance judgements of the queries to learn from.")
    depth: int = option("Documents of each list to learn from.", 100, **DEPTH)
    output: Path = output_field("fusion", "JSON file to write.")

    def check(self) -> None:
        if self.output == STREAM:
            raise UsageError("--output -: expected a file to write")
        name_runs(self.run)

    def summary(self, counts: Facts) -> str:
        return f"learned on {format_count(counts['queries'], 'query')}: {counts['method']}"

    def next_command(self) -> list[object]:
        runs = [word for name in short_run_names(self.run) for word in ("--run", f"{name}=TEST-RUN")]
        return ["fuse", *runs, "--learned", self.output, "--output", suggest_output("fused.trec")]

    def work(self) -> Counts:
        from moeir.fusion import files, linear_weights, tuning
        from moeir.records import qrels

        runs_by_name = read_runs(self.run)
        expert_runs = list(runs_by_name.values())
        log_guessed_depths(run_paths(self.run), expert_runs, None, "runs of moeir search know theirs")
        grades = qrels.read_qrels(self.qrels)
        with name_source(self.qrels):
            examples = linear_weights.build_examples(expert_runs, grades, self.depth)
        weights = linear_weights.fit_weights(examples) / examples.list_spread
        longest = [int((run.starts[1:] - run.starts[:-1]).max()) for run in expert_runs]
        facts = {"queries": len(examples)}
        provenance = {"by": "moeir learn-fusion", "loss": "listwise softmax", "depth": self.depth, "longest lists": longest, **facts}
        method = f"linear:weights={tuning.format_weights(weights.tolist())}"
        files.write_fusion(files.SavedFusion(method, tuple(runs_by_name), provenance), self.output)
        return {"method": method, **facts}
