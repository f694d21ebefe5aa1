"""Bad input of search and export."""

from tests.bad_input import SEARCH, BadInput, write_file

EXPORT = "export --encodings enc --output out --to "
ASK = "search --index idx --interactive"

SEARCHING = [
    BadInput("no queries", None, "search --index idx --output out.trec", 2, "search needs --queries"),
    BadInput("no threads", None, SEARCH + "idx --threads 0", 2, "--threads 0: expected at least 1"),
    BadInput("batches of nothing", None, SEARCH + "idx --batch-size 0", 2, "--batch-size 0: expected at least 1"),
    BadInput("no such device to search on", None, SEARCH + "idx --device cuda:99", 2, "--device cuda:99: torch sees"),
    BadInput("the same index twice", None, SEARCH + "idx --index idx", 2, "the same index is given twice"),
    BadInput("parts of two kinds", None, SEARCH + "idx --index bm25", 4, "bm25: made with another checkpoint than idx"),
    BadInput("a corpus for nothing", None, SEARCH + "idx --corpus corpus.jsonl", 2, "is read only with --explain or --interactive"),
    BadInput("an explanation over a file", write_file("why.jsonl", "mine"), SEARCH + "idx --explain why.jsonl", 2, "was not made by moeir"),
    BadInput("an explanation on stdout", None, SEARCH + "idx --explain -", 2, "--explain -: expected a file to write"),
    BadInput("an explanation in the run", None, SEARCH + "idx --explain out.trec", 2, "is inside the folder that --output replaces"),
    BadInput("asking with queries", None, ASK + " --queries queries.tsv", 2, "--queries: cannot be combined with --interactive"),
    BadInput("asking for a run", None, ASK + " --output out.trec", 2, "--output: cannot be combined with --interactive"),
    BadInput("unknown server", None, EXPORT + "qdrnt", 2, "servers has no 'qdrnt'; did you mean 'qdrant'?"),
    BadInput("a collection of two words", None, EXPORT + "qdrant:name=My-texts", 2, "expected lower-case letters"),
    BadInput("no impacts", None, EXPORT + "anserini:levels=0", 2, "expected more than 0"),
    BadInput("an export to a pipe", None, EXPORT.replace("output out", "output -") + "vespa", 2, "an export is a folder"),
    BadInput("an export of another corpus", None, EXPORT + "vespa --corpus train-queries.jsonl", 3, "where the encodings have 'owl'"),
    BadInput("an export of an index", None, EXPORT.replace("enc ", "idx ") + "vespa", 4, "idx: expected encodings, found an index"),
]
