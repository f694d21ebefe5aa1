"""A request of a search: a JSON object whose fields are flags, read and refused as `moeir search` does it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from moeir import settings, variants
from moeir.errors import UsageError
from moeir.parsing import preview, suggest
from moeir.retrieval.searcher import is_exact_sum
from moeir.settings import option

MAX_CHARACTERS, MAX_HITS, MAX_EXPLAINED = 10_000, 20_000, 256  # of a query; of all queries of a request


class SearchLimits(NamedTuple):
    """Depth of the lists that are searched and fused, documents scored again, queries of a request, queries that wait, seconds to an
    answer, and whether the documents that are searched can be explained."""

    depth: int = 1000
    rerank_depth: int = 100
    queries: int = 256
    queue: int = 1024
    seconds: float = 30.0
    explains: bool = True


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What to search, and what of the lists to answer."""

    query: tuple[str, ...] = option("A query; several are q1, q2, ….")
    k: int = option("Documents of each list.", 10, minimum=1)
    expert: tuple[str, ...] = option("Search these experts only.", ())
    fuse: str | None = option("Fusion method.", None)
    filter_ids: tuple[str, ...] = option("Search among the documents of these ids only.", (), aliases=("--filter",))
    explain: bool = option("Explain the documents of the last list.", False)
    document: tuple[str, ...] = option("With explain: these documents instead.", (), needs=("explain",))
    lists: bool = option("Answer with the list of every expert, too.", False)
    texts: bool = option("Answer with titles and texts, too.", False)
    rerank: bool = option("Score the first documents again, if the server has a checkpoint for it.", True)

    @classmethod
    def parse(cls, record: Any, limits: SearchLimits) -> "SearchRequest":
        """The request of a JSON value; UsageError for an unknown field, a wrong value, or too many."""
        if not isinstance(record, dict):
            raise UsageError(f'expected a JSON object such as {{"query": "owls"}}, found {preview(record)}')
        fields = settings.list_settings(cls)
        names = {flag.strip("-"): setting.name for setting in fields for flag in (setting.name, *setting.aliases)}
        if unknown := next((name for name in record if name not in names or record[name] == []), None):
            found = "expected one or more, found none" if unknown in names else f"there is no such field{suggest(unknown, names)}"
            raise UsageError(f"{preview(unknown)}: {found}")
        request: SearchRequest = settings.build_stage(cls, {names[name]: value for name, value in record.items()})
        for setting in fields:
            setting.check(getattr(request, setting.name))
        settings.check_combinations(request)
        count, explained = len(request.query), (len(request.document) or request.k) if request.explain else 0
        if count > limits.queries:
            raise UsageError(f"--query: expected at most {limits.queries} (--max-queries of the server), found {count:,}")
        if (wrong := next((text for text in request.query if not text.strip() or len(text) > MAX_CHARACTERS), None)) is not None:
            raise UsageError(f"--query {preview(wrong)}: expected words, at most {MAX_CHARACTERS:,} characters, found {len(wrong):,}")
        if request.k > limits.depth:
            raise UsageError(f"--k {request.k}: expected 1 to {limits.depth} (--depth of the server)")
        for name, number, most in (("--k", request.k, MAX_HITS), ("--explain", explained, MAX_EXPLAINED)):
            if count * number > most:
                raise UsageError(f"{name}: {number:,} documents for each of {count} queries; expected at most {most:,} for all")
        if explained and not limits.explains:
            raise UsageError("--explain: a server with --collapse finds documents by their passages, which alone can be explained")
        if variants.own_module(request.fuse or ""):
            raise UsageError(f"--fuse {request.fuse}: expected a method that moeir variants fusion lists")
        is_exact_sum(request.fuse or "came-sum")
        return request
