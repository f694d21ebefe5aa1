"""Bad input of check and convert."""

from tests.bad_input import Bad, corpus, file

CONVERT = "convert --input "
CHECK = "check --corpus corpus.jsonl "

FORMATS = [
    Bad("nothing to check", None, "check", 2, "check needs --corpus, --queries, --qrels, --train, --run or --encodings"),
    Bad("an unknown kind of fault", None, CHECK + "--allow tie", 2, "there is no such kind of fault; did you mean 'ties'?"),
    Bad("a check against no file", None, CHECK + "--qrels absent", 3, "absent: no such file (--qrels)"),
    Bad("a length without a tokenizer", None, CHECK + "--document-length 9", 2, "--document-length: needs --model"),
    Bad("a length of plain weights", None, CHECK + "--model tiny", 2, "plain weights have no maximum length; add --document-length"),
    Bad("mending in its own place", None, CHECK + "--fix .", 2, "--fix .: would replace a source, corpus.jsonl"),
    Bad("mending into what others made", file("mine", "x"), CHECK + "--fix mine", 2, "mine: exists and was not made by moeir"),
    Bad("an unknown format", None, CONVERT + "test.qrels --to trec", 2, "formats has no 'trec'"),
    Bad(
        "a format that is not sure", file("x.tsv", "1\t2\t3\n"), CONVERT + "x.tsv --to run", 2, "format not recognised; name it with --from"
    ),
    Bad("a kind that is another", None, CONVERT + "one.trec --to tsv", 2, "one.trec is run, a run, which becomes colbert-run,"),
    Bad("a faulty line", corpus("{"), CONVERT + "bad.jsonl --to tsv --output out", 3, "bad.jsonl:2: broken JSON at column 2"),
    Bad(
        "what would be lost",
        corpus('{"_id": "b", "title": "T", "text": "x"}'),
        CONVERT + "bad.jsonl --to tsv --output out",
        2,
        "would be lost",
    ),
    Bad("texts that are not named", None, CONVERT + "good.jsonl --to dpr --output out", 2, "name the file that has them with --queries"),
    Bad(
        "a layout of experts",
        None,
        CONVERT + "came --to pylate --output out",
        2,
        "supports colbert; its layout cannot hold the experts of came",
    ),
    Bad("an artifact without a tokenizer of its own", None, CONVERT + "enc --to anserini-vectors", 2, "has lexical, global; choose one"),
    Bad("info of what is not sure", file("x.tsv", "1\t2\t3\n"), "info x.tsv", 2, "format not recognised; name it with --from"),
]
