# Settings and steps that the CAME scripts share; sourced by them, not run. Paper: Cai et al. 2023, §4.4 unless another place is named.
#
# An environment variable overrides each value, e.g. WORK=/fast/came KEEP=no bash examples/came_msmarco.sh
# COLLECTION  msmarco or nq
# DATA, WORK  folder of the collection (layouts: came_msmarco.sh, came_nq.sh), and the output folder
# CORPUS      MS MARCO's passages, titled.tsv or collection.tsv (came_msmarco.sh); each in a WORK folder of its own
# MODEL       weights to start from: coCondenser, with its vocabulary head, as model.safetensors (see README.md)
# STEPS       if set, the number of steps of every training, in place of epochs
# LAUNCH      what starts a training, in place of MOEIR: on 8 GPUs LAUNCH="torchrun --standalone --nproc-per-node 8 -m moeir"; a batch is that
#             of all processes together, so that only the speed changes
# KEEP        no: encodings and indexes are removed once their runs are written (about 400 GB per MS MARCO model otherwise)
# HELD_OUT    MS MARCO: one of so many training queries is held out, 5,030 of them; as the paper, temperatures are chosen on them. NQ: DPR's
#             development questions. They are the set `validation`, on which the weights of linear are fitted too.
# POSITIVES   of a query with several: NQ first, the first passage of DPR's list, as DPR's training takes it; MS MARCO rotate
# FORM        form of the tables: latex, markdown, tsv, … in place of columns
# NORMALISE   true: the losses of the standardised stage are averaged, false: added, as equation 9 is printed. Shares of the specialised
#             stage sum to 1, so a sum is three times as large and FLOPS weighs a third as much before the switch as after it. Every
#             comparison of the two stages needs the same weight throughout, so all scripts average. One expert alone has weight 1.
# A finished stage is skipped, an interrupted one continued.
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} PYTHON=${PYTHON:-python3} COLLECTION=${COLLECTION:-msmarco}
LAUNCH=${LAUNCH:-$MOEIR}
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
declare -A queries qrels answers measures
against=() # rows of the next tables that the others are tested against, each with a dagger of its own

case $COLLECTION in
msmarco)
  MODEL=${MODEL:-$PWD/models/co-condenser-marco}
  QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-128}
  # "batch size 64": 8 queries x (1 + 7) passages, 311,000 steps with 63 candidates a query; read as 64 queries it is BATCH=64, 39,000 steps
  # with 511 candidates: came_batch.sh tries both, shortly, before the whole recipe is run with one
  BATCH=${BATCH:-8} NEGATIVES=${NEGATIVES:-7}
  POSITIVES=${POSITIVES:-rotate}
  EPOCHS=${EPOCHS:-5} HARD_EPOCHS=${HARD_EPOCHS:-3} RATE=${RATE:-5e-6} TEMPERATURE=${TEMPERATURE:-0.5}
  BM25_DEPTH=${BM25_DEPTH:-1000} MINING_DEPTH=${MINING_DEPTH:-200} DEPTH=${DEPTH:-1000}
  DATA=${DATA:-data/msmarco} corpus=${CORPUS:-titled.tsv} tests=(dev dl19)
  queries=([train]=queries.train.tsv [dev]=queries.dev.small.tsv [dl19]=msmarco-test2019-queries.tsv)
  qrels=([train]=qrels.train.tsv [dev]=qrels.dev.small.tsv [dl19]=2019qrels-pass.txt)
  measures=([dev]="RR@10 R@1000 R@100" [dl19]="nDCG@10 R(rel=2)@1000" [validation]=RR@10)
  ;;
nq)
  MODEL=${MODEL:-$PWD/models/co-condenser-wiki}
  QUERY_LENGTH=${QUERY_LENGTH:-32} DOCUMENT_LENGTH=${DOCUMENT_LENGTH:-156}
  BATCH=${BATCH:-32} NEGATIVES=${NEGATIVES:-7}          # 32 queries x (1 + 7) passages: "batch size 256"
  POSITIVES=${POSITIVES:-first}                         # of the passages that DPR's files name for a question, as DPR's training does
  EPOCHS=${EPOCHS:-15} HARD_EPOCHS=${HARD_EPOCHS:-10} RATE=${RATE:-1e-5} TEMPERATURE=${TEMPERATURE:-2.0}
  BM25_DEPTH=${BM25_DEPTH:-100} MINING_DEPTH=${MINING_DEPTH:-100} DEPTH=${DEPTH:-100}
  DATA=${DATA:-data/nq} corpus=corpus.jsonl tests=(test)
  queries=([train]=train-queries.jsonl [validation]=dev-queries.jsonl [test]=test-queries.jsonl)
  qrels=([train]=train.qrels [validation]=dev.qrels)
  answers=([train]=train-queries.jsonl [validation]=dev-queries.jsonl [test]=test-queries.jsonl)
  measures=([test]="Success@20 Success@100" [validation]=Success@20)
  ;;
*)
  echo "COLLECTION=$COLLECTION: expected msmarco or nq" >&2
  exit 2
  ;;
esac
WORK=${WORK:-work/$COLLECTION} KEEP=${KEEP:-yes} SEED=${SEED:-42} WARMUP=${WARMUP:-0.1} FLOPS=${FLOPS:-0.01}
LAYERS=${LAYERS:-12}                                    # of the weights; the paper's 10 shared layers are 10 of 12
SHARED=${SHARED:-$((LAYERS * 10 / 12))} STANDARDISED=${STANDARDISED:-0.2} NORMALISE=${NORMALISE:-true} HELD_OUT=${HELD_OUT:-100}
experts=(lexical local global)

mkdir -p "$WORK"
DATA=$(cd "$DATA" && pwd) WORK=$(cd "$WORK" && pwd)
for name in "${!queries[@]}"; do queries[$name]=$DATA/${queries[$name]}; done
for name in "${!qrels[@]}"; do qrels[$name]=$DATA/${qrels[$name]}; done
for name in "${!answers[@]}"; do answers[$name]=$DATA/${answers[$name]}; done
corpus=$DATA/$corpus
if [ "$COLLECTION" = msmarco ]; then # of the 808,731 training queries 502,939 are judged; those not held out are searched and trained on
  qrels[validation]=$WORK/validation.qrels
  if [ ! "${qrels[validation]}" -nt "${queries[train]}" ] || [ ! "${qrels[validation]}" -nt "${qrels[train]}" ]; then
    awk -v every="$HELD_OUT" -v train="$WORK/train-queries.tsv" -v held_out="$WORK/validation-queries.tsv" \
      'NR == FNR { judged[$1]; next } $1 in judged { print > (count++ % every ? train : held_out) }' "${qrels[train]}" "${queries[train]}"
    awk 'NR == FNR { held_out[$1]; next } $1 in held_out' "$WORK/validation-queries.tsv" "${qrels[train]}" >"$WORK/validation.new"
    mv "$WORK/validation.new" "${qrels[validation]}"
  fi
  queries+=([train]=$WORK/train-queries.tsv [validation]=$WORK/validation-queries.tsv)
fi

say() { printf '\n== %s\n' "$*" >&2; }
path() { echo "$WORK/runs/${2%/*}/$1/${2#*/}.trec"; } # SET MODEL/RUN
depth() { if [ "$1" = train ]; then echo "$MINING_DEPTH"; else echo "$DEPTH"; fi; }

bm25() { # BM25 of training and test queries; k1 and b as Anserini's defaults, which are the paper's BM25 row (Table 1)
  local name
  $MOEIR index --corpus "$corpus" --engine bm25:k1=0.9,b=0.4 --output "$WORK/idx/bm25"
  $MOEIR search --index "$WORK/idx/bm25" --queries "${queries[train]}" --depth "$BM25_DEPTH" --output "$WORK/runs/bm25/train"
  for name in "${tests[@]}"; do
    $MOEIR search --index "$WORK/idx/bm25" --queries "${queries[$name]}" --depth "$DEPTH" --output "$WORK/runs/bm25/$name"
  done
}

negatives() { # NAME DEPTH MODEL/RUN...: training examples data/NAME.jsonl from the union of runs of the training queries
  local name=$1 depth=$2 run runs=()
  shift 2
  for run in "$@"; do runs+=(--run "$(path train "$run")"); done
  if [ -n "${answers[train]:-}" ]; then runs+=(--exclude-answers "${answers[train]}" --corpus "$corpus"); fi
  $MOEIR mine-negatives "${runs[@]}" --qrels "${qrels[train]}" --method "band:first=0,last=$depth" --output "$WORK/data/$name.jsonl"
}

came() { # [EXPERTS [SHARED]]: the architecture's spec
  echo "came:shared_layers=${2:-$SHARED},experts=${1:-lexical+local+global},local_dim=128"
}

competitive() { # [STANDARDISED [TEMPERATURE]]: the objective's spec
  local stages=standardised=${1:-$STANDARDISED},temperature=${2:-$TEMPERATURE},normalise_standardised=$NORMALISE
  echo "competitive:$stages,flops_query=$FLOPS,flops_document=$FLOPS"
}

contrastive() { # the objective's spec: of one expert alone, whose share is 1 anyway
  echo "contrastive:flops_query=$FLOPS,flops_document=$FLOPS"
}

trained() { # NAME WEIGHTS EXAMPLES EPOCHS OBJECTIVE [ARCH]: ckpt/NAME; ARCH and lengths only where plain weights become a checkpoint
  local plain=()
  say "training $1: $5"
  if [ -n "${6:-}" ]; then plain=(--arch "$6" --query-length "$QUERY_LENGTH" --document-length "$DOCUMENT_LENGTH"); fi
  $LAUNCH finetune --model "$2" "${plain[@]}" --train "$3" --corpus "$corpus" --queries "${queries[train]}" --objective "$5" \
    --epochs "$4" ${STEPS:+--steps "$STEPS"} --batch-size "$BATCH" --negatives "$NEGATIVES" --learning-rate "$RATE" --warmup "$WARMUP" \
    --positives "$POSITIVES" --seed "$SEED" --output "$WORK/ckpt/$1"
}

searched() { # NAME SET...: runs/NAME/SET/{lexical,local,global,fused}.trec of ckpt/NAME
  local model=$1 name missing=no
  shift
  for name in "$@"; do [ -e "$WORK/runs/$model/$name/manifest.json" ] || missing=yes; done
  if [ "$KEEP" = no ] && [ "$missing" = no ]; then return; fi
  say "searching with $model: $*"
  $MOEIR encode --model "$WORK/ckpt/$model" --corpus "$corpus" --output "$WORK/enc/$model"
  $MOEIR index --encodings "$WORK/enc/$model" --output "$WORK/idx/$model"
  for name in "$@"; do
    $MOEIR search --index "$WORK/idx/$model" --queries "${queries[$name]}" --depth "$(depth "$name")" --output "$WORK/runs/$model/$name"
  done
  if [ "$KEEP" = no ]; then rm -rf "$WORK/enc/$model" "$WORK/idx/$model"; fi
}

variant() { # NAME OBJECTIVE ARCH: a model that differs from came-bm25 in its objective or architecture: BM25 negatives only, as long
  trained "$1" "$MODEL" "$WORK/data/bm25.jsonl" "$EPOCHS" "$2" "$3"
  searched "$1" validation "${tests[@]}"
}

alone() { # EXPERT: a model of that expert only
  variant "only-$1" "$(contrastive)" "$(came "$1")"
}

came_bm25() { # [train]: the first training, on which all else rests: standardised, then specialised, on BM25's negatives
  bm25
  negatives bm25 "$BM25_DEPTH" bm25/bm25
  trained came-bm25 "$MODEL" "$WORK/data/bm25.jsonl" "$EPOCHS" "$(competitive)" "$(came)"
  searched came-bm25 "$@" validation "${tests[@]}"
}

recipe() { # the paper's whole recipe: the first training, negatives from its experts' lists of all training queries, the second training
  came_bm25 train
  negatives came-bm25 "$MINING_DEPTH" "${experts[@]/#/came-bm25/}"
  trained came "$WORK/ckpt/came-bm25" "$WORK/data/came-bm25.jsonl" "$HARD_EPOCHS" "$(competitive 0)"
  searched came validation "${tests[@]}"
}

fused() { # NAME METHODS MODEL/RUN...: NAME-METHOD/fused, for every test set; the weights of linear are fitted on the validation set,
  # and equal where fitted ones do not win on held-out queries
  local name=$1 methods=$2 method part run runs how
  shift 2
  for method in $methods; do
    how=(--method "$method")
    if [ "$method" = linear ]; then
      runs=()
      for run in "$@"; do runs+=(--run "$(path validation "$run")"); done
      $MOEIR calibrate "${runs[@]}" --qrels "${qrels[validation]}" --depth "$DEPTH" --output "$WORK/data/$name-linear.json"
      how=(--learned "$WORK/data/$name-linear.json")
    fi
    for part in "${tests[@]}"; do
      runs=()
      for run in "$@"; do runs+=(--run "$(path "$part" "$run")"); done
      $MOEIR fuse "${runs[@]}" "${how[@]}" --depth "$DEPTH" --output "$(path "$part" "$name-$method/fused")"
    done
  done
}

label() { # MODEL/RUN, LABEL=MODEL/RUN: what a table calls it
  case $1 in
  *=*) echo "${1%%=*}" ;;
  *) if [ "${1%/*}" = "${1#*/}" ]; then echo "${1%/*}"; else echo "${1/\//-}"; fi ;;
  esac
}

table() { # SET [LABEL=]MODEL/RUN...: a row for each run of a test set; p: two-sided paired t-test against the first row, uncorrected
  local part=$1 row name measure flags=()
  shift
  for row in "$@"; do flags+=(--run "$(label "$row")=$(path "$part" "${row#*=}")"); done
  for measure in ${measures[$part]}; do flags+=(--measure "$measure"); done
  for name in "${against[@]}"; do flags+=(--against "$name"); done
  if [ -n "${answers[$part]:-}" ]; then
    flags+=(--answers "${answers[$part]}" --corpus "$corpus")
  else
    flags+=(--qrels "${qrels[$part]}")
  fi
  $MOEIR evaluate "${flags[@]}" --correction none ${FORM:+--form "$FORM"}
}

tables() { # TITLE [LABEL=]MODEL/RUN...: the same rows for every test set
  local title=$1 name
  shift
  for name in "${tests[@]}"; do
    say "$title, $COLLECTION $name"
    table "$name" "$@"
  done
}

every() { # MODEL...: the rows of a model: its fusion and each expert alone, as far as it has them
  local model run
  for model in "$@"; do
    for run in fused "${experts[@]}"; do
      if [ -e "$(path "${tests[0]}" "$model/$run")" ]; then echo "$model/$run"; fi
    done
  done
}
