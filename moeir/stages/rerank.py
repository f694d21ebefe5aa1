"""`moeir rerank`: score the first documents of a run again with cross-encoders or an architecture's experts; or the documents of training
examples, as their teacher.

Pairs are tokenised once, sorted by length over all queries and scored in batches of at most `max_tokens`; an interruption loses seconds.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import atomic_write, manifests, shards
from moeir.console import format_count, meter
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import COLLAPSE, DEPTH, DEVICE, INFERENCE_DTYPE, KEEP_EMPTY, STREAM, THREADS, Counts, Facts, Stage, is_stream

if TYPE_CHECKING:
    from moeir.records.examples import Example
    from moeir.records.runs import Run, Scores
    from moeir.reranking.candidates import CandidateTexts

OF_RUNS = ("run", "depth", "collapse", "rest", "tag")  # flags without a meaning for examples, all of which are scored
TOKENS_ON_CPU, TOKENS_ON_CUDA = 4096, 65536  # fits into a CPU cache; keeps a GPU busy
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rerank(Stage):
    """Rerank the first documents of a run with cross-encoders, or with exact scores of an architecture's own experts; or write a teacher's
    scores into training examples."""

    prepare_reads_texts = True
    model: tuple[Path, ...] = input_field("checkpoint", "Checkpoint that scores; repeat the flag for an ensemble.")
    run: Path | None = input_field("run", "The run whose documents are scored.", None)
    train: Path | None = input_field(
        "examples",
        "In place of --run: training examples, written with the scores of their documents, for --objective kl or margin-mse.",
        None,
        excludes=OF_RUNS,
    )
    queries: Path | None = input_field("texts", "Queries of the run, or of examples without them.", None, aliases=("--topics",))
    corpus: Path | None = input_field("texts", "The documents, unless examples have them.", None)
    depth: int = option("Documents scored per query; lower ones follow them in their original order.", 100, **DEPTH)
    ensemble: str = option("How scores of several models are combined.", "zscore", package="reranking.ensembles")
    expert: tuple[str, ...] = option("For a checkpoint that is not a cross-encoder: experts whose scores are added [default: all].", ())
    collapse: str | None = option(**COLLAPSE)
    shard: str | None = option("I/N: rerank shard I of N of the queries, counted from 0; join the runs with cat.", None)
    rest: bool = option("Keep documents below --depth, which are not scored.", True)
    max_tokens: int | None = option(
        "Maximum tokens per batch [default: 4096 on a CPU, 65536 on CUDA].", None, minimum=1, affects_result=False
    )
    threads: int | None = option(**THREADS)
    dtype: str = option(**INFERENCE_DTYPE)
    device: str = option(**DEVICE)
    keep_empty: bool = option(**KEEP_EMPTY)
    tag: str | None = option("Run tag [default: moeir.rerank].", None, single_word=True, aliases=("--runtag",))
    output: Path = output_field("run", "A .trec file, or with --train JSON lines; - for stdout.", STREAM)

    def product(self) -> tuple[Path, str]:
        """The output path; with --train of examples."""
        return self.output, "run" if self.train is None else "examples"

    def check(self) -> None:
        if self.run is None and self.train is None:
            raise UsageError("rerank needs --run or --train")
        if self.train is None and (self.queries is None or self.corpus is None):
            raise UsageError(f"rerank needs {'--queries' if self.queries is None else '--corpus'} or --dataset: the texts of the run")
        if self.shard is not None:
            shards.Shard.parse(self.shard)
        if self.corpus is not None and is_stream(self.corpus) and len(self.model) > 1:
            raise UsageError(f"--corpus {self.corpus}: every model reads it, and a pipe can be read once; name a file")

    def prepare(self) -> "Run":
        from moeir.reranking.candidates import Candidates

        run, texts, _ = self._read_candidates()
        for _ in texts.iterate_documents(Candidates.from_run(run, self._scored_depth).document, join_fields=True):
            pass  # an error if one is missing
        return run

    def estimate(self, run: "Run") -> list[str]:
        return [f"{len(run.top(self._scored_depth).scores):,} pairs by {' + '.join(map(str, self.model))}"]

    @property
    def _scored_depth(self) -> int:
        """How many documents of each list are scored: of examples all."""
        return self.depth if self.train is None else int(DEPTH["maximum"])

    def _read_candidates(self) -> "tuple[Run, CandidateTexts, list[Example]]":
        """The run to rerank, or that of the examples, or its queries of this shard; the texts of its pairs; and the examples."""
        from moeir.formats.training_files import read_training_examples
        from moeir.records import runs
        from moeir.reranking.candidates import CandidateTexts, convert_examples, select_shard

        training: list[Example] = []
        if self.train is not None:
            training = list(read_training_examples(self.train, provenance=True))
            run = convert_examples(training)
        else:
            assert self.run is not None
            run = runs.read_run(self.run)
        if self.shard is not None:
            shard = shards.Shard.parse(self.shard)
            if shard.total > len(run):
                raise UsageError(f"--shard {shard}: the run has {len(run)} queries; expected at most as many shards")
            run = select_shard(run, shard.number, shard.total)
        label = str(self.train or self.run)
        texts = CandidateTexts.from_run(run, self.queries, self.corpus, keep_empty=self.keep_empty, label=label, examples=training)
        return run, texts, training

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['queries'], 'query')}, {format_count(counts['hits'], 'hit')}"

    def next_command(self) -> str | None:
        if self.shard is not None:
            return None
        if self.train is None:
            return "evaluate --run OUTPUT --qrels QRELS"
        texts = f"{' --queries QUERIES' if self.queries else ''}{' --corpus CORPUS' if self.corpus else ''}"
        return f"finetune --model CHECKPOINT --train OUTPUT{texts} --objective kl --output finetuned"

    def work(self) -> Counts:
        from moeir.backbones.device import select_device, select_dtype
        from moeir.records import examples, runs
        from moeir.records.passages import collapse_run
        from moeir.reranking.candidates import add_scores
        from moeir.reranking.scoring import ScoringConfig, score_candidates
        from moeir.retrieval.latency import limit_threads

        run, candidate_texts, training = self._read_candidates()
        device = select_device(self.device)
        token_budget = self.max_tokens or (TOKENS_ON_CUDA if device.startswith("cuda") else TOKENS_ON_CPU)
        scoring_config = ScoringConfig(select_dtype(self.dtype, device, inference=True), device, token_budget, self.expert)
        score = partial(score_candidates, texts=candidate_texts, config=scoring_config)
        with limit_threads(self.threads):
            run, facts = self._rerank_run(run, score)
        if self.train is None:
            runs.write_run(collapse_run(run) if self.collapse else run, self.output, tag=self.tag or "moeir.rerank")
        else:
            examples.write_examples(add_scores(training, run), self.output)
        return {"queries": len(run), "hits": len(run.scores), "dtype": str(scoring_config.dtype), "models": facts}

    def _rerank_run(self, run: "Run", score: "Callable[..., tuple[Scores, dict[str, Any]]]") -> "tuple[Run, list[dict[str, Any]]]":
        """The reranked run, and the facts of each model for the manifest; `score` gives the scores of a model and their facts."""
        from moeir.reranking.candidates import Candidates, combine_scores

        resume = None if self.output == STREAM else atomic_write.resume_path(self.output)
        candidates, all_scores, model_facts = Candidates.from_run(run, self._scored_depth), [], []
        for number, model in enumerate(self.model):
            start = time.monotonic()
            with meter(f"reranking with {model}", len(candidates)) as counter:
                journal = None if resume is None else resume / f"model{number}.jsonl"
                model_scores, facts = score(model, candidates, advance=counter.advance, journal_file=journal)
            all_scores.append(model_scores)
            rate = facts["pairs"] / max(time.monotonic() - start, 1e-9)
            log.info("%s: %s documents of %d queries, %s a second", model, f"{facts['pairs']:,}", len(run), f"{rate:,.0f}")
            model_facts.append({"model": str(model), "digest": manifests.compute_digest(model), **facts})
        return candidates.apply_scores(combine_scores(candidates, all_scores, self.ensemble), rest=self.rest), model_facts
