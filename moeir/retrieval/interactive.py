"""Interactive search (REPL): queries and commands line by line, documents with snippets, ranks of each expert and explanations."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from moeir import console
from moeir.console import StyledLine
from moeir.errors import MoeirError, UsageError
from moeir.fusion import FUSED
from moeir.indexes.bm25 import Bm25
from moeir.indexes.languages import open_analyzer
from moeir.indexes.lucene import Lucene
from moeir.parsing import parse_value, shorten_message
from moeir.records.runs import Run, format_score
from moeir.retrieval.explain import Explainer
from moeir.retrieval.latency import LatencyRecorder
from moeir.retrieval.searcher import Searcher, TextStore, parse_exact_sum

DEFAULT_RESULTS, SNIPPET_LENGTH, TERMS_SHOWN, TERMS_EXPLAINED = 10, 200, 8, 25
PROMPT = "query> "
QUERY_ID = "query"
COMMANDS = {
    ":show N": "show the first N documents",
    ":depth N": "search each expert to depth N",
    ":expert NAME": "search one expert, or several joined by +; all: every expert",
    ":fuse SPEC": "fuse by another formula, such as rrf",
    ":explain N": "explain the rank of document N of the last list",
    ":help": "this list",
    ":quit": "quit, as Ctrl-D does",
}


class InteractiveSession:
    """Settings of the session, and the last query with its explainer."""

    def __init__(self, searcher: Searcher, texts: TextStore | None, *, depth: int, experts: list[str], fuse: str | None) -> None:
        self._searcher, self._texts = searcher, texts
        self._depth, self._result_count = depth, DEFAULT_RESULTS
        self._experts, self._fuse = searcher.select_experts(experts), fuse or searcher.default_fusion
        self._last: tuple[str, Any, Explainer] | None = None  # None: no query yet

    def respond(self, line: str) -> Iterator[StyledLine]:
        """Output lines for an input line: documents of a query, or the reply to a command."""
        if line.startswith(":"):
            name, _, rest = line[1:].partition(" ")
            yield from self._run_command(name, rest.strip())
        elif line.strip():
            yield from self._run_query(line.strip())

    def _run_command(self, name: str, argument: str) -> Iterator[StyledLine]:
        if name == "help":
            yield from ([(f"{command:14}", "bold"), (words, "")] for command, words in COMMANDS.items())
        elif name == "explain":
            yield from self._explain(_parse_positive(argument, ":explain"))
        elif name == "expert":
            self._experts = self._searcher.select_experts([] if argument in ("", "all") else argument.split("+"))
            yield [("experts: " + ", ".join(self._experts), "dim")]
        elif name == "fuse":
            parse_exact_sum(argument)
            self._fuse = argument
            yield [(f"fused by {argument}", "dim")]
        elif name in ("depth", "show"):
            number = _parse_positive(argument, f":{name}")
            self._depth, self._result_count = (number, self._result_count) if name == "depth" else (self._depth, number)
            yield [(f"{name}: {number}", "dim")]
        else:
            raise UsageError(f":{name}: no such command; :help lists them")

    def _run_query(self, text: str) -> Iterator[StyledLine]:
        latency = LatencyRecorder(self._searcher.device)
        runs, _ = self._searcher.search_runs([QUERY_ID], [text], self._depth, self._experts, self._fuse, latency=latency)
        _, batch = next(iter(self._searcher.encode_batches([text], 1, LatencyRecorder())))
        encoded = {expert: batch[expert] for expert in self._experts}
        explainer = Explainer(self._searcher, runs, self._fuse, self._texts)
        once = "; the first query also loads the index" if self._last is None else ""
        self._last = text, encoded, explainer
        run = list(runs.values())[-1]
        for explanation in explainer.explain_query(QUERY_ID, text, encoded, slice(self._result_count)):
            yield from self._document_lines(explanation, text, runs)
        spent = {name: facts["seconds"] for name, facts in latency.summarize().items()}
        parts = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in spent.items())
        count = min(len(run.scores), self._result_count)
        message = f"{count} of {len(self._searcher.ids):,} documents in {1000 * sum(spent.values()):.1f} ms ({parts}){once}"
        yield [(message, "dim")]

    def _document_lines(self, explanation: Mapping[str, Any], query: str, runs: Mapping[str, Run]) -> Iterator[StyledLine]:
        head = [
            (f"{explanation['rank']:>3}  ", "bold"),
            (f"{explanation['document']}  ", "bold cyan"),
            (format_score(explanation["score"]), ""),
        ]
        if FUSED in runs:
            ranks = (f"{name} {entry['rank'] or '–'}" for name, entry in explanation["experts"].items())
            head.append(("   " + " · ".join(ranks), "dim"))
        yield head
        terms = [term for entry in explanation["experts"].values() for term in entry.get("terms", ())]
        text = None if self._texts is None else self._texts.get(explanation["document"])
        if text is not None:
            content = f"{text.title}: {text.text}" if text.title else text.text
            yield [("     ", ""), *make_snippet(content, self._match_spans(content, query, terms))]
        if terms:
            yield [("     " + ", ".join(f"{term['term']} {term['product']:.2f}" for term in terms[:TERMS_SHOWN]), "green")]

    def _match_spans(self, text: str, query: str, terms: list[Mapping[str, Any]]) -> list[tuple[int, int]]:
        """Spans in a text of the terms that an expert matched, or, without such an expert, of the query terms."""
        checkpoint = self._searcher.checkpoint
        if checkpoint is None:
            texts_engine = next((engine for engine in self._searcher.engines.values() if isinstance(engine, Bm25 | Lucene)), None)
            analyzer = open_analyzer("english" if texts_engine is None else texts_engine.language)
            query_terms = set(analyzer.terms(query))
            words = ((word.span(), analyzer.terms(word.group())) for word in re.finditer(r"\w+", text))
            return [span for span, own in words if query_terms.intersection(own)]
        [(ids, begins)], [(own, _)] = checkpoint.tokenizer.encode_with_offsets([text]), checkpoint.tokenizer.encode_with_offsets([query])
        matched = {term["term"] for term in terms} or {checkpoint.tokenizer.id_to_token(number) for number in own}
        ends = [begin for _, begin in pairwise([*begins, len(text)])]
        spans = zip(ids, begins, ends, strict=True)
        matches = [(begin, end) for number, begin, end in spans if checkpoint.tokenizer.id_to_token(number) in matched]
        return [(begin, begin + len(text[begin:end].rstrip())) for begin, end in matches if text[begin:end].strip()]

    def _explain(self, rank: int) -> Iterator[StyledLine]:
        if self._last is None:
            raise UsageError(":explain: no query yet; type one first")
        text, encoded, explainer = self._last
        explanations = list(explainer.explain_query(QUERY_ID, text, encoded, slice(rank - 1, rank)))
        if not explanations:
            raise UsageError(f":explain {rank}: the last list has no document {rank}")
        yield [(f"{explanations[0]['document']}  ", "bold cyan"), (format_score(explanations[0]["score"]), "")]
        for name, entry in explanations[0]["experts"].items():
            summary = "not in its list" if entry["rank"] is None else f"rank {entry['rank']}, score {format_score(entry['score'])}"
            yield [(f"  {name}: ", "bold"), (f"{summary}, part {format_score(entry['part'])}", "")]
            for term in entry.get("terms", ())[:TERMS_EXPLAINED]:
                yield [(f"    {term['term']:20} {term['query']:8.3f} × {term['document']:8.3f} = {term['product']:8.3f}", "green")]
            if (more := len(entry.get("terms", ())) - TERMS_EXPLAINED) > 0:
                yield [(f"    and {more} more terms", "dim")]
            for token in entry.get("tokens", ()):
                document_token = token.get("document") or (f"vector {token['position']}" if "position" in token else "")
                yield [(f"    {token['query'] or '':20} {document_token:20} {token['similarity']:8.3f}", "green")]


def run_session(session: InteractiveSession) -> None:
    """Respond to every line until the end of input or :quit; errors are shown and the session continues."""
    for line in console.prompt_lines(PROMPT):
        if line.strip() in (":quit", ":q"):
            return
        try:
            console.print_styled(session.respond(line))
        except MoeirError as problem:
            console.print_styled([[(shorten_message(str(problem)), "red")]])


def _parse_positive(text: str, command: str) -> int:
    number: int = parse_value(text, "int", command)
    if number < 1:
        raise UsageError(f"{command} {number}: expected at least 1")
    return number


def make_snippet(text: str, spans: list[tuple[int, int]], width: int = SNIPPET_LENGTH) -> StyledLine:
    """Cut an excerpt of a text from shortly before the first match, with matches highlighted.

    >>> make_snippet("An owl hunts mice at night.", [(3, 6)], 20)
    [('An ', ''), ('owl', 'bold yellow'), (' hunts mice at', ''), (' …', 'dim')]
    """
    first = min(max(0, (spans[0][0] if spans else 0) - width // 4), max(0, len(text) - width))
    last = min(len(text), first + width)
    parts, end = [("… ", "dim")] if first else [], first
    for begin, stop in spans:
        if end <= begin and stop <= last:
            parts += [(text[end:begin], ""), (text[begin:stop], "bold yellow")]
            end = stop
    parts.append((text[end:last], ""))
    if last < len(text):
        parts.append((" …", "dim"))
    return [(" ".join(words.split("\n")), style) for words, style in parts if words]
