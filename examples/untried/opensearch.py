"""OpenSearch: vectors by k-NN, weighted terms as rank features, token vectors for its late-interaction score. Never run.

moeir export --to examples.untried.opensearch:Opensearch --encodings enc --corpus corpus.jsonl --output export/opensearch
"""

import json
from typing import Any

from moeir.export_targets.base import ExportedDocument, ExportSchema, ExportTarget, float16_to_lists, text_payload, to_nine_digits

FULL_STOP, ONE_DOT_LEADER = ".", "․"  # OpenSearch reads a full stop in a feature's name as a path, so the one-dot leader replaces it
README = """# {name}

Written to OpenSearch's documentation (3.3), not run against it here.

    ./load.sh http://localhost:9200           # more of curl in CURL, as in CURL="-u admin:… -k"

`index.json` is the index: `…_vector` fields hold dense vectors (k-NN by inner product), `…_terms` weighted terms as `rank_features`, asked
by `neural_sparse` with `query_tokens`; OpenSearch keeps nine bits of a feature's weight. Their names have ․ (U+2024) where a term has a
full stop. `…_tokens` hold the vectors of tokens, which a `script_score` rescores with
`lateInteractionScore(params.vectors, 'FIELD', params._source, 'innerproduct')`. `documents-*.jsonl` are bodies for `_bulk`.

Queries are encoded by the checkpoint that encoded the documents, in Python:

    import moeir
    query = moeir.open_checkpoint("CHECKPOINT", device="cpu").encode(["…"], "query")
    query["EXPERT"].export_row(0)        # a vector, vectors of tokens, or terms (lines of terms.txt, from 0) and weights
"""
LOAD_SCRIPT = """#!/bin/sh
# Makes the index and fills it: ./load.sh http://localhost:9200
set -eu
url=${{1:?the address of OpenSearch, such as http://localhost:9200}}
cd "$(dirname "$0")"
curl --fail --silent --show-error ${{CURL:-}} -X PUT "$url/{name}" -H 'Content-Type: application/json' --data-binary @index.json
for file in documents-*.jsonl; do
  answer=$(curl --fail --silent --show-error ${{CURL:-}} -X POST "$url/{name}/_bulk?filter_path=errors,items.*.error" \\
    -H 'Content-Type: application/x-ndjson' --data-binary "@$file")
  case $answer in *'"errors":true'*) echo "$file: $answer" >&2; exit 1 ;; esac
done
curl --fail --silent --show-error ${{CURL:-}} -X POST "$url/{name}/_refresh"
"""


class Opensearch(ExportTarget):
    """Bodies for OpenSearch's _bulk: k-NN vectors, rank features, token vectors for its late-interaction score."""

    def __init__(self, schema: ExportSchema, *, name: str = "passages") -> None:
        super().__init__(schema, name)

    def lines(self, document: ExportedDocument) -> list[Any]:
        fields: dict[str, Any] = text_payload(document.text)
        fields |= {f"{name}_vector": float16_to_lists(vector) for name, vector in document.dense.items()}
        for name, (terms, weights) in document.sparse.items():
            names = [self.schema.terms[term].replace(FULL_STOP, ONE_DOT_LEADER) for term in terms.tolist()]
            fields[f"{name}_terms"] = dict(zip(names, to_nine_digits(weights), strict=True))
        fields |= {f"{name}_tokens": float16_to_lists(tokens) for name, tokens in document.multivector.items()}
        return [{"index": {"_id": document.text.id}}, fields]

    def files(self) -> dict[str, str]:
        widths, experts_of = self.schema.widths, self.schema.experts_of
        fields: dict[str, Any] = {"id": {"type": "keyword"}, "title": {"type": "text"}, "text": {"type": "text"}}
        method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
        fields |= {f"{name}_vector": {"type": "knn_vector", "dimension": widths[name], "method": method} for name in experts_of("dense")}
        fields |= {f"{name}_terms": {"type": "rank_features"} for name in experts_of("sparse")}
        fields |= {f"{name}_tokens": {"type": "object", "enabled": False} for name in experts_of("multivector")}
        index = {"settings": {"index": {"knn": True}}, "mappings": {"dynamic": "strict", "properties": fields}}
        texts = {"load.sh": LOAD_SCRIPT.format(name=self.name), "README.md": README.format(name=self.name)}
        return {"index.json": json.dumps(index, indent=1) + "\n", **texts}
