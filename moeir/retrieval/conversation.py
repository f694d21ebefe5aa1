"""A person asks, line by line, and sees documents: their words, where each expert has them, and why."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from moeir import console
from moeir.console import Line
from moeir.errors import MoeirError, UsageError
from moeir.indexes.analyzer import EnglishAnalyzer
from moeir.records.runs import Run, score_text
from moeir.retrieval.explained import FUSED, Explainer
from moeir.retrieval.fusing import exact_sum
from moeir.retrieval.opened import OpenIndex
from moeir.retrieval.shelf import Shelf
from moeir.retrieval.speed import Speed
from moeir.values import convert

SHOWN, SNIPPET, TERMS_SHOWN, TERMS_EXPLAINED = 10, 200, 8, 25
PROMPT = "query> "
QUERY = "query"
COMMANDS = {
    ":show N": "show the first N documents",
    ":depth N": "search each expert to depth N",
    ":expert NAME": "search one expert, or several with a + between; all: every one",
    ":fuse SPEC": "fuse by another formula, such as rrf",
    ":explain N": "why document N of the last list stands there",
    ":help": "this list",
    ":quit": "end, as Ctrl-D does",
}


class Conversation:
    """What has been said so far: settings, and the last query with its explainer."""

    def __init__(self, opened: OpenIndex, texts: Shelf | None, *, depth: int, experts: list[str], fuse: str | None) -> None:
        self._opened, self._texts = opened, texts
        self._depth, self._shown = depth, SHOWN
        self._experts, self._fuse = opened.chosen(experts), fuse or opened.fusion
        self._last: tuple[str, Any, Explainer] | None = None

    def answers(self, line: str) -> Iterator[Line]:
        """What is said to a line: documents for a query, or what a command says."""
        if line.startswith(":"):
            name, _, rest = line[1:].partition(" ")
            yield from self._command(name, rest.strip())
        elif line.strip():
            yield from self._query(line.strip())

    def _command(self, name: str, said: str) -> Iterator[Line]:
        if name == "help":
            yield from ([(f"{command:14}", "bold"), (words, "")] for command, words in COMMANDS.items())
        elif name == "explain":
            yield from self._explain(_number(said, ":explain"))
        elif name == "expert":
            self._experts = self._opened.chosen([] if said in ("", "all") else said.split("+"))
            yield [("experts: " + ", ".join(self._experts), "dim")]
        elif name == "fuse":
            exact_sum(said)
            self._fuse = said
            yield [(f"fused by {said}", "dim")]
        elif name in ("depth", "show"):
            number = _number(said, f":{name}")
            self._depth, self._shown = (number, self._shown) if name == "depth" else (self._depth, number)
            yield [(f"{name}: {number}", "dim")]
        else:
            raise UsageError(f":{name}: no such command; :help lists them")

    def _query(self, text: str) -> Iterator[Line]:
        speed = Speed(self._opened.device)
        found, _ = self._opened.runs([QUERY], [text], self._depth, self._experts, self._fuse, speed=speed)
        _, batch = next(iter(self._opened.encoded([text], 1, Speed())))
        encoded = {expert: batch[expert] for expert in self._experts}
        explainer = Explainer(self._opened, found, self._fuse, self._texts)
        self._last = text, encoded, explainer
        run = list(found.values())[-1]
        for one in explainer.query(QUERY, text, encoded, slice(self._shown)):
            yield from self._document(one, text, found)
        spent = {name: facts["seconds"] for name, facts in speed.facts().items()}
        parts = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in spent.items())
        count = min(len(run.scores), self._shown)
        words = f"{count} of {len(self._opened.ids):,} documents in {1000 * sum(spent.values()):.1f} ms ({parts})"
        yield [(words, "dim")]

    def _document(self, one: Mapping[str, Any], query: str, found: Mapping[str, Run]) -> Iterator[Line]:
        head = [(f"{one['rank']:>3}  ", "bold"), (f"{one['document']}  ", "bold cyan"), (score_text(one["score"]), "")]
        if FUSED in found:
            ranks = (f"{name} {said['rank'] or '–'}" for name, said in one["experts"].items())
            head.append(("   " + " · ".join(ranks), "dim"))
        yield head
        terms = [term for said in one["experts"].values() for term in said.get("terms", ())]
        text = None if self._texts is None else self._texts.get(one["document"])
        if text is not None:
            content = f"{text.title}: {text.text}" if text.title else text.text
            yield [("     ", ""), *snippet(content, self._places(content, query, terms))]
        if terms:
            yield [("     " + ", ".join(f"{term['term']} {term['product']:.2f}" for term in terms[:TERMS_SHOWN]), "green")]

    def _places(self, text: str, query: str, terms: list[Mapping[str, Any]]) -> list[tuple[int, int]]:
        """Where the terms that an expert matched stand in a text, or, without such an expert, those of the query."""
        checkpoint = self._opened.checkpoint
        if checkpoint is None:
            analyzer = EnglishAnalyzer()
            asked = set(analyzer.terms(query))
            words = ((word.span(), analyzer.terms(word.group())) for word in re.finditer(r"\w+", text))
            return [span for span, own in words if asked.intersection(own)]
        [(ids, begins)], [(own, _)] = checkpoint.reader.located([text]), checkpoint.reader.located([query])
        wanted = {term["term"] for term in terms} or {checkpoint.reader.token(number) for number in own}
        ends = [begin for _, begin in pairwise([*begins, len(text)])]
        spans = zip(ids, begins, ends, strict=True)
        found = [(begin, end) for number, begin, end in spans if checkpoint.reader.token(number) in wanted]
        return [(begin, begin + len(text[begin:end].rstrip())) for begin, end in found if text[begin:end].strip()]

    def _explain(self, rank: int) -> Iterator[Line]:
        if self._last is None:
            raise UsageError(":explain: ask something first")
        text, encoded, explainer = self._last
        ones = list(explainer.query(QUERY, text, encoded, slice(rank - 1, rank)))
        if not ones:
            raise UsageError(f":explain {rank}: the last list has no document {rank}")
        yield [(f"{ones[0]['document']}  ", "bold cyan"), (score_text(ones[0]["score"]), "")]
        for name, said in ones[0]["experts"].items():
            own = "not in its list" if said["rank"] is None else f"rank {said['rank']}, score {score_text(said['score'])}"
            yield [(f"  {name}: ", "bold"), (f"{own}, part {score_text(said['part'])}", "")]
            for term in said.get("terms", ())[:TERMS_EXPLAINED]:
                yield [(f"    {term['term']:20} {term['query']:8.3f} × {term['document']:8.3f} = {term['product']:8.3f}", "green")]
            if (more := len(said.get("terms", ())) - TERMS_EXPLAINED) > 0:
                yield [(f"    and {more} more terms", "dim")]
            for token in said.get("tokens", ()):
                met = token.get("document") or (f"vector {token['position']}" if "position" in token else "")
                yield [(f"    {token['query'] or '':20} {met:20} {token['similarity']:8.3f}", "green")]


def hold(conversation: Conversation) -> None:
    """Answer every line until there are no more, or one says :quit; what cannot be done is said, and asked again."""
    for line in console.asked(PROMPT):
        if line.strip() in (":quit", ":q"):
            return
        try:
            console.show(conversation.answers(line))
        except MoeirError as problem:
            console.show([[(str(problem), "red")]])


def _number(text: str, command: str) -> int:
    number: int = convert(text, "int", command)
    if number < 1:
        raise UsageError(f"{command} {number}: expected at least 1")
    return number


def snippet(text: str, places: list[tuple[int, int]], width: int = SNIPPET) -> Line:
    """A stretch of a text from a little before the first match, matches in their own style.

    >>> snippet("An owl hunts mice at night.", [(3, 6)], 20)
    [('An ', ''), ('owl', 'bold yellow'), (' hunts mice at', ''), (' …', 'dim')]
    """
    first = min(max(0, (places[0][0] if places else 0) - width // 4), max(0, len(text) - width))
    last = min(len(text), first + width)
    parts, end = [("… ", "dim")] if first else [], first
    for begin, stop in places:
        if end <= begin and stop <= last:
            parts += [(text[end:begin], ""), (text[begin:stop], "bold yellow")]
            end = stop
    parts.append((text[end:last], ""))
    if last < len(text):
        parts.append((" …", "dim"))
    return [(" ".join(words.split("\n")), style) for words, style in parts if words]
