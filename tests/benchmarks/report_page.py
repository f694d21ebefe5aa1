"""Costs of a report page of many queries: seconds to write it, megabytes, seconds to open it in a browser, milliseconds a key.

    python -m tests.benchmarks.report_page [QUERIES DEPTH APART WORDS]   # 7000 200 70 56: overlap as of CAME's runs, passages as MS MARCO's

Runs, texts and explanations are random, with terms and tokens of every document of the page. Chromium opens it three times, where it is
installed.
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
from moeir.reporting import html_page, page_data
from moeir.reporting.explanations import Explanations
from moeir.reporting.page_data import QueryPages
from tests.browser import PROGRAM, Browser

RUNS, DOCUMENTS, TOKENS, TERMS = ("bm25", "lexical", "local", "global", "fused"), 100_000, 16, 10
WORDS = [f"{first}{middle}{last}" for first in "bdfgklmnprst" for middle in ("a", "ei", "o", "u") for last in ("n", "rt", "lo", "ss")]


def sentence(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def make_runs(queries: int, depth: int, apart: int) -> dict[str, Run]:
    """Runs of the same documents in noisy order: the larger `apart`, the smaller the overlap of the top ranks."""
    rng, names = np.random.default_rng(7), [f"d{number:06}" for number in range(DOCUMENTS)]
    runs_by_name = {}
    for name in RUNS:
        codes = (np.arange(queries)[:, None] * 997 + np.arange(depth) * 13) % DOCUMENTS
        scores = -(np.arange(depth) + rng.random((queries, depth)) * apart).astype(np.float32)
        owners = np.repeat(np.arange(queries), depth)
        runs_by_name[name] = Run.from_columns([f"q{number}" for number in range(queries)], owners, names, codes.ravel(), scores.ravel())
    return runs_by_name


def make_explanations(cases: QueryPages, queries: list[str]) -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    for query in queries:
        query_tokens = rng.choices(WORDS, k=TOKENS)
        for document in cases.shown_documents(query):
            terms = [{"term": word, "query": 1.234, "document": rng.random(), "product": 1.0} for word in rng.sample(WORDS, TERMS)]
            tokens = [{"query": word, "document": rng.choice(WORDS), "similarity": rng.random()} for word in query_tokens]
            experts = {"lexical": {"part": 1.0, "terms": terms}, "local": {"part": 2.0, "tokens": tokens}, "global": {"part": 0.5}}
            yield {"query": query, "document": document, "experts": experts}


def write_page(queries: int, depth: int, apart: int, words: int, file: Path) -> None:
    rng, runs_by_name = random.Random(1), make_runs(queries, depth, apart)
    grades = {f"q{number}": {f"d{number * 997 % DOCUMENTS:06}": 1} for number in range(queries)}
    start = time.monotonic()
    cases, names = QueryPages(runs_by_name, grades, 10), list(grades)
    values = page_data.evaluate_runs(runs_by_name, grades, [measures.parse_measure(text) for text in ("nDCG@10", "RR@10", "R@100")])
    print(f"measured in {time.monotonic() - start:.1f} s")
    explanations = Explanations(make_explanations(cases, names), cases.shown_documents)
    query_texts = {name: Text(name, sentence(rng, 9)) for name in names}
    data = {"title": "many", "trainings": []} | cases.overview(query_texts) | {"judged": page_data.comparison_table(values, names)}
    corpus = (Text(name, sentence(rng, words), sentence(rng, 4)) for name in cases.document_numbers)
    with open(file, "w", encoding="utf-8") as output:
        output.writelines(html_page.render_page("many", data, cases.iter_chunks(corpus, explanations, 1200)))
    documents = len(cases.document_numbers)
    print(f"{queries:,} queries, {documents:,} documents, {explanations.document_count:,} explained: "
          f"{file.stat().st_size / 2**20:.0f} MiB in {time.monotonic() - start:.0f} s")  # fmt: skip


def measure_browser(file: Path, profile: Path) -> None:
    with Browser(profile) as browser:
        seconds = [browser.open(file) for _ in range(3)]
        print(f"open in {', '.join(f'{one:.2f}' for one in seconds)} s")
        browser.evaluate("document.getElementById('queries').focus()")
        start = time.monotonic()
        browser.press(*["ArrowDown"] * 50)
        print(f"next query in {(time.monotonic() - start) * 20:.0f} ms")
        browser.press("/")
        start = time.monotonic()
        browser.send("Input.insertText", text="bart")
        hit_count = browser.evaluate("document.getElementById('count').textContent")
        print(f"searched in {(time.monotonic() - start) * 1000:.0f} ms: {hit_count}")
        print(f"problems: {browser.problems}; requests: {len(set(browser.requests))}")


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:]] + [7000, 200, 70, 56][len(sys.argv) - 1 :]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_page(*sizes, Path(folder) / "page.html")
        if PROGRAM is not None:
            measure_browser(Path(folder) / "page.html", Path(folder) / "profile")
