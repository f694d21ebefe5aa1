# Settings and steps of the scripts of adapters; sourced by them, not run. MS MARCO passages, on one GPU.
#
# An environment variable overrides each value, e.g. MODEL=Qwen/Qwen3-8B SHARED_LAYERS=24 WORK=/fast/8b KEEP=no bash examples/adapters_came.sh
# DATA        the collection's files under their own names: collection.tsv, queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv,
#             qrels.dev.small.tsv, msmarco-test2019-queries.tsv, 2019qrels-pass.txt, and those of 2020
# MODEL       the frozen trunk: a decoder of transformers, by name on the Hub or as a folder
# MEMORY      flags that save memory: "--recompute --gradient-cache 16" for 8 billion parameters on 80 GB
# None of these trainings was run at this size. Hours are computed for one H100, whose bfloat16 products have 989 TFLOP/s at their peak, at 30 % of
# it: 2 × weights of matrix products × tokens forward, the same for gradients of activations in layers with adapters; no gradients of frozen weights.
# A training query is 32 tokens and 8 passages of 128 at most; 8,841,823 passages have 75 tokens on average.
# shellcheck shell=bash
DATA=${DATA:-data/msmarco} WORK=${WORK:-work/adapters} MODEL=${MODEL:-Qwen/Qwen3-0.6B} MEMORY=${MEMORY:-}
QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-128} BATCH=${BATCH:-64} NEGATIVES=${NEGATIVES:-7}
RANK=${RANK:-16} RATE=${RATE:-2e-4} EPOCHS=${EPOCHS:-1} SEED=${SEED:-42} DEPTH=${DEPTH:-1000} BM25_DEPTH=${BM25_DEPTH:-200}
POOL=${POOL:-14} # negatives of a query, of which each epoch draws
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

DATA=$(absolute "$DATA")
read -ra memory <<<"$MEMORY"
depths+=([bm25-train]=$BM25_DEPTH)
measures+=([dev]="RR@10 R@1000" [dl19]="nDCG@10" [dl20]="nDCG@10")
settings=(--query-length "$QUERY_LENGTH" --epochs "$EPOCHS" --warmup 0.1 --seed "$SEED" --cache "$WORK/data/tokens")

prepared() { # BM25's lists and training examples, which all these scripts share
  msmarco "$DATA"
  bm25 msmarco bm25:k1=0.82,b=0.68 train dev dl19 dl20
  $MOEIR mine-negatives --run "$(path train bm25/bm25)" --qrels "${qrels[train]}" --method "band:first=0,last=$BM25_DEPTH" --negatives "$POOL" \
    --output "$WORK/data/train.jsonl"
}

learned() { # NAME WEIGHTS ARCH OBJECTIVE EXAMPLES FLAGS...: ckpt/NAME
  trained "$1" "$2" "$3" "$4" --train "$WORK/data/$5.jsonl" --corpus "${corpora[msmarco]}" --queries "${queries[train]}" \
    --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$RATE" "${@:6}"
}
