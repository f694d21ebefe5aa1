"""`moeir rerank`: score the first documents of a run again with cross-encoders or an architecture's experts, in one round or several.

Pairs are tokenised once, sorted by length over all queries and scored in batches of at most `max_tokens`; an interruption loses seconds.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import settings, variants
from moeir.artifacts import making, manifests, shards
from moeir.errors import UsageError
from moeir.reranking.cascade import PASSAGES, Round, check_falling
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage, check_depth, check_word

if TYPE_CHECKING:
    from moeir.records.runs import Run
    from moeir.reranking.ledger import Ledger
    from moeir.reranking.library import Library
    from moeir.reranking.scoring import Manner

TOKENS_ON_CPU, TOKENS_ON_CUDA = 4096, 65536  # fits into a CPU cache; keeps a GPU busy
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rerank(Stage):
    """Rerank the first documents of a run with cross-encoders, or with exact scores of an architecture's own experts."""

    model: tuple[Path, ...] = source("checkpoint", "Checkpoint that scores; repeat the flag for an ensemble.")
    run: tuple[Path, ...] = source("run", "Runs; several are merged into one list of candidates by --fuse.", names=("--runs",))
    queries: Path = source("texts", "Queries of the run.", names=("--topics",))
    corpus: Path = source("texts", "The documents.")
    depth: int = option("Documents scored per query; lower ones follow them in their original order.", 100, names=("--hits", "--k"))
    then: tuple[str, ...] = option(
        "DEPTH:CHECKPOINT: another round, on the best of the previous one; repeat the flag with decreasing depths.", ()
    )
    ensemble: str = option("How scores of several models are combined; see: moeir variants reranking.ensembles.", "zscore")
    expert: tuple[str, ...] = option("For a checkpoint that is not a cross-encoder: experts whose scores are added [default: all].", ())
    passages: str = option(
        "For documents too long for a pair: firstp (first passage), maxp or sump (maximum or sum over passages).", "firstp"
    )
    passage_length: int | None = option("Maximum tokens of a document in a pair [default: as many as fit].", None)
    stride: int | None = option("Tokens from one passage to the next [default: half a passage].", None)
    fuse: str = option("Fusion method for several runs; see: moeir variants fusion.", "rrf")
    shard: str | None = option("I/N: rerank shard I of N of the queries, counted from 0; join the runs with cat.", None)
    patience: int | None = option("Stop a query after N documents in a row that do not reach its top 10 [default: never].", None)
    rest: bool = option("Keep documents that were not scored: below --depth, or skipped by --patience.", True)
    max_tokens: int | None = option("Maximum tokens per batch [default: 4096 on a CPU, 65536 on CUDA].", None, affects_result=False)
    threads: int | None = option("CPU threads [default: torch's].", None, affects_result=False)
    dtype: str = option("auto, float32 or bfloat16; scores are float32.", "auto")
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    tag: str | None = option("Run tag [default: moeir.rerank].", None, names=("--runtag",))
    output: Path = product("run", "A .trec file; - for stdout.", STREAM)

    def check(self) -> None:
        from moeir.stages.evaluate import named_runs

        check_depth(self.depth)
        if not self.model or not self.run:
            raise UsageError("rerank needs --model and --run")
        named_runs(self.run)
        self._rounds()
        variants.resolve("reranking.ensembles", self.ensemble)
        variants.resolve("fusion", self.fuse)
        sizes = {"--max-tokens": self.max_tokens, "--threads": self.threads, "--patience": self.patience}
        for flag, value in (sizes | {"--passage-length": self.passage_length, "--stride": self.stride}).items():
            if value is not None and value < 1:
                raise UsageError(f"{flag} {value}: expected at least 1")
        if self.passages not in PASSAGES:
            raise UsageError(f"--passages {self.passages}: expected one of {', '.join(PASSAGES)}")
        if self.stride is not None and self.passages == "firstp":
            raise UsageError("--stride: --passages firstp reads only the first passage; add --passages maxp or sump")
        if self.shard is not None:
            shards.Shard.parsed(self.shard)
        if self.patience is not None and max(len(one.models) for one in self._rounds()) > 1:
            raise UsageError(f"--patience {self.patience}: several models would stop a query at different documents; leave it out")
        if self.tag is not None:
            check_word("--tag", self.tag)
        if self.corpus == STREAM and sum(len(one.models) for one in self._rounds()) > 1:
            raise UsageError("--corpus -: every model reads it, and standard input can be read once; name a file")

    def sources(self) -> Iterator[tuple[settings.Setting, Path]]:
        yield from super().sources()
        model = next(setting for setting in settings.settings_of(type(self)) if setting.name == "model")
        for one in self._rounds()[1:]:
            yield from ((model, path) for path in one.models)

    def _rounds(self) -> list[Round]:
        rounds = [Round(self.depth, self.model), *map(Round.parsed, self.then)]
        check_falling(rounds)
        return rounds

    def cost(self) -> list[str]:
        run = self._candidates()
        pairs = [(len(run.top(one.depth).scores), one.models) for one in self._rounds()]
        return [f"{count:,} pairs by {' + '.join(map(str, models))}" for count, models in pairs]

    def _candidates(self) -> "Run":
        """The run to rerank, or its queries of this shard."""
        from moeir.records import runs
        from moeir.reranking.candidates import part, united

        run = united([runs.read(path) for path in self.run], self.fuse)
        if self.shard is None:
            return run
        shard = shards.Shard.parsed(self.shard)
        if shard.of > len(run):
            raise UsageError(f"--shard {shard}: the run has {len(run)} queries; expected at most as many shards")
        return part(run, shard.number, shard.of)

    def work(self) -> Counts:
        from moeir.backbones.precision import device_for, dtype_for
        from moeir.records import runs
        from moeir.reranking.ledger import Ledger
        from moeir.reranking.library import Library
        from moeir.reranking.passages import Passages
        from moeir.reranking.scoring import Manner
        from moeir.retrieval.speed import threads

        run = self._candidates()
        candidate_texts = Library.of(run, self.queries, self.corpus, keep_empty=self.keep_empty, label=", ".join(map(str, self.run)))
        device = device_for(self.device)
        passages = Passages(self.passages, self.passage_length, self.stride)
        token_budget = self.max_tokens or (TOKENS_ON_CUDA if device.startswith("cuda") else TOKENS_ON_CPU)
        scoring_config = Manner(dtype_for(self.dtype, device), device, token_budget, passages, self.expert, self.patience)
        journal = Ledger(None if self.output == STREAM else making.resume_place(self.output))
        round_facts = []
        with threads(self.threads):
            for number, cascade_round in enumerate(self._rounds()):
                run, facts = self._reranked(run, cascade_round, number, candidate_texts, scoring_config, journal)
                round_facts.append(facts)
        journal.close()
        runs.write(run, self.output, tag=self.tag or "moeir.rerank")
        return {"queries": len(run), "hits": len(run.scores), "dtype": str(scoring_config.dtype), "rounds": round_facts}

    def _reranked(
        self, run: "Run", cascade_round: Round, number: int, candidate_texts: "Library", scoring_config: "Manner", journal: "Ledger"
    ) -> "tuple[Run, dict[str, Any]]":
        """The reranked run of a round, and its facts for the manifest."""
        from moeir.console import meter
        from moeir.reranking.candidates import Candidates, combined
        from moeir.reranking.scoring import scored

        candidates, all_scores, model_facts = Candidates.of(run, cascade_round.depth), [], []
        for model_number, model in enumerate(cascade_round.models):
            start = time.monotonic()
            with meter(f"reranking with {model}", len(candidates)) as counter:
                model_scores, facts = scored(
                    model, candidates, candidate_texts, scoring_config, journal, f"round{number}.model{model_number}", counter.advance
                )
            all_scores.append(model_scores)
            rate = facts["pairs"] / max(time.monotonic() - start, 1e-9)
            log.info("%s: %s documents of %d queries, %s a second", model, f"{facts['pairs']:,}", len(run), f"{rate:,.0f}")
            model_facts.append({"model": str(model), "digest": manifests.digest(model), **facts})
        rest = self.rest or number > 0
        return candidates.reranked(combined(candidates, all_scores, self.ensemble), rest=rest), {
            "depth": cascade_round.depth,
            "models": model_facts,
        }
