"""Bad input of rerankers: cross-encoders, their training, and rerank."""

from tests.bad_input import Bad, file

RERANK = "rerank --model came --queries queries.tsv --corpus corpus.jsonl --output out.trec --run "
TRAIN = "finetune --model tiny --arch cross-encoder --train good.jsonl --corpus corpus.jsonl --queries train-queries.jsonl --output out"
PRETRAIN = "pretrain --model tiny --arch cross-encoder --corpus corpus.jsonl --objective mlm --output out"
CASCADE = RERANK + "one.trec --depth 10 --then "

RERANKING = [
    Bad("no such device to rerank on", None, RERANK + "one.trec --device cuda:99", 2, "--device cuda:99: torch sees"),
    Bad("a head that is none", None, TRAIN.replace("encoder", "encoder:head=mean"), 2, "head=mean: expected hf or linear"),
    Bad("no room for a document", None, TRAIN + " --query-length 63", 2, "leaves no room for a document in a pair of 64"),
    Bad("a group of one", None, TRAIN + " --objective lce --negatives 0", 2, "--negatives 0: this objective compares a positive"),
    Bad("no temperature", None, TRAIN + " --objective lce:temperature=0", 2, "lce:temperature=0: expected more than 0"),
    Bad("a development run alone", None, TRAIN + " --dev-run one.trec", 2, "--dev-run: needs --dev-queries"),
    Bad("a pre-trained cross-encoder", None, PRETRAIN, 2, "--arch cross-encoder: pre-train dense"),
    Bad("a run of strangers", file("bad.trec", "q1 Q0 whale-x 1 2 t\n"), RERANK + "bad.trec", 3, "has no document 'whale-x'"),
    Bad("a run of other queries", file("bad.trec", "x9 Q0 owl 1 2 t\n"), RERANK + "bad.trec", 3, "has no query 'x9', which bad.trec"),
    Bad("no depth to rerank", None, RERANK + "one.trec --depth 0", 2, "--depth 0: expected at least 1"),
    Bad("a round without a model", None, CASCADE + "5", 2, "--then 5: expected DEPTH:CHECKPOINT, as in 100:ckpt/lce"),
    Bad("a deeper round", None, CASCADE + "10:came", 2, "--then 10:…: expected less than the depth before it, 10"),
    Bad("a round by what is not there", None, CASCADE + "5:nowhere", 4, "nowhere"),
    Bad("a round by weights", None, CASCADE + "5:tiny", 4, "tiny: "),
    Bad("an unknown ensemble", None, RERANK + "one.trec --ensemble zscroe", 2, "has no 'zscroe'; did you mean 'zscore'?"),
    Bad("an unknown way to cut", None, RERANK + "one.trec --passages best", 2, "--passages best: expected one of firstp, maxp, sump"),
    Bad("a stride of nothing", None, RERANK + "one.trec --passages maxp --stride 0", 2, "--stride 0: expected at least 1"),
    Bad("a stride of beginnings", None, RERANK + "one.trec --stride 9", 2, "--passages firstp reads only the first passage; add"),
    Bad("an expert that is not there", None, RERANK + "one.trec --expert sparse", 2, "--expert sparse: came has lexical, local, global"),
    Bad("the same run to rerank twice", None, RERANK + "one.trec --run one.trec", 2, "--run: the same run is given twice"),
    Bad("a corpus for two", None, CASCADE.replace("corpus.jsonl", "-") + "5:came", 2, "--corpus -: every model reads it"),
    Bad("more shards than queries", None, RERANK + "one.trec --shard 0/2", 2, "--shard 0/2: the run has 1 queries"),
    Bad("no patience", None, RERANK + "one.trec --patience 0", 2, "--patience 0: expected at least 1"),
    Bad("patience of several", None, CASCADE + "5:came+came --patience 3", 2, "--patience 3: several models would stop a query"),
    Bad("patience of experts", None, RERANK + "one.trec --patience 3", 2, "--patience 3: is for cross-encoders, and came is none"),
    Bad("a tag of two words", None, RERANK + "one.trec --tag a\tb", 2, "--tag"),
]
