"""Bad input of encode: shards, processes, and limits on representations."""

from tests.bad_input import ENCODE, BadInput, write_file

CAME = ENCODE + "came"
PIPED = CAME.replace("corpus.jsonl", "-")

ENCODING = [
    BadInput("a shard without a number", None, CAME + " --shard 3", 2, "--shard 3: expected I/N, the I-th of N parts counted from 0"),
    BadInput("a shard behind the last", None, CAME + " --shard 3/3", 2, "--shard 3/3: expected I/N"),
    BadInput("more shards than windows", None, CAME + " --shard 0/2", 2, "12 texts, 1 windows of 256; expected at most 1 shards"),
    BadInput("a shard of a pipe", None, PIPED + " --shard 0/2", 2, "--shard: needs a corpus whose texts can be counted"),
    BadInput("a shard of many processes", None, CAME + " --shard 0/2 --processes 2", 2, "found --processes 2; leave one of them out"),
    BadInput("less than no process", None, CAME + " --processes -1", 2, "--processes -1: expected 1 or more, or 0 for as many as GPUs"),
    BadInput("processes that are no number", None, CAME + " --processes all", 2, "--processes"),
    BadInput("a pipe for many processes", None, PIPED + " --processes 2", 2, "--processes 2: needs a corpus whose texts can be counted"),
    BadInput("a fault in a text for many", write_file("corpus.jsonl", "{\n"), CAME + " --processes 2", 3, "corpus.jsonl:1: broken JSON"),
    BadInput("no patience", None, CAME + " --stuck-minutes 0", 2, "--stuck-minutes 0: expected more than 0"),
    BadInput("no terms", None, CAME + " --terms 0", 2, "--terms 0: expected at least 1"),
    BadInput("no terms by another name", None, CAME + " --top-k 0", 2, "--terms 0: expected at least 1"),
    BadInput("weights of nothing", None, CAME + " --least-weight 0", 2, "--least-weight 0: expected more than 0"),
    BadInput("a weight beyond all", None, CAME + " --least-weight inf", 2, "--least-weight: expected a number, found 'inf'"),
    BadInput("pools of nothing", None, CAME + " --pool-factor 0", 2, "--pool-factor 0: expected at least 1 (no pooling)"),
]
