"""Queries that a T5 writes: drawn by numbers of their own, the same in any batch, shard or after any kill."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from moeir.backbones.t5 import Passage, QueryWriter, Sampling, uniforms
from moeir.records import generated, texts
from moeir.stages import generate_queries
from tests.conftest import run_outside
from tests.oracles import sampling
from tests.tiny_t5 import tiny_t5

SHORT = ("--max-output", 8, "--dtype", "float32")


@pytest.fixture
def write(moeir, t5_model, toy, tmp_path):
    """Run the command on the toy corpus, with more flags; the bytes it wrote."""

    def run(*flags, name="generated.jsonl", corpus=toy / "corpus.jsonl"):
        result = moeir("generate-queries", "--model", t5_model, "--corpus", corpus, *SHORT, *flags, "--output", tmp_path / name)
        assert result.code == 0, result.stderr
        return (tmp_path / name).read_bytes()

    return run


@pytest.fixture(scope="module")
def writer(t5_model):
    return QueryWriter(t5_model, "cpu", torch.float32)


def ids_of(content):
    return [record["_id"] for record in map(json.loads, content.decode().splitlines())]


def test_every_document_has_a_line_with_its_queries_in_the_order_of_the_corpus(write, toy, tmp_path):
    content = write()
    assert ids_of(content) == list(texts.read_all(toy / "corpus.jsonl"))
    records = list(generated.read(tmp_path / "generated.jsonl"))
    assert [generated.line(record.id, record.queries) for record in records] == content.decode().splitlines()
    counts = json.loads((tmp_path / "generated.jsonl.manifest.json").read_text())["counts"]
    queries = [query for record in records for query in record.queries]
    assert (counts["passages"], counts["queries"], counts["empty"]) == (12, len(queries), 60 - len(queries))
    assert 0 < counts["empty"] < 30 and all(query == " ".join(query.split()) != "" for query in queries)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("family", ["t5", "mt5"])
@pytest.mark.parametrize("drawing", [Sampling(length=10, queries=3), Sampling(length=10, queries=2, top_k=0, top_p=1.0, temperature=0.7)])
def test_queries_are_those_of_a_slow_model_that_computes_everything_anew(family, drawing, toy, tmp_path):
    folder = tiny_t5(tmp_path / family, toy / "corpus.jsonl", family)
    fast, slow = QueryWriter(folder, "cpu", torch.float32), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    documents = list(texts.read(toy / "corpus.jsonl"))[:6]
    token_ids, _ = fast.read([document.content for document in documents], 512)
    passages = [Passage(document.id, ids) for document, ids in zip(documents, token_ids, strict=True)]
    rules = {"top_k": drawing.top_k, "top_p": drawing.top_p, "temperature": drawing.temperature}
    expected = []
    for passage in passages:
        numbers = [uniforms(drawing.seed, passage.id, number, drawing.length) for number in range(drawing.queries)]
        tokens = [sampling.query(slow, passage.ids, each, fast._vocabulary, **rules) for each in numbers]
        expected.append([text for ids in tokens if (text := " ".join(fast._tokenizer.decode(ids).split()))])
    assert fast.write(passages, drawing) == expected
    assert len({len(query) for queries in expected for query in queries}) > 3


def test_neither_the_batch_nor_the_order_of_the_corpus_changes_a_query(write, toy, tmp_path):
    whole = write()
    for tokens in (1, 200, 500, 10**6):
        assert write("--max-tokens", tokens, name=f"{tokens}.jsonl") == whole
    reverse = tmp_path / "reverse.jsonl"
    reverse.write_text("".join(reversed((toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")
    assert write(name="reversed.jsonl", corpus=reverse).splitlines() == whole.splitlines()[::-1]


def test_more_queries_or_longer_ones_begin_with_the_same(writer, toy):
    token_ids, _ = writer.read([text.content for text in texts.read(toy / "corpus.jsonl")], 512)
    passages = [Passage(str(number), ids) for number, ids in enumerate(token_ids)]
    few, many = (writer._sampled(passages, Sampling(queries=queries, length=12)).view(12, queries, 12) for queries in (2, 5))
    longer = writer._sampled(passages, Sampling(queries=2, length=20)).view(12, 2, 20)
    assert torch.equal(few, many[:, :2]) and torch.equal(few, longer[:, :, :12])


def test_the_seed_decides(write):
    first = write("--seed", 1)
    assert write("--seed", 1, name="again.jsonl") == first
    assert write("--seed", 2, name="other.jsonl") != first


def test_shards_one_behind_the_other_are_the_whole(write, monkeypatch):
    monkeypatch.setattr(generate_queries, "BLOCK", 4)
    whole = write()
    for parts in (1, 2, 3, 5):
        shards = [write("--shard", f"{number}/{parts}", name=f"{number}-{parts}.jsonl") for number in range(parts)]
        assert b"".join(shards) == whole
        assert parts == 1 or sum(map(bool, shards)) == min(parts, 3)


def test_a_prefix_is_read_before_every_passage(write, toy, tmp_path):
    prefixed = tmp_path / "prefixed.jsonl"
    records = [{"_id": text.id, "text": f"bat: {text.content}"} for text in texts.read(toy / "corpus.jsonl")]
    prefixed.write_text("".join(json.dumps(record) + "\n" for record in records))
    content = write("--prefix", "bat: ")
    assert content == write(name="said.jsonl", corpus=prefixed) != write(name="plain.jsonl")


def test_long_passages_are_cut_and_counted(moeir, toy, t5_model):
    result = moeir("generate-queries", "--model", t5_model, "--corpus", toy / "corpus.jsonl", *SHORT, "--max-input", 15, "--output", "-")
    assert "of 12 passages were truncated to --max-input 15 tokens" in result.stderr
    assert len(result.stdout.splitlines()) == 12


def test_a_passage_without_text_gets_no_queries(write, tmp_path):
    (tmp_path / "some.jsonl").write_text('{"_id": "a", "text": ""}\n{"_id": "b", "text": "owl"}\n')
    first, second = map(json.loads, write("--keep-empty", corpus=tmp_path / "some.jsonl").splitlines())
    assert first == {"_id": "a", "queries": []} and second["queries"]


def test_a_pipe_is_given_what_the_file_holds(moeir, write, toy, t5_model):
    corpus = (toy / "corpus.jsonl").read_text(encoding="utf-8")
    result = moeir("generate-queries", "--model", t5_model, "--corpus", "-", *SHORT, "--output", "-", stdin=corpus)
    assert (result.code, result.stdout.encode()) == (0, write())


KILLED = """
import sys
sys.path.insert(0, {root!r})
from tests.conftest import run_here
from tests.deaths import deaths, died
import moeir.backbones.t5, moeir.stages.generate_queries as stage
stage.BLOCK = 3
def carried_out(moment):
    said = run_here(*sys.argv[1:], "--output", f"killed/{{moment}}.jsonl")
    assert said.code == 0, said.stderr
for moment in deaths(every=2, first=3):
    if not died(lambda: carried_out(moment), moment):
        break
    sys.stdout.write(f"{{moment}}\\n")
"""


def test_killed_at_any_moment_and_run_again_it_gives_the_undisturbed_bytes(write, toy, t5_model, tmp_path, monkeypatch):
    monkeypatch.setattr(generate_queries, "BLOCK", 3)
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "few.jsonl"
    corpus.write_text("".join((toy / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8")
    few = ("--queries-per-passage", 2, "--max-tokens", 60)
    whole = write(*few, corpus=corpus)
    Path("killed").mkdir()
    arguments = ("generate-queries", "--model", t5_model, "--corpus", corpus, *SHORT, *few)
    result = run_outside(*arguments, program=KILLED.format(root=str(Path(__file__).parents[2])))
    assert result.code == 0, result.stderr
    moments = result.stdout.split()
    assert len(moments) > 5
    for moment in moments:
        before = Path(f"killed/{moment}.jsonl").exists()
        assert write(*few, name=f"killed/{moment}.jsonl", corpus=corpus) == whole, moment
        assert before or not list(Path("killed").glob(f".{moment}.*")), moment


def test_what_was_on_disk_is_not_written_again(write, monkeypatch, moeir, t5_model, toy, tmp_path):
    whole, calls, original = write(name="whole.jsonl"), [], QueryWriter.write

    def counted(self, passages, drawing):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append({passage.id for passage in passages})
        return original(self, passages, drawing)

    monkeypatch.setattr(generate_queries, "BLOCK", 6)
    monkeypatch.setattr(QueryWriter, "write", counted)
    arguments = ("generate-queries", "--model", t5_model, "--corpus", toy / "corpus.jsonl", *SHORT, "--max-tokens", 400)
    assert moeir(*arguments, "--output", tmp_path / "generated.jsonl").code == 130
    known, calls = set.union(*calls), []
    assert moeir(*arguments, "--seed", 7, "--output", tmp_path / "generated.jsonl").code == 2
    monkeypatch.setattr(QueryWriter, "write", lambda self, passages, drawing: calls.append(passages) or original(self, passages, drawing))
    assert write("--max-tokens", 400) == whole
    again = {passage.id for passages in calls for passage in passages}
    assert not known & again and known | again == set(ids_of(whole))


BAD = [
    (("--queries-per-passage", 0), 2, "--queries-per-passage 0: expected at least 1"),
    (("--max-output", 0), 2, "--max-output 0: expected at least 1"),
    (("--max-tokens", 0), 2, "--max-tokens 0: expected at least 1"),
    (("--max-input", 1), 2, "--max-input 1: expected at least 2"),
    (("--max-input", 3, "--prefix", "bat: "), 2, "--max-input 3: the prefix and the end token leave no room"),
    (("--top-p", 1.1), 2, "--top-p 1.1: expected more than 0, at most 1"),
    (("--top-p", 0), 2, "--top-p 0.0: expected more than 0"),
    (("--top-k", -1), 2, "--top-k -1: expected 0"),
    (("--temperature", 0), 2, "--temperature 0.0: expected more than 0"),
    (("--temperature", "inf"), 2, "--temperature: expected a number, found 'inf'"),
    (("--shard", "2/2"), 2, "--shard 2/2: expected I/N"),
    (("--shard", "one"), 2, "--shard one: expected I/N"),
    (("--shard", "0/2", "--corpus", "-"), 2, "--shard: needs a corpus whose passages can be counted"),
    (("--seed", -1), 2, "--seed -1: expected 0 to"),
    (("--corpus", "empty.jsonl"), 3, "empty.jsonl: holds no text"),
    (("--corpus", "absent.jsonl"), 3, "absent.jsonl: no such file (--corpus)"),
    (("--corpus", "blank.jsonl"), 3, "blank.jsonl:1: the text of 'a' is empty; --keep-empty keeps such texts"),
    (("--model", "bert"), 2, "bert: model_type is 'bert'; queries are written by t5 or mt5"),
    (("--model", "nowhere/at/all"), 2, "nowhere/at/all: expected a folder with config.json and model.safetensors"),
]


@pytest.mark.parametrize(("flags", "code", "words"), BAD, ids=[words for _, _, words in BAD])
def test_what_cannot_work_is_one_line(flags, code, words, moeir, t5_model, tiny_model, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bert").symlink_to(tiny_model)
    Path("empty.jsonl").touch()
    Path("blank.jsonl").write_text('{"_id": "a", "text": ""}\n')
    before = sorted(tmp_path.iterdir())
    flag_values = {"--model": t5_model, "--corpus": toy / "corpus.jsonl"} | dict(zip(flags[::2], flags[1::2], strict=True))
    result = moeir("generate-queries", *(word for pair in flag_values.items() for word in pair), "--output", "out.jsonl")
    assert result.code == code and result.stderr.count("error: ") == 1 and f"error: {words}" in result.stderr.splitlines()[-1]
    assert sorted(tmp_path.iterdir()) == before
