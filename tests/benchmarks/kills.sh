#!/usr/bin/env bash
# Encode, every engine of index, and search, each killed at random moments and restarted: are the bytes those of an undisturbed run?
#
# Use:  python tests/benchmarks/synthetic_collection.py WORK 10000 CORPUS... && KILLS=20 tests/benchmarks/kills.sh WORK [NAME...]
# NAME: encode; exact (flat, inverted and maxsim), quantised, bm25, plaid, faiss, hnsw of index; folder and single of search [default: all].
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
shift
KILLS=${KILLS:-20}
moeir="python -m moeir"

killed() { # NAME [OPTION...] -- COMMAND...
  echo "## $1"
  python "$here/kills.py" "kills/$1" --kills "$KILLS" "${@:2}" || echo "$1: failed"
}
one() {
  case $1 in
    encode) killed encode -- $moeir encode --model ckpt --corpus corpus.jsonl --terms 128 --output {output} ;;
    bm25) killed bm25 -- $moeir index --corpus corpus.jsonl --engine bm25 --output {output} ;;
    exact) killed exact -- $moeir index --encodings enc --output {output} ;;
    quantised) killed quantised -- $moeir index --encodings enc --engine lexical=inverted:quantise=8 --output {output} ;;
    plaid) killed plaid -- $moeir index --encodings enc --engine local=plaid:rescore=true --output {output} ;;
    faiss) killed faiss -- $moeir index --encodings enc --engine global=faiss:factory=IVF64+SQ8,rescore=true --output {output} ;;
    hnsw) killed hnsw -- $moeir index --encodings enc --engine global=faiss:factory=HNSW32 --output {output} ;;
    folder) killed folder -- $moeir search --index idx --queries queries.jsonl --depth 100 --output {output} ;;
    single) killed single --suffix .trec -- $moeir search --index idx --queries queries.jsonl --depth 100 --fuse rrf --output {output} ;;
  esac
}
[ -e ckpt ] || $moeir init --model weights --from-scratch --arch came:shared_layers=1,local_dim=16 --document-length 64 --query-length 32 --output ckpt
[ -e enc ] || $moeir encode --model ckpt --corpus corpus.jsonl --terms 128 --output enc
[ -e idx ] || $moeir index --encodings enc --output idx
for name in "${@:-encode exact quantised bm25 plaid faiss hnsw folder single}"; do
  for each in $name; do one "$each"; done
done
