"""Bad input of encode: shards, processes, and limits on representations."""

from tests.bad_input import ENCODE, Bad, file

CAME = ENCODE + "came"
PIPED = CAME.replace("corpus.jsonl", "-")

ENCODING = [
    Bad("a shard without a number", None, CAME + " --shard 3", 2, "--shard 3: expected I/N, the I-th of N parts counted from 0"),
    Bad("a shard behind the last", None, CAME + " --shard 3/3", 2, "--shard 3/3: expected I/N"),
    Bad("more shards than windows", None, CAME + " --shard 0/2", 2, "12 texts, 1 windows of 256; expected at most 1 shards"),
    Bad("a shard of a pipe", None, PIPED + " --shard 0/2", 2, "--shard: needs a corpus whose texts can be counted"),
    Bad("a shard of many processes", None, CAME + " --shard 0/2 --processes 2", 2, "found --processes 2; leave one of them out"),
    Bad("less than no process", None, CAME + " --processes -1", 2, "--processes -1: expected 1 or more, or 0 for as many as GPUs"),
    Bad("processes that are no number", None, CAME + " --processes all", 2, "--processes"),
    Bad("a pipe for many processes", None, PIPED + " --processes 2", 2, "--processes 2: needs a corpus whose texts can be counted"),
    Bad("a fault in a text for many", file("corpus.jsonl", "{\n"), CAME + " --processes 2", 3, "corpus.jsonl:1: broken JSON"),
    Bad("no patience", None, CAME + " --stuck-minutes 0", 2, "--stuck-minutes 0: expected more than 0"),
    Bad("no terms", None, CAME + " --terms 0", 2, "--terms 0: expected at least 1"),
    Bad("no terms by another name", None, CAME + " --top-k 0", 2, "--terms 0: expected at least 1"),
    Bad("weights of nothing", None, CAME + " --least-weight 0", 2, "--least-weight 0: expected more than 0"),
    Bad("a weight beyond all", None, CAME + " --least-weight inf", 2, "--least-weight: expected a number, found 'inf'"),
    Bad("pools of nothing", None, CAME + " --pool-factor 0", 2, "--pool-factor 0: expected at least 1 (no pooling)"),
]
