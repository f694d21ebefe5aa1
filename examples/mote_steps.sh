# Settings and steps that the CoT-MoTE scripts share; sourced by them, not run. Paper: Ma et al. 2023, §3.3 and §4.2.
#
# Every value can be given from outside, e.g. WORK=/fast/mote KEEP=no bash examples/mote_msmarco.sh; those of all papers: steps.sh
# DATA        MS MARCO's files, as mote_msmarco.sh lists them; CORPUS, its passages with titles
# MODEL       pre-trained weights to start from. The paper pre-trains each architecture by itself: MOTE, SIAMESE and SEPARATE, if set, are
#             the weights of each. Pre-training itself comes later; BERT-base or another MLM works, and gives lower numbers
# RATE        2e-5 as in the published scripts of its forerunners; the paper prints 2e-4
# shellcheck shell=bash
DATA=${DATA:-data/msmarco} CORPUS=${CORPUS:-titled.tsv} WORK=${WORK:-work/mote} MODEL=${MODEL:-$PWD/models/cot-mote}
MOTE=${MOTE:-$MODEL} SIAMESE=${SIAMESE:-$MODEL} SEPARATE=${SEPARATE:-$MODEL}
QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-144}
BATCH=${BATCH:-64} NEGATIVES=${NEGATIVES:-15} EPOCHS=${EPOCHS:-3} RATE=${RATE:-2e-5} WARMUP=${WARMUP:-0.1} SEED=${SEED:-42}
BM25=${BM25:-bm25:k1=0.82,b=0.68}                        # tuned for recall on MS MARCO: the paper's row
BM25_DEPTH=${BM25_DEPTH:-1000} MINING_DEPTH=${MINING_DEPTH:-200} DEPTH=${DEPTH:-1000}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

DATA=$(absolute "$DATA")
settings=(--query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH" --batch-size "$BATCH" --negatives "$NEGATIVES")
settings+=(--epochs "$EPOCHS" --learning-rate "$RATE" --warmup "$WARMUP" --seed "$SEED")
objective=contrastive:flops_query=0,flops_document=0
called=([bm25]='' [global]=dense [lexical]=sparse [fused]=hybrid)
declare -A weights=([mote]=$MOTE [siamese]=$SIAMESE [separate]=$SEPARATE)

msmarco "$DATA" "$CORPUS"
tests=(dev dl19 dl20)
measures+=([dev]="RR@10 R@1 R@50 R@1000" [dl19]="nDCG@10" [dl20]="nDCG@10")
depths+=([bm25-train]=$BM25_DEPTH [train]=$MINING_DEPTH)

negatives() { # NAME RUN DEPTH: training examples data/NAME.jsonl
  $MOEIR mine-negatives --run "$(path train "$2")" --qrels "${qrels[train]}" --method "band:first=0,last=$3" --output "$WORK/data/$1.jsonl"
}

bm25_negatives() { # what every first training learns from
  bm25 msmarco "$BM25" train "${tests[@]}"
  negatives bm25 bm25/bm25 "$BM25_DEPTH"
}

two_stages() { # NAME WEIGHTS ARCH RUN: NAME-bm25, then NAME on what its RUN finds; both from the WEIGHTS
  trained "$1-bm25" "$2" "$3" "$objective" --train "$WORK/data/bm25.jsonl" --corpus "${corpora[msmarco]}" --queries "${queries[train]}"
  searched "$1-bm25" msmarco train "${tests[@]}"
  negatives "$1-bm25" "$1-bm25/$4" "$MINING_DEPTH"
  trained "$1" "$2" "$3" "$objective" --train "$WORK/data/$1-bm25.jsonl" --corpus "${corpora[msmarco]}" --queries "${queries[train]}"
  searched "$1" msmarco "${tests[@]}"
}

recipe() { # ENCODERS: mote, siamese or separate, trained by the sum of dense and sparse scores
  two_stages "$1" "${weights[$1]}" "mote:encoders=$1,similarity=hybrid" fused
}
