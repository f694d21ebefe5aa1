"""Long documents: cut by `convert --passages`, searched, fused, reranked and evaluated as documents by `--collapse max`."""

import json
from pathlib import Path

import pytest

import moeir as package
from moeir.architectures.checkpoint import open_checkpoint
from moeir.records.runs import Run, format_lists, read_run, write_run
from moeir.records.texts import read_texts
from tests.backbones.tiny_models import make_model
from tests.backbones.tiny_tokenizers import write_modernbert, write_xlm_roberta
from tests.conftest import TOY, run_moeir
from tests.oracles.passages import collapse_by_dictionary

DOCUMENTS = {"a": (0, 4, 8), "a!": (1, 5, 9, 0), "b": (2, 6, 10), "c": (3, 7, 11, 2, 6), "d": (4, 8)}  # rows of the toy corpus
FLOAT32 = ("--dtype", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, came_checkpoint):
    """Documents of several toy texts, some of which stand in two; their passages, encoded and indexed; and runs of all passages."""
    folder = tmp_path_factory.mktemp("long")
    texts = [text.text for text in read_texts(TOY / "corpus.jsonl")]
    records = [{"_id": name, "title": "Animals", "text": " ".join(texts[row] for row in rows)} for name, rows in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    cut = ("convert", "--input", folder / "corpus.jsonl", "--passages", 14, "--model", came_checkpoint)
    run_moeir(*cut, "--output", folder / "passages.jsonl")
    result = run_moeir("encode", "--model", came_checkpoint, "--corpus", folder / "passages.jsonl", *FLOAT32, "--output", folder / "enc")
    assert "are cut at" not in result.stderr
    run_moeir("index", "--encodings", folder / "enc", "--output", folder / "idx")
    run_moeir("index", "--corpus", folder / "passages.jsonl", "--engine", "bm25", "--output", folder / "bm25")
    search = ("search", "--queries", TOY / "test-queries.tsv", *FLOAT32)
    for index, whole in (("idx", "whole"), ("bm25", "whole-bm25")):
        run_moeir(*search, "--index", folder / index, "--output", folder / whole)
    return folder


def search(folder, output, *flags, index="idx"):
    queries = ("--queries", TOY / "test-queries.tsv")
    run_moeir("search", "--index", folder / index, *queries, *FLOAT32, "--collapse", "max", *flags, "--output", output)
    return output


def collapse(path, depth=None):
    """The oracle: each query's documents in a run of all passages."""
    run = read_run(path)
    return {query: collapse_by_dictionary(run.hits(query), depth) for query in run.queries}


def read_hits(path):
    run = read_run(path)
    return {query: run.hits(query) for query in run.queries}


def test_passages_have_the_title_and_no_checkpoint_cuts_them(folder, came_checkpoint):
    documents, passages = (list(read_texts(folder / name)) for name in ("corpus.jsonl", "passages.jsonl"))
    assert {one.title for one in passages} == {"Animals"} and len(passages) > 2 * len(documents)
    for document in documents:
        own = [one for one in passages if one.id.startswith(f"{document.id}#")]
        assert [one.id for one in own] == [f"{document.id}#{number}" for number in range(len(own))]
        assert " ".join(one.text for one in own) == document.text
    lengths = [len(ids) for ids in open_checkpoint(came_checkpoint).tokenizer.encode([one.content for one in passages])]
    assert max(lengths) == 14


@pytest.mark.parametrize("depth", [1, 3, 1000])
def test_search_finds_the_first_documents_of_the_whole_list_of_passages_and_fuses_them(folder, depth, tmp_path):
    runs = search(folder, tmp_path / "runs", "--depth", depth)
    experts = [word for name in ("lexical", "local", "global") for word in ("--run", runs / f"{name}.trec")]
    fused = run_moeir("fuse", *experts, "--method", "came-sum", "--depth", depth, "--output", "-")
    assert fused.stdout == (runs / "fused.trec").read_text()
    for expert in ("lexical", "local", "global"):
        assert read_hits(tmp_path / "runs" / f"{expert}.trec") == collapse(folder / "whole" / f"{expert}.trec", depth), expert
    search(folder, tmp_path / "bm25.trec", "--depth", depth, index="bm25")
    assert read_hits(tmp_path / "bm25.trec") == collapse(folder / "whole-bm25" / "bm25.trec", depth)


def test_a_filter_is_of_documents(folder, tmp_path):
    (tmp_path / "ids").write_text("b\na!\n")
    runs = search(folder, tmp_path / "runs", "--filter-ids", tmp_path / "ids", "--depth", 1)
    for expert in ("lexical", "local", "global"):
        whole = collapse(folder / "whole" / f"{expert}.trec")
        expected = {query: [hit for hit in hits if hit[0] in ("b", "a!")][:1] for query, hits in whole.items()}
        assert read_hits(runs / f"{expert}.trec") == {query: hits for query, hits in expected.items() if hits}, expert


def test_passages_of_a_document_may_be_in_several_indexes(folder, came_checkpoint, tmp_path):
    lines = (folder / "passages.jsonl").read_text().splitlines(keepends=True)
    one, parts = search(folder, tmp_path / "one", "--depth", 3), tmp_path / "parts"
    indexes: list[object] = []
    for part in range(3):
        corpus, enc, idx = (tmp_path / f"{name}{part}" for name in ("corpus", "enc", "idx"))
        corpus.write_text("".join(lines[part::3]))
        run_moeir("encode", "--model", came_checkpoint, "--corpus", corpus, *FLOAT32, "--output", enc)
        run_moeir("index", "--encodings", enc, "--output", idx)
        indexes += ["--index", idx]
    queries = ("--queries", TOY / "test-queries.tsv", *FLOAT32)
    run_moeir("search", *indexes, *queries, "--collapse", "max", "--depth", 3, "--output", parts)
    for name in ("lexical", "local", "global", "fused"):
        for query, hits in read_hits(one / f"{name}.trec").items():
            assert dict(read_hits(parts / f"{name}.trec")[query]) == pytest.approx(dict(hits), rel=1e-5), (name, query)


def test_passages_are_not_taken_for_documents(folder, tmp_path, moeir):
    """Judgements and other runs are of documents: each command says so, and `--collapse max` lets them be compared."""
    passages, documents, qrels = folder / "whole" / "fused.trec", tmp_path / "documents.trec", tmp_path / "qrels"
    write_run(Run.from_hits(collapse(passages), "moeir.fused"), documents)
    qrels.write_text("q1 0 a 1\nq2 0 c 1\nq3 0 a! 2\n")
    refused = moeir("evaluate", "--run", passages, "--qrels", qrels)
    assert refused.code == 3 and "run of passages: it has 'a!#0', but judged is 'a!'; add --collapse max" in refused.stderr
    refused = moeir("mine-negatives", "--run", passages, "--qrels", qrels, "--output", tmp_path / "train.jsonl")
    assert refused.code == 3 and "of documents that" in refused.stderr and not (tmp_path / "train.jsonl").exists()
    refused = moeir("fuse", "--run", documents, passages)
    assert refused.code == 3 and f"{passages} has passages such as" in refused.stderr and "add --collapse max" in refused.stderr
    for command in (("fuse",), ("evaluate", "--qrels", qrels, "--form", "tsv")):
        both = moeir(*command, "--run", documents, passages, "--collapse", "max")
        assert both.code == 0, both.stderr
    values = [line.split("\t", 1)[1] for line in both.stdout.splitlines()]
    assert values and set(map(values.count, values)) == {2}, "the same values for both"
    assert moeir("check", "--corpus", folder / "passages.jsonl", "--qrels", qrels).code == 0
    (tmp_path / "other.trec").write_text("other Q0 a 1 2.5 x\n")
    refused = moeir("fuse", "--run", documents, tmp_path / "other.trec")
    assert refused.code == 3 and "other.trec: has no query of" in refused.stderr


def test_commands_on_passages_name_the_one_that_gives_documents_back(folder, tmp_path, moeir):
    result = moeir("index", "--corpus", folder / "passages.jsonl", "--engine", "bm25", "--output", tmp_path / "idx")
    assert "--collapse max" in result.stderr.partition("next: ")[2]
    (tmp_path / "numbers.jsonl").write_text('{"_id": "12", "text": "owls hunt"}\n')
    for corpus in (folder / "corpus.jsonl", tmp_path / "numbers.jsonl"):
        plain = moeir("index", "--corpus", corpus, "--engine", "bm25", "--output", tmp_path / f"{corpus.stem}-idx")
        assert plain.code == 0 and "--collapse" not in plain.stderr
    result = moeir("convert", "--input", folder / "corpus.jsonl", "--passages", 20, "--output", tmp_path / "cut.jsonl")
    assert "search --collapse max" in result.stderr


def test_a_run_of_passages_is_reranked_as_passages_and_collapsed(folder, tiny_model, tmp_path):
    rules = ("--query-length", 20, "--document-length", 60)
    run_moeir("init", "--model", tiny_model, "--arch", "cross-encoder", *rules, "--output", tmp_path / "ce")
    common = ("rerank", "--model", tmp_path / "ce", "--run", folder / "whole" / "fused.trec", "--queries", TOY / "test-queries.tsv")
    for flags, name in (((), "passages.trec"), (("--collapse", "max"), "documents.trec")):
        run_moeir(*common, "--corpus", folder / "passages.jsonl", "--depth", 5, *FLOAT32, *flags, "--output", tmp_path / name)
    assert read_hits(tmp_path / "documents.trec") == collapse(tmp_path / "passages.trec")


def test_python_collapses_too(folder, tmp_path):
    runs = search(folder, tmp_path / "runs", "--depth", 3)
    found = package.search(index=folder / "idx", queries=TOY / "test-queries.tsv", depth=3, collapse="max", dtype="float32")
    assert "\n".join(format_lists(found, "moeir.fused", "run")) + "\n" == (runs / "fused.trec").read_text()
    searcher = package.open_index(folder / "idx", dtype="float32").collapse_passages()
    assert list(searcher.ids) == sorted(DOCUMENTS) and repr(searcher).endswith("5 documents, lexical, local, global)")
    queries = list(read_texts(TOY / "test-queries.tsv"))
    alone = searcher.search([query.content for query in queries], 3, "local")
    assert dict(zip([query.id for query in queries], alone, strict=True)) == read_hits(runs / "local.trec")
    hits = {"q1": {"a#0": 1.0, "b#1": 3.0, "a#1": 2.0}}
    assert package.evaluate(run=hits, qrels={"q1": {"a": 1}}, collapse="max", measure=["RR@10"])["moeir"]["RR@10"] == 0.5
    assert package.fuse(run=[hits, hits], method="combsum", collapse="max").hits("q1") == [("b", 6.0), ("a", 4.0)]


def test_a_collection_is_cut_and_keeps_its_judgements_of_documents(tmp_path):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "a", "text": "An owl hunts. A bat sleeps.", "year": 7}\n')
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "who sleeps"}\n')
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    run_moeir("convert", "--input", tmp_path / "beir", "--passages", 4, "--output", tmp_path / "cut")
    run_moeir("index", "--dataset", tmp_path / "cut", "--engine", "bm25", "--output", tmp_path / "idx")
    run_moeir("search", "--index", tmp_path / "idx", "--dataset", tmp_path / "cut", "--collapse", "max", "--output", tmp_path / "run.trec")
    table = run_moeir("evaluate", "--run", tmp_path / "run.trec", "--dataset", tmp_path / "cut", "-m", "RR@10").stdout
    assert table.split()[-1] == "1.0000"
    cut = [json.loads(line) for line in (tmp_path / "cut" / "corpus.jsonl").read_text().splitlines()]
    assert [(one["_id"], one["text"], one["year"]) for one in cut] == [("a#0", "An owl hunts.", 7), ("a#1", "A bat sleeps.", 7)]


@pytest.mark.parametrize(("write", "family"), [(write_modernbert, "modernbert"), (write_xlm_roberta, "xlm-roberta")])
@pytest.mark.parametrize("flags", [("--document-prefix", "the owls: "), ("--stride", "3")])
def test_no_tokenizer_reads_more_than_the_passages_have_room_for(write, family, flags, tmp_path):
    """Byte pairs read the first word of a text otherwise than within it, and pieces of a unigram model the rest of a word."""
    make_model(family, vocab_size=write(tmp_path / "tiny")).save_pretrained(tmp_path / "tiny")
    stride, rules = (flags, ()) if "--stride" in flags else ((), flags)
    lengths = ("--query-length", 16, "--document-length", 16)
    run_moeir("init", "--model", tmp_path / "tiny", "--arch", "dense", *lengths, *rules, "--output", tmp_path / "ckpt")
    words = "owls hunting at night. the whalebreadsea in the end, mice! cat owl... the cats at night in the sea bread mice. An end? "
    records = [{"_id": "a", "text": words * 3}, {"_id": "b", "text": words, "title": "the"}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    cut = ("convert", "--input", tmp_path / "c.jsonl", "--passages", 16, *stride, "--model", tmp_path / "ckpt")
    run_moeir(*cut, "--output", tmp_path / "p.jsonl")
    result = run_moeir("encode", "--model", tmp_path / "ckpt", "--corpus", tmp_path / "p.jsonl", *FLOAT32, "--output", tmp_path / "enc")
    assert "are cut at" not in result.stderr
    passages = [text.text for text in read_texts(tmp_path / "p.jsonl") if text.id.startswith("a#")]
    if not stride:
        assert "".join("".join(passages).split()) == "".join((words * 3).split())


REFUSED = [
    ("--passages 0", 2, "--passages 0: expected at least 1"),
    ("--stride 3", 2, "--stride needs --passages"),
    ("--model came --to tsv", 2, "--model needs --passages"),
    ("--passages 8 --stride 9", 2, "--stride 9: text between passages of 8 would be lost; expected at most --passages"),
    ("--passages 33 --model came", 2, "--passages 33: expected at most 32, which is what"),
    ("--passages 3 --model came", 3, "its title leaves no room for text; raise --passages, or shorten the title"),
    ("--passages 8 --input long/passages.jsonl", 3, "'a#0': the id has a '#', as those of passages; cut documents, whose ids have none"),
    ("--passages 8 --input long/whole/fused.trec", 2, "--passages: expected documents or a collection, found run"),
]


@pytest.mark.parametrize(("flags", "code", "message"), REFUSED)
def test_what_cannot_be_cut_is_refused_in_one_line(flags, code, message, work_folder, folder, refuse):
    (work_folder / "long").symlink_to(folder)
    source = "" if "--input" in flags else "--input long/corpus.jsonl"
    refused = refuse(code, message, f"convert {source} {flags} --output out.jsonl")
    assert len(refused.stderr.splitlines()) == 1 and not Path("out.jsonl").exists()


def test_documents_are_no_passages(work_folder, folder, refuse):
    for one in ("bm25", "idx"):
        words = f"error: {one}: 'owl' is no passage; expected ID#NUMBER, as of convert --passages; leave --collapse out"
        refuse(3, words, f"search --index {one} --query owl --collapse max")
    Path("run.trec").write_text("q1 Q0 owl 1 2.5 x\nq1 Q0 bat#0 2 2.0 x\n")
    refuse(3, "error: run.trec: 'owl' is no passage", "evaluate --run run.trec --qrels toy/test-qrels.tsv --collapse max")
    explain = f"search --index {folder}/idx --query owl --collapse max --explain why.jsonl"
    refuse(2, "--collapse and --explain exclude one another", explain)
