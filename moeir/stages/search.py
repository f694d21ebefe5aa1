"""`moeir search`: search every expert's index for one run per expert and the fused run."""

import logging
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import console, variants
from moeir.artifacts import atomic_write
from moeir.artifacts.identity import release_held
from moeir.console import format_count
from moeir.data_sources import is_remote
from moeir.errors import UsageError
from moeir.fusion import FUSED
from moeir.settings import input_field, option, output_field
from moeir.stages.base import COLLAPSE, DEPTH, DEVICE, FILE_SUFFIXES, INFERENCE_DTYPE, STREAM, THREADS, Counts, Facts, Stage, is_stream

if TYPE_CHECKING:
    from moeir.records.runs import Run
    from moeir.records.texts import Text
    from moeir.retrieval.searcher import Searcher

log = logging.getLogger(__name__)
QUERIES_PER_BLOCK = 256  # searched and written together, or as many whole batches
QUERIES, HITS, EMPTY, TRUNCATION = "queries", "hits", "without hits", "truncation"


@dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Search all experts of an index and fuse their lists. A .trec path or - receives the fused run, a folder all runs."""

    summarizes_streams = True
    prepare_reads_texts = True
    index: tuple[Path, ...] = input_field(
        "index",
        "Output folder of moeir index; repeat the flag for parts of a collection, searched as one, or for BM25 as one more expert.",
    )
    queries: Path | None = input_field(
        "texts",
        "Queries; - is standard input, whose lines may be plain text: queries 1, 2, ….",
        None,
        aliases=("--topics",),
        excludes=("query",),
    )
    query: tuple[str, ...] = option("A query instead of --queries; repeat the flag. Their ids are q1, q2, ….", (), group="Inputs")
    corpus: Path | None = input_field("texts", "With --explain: documents, to show their texts.", None, needs=("explain",))
    depth: int = option("Documents per query and expert.", 1000, **DEPTH, group="Search")
    collapse: str | None = option(**COLLAPSE, excludes=("explain",), group="Search")
    filter_ids: Path | None = input_field(
        "ids", "Ids of documents, one a line: search among these only.", None, aliases=("--filter",), group="Search"
    )
    expert: tuple[str, ...] = option("Search these experts only; repeat the flag.", (), group="Search")
    fuse: str | None = option(
        "Fusion method: exact-sum (missing scores are computed), came-sum …; "
        "see: moeir variants fusion [default: rrf with a BM25 index beside, exact-sum where the checkpoint is trained as one score (mote, "
        "coil), else came-sum].",
        None,
        group="Search",
    )
    prompt: str | None = option("Name of the checkpoint's prompt before queries [default: its query prefix].", None, group="Search")
    explain: Path | None = option(
        "File of explanations: rank, score and part of every expert for each document, with matching terms and tokens (JSON lines).",
        None,
        group="Output",
    )
    model: Path | None = input_field(
        "checkpoint", "The checkpoint, if it has moved: the one the index was made with; or the same one calibrated.", None
    )
    batch_size: int = option(
        "Queries encoded and searched together; 1 measures single-query latency.", 256, minimum=1, affects_result=False
    )
    threads: int | None = option(**THREADS)
    dtype: str = option(**INFERENCE_DTYPE)
    device: str = option(**DEVICE)
    tag: str | None = option("Run tag [default: moeir.EXPERT].", None, single_word=True, aliases=("--runtag",), group="Output")
    output: Path = output_field("run", "A .trec file, - for stdout, or a folder.", STREAM)

    def check(self) -> None:
        from moeir.retrieval.searcher import is_exact_sum

        if self.fuse is not None:
            variants.import_code_of(self.fuse)
            is_exact_sum(self.fuse)
        if self.output.suffix == ".json":
            raise UsageError(f"--output {self.output}: a run is lines of TREC's form; expected the name of a .trec file, or of a folder")
        if len({path.resolve() for path in self.index}) < len(self.index):
            raise UsageError("--index: the same index is given twice; parts of a collection share no documents")
        if not all(text.strip() for text in self.query):
            raise UsageError("--query: expected words, found none")
        if self.queries is None and not self.query:
            raise UsageError("search needs --queries or --query")

    def outputs(self) -> dict[str, tuple[Path, str]]:
        return super().outputs() | ({} if self.explain is None else {"--explain": (self.explain, "explanation")})

    def makes_folder(self) -> bool:
        return self.output != STREAM and not self.output.name.endswith(FILE_SUFFIXES)

    def summary(self, counts: Facts) -> str:
        from moeir.retrieval.latency import format_machine, format_speed

        speed, queries = counts["speed"], format_count(counts["queries"], "query")
        return f"{queries}, {format_machine(speed['machine'])}, batches of {self.batch_size}: {format_speed(speed)}"

    def next_command(self) -> str | None:
        run = self.output
        if self.makes_folder():
            run = max(self.output.glob("*.trec"), key=lambda path: path.name == "fused.trec", default=self.output / "fused.trec")
        return None if self.queries is None else f"evaluate --run {shlex.quote(str(run))} --qrels QRELS"  # typed ones have no judgements

    def prepare(self) -> "tuple[Searcher, int, Iterable[Text]]":
        """The index, the number of queries, all of which are checked, and the queries, read again one by one where that is possible."""
        from moeir.records import lines, texts
        from moeir.retrieval.searcher import open_index

        options: dict[str, Any] = {"model": self.model, "prompt": self.prompt}
        searcher = open_index(self.index, **options, device=self.device, dtype=self.dtype, verified=True)
        if self.collapse is not None:
            searcher = searcher.collapse_passages()
        if self.filter_ids is not None:
            searcher = searcher.filter_ids(texts.read_id_list(self.filter_ids), lines.source_name(self.filter_ids))
        searcher.select_experts(self.expert)
        release_held(products_only=True)  # their files are mapped or in memory, so a long search survives a new index
        if self.queries is not None and not is_stream(self.queries) and not is_remote(self.queries):
            return searcher, texts.count_texts(self.queries), texts.read_texts(self.queries)
        queries = [texts.Text(f"q{number}", text) for number, text in enumerate(self.query, 1)]
        if self.queries is not None:
            queries = list(texts.read_texts(self.queries, plain_lines=self.queries == STREAM))
        return searcher, len(queries), queries

    def work(self) -> Counts:
        from moeir.records import texts
        from moeir.retrieval import latency as latency_module
        from moeir.retrieval.run_files import RunFiles

        with latency_module.limit_threads(self.threads):
            searcher, count, queries = self.prepare()
            experts, fuse = searcher.select_experts(self.expert), self.fuse or searcher.default_fusion
            names = [*experts, *([FUSED] if len(experts) > 1 else [])]
            paths = {name: self.output / f"{name}.trec" for name in names} if self.makes_folder() else {names[-1]: self.output}
            resume = None if self.output == STREAM or self.explain is not None else atomic_write.resume_path(self.output)
            latency = latency_module.LatencyRecorder(searcher.device)
            search = partial(
                searcher.search_runs, depth=self.depth, experts=experts, fuse=fuse, batch_size=self.batch_size, latency=latency
            )
            block_size = count if self.explain is not None else self.batch_size * -(-QUERIES_PER_BLOCK // self.batch_size)
            tags = {name: self.tag or f"moeir.{name}" for name in names}
            with console.meter("searching", count) as meter, RunFiles(paths, tags, resume) as files:
                meter.advance(files.counts[QUERIES])
                for block in texts.split_chunks(islice(queries, files.counts[QUERIES], None), block_size):
                    ids, contents = [query.id for query in block], [query.content for query in block]
                    if not latency.steps and (warm_up := latency_module.warm_up_size(count)):
                        search(ids[:warm_up], contents[:warm_up])
                        latency.end_warm_up(warm_up)
                    truncation = {} if searcher.checkpoint is None else searcher.checkpoint.truncation
                    truncation.clear()  # of the warm-up, and of blocks that are counted
                    runs_by_name = search(ids, contents, advance=meter.advance)
                    cut = {f"{TRUNCATION} {name}": number for name, number in truncation.get("query", {}).items()}
                    files.add_block(runs_by_name, _count_hits(runs_by_name) | cut)
                files.finish()
            if searcher.checkpoint is not None:
                searcher.checkpoint.truncation["query"] = Counter(_select_counts(files.counts, TRUNCATION))
                searcher.checkpoint.log_truncation()
            for expert in experts:
                if empty := files.counts[f"{EMPTY} {expert}"]:
                    log.warning("%s: %d of %d queries found no document", expert, empty, count)
            if self.explain is not None:
                self._write_explanations(searcher, runs_by_name, fuse, ids, contents)
            machine = latency_module.machine_info(searcher.device, searcher.paths, searcher.engines.keys() - set(experts))
            speed_facts = {"batch_size": self.batch_size, **latency.speed(), "machine": machine}
            precision = {} if searcher.checkpoint is None else {"dtype": str(searcher.dtype)}
            hits = _select_counts(files.counts, HITS)
            return {"queries": count, "experts": experts, "hits": hits, **precision, "speed": speed_facts}

    def _write_explanations(
        self, searcher: "Searcher", runs_by_name: "dict[str, Run]", fuse: str, names: list[str], queries: list[str]
    ) -> None:
        from moeir.parsing import dump_json
        from moeir.records import lines
        from moeir.retrieval import explain as explain_module
        from moeir.retrieval.latency import LatencyRecorder

        assert self.explain is not None
        documents = {name for run in runs_by_name.values() for name in run.document_ids}
        texts = explain_module.read_wanted_texts(self.corpus, documents)
        explainer = explain_module.Explainer(searcher, runs_by_name, fuse, texts)
        encoded = searcher.encode_batches(queries, self.batch_size, LatencyRecorder())
        explanations = explainer.explain_all(names, queries, encoded)
        lines.write_lines(map(dump_json, explanations), self.explain)


def _count_hits(runs_by_name: "Mapping[str, Run]") -> dict[str, int]:
    """What the blocks of a search add up to: queries; hits and queries without a hit, by run."""
    counts = {QUERIES: len(next(iter(runs_by_name.values())))}
    for name, run in runs_by_name.items():
        counts |= {f"{HITS} {name}": len(run.scores), f"{EMPTY} {name}": int((run.starts[1:] == run.starts[:-1]).sum())}
    return counts


def _select_counts(counts: Mapping[str, int], kind: str) -> dict[str, int]:
    """The counts of a kind, by what follows it in their names."""
    return {name.removeprefix(f"{kind} "): count for name, count in counts.items() if name.startswith(f"{kind} ")}
