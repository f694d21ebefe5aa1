"""Bad input of learned fusions, of tuning, and of side outputs of fuse."""

from tests.bad_input import Bad, file

FUSE = "fuse --run one.trec --run two.trec --output out.trec "
LEARN = "learn-fusion --run one.trec --run two.trec --qrels test.qrels --output out.json"
LINEAR = '{"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "two"], "found": {}}'
GATED = '{"moeir_fusion": 1, "method": "gated", "runs": ["one", "two"], "found": {}, "numbers": {"words": null}}'
LEARNED = FUSE + "--learned bad.json"

FUSING = [
    Bad("one list to learn from", None, LEARN.replace("--run two.trec ", ""), 2, "expected two runs or more, found 1"),
    Bad("another kind", None, LEARN + " --kind deep", 2, "--kind deep: expected gated or linear"),
    Bad("a negative strength", None, LEARN + " --strength -1", 2, "--strength -1.0: expected more than 0"),
    Bad("a strength for nothing", None, LEARN + " --kind linear --strength 1", 2, "--strength: has no effect on linear"),
    Bad("a negative seed", None, LEARN + " --seed -1", 2, "--seed -1: expected 0 or more"),
    Bad("a fusion on stdout", None, LEARN.replace("out.json", "-"), 2, "--output -: expected a file to write"),
    Bad("the same list twice", None, LEARN + " --run one.trec", 2, "the same run is given twice"),
    Bad("nothing to learn", file("test.qrels", "q9 0 owl 1\n"), LEARN, 3, "test.qrels: no query has a relevant document"),
    Bad("other queries", file("test.qrels", "q1 0 owl 1\nq77 0 owl 1\n"), LEARN + " --queries queries.tsv", 3, "has no query 'q77'"),
    Bad("no fusion", file("bad.json", '{"a": 1}'), LEARNED, 3, "bad.json: no fusion of format 1; expected what moeir learn-fusion"),
    Bad("a fusion not JSON", file("bad.json", "{"), LEARNED, 3, "bad.json: not JSON"),
    Bad("a fusion without numbers", file("bad.json", GATED), LEARNED, 3, "bad.json: damaged (KeyError: 'scales')"),
    Bad("a fusion unknown", file("bad.json", LINEAR.replace("linear:", "liner:")), LEARNED, 3, "bad.json: fusion has no 'liner'"),
    Bad("a missing fusion", None, LEARNED, 3, "bad.json: no such file (--learned)"),
    Bad("three lists for two", file("bad.json", LINEAR), LEARNED + " --run made.trec", 2, "learned on 2 runs (one, two), found 3"),
    Bad("another order", file("bad.json", LINEAR.replace('"one", "two"', '"two", "one"')), LEARNED, 2, "in the order two, one, found"),
    Bad("words for nothing", file("bad.json", LINEAR), LEARNED + " --queries queries.tsv", 2, "was learned without words; leave it out"),
    Bad("two fusions", file("bad.json", LINEAR), LEARNED + " --method rrf", 2, "--learned and --method exclude one another"),
    Bad("tuned and learned", file("bad.json", LINEAR), LEARNED + " --tune RR --qrels test.qrels", 2, "--learned and --tune exclude"),
    Bad("queries for nothing", None, FUSE + "--queries queries.tsv", 2, "--queries needs --learned FILE or --group-by FIELD"),
    Bad("nothing found to save", None, FUSE + "--save found.json", 2, "fuse: --save is for tuning; add --tune MEASURE"),
    Bad("a grid for weights", None, FUSE + "--method linear --tune RR --qrels test.qrels --grid 0:1:1", 2, "--grid: linear has weights"),
    Bad("no judgements of a loss", None, FUSE + "--ablation lost.tsv", 2, "--ablation needs --qrels"),
    Bad("a measure for nothing", None, FUSE + "--measure RR", 2, "--measure is for --ablation FILE"),
    Bad("an account over a file", file("why.tsv", "mine"), FUSE + "--attribution why.tsv", 2, "exists and was not made by moeir"),
    Bad("an account on stdout", None, FUSE + "--attribution -", 2, "--attribution -: expected a file to write"),
    Bad("an account over the run", None, FUSE + "--attribution out.trec", 2, "--attribution out.trec: --output writes there"),
    Bad("an account over a source", None, FUSE + "--attribution one.trec", 2, "would replace what --run reads"),
]
