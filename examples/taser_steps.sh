# Settings and steps that the TASER scripts share; sourced by them, not run. Paper: Cheng et al. 2023, §4 and appendices B to D.
#
# An environment variable overrides each value, e.g. WORK=/fast/taser KEEP=no bash examples/taser_nq.sh; those of all papers: steps.sh
# DATA        output of taser_sets.py
# MODEL, STAR weights to start from: BERT-base, and coCondenser-Wiki for the paper's starred rows, as model.safetensors (README.md)
# RATES       learning rates: each model is trained with each, and the one with the best DEV_MEASURE goes on under the model's name
# LAYER_DECAY 0.8 as in the published code's settings, which the paper does not mention; so RATES=2e-5 CLIP=2.0 there
# GRADIENT    of a learned router: full, the paper's straight-through estimator, which runs every expert; others: `moeir variants`
# The published code puts [SEP] between title and text, here it is a space; it takes one BM25 negative of DPR's files, here it is one of
# the top 100 of our BM25 without an answer, sampled again each epoch.
# shellcheck shell=bash
DATA=${DATA:-data/odqa} WORK=${WORK:-work/odqa} MODEL=${MODEL:-bert-base-uncased} STAR=${STAR:-$PWD/models/co-condenser-wiki}
QUERY_LENGTH=${QUERY_LENGTH:-256} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-256}
BATCH=${BATCH:-256} NEGATIVES=${NEGATIVES:-1}            # 16 GPUs x 16 questions, each with one hard negative
EPOCHS=${EPOCHS:-40} RATES=${RATES:-3e-5 5e-5} CLIP=${CLIP:-2.0} # "up to 40 epochs"; clipping from the published code
WARMUP=${WARMUP:-0.13} MULTISET_WARMUP=${MULTISET_WARMUP:-0.04} # its 1237 steps, of 9,200 on NQ and of 30,000 on all five sets
ENTROPY=${ENTROPY:-0.01} GRADIENT=${GRADIENT:-full} LAYER_DECAY=${LAYER_DECAY:-1} SEED=${SEED:-12345}
DEV_MEASURE=${DEV_MEASURE:-RR@100}                       # rank of DPR's positive among the passages of its dev file
BM25=${BM25:-bm25:k1=0.9,b=0.4} GRID=${GRID:-$(seq 0.5 0.1 2.0)} # of alpha, for BM25 without the factor k1 + 1, as Lucene's since version 8
BM25_DEPTH=${BM25_DEPTH:-100} MINING_DEPTH=${MINING_DEPTH:-100} DEPTH=${DEPTH:-100}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

DATA=$(absolute "$DATA")
settings=(--query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH" --batch-size "$BATCH" --negatives "$NEGATIVES")
settings+=(--epochs "$EPOCHS" --clip "$CLIP" --layer-decay "$LAYER_DECAY" --seed "$SEED" --dev-measure "$DEV_MEASURE")
best_first=-grs
if [ "$DEV_MEASURE" = loss ]; then best_first=-gs; fi
settings+=(--positives first) # of the passages that DPR's files name for a question, as DPR's training does
objective=contrastive:entropy=$ENTROPY

corpora[wikipedia]=$DATA/corpus.jsonl tests=(nq trivia webq curatedtrec squad1) mined=(nq trivia webq)
for name in "${tests[@]}"; do
  queries+=([$name]=$DATA/$name/test-queries.jsonl [$name-dev]=$DATA/$name/dev-answers.jsonl [$name-train]=$DATA/$name/train-queries.jsonl)
  for part in "$name" "$name-dev"; do answers[$part]=${queries[$part]} measures[$part]="Success@20 Success@100"; done
  depths+=([bm25-$name-train]=$BM25_DEPTH [$name-train]=$MINING_DEPTH)
done
match[curatedtrec]=regex
queries[dev]=$WORK/data/dev-answers.jsonl

architecture() { # NAME: a row of Table A1
  case $1 in
  dpr) echo dense:encoders=separate ;;
  shared) echo taser:routing=shared ;;
  role) echo taser:routing=role,experts=2,every=2 ;;
  sequence-* | token-*) echo "taser:routing=${1%-*},experts=${1#*-},every=2,gradient=$GRADIENT" ;;
  esac
}

negatives() { # NAME DEPTH RUN SET: training examples data/NAME-SET.jsonl, of each question a run's best passages without an answer
  $MOEIR mine-negatives --run "$(path "$4-train" "$3")" --qrels "$DATA/$4/train.qrels" --method "band:first=0,last=$2" \
    --exclude-answers "${queries[$4-train]}" --corpus "${corpora[wikipedia]}" --match "${match[$4]:-string}" \
    --output "$WORK/data/$1-$4.jsonl"
}

chosen() { # NAME WEIGHTS ARCH OBJECTIVE FLAGS...: NAME-RATE for each of RATES, and ckpt/NAME, a link to the best on the dev set
  local name=$1 rate best
  shift
  mkdir -p "$WORK/ckpt"
  for rate in $RATES; do trained "$name-$rate" "$@" --learning-rate "$rate"; done
  best=$(for rate in $RATES; do echo "$(development "$name-$rate") $rate"; done | sort "$best_first" | sed -n '1s/.* //p')
  say "$name: rate $best is the best on the development questions"
  ln -sfnT "$name-$best" "$WORK/ckpt/$name"
}

development() { # MODEL: its best development value
  sed -n 's/.*"dev\.[^"]*": \([-+.e0-9]*\).*/\1/p' "$WORK/ckpt/$1/metrics.jsonl" | sort "$best_first" | sed -n 1p
}

epochs() { # MODEL...: seconds of an epoch's training, of all with validation, loading and saving, and the latter's ratio to the first row
  local model
  printf '%-16s %10s %10s %8s\n' model training all ratio
  for model in "$@"; do
    awk -v model="$model" '
      FILENAME ~ /manifest/ { if (/^ "seconds": /) { gsub(/[^.0-9]/, ""); all = $0 } next }
      { training += substr($0, index($0, "\"seconds\": ") + 11); epochs += /"dev\./ }
      END { print model, training / epochs, all / epochs }' "$WORK/ckpt/$model/manifest.json" "$WORK/ckpt/$model/metrics.jsonl"
  done | awk 'NR == 1 { first = $3 } { printf "%-16s %10.1f %10.1f %8.2f\n", $1, $2, $3, $3 / first }'
}

parameters() { # MODEL...: how large each is
  local model
  printf '%-16s %s\n' model parameters
  for model in "$@"; do printf '%-16s %s\n' "$model" "$($MOEIR info "$WORK/ckpt/$model" | sed -n 's/^parameters *//p')"; done
}

combined() { # FILE: $WORK/data/FILE of the development questions of NQ and TriviaQA, a passage of both once
  local output=$WORK/data/$1 parts=("$DATA/nq/$1" "$DATA/trivia/$1")
  if [ "$output" -nt "${parts[0]}" ] && [ "$output" -nt "${parts[1]}" ]; then return; fi
  mkdir -p "$WORK/data"
  awk '!seen[$0]++' "${parts[@]}" >"$output.new"
  mv "$output.new" "$output"
}

multiset() { # NAME WEIGHTS ROUTING [mined]: one model on five sets: on BM25's negatives, or on mined ones where there are some
  local set from flags=(--dev-queries "$WORK/data/dev-queries.jsonl" --dev-qrels "$WORK/data/dev.qrels")
  flags+=(--dev-corpus "$WORK/data/dev-corpus.jsonl")
  for set in "${tests[@]}"; do
    from=bm25
    if [ "${4:-}" = mined ] && [[ " ${mined[*]} " == *" $set "* ]]; then from=taser-first; fi
    flags+=(--train "$WORK/data/$from-$set.jsonl" --queries "${queries[$set-train]}" --sampling-rate 1.0)
  done
  chosen "$1" "$2" "$(architecture "$3")" "$objective" "${flags[@]}" --corpus "${corpora[wikipedia]}" --warmup "$MULTISET_WARMUP"
}

multiset_first() { # the first training on all five sets, and what it mines
  local set
  for set in dev-queries.jsonl dev.qrels dev-corpus.jsonl dev-answers.jsonl; do combined "$set"; done
  bm25 wikipedia "$BM25" "${tests[@]/%/-train}"
  for set in "${tests[@]}"; do negatives bm25 "$BM25_DEPTH" bm25/bm25 "$set"; done
  multiset taser-first "$MODEL" role
  searched taser-first wikipedia "${mined[@]/%/-train}"
  for set in "${mined[@]}"; do negatives taser-first "$MINING_DEPTH" taser-first/global "$set"; done
}

hybrid() { # MODEL: MODEL-bm25, score + alpha x BM25, with the alpha that is best on the development questions of NQ and TriviaQA
  local set alpha runs=() folder=$WORK/tuning/$1
  for alpha in $GRID; do
    $MOEIR fuse --run "$(path dev "$1/global")" --run "$(path dev bm25/bm25)" --method "hybrid:alpha=$alpha" --depth "$DEPTH" \
      --output "$folder/$alpha.trec"
    runs+=(--run "$folder/$alpha.trec")
  done
  alpha=$($MOEIR evaluate "${runs[@]}" --answers "${queries[dev]}" --corpus "${corpora[wikipedia]}" --group-by set --measure Success@20 \
    --form tsv | grep -P '\tmacro\t' | sort -s -t $'\t' -k 4,4gr | sed -n '1s/\t.*//p')
  for set in "${tests[@]}"; do
    $MOEIR fuse --run "$(path "$set" "$1/global")" --run "$(path "$set" bm25/bm25)" --method "hybrid:alpha=$alpha" --depth "$DEPTH" \
      --output "$(path "$set" "$1-bm25/global")"
  done
}
