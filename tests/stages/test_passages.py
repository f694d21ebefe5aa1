"""Long documents: cut by `convert --passages`, searched, fused, reranked and evaluated as documents by `--collapse max`."""

import json
import shlex
from pathlib import Path

import pytest

import moeir as package
from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts.manifests import read_lines
from moeir.records.runs import Run, format_lists, read_run, write_run
from moeir.records.texts import read_texts
from tests.backbones.tiny_models import make_model
from tests.backbones.tiny_tokenizers import write_modernbert, write_xlm_roberta
from tests.conftest import TOY, run_moeir
from tests.oracles.passages import collapse_by_dictionary
from tests.split_encodings import build_index, write_encodings

DOCUMENTS = {"a": (0, 4, 8), "a!": (1, 5, 9, 0), "b": (2, 6, 10), "c": (3, 7, 11, 2, 6), "d": (4, 8)}  # rows of the toy corpus
SEARCH = "search --queries toy/test-queries.tsv --dtype float32"
EXPERTS = ("lexical", "local", "global")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory, came_checkpoint, tiny_model):
    """The working folder: documents of several toy texts, some of which stand in two; their passages, encoded and indexed; and runs of all
    passages, `whole` and `whole-bm25`."""
    folder = tmp_path_factory.mktemp("long")
    for name, path in {"toy": TOY, "came": came_checkpoint, "tiny": tiny_model}.items():
        (folder / name).symlink_to(path)
    texts = [text.text for text in read_texts(TOY / "corpus.jsonl")]
    records = [{"_id": name, "title": "Animals", "text": " ".join(texts[row] for row in rows)} for name, rows in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        moeir("convert --input corpus.jsonl --passages 14 --model came --output passages.jsonl")
        assert "are cut at" not in moeir("encode --model came --corpus passages.jsonl --dtype float32 --output enc").stderr
        moeir("index --encodings enc --output idx")
        moeir("index --corpus passages.jsonl --engine bm25 --output bm25")
        for index, whole in (("idx", "whole"), ("bm25", "whole-bm25")):
            moeir(f"{SEARCH} --index {index} --output {whole}")
        yield folder


def moeir(command):
    return run_moeir(*shlex.split(command))


def search(output, flags, index="--index idx"):
    """The hits of documents, by run and query."""
    moeir(f"{SEARCH} --collapse max {index} {flags} --output {output}")
    return {path.stem: read_hits(path) for path in Path(output).glob("*.trec")} if Path(output).is_dir() else read_hits(output)


def collapse(path, depth=None):
    """The oracle: each query's documents in a run of all passages."""
    return {query: collapse_by_dictionary(hits, depth) for query, hits in read_hits(path).items()}


def read_hits(path):
    run = read_run(path)
    return {query: run.hits(query) for query in run.queries}


def test_passages_have_the_title_and_no_checkpoint_cuts_them(came_checkpoint):
    documents, passages = (list(read_texts(Path(name))) for name in ("corpus.jsonl", "passages.jsonl"))
    assert {one.title for one in passages} == {"Animals"} and len(passages) > 2 * len(documents)
    for document in documents:
        own = [one for one in passages if one.id.startswith(f"{document.id}#")]
        assert [one.id for one in own] == [f"{document.id}#{number}" for number in range(len(own))]
        assert " ".join(one.text for one in own) == document.text
    lengths = [len(ids) for ids in open_checkpoint(came_checkpoint).tokenizer.encode([one.content for one in passages])]
    assert max(lengths) == 14


@pytest.mark.parametrize("depth", [1, 3, 1000])
def test_search_finds_the_first_documents_of_the_whole_list_of_passages_and_fuses_them(depth, tmp_path):
    runs = search(tmp_path / "runs", f"--depth {depth}")
    experts = " ".join(f"--run {tmp_path}/runs/{name}.trec" for name in EXPERTS)
    assert moeir(f"fuse {experts} --method came-sum --depth {depth}").stdout == (tmp_path / "runs/fused.trec").read_text()
    assert {expert: runs[expert] for expert in EXPERTS} == {expert: collapse(f"whole/{expert}.trec", depth) for expert in EXPERTS}
    assert search(tmp_path / "bm25.trec", f"--depth {depth}", "--index bm25") == collapse("whole-bm25/bm25.trec", depth)


def test_a_filter_is_of_documents(tmp_path):
    (tmp_path / "ids").write_text("b\na!\n")
    runs = search(tmp_path / "runs", f"--filter-ids {tmp_path}/ids --depth 1")
    for expert in EXPERTS:
        whole = collapse(f"whole/{expert}.trec")
        heads = {query: [hit for hit in hits if hit[0] in ("b", "a!")][:1] for query, hits in whole.items()}
        assert runs[expert] == {query: hits for query, hits in heads.items() if hits}, expert


def test_passages_of_a_document_may_be_in_several_indexes(tmp_path):
    ids = read_lines(Path("enc/ids.txt"))
    parts = [build_index(write_encodings(Path("enc"), tmp_path / str(part), range(part, len(ids), 3), ids[part::3])) for part in range(3)]
    one = search(tmp_path / "one", "--depth 3")
    several = search(tmp_path / "parts", "--depth 3", " ".join(f"--index {part}" for part in parts))
    assert one.keys() == several.keys() == {*EXPERTS, "fused"}
    for name, by_query in one.items():
        for query, hits in by_query.items():
            assert dict(several[name][query]) == pytest.approx(dict(hits), rel=1e-5), (name, query)


def test_passages_are_not_taken_for_documents(tmp_path, monkeypatch, refuse):
    """Judgements and other runs are of documents: each command says so, and `--collapse max` lets them be compared."""
    (tmp_path / "passages.trec").symlink_to(Path("whole/fused.trec").resolve())
    (tmp_path / "passages.jsonl").symlink_to(Path("passages.jsonl").resolve())
    write_run(Run.from_hits(collapse("whole/fused.trec"), "moeir.fused"), tmp_path / "documents.trec")
    monkeypatch.chdir(tmp_path)
    Path("qrels").write_text("q1 0 a 1\nq2 0 c 1\nq3 0 a! 2\n")
    Path("other.trec").write_text("other Q0 a 1 2.5 x\n")
    words = "run of passages: it has 'a!#0', but judged is 'a!'; add --collapse max"
    refuse(3, words, "evaluate --run passages.trec --qrels qrels")
    refuse(3, "of documents that", "mine-negatives --run passages.trec --qrels qrels --output train.jsonl")
    assert not Path("train.jsonl").exists()
    refused = refuse(3, "passages.trec has passages such as", "fuse --run documents.trec passages.trec")
    assert "add --collapse max" in refused.stderr
    moeir("fuse --run documents.trec passages.trec --collapse max")
    both = moeir("evaluate --qrels qrels --form tsv --run documents.trec passages.trec --collapse max")
    values = [line.split("\t", 1)[1] for line in both.stdout.splitlines()]
    assert values and set(map(values.count, values)) == {2}, "the same values for both"
    moeir("check --corpus passages.jsonl --qrels qrels")
    refuse(3, "other.trec: has no query of", "fuse --run documents.trec other.trec")


def test_commands_on_passages_name_the_one_that_gives_documents_back(tmp_path):
    index = "index --engine bm25 --corpus"
    assert "--collapse max" in moeir(f"{index} passages.jsonl --output {tmp_path}/passages").stderr.partition("next: ")[2]
    (tmp_path / "numbers.jsonl").write_text('{"_id": "12", "text": "owls hunt"}\n')
    for number, corpus in enumerate(("corpus.jsonl", tmp_path / "numbers.jsonl")):
        assert "--collapse" not in moeir(f"{index} {corpus} --output {tmp_path}/{number}").stderr
    assert "search --collapse max" in moeir(f"convert --input corpus.jsonl --passages 20 --output {tmp_path}/cut.jsonl").stderr


def test_a_run_of_passages_is_reranked_as_passages_and_collapsed(tmp_path):
    moeir(f"init --model tiny --arch cross-encoder --query-length 20 --document-length 60 --output {tmp_path}/ce")
    common = f"rerank --model {tmp_path}/ce --run whole/fused.trec --queries toy/test-queries.tsv --corpus passages.jsonl --depth 5"
    for flags, name in (("", "passages.trec"), ("--collapse max", "documents.trec")):
        moeir(f"{common} --dtype float32 {flags} --output {tmp_path}/{name}")
    assert read_hits(tmp_path / "documents.trec") == collapse(tmp_path / "passages.trec")


def test_python_collapses_too(tmp_path):
    runs = search(tmp_path / "runs", "--depth 3")
    hits = package.search(index="idx", queries="toy/test-queries.tsv", depth=3, collapse="max", dtype="float32")
    assert "\n".join(format_lists(hits, "moeir.fused", "run")) + "\n" == (tmp_path / "runs/fused.trec").read_text()
    searcher = package.open_index("idx", dtype="float32").collapse_passages()
    assert list(searcher.ids) == sorted(DOCUMENTS) and repr(searcher).endswith("5 documents, lexical, local, global)")
    queries = list(read_texts(TOY / "test-queries.tsv"))
    alone = searcher.search([query.content for query in queries], 3, "local")
    assert dict(zip([query.id for query in queries], alone, strict=True)) == runs["local"]
    scores = {"q1": {"a#0": 1.0, "b#1": 3.0, "a#1": 2.0}}
    assert package.evaluate(run=scores, qrels={"q1": {"a": 1}}, collapse="max", measure=["RR@10"])["moeir"]["RR@10"] == 0.5
    assert package.fuse(run=[scores, scores], method="combsum", collapse="max").hits("q1") == [("b", 6.0), ("a", 4.0)]


def test_a_collection_is_cut_and_keeps_its_judgements_of_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("beir/qrels").mkdir(parents=True)
    Path("beir/corpus.jsonl").write_text('{"_id": "a", "text": "An owl hunts. A bat sleeps.", "year": 7}\n')
    Path("beir/queries.jsonl").write_text('{"_id": "q", "text": "who sleeps"}\n')
    Path("beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    moeir("convert --input beir --passages 4 --output cut")
    moeir("index --dataset cut --engine bm25 --output idx")
    moeir("search --index idx --dataset cut --collapse max --output run.trec")
    assert moeir("evaluate --run run.trec --dataset cut -m RR@10").stdout.split()[-1] == "1.0000"
    cut = [json.loads(line) for line in Path("cut/corpus.jsonl").read_text().splitlines()]
    assert [(one["_id"], one["text"], one["year"]) for one in cut] == [("a#0", "An owl hunts.", 7), ("a#1", "A bat sleeps.", 7)]


@pytest.mark.parametrize(("write", "family"), [(write_modernbert, "modernbert"), (write_xlm_roberta, "xlm-roberta")])
@pytest.mark.parametrize(("rules", "stride"), [("--document-prefix 'the owls: '", ""), ("", "--stride 3")])
def test_no_tokenizer_reads_more_than_the_passages_have_room_for(write, family, rules, stride, tmp_path, monkeypatch):
    """Byte pairs read the first word of a text otherwise than within it, and pieces of a unigram model the rest of a word."""
    monkeypatch.chdir(tmp_path)
    make_model(family, vocab_size=write(tmp_path / "model")).save_pretrained("model")
    moeir(f"init --model model --arch dense --query-length 16 --document-length 16 {rules} --output ckpt")
    words = "owls hunting at night. the whalebreadsea in the end, mice! cat owl... the cats at night in the sea bread mice. An end? "
    records = [{"_id": "a", "text": words * 3}, {"_id": "b", "text": words, "title": "the"}]
    Path("c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    moeir(f"convert --input c.jsonl --passages 16 {stride} --model ckpt --output p.jsonl")
    assert "are cut at" not in moeir("encode --model ckpt --corpus p.jsonl --dtype float32 --output enc").stderr
    passages = [text.text for text in read_texts(Path("p.jsonl")) if text.id.startswith("a#")]
    assert stride or "".join("".join(passages).split()) == "".join((words * 3).split())


@pytest.mark.parametrize(("flags", "code", "message"), [
    ("--passages 0", 2, "--passages 0: expected at least 1"),
    ("--stride 3", 2, "--stride needs --passages"),
    ("--model came --to tsv", 2, "--model needs --passages"),
    ("--passages 8 --stride 9", 2, "--stride 9: text between passages of 8 would be lost; expected at most --passages"),
    ("--passages 33 --model came", 2, "--passages 33: expected at most 32, which is what"),
    ("--passages 3 --model came", 3, "its title leaves no room for text; raise --passages, or shorten the title"),
    ("--passages 8 --input passages.jsonl", 3, "'a#0': the id has a '#', as those of passages; cut documents, whose ids have none"),
    ("--passages 8 --input whole/fused.trec", 2, "--passages: expected documents or a collection, found run"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused_in_one_line(flags, code, message, refuse):
    refused = refuse(code, message, f"convert {'' if '--input' in flags else '--input corpus.jsonl'} {flags} --output out.jsonl")
    assert len(refused.stderr.splitlines()) == 1 and not Path("out.jsonl").exists()


def test_documents_are_no_passages(index, bm25_index, tmp_path, refuse):
    for one in (bm25_index, index):
        words = f"error: {one}: 'owl' is no passage; expected ID#NUMBER, as of convert --passages; leave --collapse out"
        refuse(3, words, f"search --index {one} --query owl --collapse max")
    (tmp_path / "run.trec").write_text("q1 Q0 owl 1 2.5 x\nq1 Q0 bat#0 2 2.0 x\n")
    refuse(3, "run.trec: 'owl' is no passage", f"evaluate --run {tmp_path}/run.trec --qrels toy/test-qrels.tsv --collapse max")
    refuse(2, "--collapse and --explain exclude one another", "search --index idx --query owl --collapse max --explain why.jsonl")


def test_a_list_that_was_cut_lacks_documents_however_few_its_passages_are_of(tmp_path):
    """A document that one list lacks has that list's lowest score, not that of a list that is whole."""
    for name, hits in {"one": {"a#0": 80, "a#1": 79, "b#0": 78}, "two": {"d#0": 60, "a#0": 59, "b#0": 58}}.items():
        write_run(Run.from_hits({"q": hits, "r": {"a#0": 1}}, name), tmp_path / f"{name}.trec")
    flags = f"--run {tmp_path}/one.trec {tmp_path}/two.trec --collapse max --method came-sum --run-depth 3"
    moeir(f"fuse {flags} --output {tmp_path}/fused.trec")
    assert read_hits(tmp_path / "fused.trec") == {"q": [("a", 139.0), ("d", 138.0), ("b", 136.0)], "r": [("a", 2.0)]}
