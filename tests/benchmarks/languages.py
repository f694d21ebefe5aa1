"""BM25 in other languages: how early a Debian package's one-line description finds its long one, with and without a stemmer, and the time.

    mkdir -p /tmp/lists/partial
    apt-get update -o Dir::State::Lists=/tmp/lists -o Acquire::Languages= -o Acquire::Languages::=de -o Acquire::Languages::=fr …
    python -m tests.benchmarks.languages /tmp/lists [--stemmers snowball none] [--texts 10000 --queries 2000]

A long description that several packages share is one document, whose query is the first package's line. Each query has one relevant
document: mean reciprocal rank in the first ten (RR@10), and the share of queries that find it there. Milliseconds are those of indexing
1,000 texts.
"""

import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from moeir.indexes.bm25 import Bm25
from tests.benchmarks.rounds import make_parser

LANGUAGE_OF_CODE = {
    **{"cs": "czech", "da": "danish", "de": "german", "es": "spanish", "fi": "finnish", "fr": "french", "hu": "hungarian", "it": "italian"},
    **{"ja": "cjk", "ko": "cjk", "nl": "dutch", "pl": "polish", "pt_BR": "portuguese", "ru": "russian", "sv": "swedish", "zh_CN": "cjk"},
}


def read_descriptions(lists: Path, code: str, count: int) -> list[tuple[str, str]]:
    """Long descriptions of a language's packages, of more than 40 characters, each with its line, drawn by seed."""
    [path] = lists.glob(f"*_Translation-{code.replace('_', '%5f')}*")
    output = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], capture_output=True, text=True, check=True).stdout
    descriptions = dict[str, str]()
    for stanza in output.split("\n\n"):
        _, _, description = stanza.partition(f"\nDescription-{code}: ")
        line, _, text = description.partition("\n")
        text = " ".join(part.strip() for part in text.splitlines())
        if len(text) > 40:
            descriptions.setdefault(text, line)
    return random.Random(0).sample([*descriptions.items()], min(count, len(descriptions)))


def measure(descriptions: list[tuple[str, str]], language: str, stemmer: str, count: int) -> str:
    """RR@10, the share of queries that find their document, and milliseconds, as cells of a table."""
    documents, queries = zip(*descriptions, strict=True)
    index = Bm25(language=language, stemmer=stemmer)
    start = time.process_time()
    index.add(documents)
    milliseconds = (time.process_time() - start) / len(documents) * 1e6
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        ranked, _ = Bm25.open(folder).search(queries[:count], 10)
    is_hit = ranked == np.arange(len(ranked))[:, None]
    reciprocal_rank = (is_hit / np.arange(1, ranked.shape[1] + 1)).sum(axis=1).mean()
    return f"{stemmer} | {reciprocal_rank:.4f} | {is_hit.any(axis=1).mean():.4f} | {milliseconds:.0f}"


def main() -> None:
    """Print a row for each language and stemmer."""
    parser = make_parser(__doc__, ("lists",), texts=10_000, queries=2000)
    parser.add_argument("--stemmers", nargs="*", default=["snowball", "none"])
    options = parser.parse_args()
    for code, language in LANGUAGE_OF_CODE.items():
        descriptions = read_descriptions(options.lists, code, options.texts)
        for stemmer in options.stemmers:
            if language != "cjk" or stemmer != "none":
                cells = measure(descriptions, language, stemmer, options.queries)
                print(f"| {language} ({code}) | {len(descriptions):,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
