"""Write the judged queries of a file as JSON lines: the queries that a recipe searches and trains on.

    python examples/judged.py QUERIES QRELS OUTPUT

keeps their order; a query counts as judged under any grade.
"""

import sys
from pathlib import Path

from moeir.records import qrels, texts


def main(queries: Path, judgements: Path, output: Path) -> None:
    grades_by_query = qrels.read_qrels(judgements)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}")
    texts.write_texts((text for text in texts.read_texts(queries) if text.id in grades_by_query), partial)
    partial.rename(output)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
