"""`moeir mine-negatives`: documents that runs rank high and that are not judged positive become negatives."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import MAX_SEED, Counts, Facts, Stage, is_stream
from moeir.stages.run_arguments import MATCHES, read_answers, read_runs, run_paths

if TYPE_CHECKING:
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run

EXCLUDED = {
    "own_documents": "are their query (--keep-own-document keeps them)",
    "with_grades": "are judged better than --negative-grade",
    "twins": "have the text of a positive",
    "with_answers": "contain an answer",
    "near_positives": "score too near to a positive",
}
SKIPPED = ("without_positives", "without_hits", "without_negatives")


@dataclass(frozen=True, kw_only=True)
class MineNegatives(Stage):
    """Make training examples: positives from judgements, negatives from the union of runs, each with its source run, rank and score."""

    default_split: ClassVar[str] = "train"
    summarizes_streams = True
    run: tuple[Path, ...] = input_field("run", "Runs of the training queries.", aliases=("--runs",))
    qrels: Path = input_field("qrels", "Relevance judgements of the training queries.")
    method: str = option("Which ranks become negatives.", "band:first=0,last=200", package="mining")
    negatives: int | None = option("Negatives per query, sampled at random from the candidates [default: all].", None, minimum=1)
    seed: int = option("Seed of --negatives.", 42, minimum=0, maximum=MAX_SEED)
    positive_grade: int = option("Minimum grade of a positive document.", 1)
    negative_grade: int | None = option(
        "Maximum grade of a judged negative [default: 0, or less than --positive-grade]; grades between are neither.", None
    )
    keep_own_document: bool = option(
        "Let the document with the id of a query, or its text with --queries and --corpus, be its negative.", False
    )
    margin: float | None = option(
        "Drop candidates that score above the lowest positive of the query minus this.", None, minimum=0, aliases=("--absolute-margin",)
    )
    relative_margin: float | None = option(
        "Drop candidates that do not score below the lowest positive by this part of its score, as 0.05.", None, minimum=0, maximum=1
    )
    teacher: Path | None = input_field(
        "run", "Run whose scores the margins compare [default: each --run its own].", None, needs=("margin or relative_margin",)
    )
    exclude_answers: Path | None = input_field(
        "texts", "Questions with answers: documents that contain an answer are excluded from the negatives.", None, needs=("corpus",)
    )
    corpus: Path | None = input_field("texts", "Documents: those with the text of a positive are no negatives.", None)
    queries: Path | None = input_field(
        "texts", "With --corpus: queries, whose own text is no negative.", None, aliases=("--topics",), needs=("corpus",), only_with=None
    )
    match: str = option(
        "How --exclude-answers finds them; string: as a sequence of tokens (DPR).", "string", choices=MATCHES, needs=("exclude_answers",)
    )
    output: Path = output_field("examples", "JSON lines file to write; - is stdout.")

    def check(self) -> None:
        if self._negative_grade >= self.positive_grade:
            raise UsageError(f"--negative-grade {self.negative_grade}: expected less than --positive-grade {self.positive_grade}")
        if self.corpus is not None and is_stream(self.corpus):
            raise UsageError(f"--corpus {self.corpus}: is read more than once, and a pipe can be read once; name a file")

    @property
    def _negative_grade(self) -> int:
        return min(0, self.positive_grade - 1) if self.negative_grade is None else self.negative_grade

    def summary(self, counts: Facts) -> str:
        skipped = ", ".join(f"{counts[reason]:,} {reason.replace('_', ' ')}" for reason in SKIPPED)
        excluded = ", ".join(f"{counts[reason]:,} {words}" for reason, words in EXCLUDED.items() if counts[reason])
        figure = f"{format_count(counts['mined'], 'example')}; skipped queries: {skipped}"
        figure += f"; documents that are no negatives: {excluded}" if excluded else ""
        unfiltered = f"{counts['unfiltered']:,} examples keep all candidates, as no positive of theirs has a score to compare with"
        figure += f"; {unfiltered}" if counts["unfiltered"] else ""
        return figure + (f"; {counts['unscored']:,} negatives stay without a score of --teacher" if counts["unscored"] else "")

    def next_command(self) -> str:
        return "finetune --model CHECKPOINT --train OUTPUT --queries QUERIES --corpus CORPUS --output finetuned"

    def work(self) -> Counts:
        from moeir import mining
        from moeir.records import examples, qrels, runs
        from moeir.records.passages import find_passage_of

        counts = mining.MiningCounts()
        expert_runs = read_runs(self.run)
        grades, select = qrels.read_qrels(self.qrels), variants.bind_variant("mining", self.method)
        judged_documents = {document for judged in grades.values() for document in judged}
        for run, path in zip(expert_runs.values(), run_paths(self.run), strict=True):
            if passage := find_passage_of(run.document_ids, judged_documents):
                reason = f"has passages such as {passage!r} of documents that {self.qrels} judges, which would be their negatives"
                raise DataError(f"{path}: {reason}; search with --collapse max, and train on the documents from before they were cut")
        excluded = {} if self.corpus is None else self._find_twins(grades, self.corpus)
        teacher = None if self.teacher is None else runs.read_run(self.teacher)
        if self.margin is not None or self.relative_margin is not None:
            judges = list(expert_runs.values()) if teacher is None else [teacher]
            near = mining.find_near_positives(judges, grades, self.positive_grade, self.margin, self.relative_margin)
            excluded["near_positives"] = near
            if not near:
                raise DataError(f"{self.teacher or run_paths(self.run)[0]}: has no positive of {self.qrels}; do the ids agree?")
        if self.exclude_answers is not None:
            candidates = mining.select_candidates(expert_runs, grades, select, positive_grade=self.positive_grade)
            excluded["with_answers"] = self._find_documents_with_answers(candidates)
        mined_examples = mining.mine_negatives(
            expert_runs,
            grades,
            select,
            counts,
            positive_grade=self.positive_grade,
            negative_grade=self._negative_grade,
            keep_own=self.keep_own_document,
            excluded=excluded,
            teacher=teacher,
            max_negatives=self.negatives,
            seed=self.seed,
        )
        examples.write_examples(mined_examples, self.output)
        if not counts.mined:
            paths = ", ".join(map(str, run_paths(self.run)))
            raise DataError(f"{self.qrels}: no query has both positives and negatives in {paths}; do the ids agree?")
        return vars(counts)

    def _find_twins(self, grades: "Qrels", corpus: Path) -> dict[str, dict[str, set[str]]]:
        """For each query the documents with the text of a positive, and those with the query's; case and white space do not count."""
        from moeir.data_checks.files import fingerprint
        from moeir.records import texts

        positives = {query: [name for name, grade in judged.items() if grade >= self.positive_grade] for query, judged in grades.items()}
        wanted = {name for names in positives.values() for name in names}
        keys = {text.id: fingerprint(text.content) for text in texts.read_texts(corpus, keep_empty=True) if text.id in wanted}
        queries = texts.read_texts(self.queries) if self.queries is not None and not self.keep_own_document else ()
        query_keys = {text.id: fingerprint(text.content) for text in queries}
        documents: dict[int, set[str]] = {key: set() for key in (*keys.values(), *query_keys.values())}
        for text in texts.read_texts(corpus, keep_empty=True):
            for key in {fingerprint(text.content), fingerprint(text.text)} & documents.keys():
                documents[key].add(text.id)
        twins = {query: set().union(*(documents[keys[name]] for name in names if name in keys)) for query, names in positives.items()}
        return {"twins": twins, "own_documents": {query: documents[key] for query, key in query_keys.items()}}

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
