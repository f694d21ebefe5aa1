"""Bad input of learned fusions, of tuning, and of side outputs of fuse."""

from tests.bad_input import BadInput, write_file

FUSE_TWO = "fuse --run one.trec --run two.trec --output out.trec "
LEARN = "learn-fusion --run one.trec --run two.trec --qrels test.qrels --output out.json"
LINEAR = '{"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "two"], "found": {}}'
GATED = '{"moeir_fusion": 1, "method": "gated", "runs": ["one", "two"], "found": {}, "numbers": {"words": null}}'
LEARNED = FUSE_TWO + "--learned bad.json"

FUSING = [
    BadInput("one list to learn from", None, LEARN.replace("--run two.trec ", ""), 2, "expected two runs or more, found 1"),
    BadInput("another kind", None, LEARN + " --kind deep", 2, "--kind deep: expected gated or linear"),
    BadInput("a negative strength", None, LEARN + " --strength -1", 2, "--strength -1.0: expected more than 0"),
    BadInput("a strength for nothing", None, LEARN + " --kind linear --strength 1", 2, "--strength: has no effect on linear"),
    BadInput("a negative seed", None, LEARN + " --seed -1", 2, "--seed -1: expected 0 or more"),
    BadInput("a fusion on stdout", None, LEARN.replace("out.json", "-"), 2, "--output -: expected a file to write"),
    BadInput("the same list twice", None, LEARN + " --run one.trec", 2, "the same run is given twice"),
    BadInput("nothing to learn", write_file("test.qrels", "q9 0 owl 1\n"), LEARN, 3, "test.qrels: no query has a relevant document"),
    BadInput("other queries", write_file("test.qrels", "q1 0 owl 1\nq77 0 owl 1\n"), LEARN + " --queries queries.tsv", 3, "has no query 'q77'"),
    BadInput("no fusion", write_file("bad.json", '{"a": 1}'), LEARNED, 3, "bad.json: no fusion of format 1; expected what moeir learn-fusion"),
    BadInput("a fusion not JSON", write_file("bad.json", "{"), LEARNED, 3, "bad.json: not JSON"),
    BadInput("a fusion without numbers", write_file("bad.json", GATED), LEARNED, 3, "bad.json: damaged (KeyError: 'scales')"),
    BadInput("a fusion unknown", write_file("bad.json", LINEAR.replace("linear:", "liner:")), LEARNED, 3, "bad.json: fusion has no 'liner'"),
    BadInput("a missing fusion", None, LEARNED, 3, "bad.json: no such file (--learned)"),
    BadInput("three lists for two", write_file("bad.json", LINEAR), LEARNED + " --run made.trec", 2, "learned on 2 runs (one, two), found 3"),
    BadInput("another order", write_file("bad.json", LINEAR.replace('"one", "two"', '"two", "one"')), LEARNED, 2, "in the order two, one, found"),
    BadInput("words for nothing", write_file("bad.json", LINEAR), LEARNED + " --queries queries.tsv", 2, "was learned without words; leave it out"),
    BadInput("two fusions", write_file("bad.json", LINEAR), LEARNED + " --method rrf", 2, "--learned and --method exclude one another"),
    BadInput("tuned and learned", write_file("bad.json", LINEAR), LEARNED + " --tune RR --qrels test.qrels", 2, "--learned and --tune exclude"),
    BadInput("queries for nothing", None, FUSE_TWO + "--queries queries.tsv", 2, "--queries needs --learned FILE or --group-by FIELD"),
    BadInput("nothing found to save", None, FUSE_TWO + "--save found.json", 2, "fuse: --save is for tuning; add --tune MEASURE"),
    BadInput("a grid for weights", None, FUSE_TWO + "--method linear --tune RR --qrels test.qrels --grid 0:1:1", 2, "--grid: linear has weights"),
    BadInput("no judgements of a loss", None, FUSE_TWO + "--ablation lost.tsv", 2, "--ablation needs --qrels"),
    BadInput("a measure for nothing", None, FUSE_TWO + "--measure RR", 2, "--measure is for --ablation FILE"),
    BadInput("an account over a file", write_file("why.tsv", "mine"), FUSE_TWO + "--attribution why.tsv", 2, "exists and was not made by moeir"),
    BadInput("an account on stdout", None, FUSE_TWO + "--attribution -", 2, "--attribution -: expected a file to write"),
    BadInput("an account over the run", None, FUSE_TWO + "--attribution out.trec", 2, "--attribution out.trec: --output writes there"),
    BadInput("an account over a source", None, FUSE_TWO + "--attribution one.trec", 2, "would replace what --run reads"),
]
