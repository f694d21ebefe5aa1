"""Baseline run: sentence-transformers' float32 vectors of a BEIR collection, searched exactly.

python minilm_peer.py MODEL_FOLDER DATA_FOLDER QUERIES RUN [--length 256 --depth 100]
"""

import numpy as np
from rounds import make_parser
from sentence_transformers import SentenceTransformer

from moeir.records import runs, texts


def main() -> None:
    """Write a run of the best documents of each query, by inner product."""
    arguments = make_parser(__doc__, ("model", "data", "queries", "run"), length=256, depth=100).parse_args()
    model = SentenceTransformer(str(arguments.model), device="cpu")
    model.max_seq_length = arguments.length
    documents, queries = (list(texts.read_texts(path)) for path in (arguments.data / "corpus.jsonl.gz", arguments.queries))
    sides = (model.encode([text.content for text in side], normalize_embeddings=True) for side in (documents, queries))
    vectors, query_vectors = (np.asarray(side, dtype=np.float32) for side in sides)
    ids = [document.id for document in documents]
    scores_by_query = {
        query.id: dict(zip(ids, map(float, row), strict=True)) for query, row in zip(queries, query_vectors @ vectors.T, strict=True)
    }
    arguments.run.parent.mkdir(parents=True, exist_ok=True)
    runs.write_run(runs.Run.from_hits(scores_by_query).top(arguments.depth), arguments.run, tag="peer")


if __name__ == "__main__":
    main()
