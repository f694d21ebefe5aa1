# Steps that the scripts of TASER, SB-MoE and CoT-MoTE share; sourced by their *_steps.sh, not run.
#
# An environment variable overrides each value, e.g. WORK=/fast/taser KEEP=no bash examples/taser_nq.sh
# WORK        output folder; scripts of one paper share it and continue each other's work
# STEPS       if set, the number of steps of every fine-tuning, in place of epochs
# LAUNCH      what starts a training, in place of MOEIR: on 8 GPUs LAUNCH="torchrun --standalone --nproc-per-node 8 -m moeir"; batches are
#             those of all processes together, so that only the speed changes
# KEEP        no: encodings and indexes are removed once their runs are written
# FIGURES     svg or png: the kind of the figures; tsv, their values, where matplotlib is not installed
# BEIR        folder of BEIR's sets, each NAME/{corpus.jsonl,queries.jsonl,qrels/test.tsv}, as BEIR's archives unpack
# A finished stage is skipped, an interrupted one continued.
#
# A test set's name is the key of its queries, qrels or answers, measures, and corpus; a row of a table is
# MODEL/RUN, an expert of a model. `settings` are flags of every training.
# shellcheck shell=bash
MOEIR=${MOEIR:-moeir} PYTHON=${PYTHON:-python3} KEEP=${KEEP:-yes} FIGURES=${FIGURES:-svg} BEIR=${BEIR:-data/beir}
LAUNCH=${LAUNCH:-$MOEIR}
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
declare -A corpora queries qrels answers match measures depths
declare -A called=([bm25]='' [global]='') # what a table calls a run, behind its model
settings=() CORRECTION=${CORRECTION:-none} # of the p-values of a table

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
WORK=$(absolute "$WORK") BEIR=$(absolute "$BEIR")

say() { printf '\n== %s\n' "$*" >&2; }
path() { echo "$WORK/runs/${2%/*}/$1/${2#*/}.trec"; } # SET MODEL/RUN

judged() { # QUERIES QRELS OUTPUT: those of the queries that are judged; all that is searched and trained on
  if [ -s "$3" ] && [ "$3" -nt "$1" ] && [ "$3" -nt "$2" ]; then return; fi
  $PYTHON "$examples/judged.py" "$1" "$2" "$3"
}

msmarco() { # FOLDER [CORPUS]: MS MARCO passages under the collection's own names, with the queries of TREC DL 2019 and 2020
  corpora[msmarco]=$1/${2:-collection.tsv}
  qrels+=([train]=$1/qrels.train.tsv [dev]=$1/qrels.dev.small.tsv [dl19]=$1/2019qrels-pass.txt [dl20]=$1/2020qrels-pass.txt)
  queries+=([dev]=$1/queries.dev.small.tsv [train]=$WORK/data/train-queries.jsonl)
  queries+=([dl19]=$1/msmarco-test2019-queries.tsv [dl20]=$1/msmarco-test2020-queries.tsv)
  judged "$1/queries.train.tsv" "${qrels[train]}" "${queries[train]}"
}

beir() { # NAME MEASURES: a set of BEIR as the test set beir-NAME (cqadupstack/android is beir-cqadupstack-android), its own corpus
  local set=beir-${1//\//-}
  corpora[$set]=$BEIR/$1/corpus.jsonl qrels[$set]=$BEIR/$1/qrels/test.tsv queries[$set]=$WORK/data/$set-queries.jsonl
  measures[$set]=$2
  judged "$BEIR/$1/queries.jsonl" "${qrels[$set]}" "${queries[$set]}"
}

bm25() { # CORPUS SPEC SET...: BM25 of a corpus, and its runs of the sets
  local corpus=$1 spec=$2 set
  shift 2
  $MOEIR index --corpus "${corpora[$corpus]}" --engine "$spec" --output "$WORK/idx/bm25/$corpus"
  for set in "$@"; do
    $MOEIR search --index "$WORK/idx/bm25/$corpus" --queries "${queries[$set]}" --depth "${depths[bm25-$set]:-$DEPTH}" \
      --output "$WORK/runs/bm25/$set"
  done
}

trained() { # NAME WEIGHTS ARCH OBJECTIVE FLAGS...: ckpt/NAME; FLAGS say on what it is trained, beside `settings`
  local name=$1 weights=$2 arch=$3 objective=$4
  shift 4
  say "training $name: $arch, $objective"
  $LAUNCH finetune --model "$weights" --arch "$arch" --objective "$objective" "$@" "${settings[@]}" ${STEPS:+--steps "$STEPS"} \
    --output "$WORK/ckpt/$name"
}

searched() { # MODEL CORPUS SET...: runs/MODEL/SET/RUN.trec for every expert of ckpt/MODEL and, of several, their fusion
  local model=$1 corpus=$2 set missing=no
  shift 2
  for set in "$@"; do [ -e "$WORK/runs/$model/$set/manifest.json" ] || missing=yes; done
  if [ "$KEEP" = no ] && [ "$missing" = no ]; then return; fi
  say "searching $corpus with $model: $*"
  $MOEIR encode --model "$WORK/ckpt/$model" --corpus "${corpora[$corpus]}" --output "$WORK/enc/$model/$corpus"
  $MOEIR index --encodings "$WORK/enc/$model/$corpus" --output "$WORK/idx/$model/$corpus"
  for set in "$@"; do
    $MOEIR search --index "$WORK/idx/$model/$corpus" --queries "${queries[$set]}" --depth "${depths[$set]:-$DEPTH}" \
      --output "$WORK/runs/$model/$set"
  done
  if [ "$KEEP" = no ]; then rm -rf "$WORK/enc/$model/$corpus" "$WORK/idx/$model/$corpus"; fi
}

label() { # MODEL/RUN: what a table calls it
  local run=${called[${1#*/}]-${1#*/}}
  echo "${1%/*}${run:+-$run}"
}

table() { # CORPUS SET FLAGS -- MODEL/RUN...: a row for each run of a test set; p: paired t-test against the first row, with CORRECTION
  local corpus=$1 set=$2 row measure flags=() runs=()
  shift 2
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  mkdir -p "$WORK/table/$set"
  for row in "$@"; do
    ln -sfn "$(path "$set" "$row")" "$WORK/table/$set/$(label "$row").trec"
    runs+=(--run "$WORK/table/$set/$(label "$row").trec")
  done
  for measure in ${measures[$set]}; do flags+=(--measure "$measure"); done
  if [ -n "${answers[$set]:-}" ]; then
    flags+=(--answers "${answers[$set]}" --corpus "${corpora[$corpus]}" --match "${match[$set]:-string}")
  else
    flags+=(--qrels "${qrels[$set]}")
  fi
  $MOEIR evaluate "${runs[@]}" "${flags[@]}" --correction "$CORRECTION"
}

tables() { # TITLE CORPUS SET... -- MODEL/RUN...: the same rows for every test set
  local title=$1 corpus=$2 set sets=()
  shift 2
  while [ "$1" != -- ]; do
    sets+=("$1")
    shift
  done
  for set in "${sets[@]}"; do
    say "$title, $set"
    table "$corpus" "$set" "$@"
  done
}

figure() { # NAME PLOT MEASURE FLAGS...: WORK/figures/NAME, anew each time: heatmap, lines or bars of --run ROW/COLUMN=PATH...
  local name=$1 plot=$2 measure=$3
  shift 3
  say "$WORK/figures/$name.$FIGURES: $plot of $measure"
  $PYTHON "$examples/grid.py" "$@" --measure "$measure" --plot "$plot" --output "$WORK/figures/$name.$FIGURES"
}

zero_shot() { # TITLE NAMES MEASURES MODEL/RUN...: a table for each set of BEIR, encoded and searched with each model
  local title=$1 names=$2 wanted=$3 name set row
  shift 3
  for name in $names; do
    beir "$name" "$wanted"
    set=beir-${name//\//-}
    for row in "$@"; do
      if [ "$row" = bm25/bm25 ]; then bm25 "$set" bm25:k1=0.9,b=0.4 "$set"; else searched "${row%/*}" "$set" "$set"; fi
    done
    tables "$title" "$set" "$set" -- "$@"
  done
}
