"""`moeir mine-negatives`: documents that runs rank high and that are not judged positive become negatives."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import DataError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import MAX_SEED, Counts, Facts, Stage, path_or_example
from moeir.stages.run_arguments import MATCHES, check_answers, read_answers, read_runs, run_paths

if TYPE_CHECKING:
    from moeir.records.runs import Run

SKIPPED = ("without_positives", "without_hits", "without_negatives")


@dataclass(frozen=True, kw_only=True)
class MineNegatives(Stage):
    """Make training examples: positives from judgements, negatives from the union of runs, each with its source run, rank and score."""

    default_split: ClassVar[str] = "train"
    summarizes_streams = True
    run: tuple[Path, ...] = input_field("run", "Runs of the training queries; repeat the flag.", aliases=("--runs",))
    qrels: Path = input_field("qrels", "Relevance judgements of the training queries.")
    method: str = option("Which ranks become negatives.", "band:first=0,last=200", room="mining")
    keep: int | None = option(
        "Negatives kept per query, sampled at random from the candidates [default: all].", None, minimum=1, aliases=("--negatives",)
    )
    seed: int = option("Seed of --keep.", 42, minimum=0, maximum=MAX_SEED)
    positive_grade: int = option("Minimum grade of a positive document.", 1)
    exclude_answers: Path | None = input_field(
        "texts", "Questions with answers: documents that contain an answer are excluded from the negatives.", None
    )
    corpus: Path | None = input_field(
        "texts", "With --exclude-answers: the documents to search for answers.", None, only_with=("exclude_answers",)
    )
    match: str = option("With --exclude-answers: string (token match, as in DPR) or regex.", "string", choices=MATCHES)
    output: Path = output_field("examples", "JSON lines file to write; - is stdout.")

    def check(self) -> None:
        check_answers("--exclude-answers", self.exclude_answers, self.corpus, self.match)

    def summary(self, counts: Facts) -> str:
        skipped = ", ".join(f"{counts[reason]:,} {reason.replace('_', ' ')}" for reason in SKIPPED)
        figure = f"{format_count(counts['mined'], 'example')}; skipped queries: {skipped}"
        if self.exclude_answers is None:
            return figure
        return f"{figure}; {format_count(counts['with_answers'], 'document')} excluded because they contain an answer"

    def next_command(self) -> list[object]:
        texts = ("--queries", "queries.jsonl", "--corpus", path_or_example(self.corpus, "corpus.jsonl"))
        return ["finetune", "--model", "checkpoint", "--train", self.output, *texts, "--output", "finetuned"]

    def work(self) -> Counts:
        from moeir import mining
        from moeir.records import examples, qrels

        counts = mining.MiningCounts()
        expert_runs = read_runs(self.run)
        grades, select = qrels.read_qrels(self.qrels), variants.bind_variant("mining", self.method)
        excluded = None
        if self.exclude_answers is not None:
            excluded = self._find_documents_with_answers(
                mining.select_candidates(expert_runs, grades, select, positive_grade=self.positive_grade)
            )
        grade = self.positive_grade
        mined_examples = mining.mine_negatives(
            expert_runs, grades, select, counts, positive_grade=grade, excluded=excluded, keep=self.keep, seed=self.seed
        )
        examples.write_examples(mined_examples, self.output)
        if not counts.mined:
            paths = ", ".join(map(str, run_paths(self.run)))
            raise DataError(f"{self.qrels}: no query has both positives and negatives in {paths}; do the ids agree?")
        return vars(counts)

    def _find_documents_with_answers(self, candidates: "list[Run]") -> dict[str, set[str]]:
        """The candidate negatives of each query that contain an answer."""
        from moeir.evaluation import answer_match

        assert self.exclude_answers is not None and self.corpus is not None
        questions = read_answers(self.exclude_answers, self.match)
        excluded: dict[str, set[str]] = {}
        for run in candidates:
            for row, query in enumerate(run.queries):
                if query not in questions.by_question and len(run.list_at(row)[0]):
                    raise DataError(f"{self.exclude_answers}: has no question {query!r}, for which negatives are mined")
        for run, has_answer in zip(candidates, answer_match.hit_labels(candidates, questions, self.corpus), strict=True):
            for row, query in enumerate(run.queries):
                documents = run.list_at(row)[0][has_answer[run.starts[row] : run.starts[row + 1]]]
                excluded.setdefault(query, set()).update(run.document_ids[code] for code in documents.tolist())
        return excluded
