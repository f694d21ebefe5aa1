# Steps of the small real runs, for scripts that have set source, here and the sizes: data, training, searching.
# Data: a collection in BEIR form with train and dev questions (corpus.jsonl.gz, queries.jsonl.gz, qrels/{train,dev}.tsv.gz).

prepared() { # data/: training questions with BM25's negatives, development questions, and the passages they are searched in
  [ ! -s data/train.jsonl ] || return 0
  [ -s data/dev.tsv ] || python "$here/sample_questions.py" "$source" data "$TRAIN" "$DEV"
  [ -s data/corpus.jsonl ] || python "$here/sample_corpus.py" "$source/corpus.jsonl.gz" data/dev.tsv data/corpus.jsonl "$PASSAGES"
  moeir index --corpus "$source/corpus.jsonl.gz" --engine bm25 --output idx/bm25-whole
  moeir search --index idx/bm25-whole --queries data/train-queries.jsonl --depth 50 --output runs/train.trec
  moeir mine-negatives --run runs/train.trec --qrels data/train.tsv --method band:first=0,last=10 --output data/train.jsonl
  moeir index --corpus data/corpus.jsonl --engine bm25 --output idx/bm25
  moeir search --index idx/bm25 --queries data/dev-queries.jsonl --depth "$DEPTH" --output runs/bm25.trec
}
searched() { # CHECKPOINT RUN
  moeir encode --model "$1" --corpus data/corpus.jsonl --output "enc/$2"
  moeir index --encodings "enc/$2" --output "idx/$2"
  moeir search --index "idx/$2" --queries data/dev-queries.jsonl --depth "$DEPTH" --output "runs/$2"
  rm -rf "enc/$2"
}
trained() { # MODEL NAME SEED ARCH OBJECTIVE [MORE FLAGS]
  moeir finetune --model "$1" --arch "$4" --objective "$5" --train data/train.jsonl --corpus "$source/corpus.jsonl.gz" \
    --queries data/train-queries.jsonl --query-length "$QUERY_LENGTH" --document-length "$LENGTH" --seed "$3" --output "ckpt/$2" "${@:6}"
}
