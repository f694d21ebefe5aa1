"""Bad input of check and convert."""

from tests.bad_input import BadInput, write_corpus, write_file

CONVERT = "convert --input "
CHECK = "check --corpus corpus.jsonl "

FORMATS = [
    BadInput("nothing to check", None, "check", 2, "check needs --corpus, --queries, --qrels, --train, --run or --encodings"),
    BadInput("an unknown kind of fault", None, CHECK + "--allow tie", 2, "there is no such kind of fault; did you mean 'ties'?"),
    BadInput("a check against no file", None, CHECK + "--qrels absent", 3, "absent: no such file (--qrels)"),
    BadInput("a length without a tokenizer", None, CHECK + "--document-length 9", 2, "--document-length: needs --model"),
    BadInput("a length of plain weights", None, CHECK + "--model tiny", 2, "plain weights have no maximum length; add --document-length"),
    BadInput("mending in its own place", None, CHECK + "--fix .", 2, "--fix .: would replace a source, corpus.jsonl"),
    BadInput("mending into what others made", write_file("mine", "x"), CHECK + "--fix mine", 2, "mine: exists and was not made by moeir"),
    BadInput("an unknown format", None, CONVERT + "test.qrels --to trec", 2, "formats has no 'trec'"),
    BadInput(
        "a format that is not sure", write_file("x.tsv", "1\t2\t3\n"), CONVERT + "x.tsv --to run", 2, "format not recognised; name it with --from"
    ),
    BadInput("a kind that is another", None, CONVERT + "one.trec --to tsv", 2, "one.trec is run, a run, which becomes colbert-run,"),
    BadInput("a faulty line", write_corpus("{"), CONVERT + "bad.jsonl --to tsv --output out", 3, "bad.jsonl:2: broken JSON at column 2"),
    BadInput(
        "what would be lost",
        write_corpus('{"_id": "b", "title": "T", "text": "x"}'),
        CONVERT + "bad.jsonl --to tsv --output out",
        2,
        "would be lost",
    ),
    BadInput("texts that are not named", None, CONVERT + "good.jsonl --to dpr --output out", 2, "name the file that has them with --queries"),
    BadInput(
        "a layout of experts",
        None,
        CONVERT + "came --to pylate --output out",
        2,
        "supports colbert; its layout cannot hold the experts of came",
    ),
    BadInput("an artifact without a tokenizer of its own", None, CONVERT + "enc --to anserini-vectors", 2, "has lexical, global; choose one"),
    BadInput("info of what is not sure", write_file("x.tsv", "1\t2\t3\n"), "info x.tsv", 2, "format not recognised; name it with --from"),
]
