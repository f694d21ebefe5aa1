#!/usr/bin/env bash
# all-MiniLM-L6-v2 as it is, and BM25, on a BEIR collection: the published numbers through init, encode, index, search, evaluate.
#
# Use:      tests/benchmarks/minilm_beir.sh DATA_FOLDER SPLIT WORK_FOLDER MODEL_FOLDER [DTYPE ...]
# Expected: nDCG@10 0.6451 on SciFact, 0.3159 on NFCorpus; BM25 0.6789 and 0.3218 (Lucene, k1 = 0.9, b = 0.4)
set -euo pipefail
data=$1 split=$2 work=$3 model=$4
shift 4
mkdir -p "$work"
cd "$work"
python - "$data" "$split" <<'PY'
import sys
from pathlib import Path
from moeir.records import qrels, texts
folder, split = Path(sys.argv[1]), sys.argv[2]
judged = qrels.read_qrels(folder / "qrels" / f"{split}.tsv.gz")
texts.write_texts((one for one in texts.read_texts(folder / "queries.jsonl.gz") if one.id in judged), "queries.jsonl")
PY
runs=(--run runs/bm25.trec)
moeir index --corpus "$data/corpus.jsonl.gz" --engine bm25 --output idx/bm25
moeir search --index idx/bm25 --queries queries.jsonl --depth 100 --output runs/bm25.trec
moeir init --model "$model" --arch dense:pooling=mean,normalise=true --document-length 256 --query-length 256 --output ckpt
for dtype in "${@:-bfloat16}"; do
  moeir encode --model ckpt --corpus "$data/corpus.jsonl.gz" --dtype "$dtype" --output "enc-$dtype"
  moeir index --encodings "enc-$dtype" --output "idx/$dtype"
  moeir search --index "idx/$dtype" --queries queries.jsonl --depth 100 --dtype "$dtype" --output "runs/$dtype.trec"
  runs+=(--run "runs/$dtype.trec")
done
moeir evaluate "${runs[@]}" --qrels "$data/qrels/$split.tsv.gz" --measure nDCG@10 --measure R@100
