"""Bad input of search and export."""

from tests.bad_input import SEARCH, Bad, file

EXPORT = "export --encodings enc --output out --to "
ASK = "search --index idx --interactive"

SEARCHING = [
    Bad("no queries", None, "search --index idx --output out.trec", 2, "search needs --queries"),
    Bad("no threads", None, SEARCH + "idx --threads 0", 2, "--threads 0: expected at least 1"),
    Bad("batches of nothing", None, SEARCH + "idx --batch-size 0", 2, "--batch-size 0: expected at least 1"),
    Bad("no such device to search on", None, SEARCH + "idx --device cuda:99", 2, "--device cuda:99: torch sees"),
    Bad("the same index twice", None, SEARCH + "idx --index idx", 2, "the same index is given twice"),
    Bad("parts of two kinds", None, SEARCH + "idx --index bm25", 4, "bm25: made with another checkpoint than idx"),
    Bad("a corpus for nothing", None, SEARCH + "idx --corpus corpus.jsonl", 2, "is read only with --explain or --interactive"),
    Bad("an explanation over a file", file("why.jsonl", "mine"), SEARCH + "idx --explain why.jsonl", 2, "was not made by moeir"),
    Bad("an explanation on stdout", None, SEARCH + "idx --explain -", 2, "--explain -: expected a file to write"),
    Bad("an explanation in the run", None, SEARCH + "idx --explain out.trec", 2, "is inside the folder that --output replaces"),
    Bad("asking with queries", None, ASK + " --queries queries.tsv", 2, "--queries: cannot be combined with --interactive"),
    Bad("asking for a run", None, ASK + " --output out.trec", 2, "--output: cannot be combined with --interactive"),
    Bad("unknown server", None, EXPORT + "qdrnt", 2, "servers has no 'qdrnt'; did you mean 'qdrant'?"),
    Bad("a collection of two words", None, EXPORT + "qdrant:name=My-texts", 2, "expected lower-case letters"),
    Bad("no impacts", None, EXPORT + "anserini:levels=0", 2, "expected more than 0"),
    Bad("an export to a pipe", None, EXPORT.replace("output out", "output -") + "vespa", 2, "an export is a folder"),
    Bad("an export of another corpus", None, EXPORT + "vespa --corpus train-queries.jsonl", 3, "where the encodings have 'owl'"),
    Bad("an export of an index", None, EXPORT.replace("enc ", "idx ") + "vespa", 4, "idx: expected encodings, found an index"),
]
