#!/usr/bin/env bash
# SB-MoE: what is a gate among experts worth, beyond one adapter behind the same gate? At two depths of the backbone, on two collections.
#
# Declared: declarations/sbmoe.yaml
# Rows:     prepare, the data, BM25 and the untrained weights; choice-DEPTH-KIND-SET, each similarity scale and backbone rate on held-out
#           training questions; DEPTH-KIND-SEED for seeds 2 3, a training with the chosen setting on each collection, which makes its missing
#           choices first. DEPTH: shallow (the first layers of MODEL_FOLDER), deep (all). KIND: plain adapter random top1; a row top1 records
#           `all` too, the same training searched with all experts. SET: squad medquad
# Sizes:    cores: 300 steps of 4 questions x (1 + 3) passages of 72 tokens, MiniLM cut to 2 layers and whole (6). Minutes of one core: prepare 6; a
#                  choice 12 (shallow) or 30 (deep), of plain 16 or 39; a row 4 or 9, of top1 7 or 12; 6 hours in all, 108 tried settings and
#                  32 trainings. Estimated from 10 steps of 48 tokens (.4 and .16 s each), times 1.47 for the tokens
#           h200:  800 steps of 64 x (1 + 7), 128 tokens, BERT base cut to 4 layers and whole, all questions (SQuAD's 0.6 times, MedQuAD's 4.6)
#                  and passages: about 8 hours, estimated
# Two calls may share a WORK_FOLDER if they run different choices; run all choices before the rows, which otherwise make their own.
set -euo pipefail
sizes=(STEPS BATCH NEGATIVES LENGTH QUERY_LENGTH SHALLOW EXPERTS MIXTURE_RATE TRAIN HELD_OUT HELD_OUT_PASSAGES DEV PASSAGES SIMILARITIES RATES DEPTH)
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
STEPS=${STEPS:-$(sized 300 800 2)} BATCH=${BATCH:-$(sized 4 64 2)} NEGATIVES=${NEGATIVES:-$(sized 3 7 2)} LENGTH=${LENGTH:-$(sized 72 128 24)}
QUERY_LENGTH=${QUERY_LENGTH:-24} SHALLOW=${SHALLOW:-$(sized 2 4 1)} EXPERTS=${EXPERTS:-$(sized 6 6 3)} MIXTURE_RATE=${MIXTURE_RATE:-1e-3}
TRAIN=${TRAIN:-$(sized 4000 100000 16)} HELD_OUT=${HELD_OUT:-$(sized 300 1000 4)} HELD_OUT_PASSAGES=${HELD_OUT_PASSAGES:-$(sized 600 10000 8)}
DEV=${DEV:-$(sized 3000 10570 6)} PASSAGES=${PASSAGES:-$(sized 3000 20958 20)} SEEDS=${SEEDS:-$(sized "2 3" "2 3" 2)}
SIMILARITIES=${SIMILARITIES:-$(sized "0.2 0.5 1" "0.2 0.5 1" 0.5)} RATES=${RATES:-$(sized "1e-6 1e-5 3e-5" "1e-6 1e-5 3e-5" 1e-5)}
SETS="squad medquad" KINDS="plain adapter random top1" DEEP_KINDS=$(sized "plain adapter random top1" "plain adapter random top1" random)
for set in $SETS; do corpora[$set]=data/$set-pool.jsonl queries[$set]=data/$set-dev-queries.jsonl qrels[$set]=data/$set-dev.tsv; done
ln -sf "$here/tied_adapter.py" . # own code is read from the working directory

weights() { # DEPTH: its folder of weights
  if [ "$1" = deep ]; then echo "$model"; else echo start/shallow; fi
}

settings() { # DEPTH KIND: similarity and backbone rate of each setting to try; deep, at the size `cores`, with the largest scale only
  local similarity rate tried=$SIMILARITIES
  [ "$1-$SIZE" != deep-cores ] || tried=${SIMILARITIES##* }
  for similarity in $tried $([ "$2" != plain ] || echo cosine); do
    for rate in $RATES; do echo "$similarity-$rate"; done
  done
}

learned() { # OUTPUT DEPTH KIND SET SETTING SEED [FLAGS]
  local output=$1 depth=$2 kind=$3 set=$4 similarity=${5%%-*} rate=${5#*-} seed=$6 arch flags=(--group-rate "mixture=$MIXTURE_RATE")
  shift 6
  case $kind-$similarity in
  plain-cosine) arch=dense:pooling=mean,normalise=true,scale=20 flags=() ;;
  plain-*) arch=dense:pooling=mean,normalise=false,scale=$similarity flags=() ;;
  adapter-*) arch=tied_adapter:TiedAdapter:experts=$EXPERTS,scale=$similarity ;;
  random-*) arch=sbmoe:experts=$EXPERTS,gate=random,scale=$similarity ;;
  top1-*) arch=sbmoe:experts=$EXPERTS,scale=$similarity ;;
  esac
  $MOEIR finetune --model "$(weights "$depth")" --arch "$arch" --objective contrastive:entropy=0 --train "data/$set-train.jsonl" \
    --corpus "$data/$set/corpus.jsonl.gz" --queries "data/$set-train-queries.jsonl" --query-length "$QUERY_LENGTH" --document-length "$LENGTH" \
    --steps "$STEPS" --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$rate" --schedule constant --warmup 0 --weight-decay 0.01 \
    --seed "$seed" --cache "cache/$depth-$kind-$set" --output "$output" "${flags[@]}" "$@"
}

searched_set() { # CHECKPOINT ROW SET [FLAGS]: runs/ROW/SET/global.trec
  local checkpoint=$1 row=$2 set=$3
  shift 3
  $MOEIR encode --model "$checkpoint" --corpus "${corpora[$set]}" --output "enc/$row/$set" "$@"
  $MOEIR index --encodings "enc/$row/$set" --output "idx/$row/$set" "$@"
  $MOEIR search --index "idx/$row/$set" --queries "${queries[$set]}" --depth "$DEPTH" --output "runs/$row/$set/global.trec" "$@"
}

record_both() { # ROW CHECKPOINT: its record; CHECKPOINT-SET was trained on each collection
  # shellcheck disable=SC2086
  record "$1" "squad=$2-squad,medquad=$2-medquad" $SETS
}

collection() { # SET: training, held-out and development questions, their passages, BM25's negatives
  local set=$1
  [ ! -s "data/$set-train.jsonl" ] || return 0
  $PYTHON "$here/../sample_questions.py" "$data/$set" "data/$set" $((TRAIN + HELD_OUT)) "$DEV"
  mv "data/$set/dev-queries.jsonl" "${queries[$set]}"
  mv "data/$set/dev.tsv" "${qrels[$set]}"
  divided "data/$set/train-queries.jsonl" "data/$set/train.tsv" "$HELD_OUT" "data/$set-heldout" "data/$set-train"
  $PYTHON "$here/../sample_corpus.py" "$data/$set/corpus.jsonl.gz" "${qrels[$set]}" "${corpora[$set]}" "$PASSAGES"
  $PYTHON "$here/../sample_corpus.py" "$data/$set/corpus.jsonl.gz" "data/$set-heldout.tsv" "data/$set-heldout-pool.jsonl" "$HELD_OUT_PASSAGES"
  $MOEIR index --corpus "$data/$set/corpus.jsonl.gz" --engine bm25 --output "idx/bm25/$set-whole"
  $MOEIR search --index "idx/bm25/$set-whole" --queries "data/$set-train-queries.jsonl" --depth 50 --output "runs/bm25/$set-train.trec"
  $MOEIR mine-negatives --run "runs/bm25/$set-train.trec" --qrels "data/$set-train.tsv" --method band:first=0,last=10 \
    --output "data/$set-train.jsonl"
}

prepare() {
  local set depth
  mkdir -p data
  [ -s start/shallow/config.json ] || $PYTHON "$here/cut_layers.py" "$model" start/shallow "$SHALLOW"
  for set in $SETS; do collection "$set"; done
  # shellcheck disable=SC2086
  recorded bm25 || bm25 $SETS
  for depth in shallow deep; do
    if recorded "$depth-untrained"; then continue; fi
    $MOEIR init --model "$(weights "$depth")" --arch dense:pooling=mean,normalise=true --query-length "$QUERY_LENGTH" \
      --document-length "$LENGTH" --output "ckpt/$depth-untrained"
    for set in $SETS; do searched_set "ckpt/$depth-untrained" "$depth-untrained" "$set"; done
    # shellcheck disable=SC2086
    KEEP=yes record "$depth-untrained" - $SETS
  done
}

choice() { # DEPTH KIND SET: a record of each setting
  local setting name
  for setting in $(settings "$1" "$2"); do
    name=$1-$2-$3-$setting
    if recorded "$name" choice; then continue; fi
    say "trying $setting for $1 $2 on $3"
    learned "ckpt/choice-$name" "$1" "$2" "$3" "$setting" 1 --dev-queries "data/$3-heldout-queries.jsonl" \
      --dev-qrels "data/$3-heldout.tsv" --dev-corpus "data/$3-heldout-pool.jsonl" --evaluate-every "$STEPS" --keep last
    SIZE=$SIZE COMMIT=$commit $PYTHON "$here/choices.py" record "$records" "$1-$2-$3" "$setting" "ckpt/choice-$name"
    rm -rf "ckpt/choice-$name"
  done
}

row() { # DEPTH KIND SEED
  local set setting row=$1-$2-$3 all=$1-all-$3 own=()
  if [ "$2" = adapter ]; then own=(--code tied_adapter); fi
  for set in $SETS; do
    choice "$1" "$2" "$set"
    setting=$($PYTHON "$here/choices.py" best "$records" "$1-$2-$set" "$(settings "$1" "$2" | wc -l)")
    say "training $1 $2 on $set, seed $3, $setting"
    learned "ckpt/$row-$set" "$1" "$2" "$set" "$setting" "$3"
    searched_set "ckpt/$row-$set" "$row" "$set" "${own[@]}"
    if [ "$2" = top1 ]; then
      $MOEIR init --model "ckpt/$row-$set" --arch sbmoe:inference=all --output "ckpt/$all-$set"
      searched_set "ckpt/$all-$set" "$all" "$set"
    fi
  done
  if [ "$2" = top1 ]; then record_both "$all" "ckpt/$row"; fi
  record_both "$row" "ckpt/$row" # last: where it is, `all` is too
  if [ "$KEEP" = no ]; then rm -rf ckpt/"$row"-* ckpt/"$all"-* enc/{"$row","$all"} idx/{"$row","$all"}; fi
}

run_row() { # choice-DEPTH-KIND-SET or DEPTH-KIND-SEED
  local depth kind rest
  IFS=- read -r depth kind rest <<<"${1#choice-}"
  if [ "$1" = "choice-$depth-$kind-$rest" ]; then choice "$depth" "$kind" "$rest"; else row "$depth" "$kind" "$rest"; fi
}

if [ $# = 0 ]; then
  set -- prepare
  for kind in $KINDS; do set -- "$@" "choice-shallow-$kind-squad" "choice-shallow-$kind-medquad"; done
  for kind in $DEEP_KINDS; do set -- "$@" "choice-deep-$kind-squad" "choice-deep-$kind-medquad"; done
  for seed in $SEEDS; do
    for kind in $KINDS; do set -- "$@" "shallow-$kind-$seed"; done
    for kind in $DEEP_KINDS; do set -- "$@" "deep-$kind-$seed"; done
  done
fi
run_rows "prepare, choice-DEPTH-KIND-SET or DEPTH-KIND-SEED, with DEPTH shallow or deep, KIND of $KINDS, SET of $SETS" \
  "prepare|choice-(shallow|deep)-(${KINDS// /|})-(${SETS// /|})|(shallow|deep)-(${KINDS// /|})-[0-9]+" "$@"
