"""What a page of many queries costs: seconds to make it, megabytes, seconds until a browser has it open, milliseconds a key.

    python -m tests.benchmarks.report_page [QUERIES DEPTH APART WORDS]   # 7000 200 70 56: tops share as CAME's do, passages as MS MARCO's

Runs, texts and explanations are drawn at random: terms and tokens of every document that the page shows. Chromium opens it three times,
where it is installed.
"""

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moeir.evaluation import measures
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.report import contents, judged, page
from moeir.report.cases import Cases
from moeir.report.reasons import Reasons
from tests.browser import PROGRAM, Browser

RUNS, DOCUMENTS, TOKENS, TERMS = ("bm25", "lexical", "local", "global", "fused"), 100_000, 16, 10
WORDS = [f"{first}{middle}{last}" for first in "bdfgklmnprst" for middle in ("a", "ei", "o", "u") for last in ("n", "rt", "lo", "ss")]


def sentence(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def runs(queries: int, depth: int, apart: int) -> dict[str, Run]:
    """Lists of the same documents, each a little out of order: the more `apart`, the fewer the tops share."""
    chance, names = np.random.default_rng(7), [f"d{number:06}" for number in range(DOCUMENTS)]
    found = {}
    for name in RUNS:
        codes = (np.arange(queries)[:, None] * 997 + np.arange(depth) * 13) % DOCUMENTS
        scores = -(np.arange(depth) + chance.random((queries, depth)) * apart).astype(np.float32)
        owners = np.repeat(np.arange(queries), depth)
        found[name] = Run.from_columns([f"q{number}" for number in range(queries)], owners, names, codes.ravel(), scores.ravel())
    return found


def explanations(cases: Cases, queries: list[str]) -> Iterator[dict[str, Any]]:
    chance = random.Random(7)
    for query in queries:
        asked = chance.choices(WORDS, k=TOKENS)
        for document in cases.documents(query):
            terms = [{"term": word, "query": 1.234, "document": chance.random(), "product": 1.0} for word in chance.sample(WORDS, TERMS)]
            tokens = [{"query": word, "document": chance.choice(WORDS), "similarity": chance.random()} for word in asked]
            experts = {"lexical": {"part": 1.0, "terms": terms}, "local": {"part": 2.0, "tokens": tokens}, "global": {"part": 0.5}}
            yield {"query": query, "document": document, "experts": experts}


def made(queries: int, depth: int, apart: int, words: int, file: Path) -> None:
    chance, found = random.Random(1), runs(queries, depth, apart)
    grades = {f"q{number}": {f"d{number * 997 % DOCUMENTS:06}": 1} for number in range(queries)}
    begun = time.monotonic()
    cases, names = Cases(found, grades, 10), list(grades)
    values = judged.values(found, grades, [measures.parse(text) for text in ("nDCG@10", "RR@10", "R@100")])
    print(f"measured in {time.monotonic() - begun:.1f} s")
    held = contents.Contents(cases, names, Reasons(explanations(cases, names), cases.documents), 1200)
    asked = {name: Text(name, sentence(chance, 9)) for name in names}
    data = {"title": "many", "trainings": []} | held.data(asked) | {"judged": judged.table(values, names)}
    corpus = (Text(name, sentence(chance, words), sentence(chance, 4)) for name in held.numbers)
    with open(file, "w", encoding="utf-8") as output:
        output.writelines(page.lines("many", data, held.parts(corpus)))
    print(f"{queries:,} queries, {len(held.numbers):,} documents, {held.reasons.documents:,} explained: "
          f"{file.stat().st_size / 2**20:.0f} MiB in {time.monotonic() - begun:.0f} s")  # fmt: skip


def opened(file: Path, profile: Path) -> None:
    with Browser(profile) as browser:
        seconds = [browser.open(file) for _ in range(3)]
        print(f"open in {', '.join(f'{one:.2f}' for one in seconds)} s")
        browser.value("document.getElementById('queries').focus()")
        begun = time.monotonic()
        browser.press(*["ArrowDown"] * 50)
        print(f"next query in {(time.monotonic() - begun) * 20:.0f} ms")
        browser.press("/")
        begun = time.monotonic()
        browser.say("Input.insertText", text="bart")
        said = browser.value("document.getElementById('count').textContent")
        print(f"searched in {(time.monotonic() - begun) * 1000:.0f} ms: {said}")
        print(f"problems: {browser.problems}; requests: {len(set(browser.requests))}")


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:]] + [7000, 200, 70, 56][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made(*sizes, Path(folder) / "page.html")
        if PROGRAM is not None:
            opened(Path(folder) / "page.html", Path(folder) / "profile")
