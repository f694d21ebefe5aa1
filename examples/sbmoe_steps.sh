# Settings and steps that the SB-MoE scripts share; sourced by them, not run. Paper: Sokli et al. 2025, §IV.
#
# An environment variable overrides each value, e.g. BACKBONES="tinybert small" COLLECTIONS="msmarco nq" bash examples/sbmoe_table1.sh;
# those of all papers: steps.sh. A backbone on a collection is a cell of the paper's tables, with a folder BACKBONE-COLLECTION of its own
# in WORK; a script makes one after the other, and continues where it stopped.
# BACKBONES   of tinybert, small, base and contriever; NAME=WEIGHTS has other weights (as model.safetensors: README.md), and so has MODEL if
#             there is one backbone
# COLLECTIONS of msmarco (MS MARCO, TREC DL 2019 and 2020) and of folders of BEIR's form under BEIR: nq, hotpotqa, ps, cs
# DATA        MS MARCO's files, as sbmoe_table1.sh lists them
# TRAIN       the folder of the training part of a collection of BEIR's form: its own folder, but BEIR keeps that of nq in nq-train
# COMBINE     release: the published code's sum, whose gate gets no gradient. norm_expert, the default, learns its gate
# VALIDATION  part of the training queries held out; the checkpoint with the lowest loss on them is kept, as in the paper
# CORRECTION  of the p-values, bonferroni as in the paper, over the comparisons of a printed table: its rows but the first by its measures
# shellcheck shell=bash
BACKBONES=${BACKBONES:-${BACKBONE:-tinybert}} COLLECTIONS=${COLLECTIONS:-${COLLECTION:-msmarco}}
EXPERTS=${EXPERTS:-6} COMBINE=${COMBINE:-norm_expert}
RATE=${RATE:-1e-6} MIXTURE_RATE=${MIXTURE_RATE:-1e-4} WEIGHT_DECAY=${WEIGHT_DECAY:-0.01} CLIP=${CLIP:-0} SEED=${SEED:-42}
BATCH=${BATCH:-64} LENGTH=${LENGTH:-512} VALIDATION=${VALIDATION:-0.05} DEPTH=${DEPTH:-1000} CORRECTION=${CORRECTION:-bonferroni}
DATA=${DATA:-data/msmarco} WORK=${WORK:-work/sbmoe}
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

declare -A weights=([tinybert]=huawei-noah/TinyBERT_General_4L_312D [small]=google/bert_uncased_L-4_H-512_A-8)
weights+=([base]=bert-base-uncased [contriever]=facebook/contriever)
for backbone in $BACKBONES; do
  if [[ $backbone = *=* ]]; then weights[${backbone%%=*}]=${backbone#*=}; fi
  if [ -z "${weights[${backbone%%=*}]:-}" ]; then
    echo "BACKBONES: $backbone: expected tinybert, small, base, contriever or NAME=WEIGHTS" >&2
    exit 2
  fi
done
if [ -n "${MODEL:-}" ] && [[ $BACKBONES = *" "* ]]; then
  echo "MODEL=$MODEL: the weights of one backbone; of several say BACKBONES='NAME=WEIGHTS ...'" >&2
  exit 2
fi
if [ -n "${TRAIN:-}" ] && [[ $COLLECTIONS = *" "* ]]; then
  echo "TRAIN=$TRAIN: the training part of one collection; found several COLLECTIONS" >&2
  exit 2
fi
DATA=$(absolute "$DATA") cells=$WORK wanted="R@100 nDCG@10"
grid=() # flags of the runs of all cells, for `figure` and `overview`

each_cell() { # STEPS: the steps for each backbone and collection
  local backbone collection
  for backbone in $BACKBONES; do
    for collection in $COLLECTIONS; do
      open_cell "${backbone%%=*}" "$collection"
      "$1"
    done
  done
  WORK=$cells
}

open_cell() { # BACKBONE COLLECTION: the weights, settings and test sets of a cell
  local epochs=20 training_part
  backbone=$1 collection=$2 initial=${MODEL:-${weights[$1]}} scale=${SCALE:-1} WORK=$cells/$1-$2
  if [ "$collection" = cs ]; then epochs=10; fi
  if [ "$backbone" = tinybert ]; then epochs=30; fi
  if [ "$backbone" = contriever ]; then scale=${SCALE:-20}; fi # temperature 0.05
  settings=(--query-length "$LENGTH" --document-length "$LENGTH" --batch-size "$BATCH" --negatives 0 --epochs "${EPOCHS:-$epochs}")
  settings+=(--learning-rate "$RATE" --schedule constant --warmup 0 --weight-decay "$WEIGHT_DECAY" --clip "$CLIP" --seed "$SEED")
  settings+=(--train "$WORK/data/train.jsonl" --dev-queries "$WORK/data/dev-queries.jsonl" --dev-qrels "$WORK/data/dev.qrels")
  settings+=(--dev-corpus "$WORK/data/dev-corpus.jsonl" --dev-measure loss)
  if [ "$collection" = msmarco ]; then
    msmarco "$DATA"
    corpus=msmarco tests=(dev dl19 dl20) training=("${queries[train]}" "${qrels[train]}" "${corpora[msmarco]}")
    measures+=([dev]="$wanted" [dl19]="$wanted" [dl20]="$wanted")
  else
    training_part=$BEIR/$collection
    if [ "$collection" = nq ]; then training_part=$BEIR/nq-train; fi
    training_part=$(absolute "${TRAIN:-$training_part}")
    beir "$collection" "$wanted"
    corpus=beir-$collection tests=("beir-$collection")
    training=("$training_part/queries.jsonl" "$training_part/qrels/train.tsv" "$training_part/corpus.jsonl")
  fi
}

split() { # the training queries without those held out, as examples of positives alone, and those held out
  if [ -s "$WORK/data/train.jsonl" ] && [ "$WORK/data/train.jsonl" -nt "${training[1]}" ]; then return; fi
  say "holding out $VALIDATION of the training queries"
  $PYTHON "$examples/held_out.py" --queries "${training[0]}" --qrels "${training[1]}" --corpus "${training[2]}" --part "$VALIDATION" \
    --seed "$SEED" --output "$WORK/data"
}

learned() { # NAME ARCH FLAGS...: a model, all alike
  local name=$1 arch=$2
  shift 2
  trained "$name" "$initial" "$arch,pooling=mean,scale=$scale" contrastive "$@" --queries "${training[0]}" --corpus "${training[2]}"
}

block() { # NAME EXPERTS [OPTIONS]: a model with a block of experts
  learned "$1" "sbmoe:experts=$2,combine=$COMBINE${3:-}" --group-rate "mixture=$MIXTURE_RATE"
}

fine_tuned() { learned fine-tuned dense:encoders=siamese; }

random_gate() { block random-gate "$EXPERTS" ,gate=random; } # an expert drawn anew each time

adapter() { block adapter 1; } # as deep and wide as what a text passes through with experts, but nothing to choose

top1() { block "top1${1:+-$1}" "${1:-$EXPERTS}"; } # [N]: top1 with N experts (top1-N, if said), trained by noisy top-1

all() { # [N]: the same training with all experts in use
  $MOEIR init --model "$WORK/ckpt/top1${1:+-$1}" --arch sbmoe:inference=all --output "$WORK/ckpt/all${1:+-$1}"
}

gather() { # SET ROW...: the rows of a test set into the grid of all cells
  local set=$1 column=${1#beir-} row
  shift
  if [[ " ${grid[*]} " != *" $column=${qrels[$set]} "* ]]; then grid+=(--qrels "$column=${qrels[$set]}"); fi
  for row in "$@"; do grid+=(--run "$backbone-$(label "$row")/$column=$(path "$set" "$row")"); done
}

overview() { # TITLE: the paper's table, a row for each model of each backbone, a column for each test set
  local measure
  for measure in $wanted; do
    say "$1, $measure"
    $PYTHON "$examples/grid.py" "${grid[@]}" --measure "$measure"
  done
}
