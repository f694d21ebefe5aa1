"""Bad input of report."""

from tests.bad_input import BadInput, write_file

PAGE = "report --run one.trec --output page.html"
JUDGED = PAGE + " --qrels test.qrels"
POINTS = "side\tid\tgroup\tx\ty\n"

REPORTING = [
    BadInput("a report of nothing", None, "report --output page.html", 2, "report: expected --run and --qrels, or --training"),
    BadInput("runs without judgements", None, PAGE, 2, "report: --run needs --qrels"),
    BadInput("runs as text", None, "report --run one.trec --qrels test.qrels", 2, "--run: is for a page; expected --output page.html"),
    BadInput("words of no run", write_file("bad.jsonl", '{"step": 1}\n'), "report --training bad.jsonl --corpus corpus.jsonl --output page.html", 2,
        "--corpus needs --run"),
    BadInput("reasons from two places", None, JUDGED + " --queries queries.tsv --index idx --explain good.jsonl", 2, "exclude one another"),
    BadInput("an index that is not asked", None, JUDGED + " --index idx", 2, "--index needs --queries"),
    BadInput("lists of nothing", None, JUDGED + " --depth 0", 2, "--depth 0: expected at least 1"),
    BadInput("texts of nothing", None, JUDGED + " --text-length 0", 2, "--text-length 0: expected at least 1"),
    BadInput("a measure that is none", None, JUDGED + " --measure nDGC@10", 2, "no measure is called 'nDGC@10'"),
    BadInput("runs of other experts", None, JUDGED + " --queries queries.tsv --index idx", 2, "expected lexical.trec, local.trec, global.trec"),
    BadInput("a run of another index", write_file("lexical.trec", "q1 Q0 newt 1 1 t\n"),
        JUDGED.replace("one.", "lexical.") + " --queries queries.tsv --index idx", 3, "lexical: document 'newt' is not in idx"),
    BadInput("judgements of other queries", write_file("test.qrels", "zz 0 owl 1\n"), JUDGED, 3, "test.qrels: run of another collection"),
    BadInput("an explanation of something else", None, JUDGED + " --explain good.jsonl", 3, "good.jsonl:1: expected a line of search --explain"),
    BadInput("a broken explanation", write_file("bad.jsonl", '{"query": "q1", "document": "owl", "experts": {"a": {"terms": [1]}}}\n'),
        JUDGED + " --explain bad.jsonl", 3, "bad.jsonl:1: expected of each expert its rank, score and part"),
    BadInput("an explanation in two places",
        write_file("bad.jsonl", "".join(f'{{"query": "{query}", "document": "owl", "experts": {{}}}}\n' for query in ("q1", "q2", "q1"))),
        JUDGED + " --explain bad.jsonl", 3, "explanations of query 'q1' are not contiguous"),
    BadInput("a map of nothing", write_file("map.tsv", POINTS), JUDGED + " --projection map.tsv", 3, "map.tsv: has no points"),
    BadInput("a map of something else", write_file("map.tsv", "a\tb\n1\t2\n"), JUDGED + " --projection map.tsv", 3,
        "expected the columns side, id, group"),
    BadInput("a point nowhere", write_file("map.tsv", POINTS + "query\tq1\ta\t1\tnan\n"), JUDGED + " --projection map.tsv", 3,
        "map.tsv:2: a coordinate is not a number: 'nan'"),
    BadInput("a point that is cut", write_file("map.tsv", POINTS + "query\tq1\n"), JUDGED + " --projection map.tsv", 3,
        "map.tsv:2: 5 columns expected, as the first line has, 2 found"),
]
