"""Runs, judgements, answers and groups of queries that several stages take as flags: their checks, names and readers."""

import logging
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from moeir import variants
from moeir.artifacts import atomic_write, manifests
from moeir.artifacts.shards import Shard
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.fusion import FUSED
from moeir.stages.base import STREAM, is_stream, split_run_name

if TYPE_CHECKING:
    from moeir.evaluation.answer_match import Answers
    from moeir.records.runs import Run

DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@100")
MATCHES = ("string", "regex")
DEPTH_METHODS = ("came_sum", "sumrr", "maxrr", "linear")  # fusions in which a document missing from a list is worth its K-th hit
log = logging.getLogger(__name__)
OTHER_SUFFIXES = (
    ".svg",
    ".png",
    ".pdf",
    ".jpg",
    ".jpeg",
    ".gif",
    ".json",
    ".md",
    ".tex",
    ".csv",
    ".html",
    ".parquet",
)  # no tables of lines


def check_countable(corpus: Path, flag: str) -> None:
    """UsageError for a pipe, which could not be read again."""
    if is_stream(corpus):
        raise UsageError(f"{flag}: needs a corpus whose texts can be counted before they are read; {corpus} is a pipe; name a file")


def count_corpus(corpus: Path, flag: str, *, keep_empty: bool) -> int:
    """The number of texts of a corpus, all of which are checked; UsageError for a pipe."""
    from moeir.records import texts

    check_countable(corpus, flag)
    return texts.count_texts(corpus, keep_empty=keep_empty)


def read_shard_range(shard: str | None, corpus: Path, block: int, *, keep_empty: bool) -> tuple[int, int | None]:
    """The texts of shard I/N of a corpus, whole blocks, as (first, last + 1); the whole corpus without a shard."""
    if shard is None:
        return 0, None
    parsed, count = Shard.parse(shard), count_corpus(corpus, "--shard", keep_empty=keep_empty)
    if (blocks := -(-count // block)) < parsed.total:
        found = f"{corpus} has {count:,} texts, {blocks} blocks of {block:,}"
        raise UsageError(f"--shard {shard}: {found}; expected at most {blocks} shards")
    return parsed.row_range(count, block)


def check_measures(names: Iterable[str]) -> None:
    """UsageError for a measure that there is not, or whose options are wrong."""
    from moeir.evaluation.measures import parse_measure

    for name in names:
        parse_measure(name)


def choose_form(form: str, output: Path, stream_form: str, forms: Mapping[str, str] = MappingProxyType({})) -> str:
    """The form of a table: `form`, or for `auto` that of standard output, or by the suffix of the file; `forms` by suffix beside these two.

    UsageError for the suffix of another kind of file, so that nobody takes a table for one.
    """
    from moeir.records import lines

    if form != "auto" or output == STREAM:
        return stream_form if form == "auto" else form
    path, by_suffix = atomic_write.final_path(output), {".tsv": "tsv", ".jsonl": "jsonl", **forms}
    suffix = lines.strip_compression_suffix(path).suffix.lower()
    if suffix in OTHER_SUFFIXES and suffix not in by_suffix:
        raise UsageError(f"--output {path}: expected {' or '.join(by_suffix)} for a table")
    return by_suffix.get(suffix, "tsv")


def run_paths(runs: Sequence[Path]) -> list[Path]:
    """The paths of runs, which may be given as NAME=PATH."""
    return [split_run_name(run)[1] for run in runs]


def short_run_names(runs: Sequence[Path]) -> list[str]:
    """The name of each run: NAME of NAME=PATH, or the file name without suffix."""
    from moeir.records import lines

    parts = map(split_run_name, runs)
    return [name or ("stdin" if path == STREAM else lines.strip_compression_suffix(path).stem) for name, path in parts]


def name_runs(runs: Sequence[Path]) -> dict[str, Path]:
    """Run paths by name: `short_run_names`, or the path of a run without NAME where these repeat."""
    names, paths = short_run_names(runs), run_paths(runs)
    if len(set(names)) < len(names):
        names = [split_run_name(run)[0] or str(run) for run in runs]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        twice = "the same run is given twice" if len(set(paths)) < len(paths) else f"two runs have the name {repeated!r}"
        raise UsageError(f"--run: {twice}; give each its own name: --run NAME=PATH")
    return dict(zip(names, paths, strict=True))


class SearchOfRun(NamedTuple):
    """What `moeir search` made a run with: digests of its indexes and of --model, if named; its expert or `fused`; its depth, None
    if the file is not as large as it was written."""

    indexes: tuple[str, ...]
    model: str | None
    expert: str
    depth: int | None


def find_search_of_run(path: Path) -> SearchOfRun | None:
    """The search that a run's manifest names; None for any other run."""
    from moeir.records import lines

    for file in (path, path.resolve()):
        has_own_manifest = manifests.manifest_path(file).is_file()
        try:
            manifest = manifests.read_manifest(file if has_own_manifest else file.parent)
        except ArtifactError:
            continue
        if manifest.get("stage") == "search" and file.name in manifest["files"]:
            sources = manifest.get("sources", {})
            expert = list(manifest["counts"]["hits"])[-1] if has_own_manifest else lines.strip_compression_suffix(file).stem
            depth = manifest["settings"]["depth"] if file.stat().st_size == manifest["files"][file.name]["bytes"] else None
            return SearchOfRun(tuple(sources.get("index", ())), next(iter(sources.get("model", ())), None), expert, depth)
    return None


def find_merged_runs(paths: Mapping[str, Path]) -> dict[str, list[str]]:
    """The runs that each fused run merges, among the runs of one call: by the manifests of `moeir search` and `moeir fuse`."""
    files = {name: path for name, path in paths.items() if not is_stream(path)}
    searches = {name: search for name, path in files.items() if (search := find_search_of_run(path))}
    merged, digest_of = dict[str, list[str]](), cache(manifests.compute_digest)  # a run may be large, and fused in several ways
    for name, path in files.items():
        if name in searches and searches[name].expert == FUSED:
            merged[name] = [other for other, search in searches.items() if search[:2] == searches[name][:2]]
        elif manifests.manifest_path(path).is_file() and (manifest := manifests.read_manifest(path)).get("stage") == "fuse":
            merged[name] = [other for other, file in files.items() if digest_of(file) in manifest["sources"]["run"]]
    return {name: parts for name, parts in ((name, [part for part in parts if part != name]) for name, parts in merged.items()) if parts}


def read_run_with_depth(path: Path, collapse: str | None = None) -> "Run":
    """A run, with the depth of its search if that is known; with `collapse` that of the documents of its passages."""
    from moeir.records import lines, passages, runs

    search = find_search_of_run(path)
    run = replace(runs.read_run(path), depth=None if search is None else search.depth)
    return run if collapse is None else passages.collapse_run(run, lines.source_name(path))


def log_guessed_depths(paths: Sequence[Path], runs: "Iterable[Run]", method: str | None, advice: str) -> None:
    """Log the depths that a fusion takes from the longest list of a run; of a `method` only if it uses them."""
    guesses = [f"{run.list_depth} of {path}" for path, run in zip(paths, runs, strict=True) if run.depth is None]
    if guesses and (method is None or variants.parse_spec(method).name.replace("-", "_") in DEPTH_METHODS):
        log.info("depth of the searches: guessed by the longest lists, %s; %s", ", ".join(guesses), advice)


def warn_of_better_part(
    measure: str, values: Mapping[str, Mapping[str, float]], fused_name: str, fused: Mapping[str, float], advice: str = ""
) -> None:
    """Warn if one of the runs that a fusion merges, whose values by query are given, is better than the fused run."""
    from moeir.evaluation import significance

    means = {name: statistics.fmean(by_query.values()) for name, by_query in values.items()}
    fused_mean, best = statistics.fmean(fused.values()), max(means, key=means.__getitem__)
    if means[best] > fused_mean:
        p = significance.format_p(significance.paired_t_test(values[best], fused))
        log.warning("%s alone has %s %.4f, %s %.4f, p %s%s", best, measure, means[best], fused_name, fused_mean, p, advice.format(best))


def read_runs(paths: Sequence[Path]) -> "dict[str, Run]":
    """The runs by name."""
    return {name: read_run_with_depth(path) for name, path in name_runs(paths).items()}


def read_answers(path: Path, match: str) -> "Answers":
    """The answers of each question, prepared for matching."""
    from moeir.evaluation import answer_match
    from moeir.records import lines, texts

    return answer_match.compile_answers(texts.read_texts(path, keep_empty=True), match, lines.source_name(path))


@contextmanager
def prefix_errors_with(path: Path | None) -> Iterator[None]:
    """A DataError inside the block gets the path of the file that it is about."""
    try:
        yield
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None
