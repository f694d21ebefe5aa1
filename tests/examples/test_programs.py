"""The small Python programs of `examples/`, each on files that can be read by eye."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moeir.backbones.tokenizer import TextTokenizer
from moeir.pretraining import span_cache
from moeir.pretraining.batches import BatchRequirements, InputTemplate, SpanSampler
from moeir.pretraining.masking import WordVocabulary
from moeir.records import examples, generated_queries, qrels, texts
from tests.conftest import CommandResult
from tests.examples import shell, toy_collections
from tests.examples.shell import load_program


def run_program(name: str, *arguments: object) -> str:
    """Run a program and return its standard output."""
    result = shell.run_program(name, *arguments)
    assert result.code == 0, result.stderr
    return result.stdout


def refusal_of(name: str, *arguments: object) -> str:
    """The one line with which a program refuses its arguments."""
    result = shell.run_program(name, *arguments)
    assert result.code != 0 and result.stdout == "" and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture
def small(toy: Path) -> toy_collections.ToyTexts:
    return toy_collections.ToyTexts(toy)


def test_sets_of_dpr_get_questions_of_their_own_ids_and_a_pool_to_be_judged_by(small: toy_collections.ToyTexts, tmp_path: Path) -> None:
    toy_collections.write_dpr(small, tmp_path / "dpr", ("nq", "webq"))
    run_program("taser_sets.py", tmp_path / "dpr", tmp_path / "odqa", "nq", "webq")
    assert len(list(texts.read_texts(tmp_path / "odqa/corpus.jsonl"))) == 12
    first = next(texts.read_texts(tmp_path / "odqa/webq/train-queries.jsonl"))
    assert (first.id, first.text, first.answers) == ("webq-train0", "who hunts mice at night", ("mice",))
    assert qrels.read_qrels(tmp_path / "odqa/nq/train.qrels")["nq-train0"] == {"owl": 1, "cat": 1}
    assert qrels.read_qrels(tmp_path / "odqa/nq/dev.qrels")["nq-dev1"] == {"ant": 1}
    assert {text.id for text in texts.read_texts(tmp_path / "odqa/nq/dev-corpus.jsonl")} == {text.id for text in small.documents}
    assert texts.read_field(tmp_path / "odqa/nq/dev-answers.jsonl", "set") == {f"nq-answers{index}": "nq" for index in range(4)}
    assert [text.answers for text in texts.read_texts(tmp_path / "odqa/nq/test-queries.jsonl")][1] == ("trail of scent",)
    assert sorted(file.name for file in (tmp_path / "odqa/webq").iterdir()) == ["test-queries.jsonl", "train-queries.jsonl", "train.qrels"]


def test_the_first_positive_of_dpr_comes_first_and_is_the_only_one_to_validate_on(tmp_path: Path) -> None:
    contexts = {number: {"title": "A", "text": "a", "passage_id": number} for number in ("9", "2", "5")}
    entry = {"question": "q", "answers": ["a"], "positive_ctxs": [contexts["9"], contexts["2"]], "hard_negative_ctxs": [contexts["5"]]}
    files = {f"retriever/nq-{part}.json": json.dumps([entry]) for part in ("train", "dev")}
    files |= {f"retriever/qas/nq-{part}.csv": "q\t['a']\n" for part in ("test", "dev")}
    toy_collections.write_files(tmp_path / "dpr", files | {"wikipedia_split/psgs_w100.tsv": "id\ttext\ttitle\n1\tfirst\tA\n"})
    run_program("taser_sets.py", tmp_path / "dpr", tmp_path / "odqa", "nq")
    assert list(qrels.read_qrels(tmp_path / "odqa/nq/train.qrels")["nq-train0"]) == ["9", "2"]
    assert qrels.read_qrels(tmp_path / "odqa/nq/dev.qrels") == {"nq-dev0": {"9": 1}}
    assert [text.id for text in texts.read_texts(tmp_path / "odqa/nq/dev-corpus.jsonl")] == ["9", "5"]


def test_entity_questions_know_their_relation(small: toy_collections.ToyTexts, tmp_path: Path) -> None:
    toy_collections.write_entity_questions(small, tmp_path / "source")
    run_program("entityquestions.py", tmp_path / "source", tmp_path / "questions.jsonl")
    relations = texts.read_field(tmp_path / "questions.jsonl", "relation")
    assert relations == {"P17-0": "P17", "P17-1": "P17", "P36-0": "P36", "P36-1": "P36"}
    assert texts.read_texts_by_id(tmp_path / "questions.jsonl")["P36-0"].answers == ("sea",)


def test_queries_held_out_are_not_trained_on_and_find_all_their_positives(toy: Path, tmp_path: Path) -> None:
    flags = ("--queries", toy / "train-queries.jsonl", "--qrels", toy / "train.qrels", "--corpus", toy / "corpus.jsonl")
    parts = []
    for name in ("first", "again"):
        run_program("held_out.py", *flags, "--part", 0.34, "--output", tmp_path / name)
        train_examples = {example.query_id: example for example in examples.read_examples(tmp_path / name / "train.jsonl")}
        dev_qrels = qrels.read_qrels(tmp_path / name / "dev.qrels")
        parts.append((train_examples, dev_qrels))
    assert parts[0] == parts[1], "the same seed holds out the same queries"
    assert len(dev_qrels) == 2 and len(train_examples) == 4 and not train_examples.keys() & dev_qrels.keys()
    assert {text.id for text in texts.read_texts(tmp_path / "again/dev-queries.jsonl")} == dev_qrels.keys()
    positives = {document for grades in dev_qrels.values() for document in grades}
    assert {text.id for text in texts.read_texts(tmp_path / "again/dev-corpus.jsonl")} == positives
    assert "oak" not in positives, "a grade of 0 is no positive"
    assert all(example.positive_ids and not example.negative_ids for example in train_examples.values())


def test_queries_of_such_spans_are_paired_with_them_in_a_pre_training_on_the_documents(toy: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Each span's query is its own text, so the pair must have the same tokens; a query bound to its document is often of another span."""
    run_program("spans.py", tiny_model, toy / "corpus.jsonl", tmp_path / "spans.jsonl", 12)
    reader = TextTokenizer(tiny_model)
    cache = span_cache.build_span_cache(tmp_path / "cache", toy / "corpus.jsonl", reader, digest="toy", maximum=10)
    spans = list(texts.read_texts(tmp_path / "spans.jsonl"))
    template = InputTemplate(reader.special_tokens, WordVocabulary.from_tokenizer(reader), 12)
    same = {}
    for name, ids in {"span": [span.id for span in spans], "document": [span.id.partition("#")[0] for span in spans]}.items():
        queries: dict[str, list[str]] = {}
        for owner, span in zip(ids, spans, strict=True):
            queries.setdefault(owner, []).append(span.text)
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(generated_queries.format_line(owner, each) + "\n" for owner, each in queries.items()), encoding="utf-8")
        query_cache = span_cache.build_query_cache(tmp_path / "cache", cache, [path], reader, digests=[name])
        sampler = SpanSampler(cache, query_cache, template, BatchRequirements("query", 0.3), size=1, steps=1, seed=3)
        batches = [sampler.batch_at(step) for step in range(sampler.steps_per_epoch)]
        assert len(batches) == len(spans) == len(cache)
        same[name] = sum(batch.anchors.original_ids.equal(batch.contexts.original_ids) for batch in batches if batch.contexts is not None)
    assert same["span"] == len(spans) > same["document"]


RANKS = {"first": {"a": 1, "b": 2, "c": 4}, "second": {"a": 2, "b": 2, "c": 1}, "third": {"d": 2, "e": 1}}  # of the document `right`


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The flags of a table of three runs and of the judgements of its two columns."""
    monkeypatch.chdir(tmp_path)
    for name, ranks in RANKS.items():
        hits = [(query, rank, "right" if rank == own else f"x{rank}") for query, own in ranks.items() for rank in range(1, 6)]
        (tmp_path / f"{name}.trec").write_text("".join(f"{query} Q0 {document} {rank} {9 - rank} t\n" for query, rank, document in hits))
    for name in ("abc", "de"):
        (tmp_path / f"{name}.qrels").write_text("".join(f"{query} 0 right 1\n" for query in name))
    named = ("bm25/small=first.trec", "dpr/small=second.trec", "dpr/large=third.trec")
    return (*(word for cell in named for word in ("--run", cell)), "--qrels", "small=abc.qrels", "--qrels", "large=de.qrels")


def test_a_grid_has_the_mean_of_each_run_in_its_cell(cells: tuple[str, ...]) -> None:
    header, _, *rows = [line.split() for line in run_program("grid.py", *cells, "--measure", "RR").splitlines()]
    assert header == ["RR", "small", "large"]
    assert rows == [["bm25", f"{(1 + 1 / 2 + 1 / 4) / 3:.4f}", "-"], ["dpr", f"{(1 / 2 + 1 / 2 + 1) / 3:.4f}", "0.7500"]]
    assert run_program("grid.py", *cells, "--measure", "RR", "--output", "new/grid.tsv") == ""
    assert Path("new/grid.tsv").read_text() == "row\tsmall\tlarge\nbm25\t0.583333333\t\ndpr\t0.666666667\t0.75\n"


@pytest.mark.parametrize("plot", ["heatmap", "bars", "lines"])
def test_a_grid_is_drawn_with_one_file_of_judgements(cells: tuple[str, ...], plot: str) -> None:
    pytest.importorskip("matplotlib")
    runs = ("--run", "one/10=first.trec", "--run", "one/2=second.trec", "--run", "two/2=first.trec", "--qrels", "abc.qrels")
    for file in ("one.svg", "two.svg"):
        run_program("grid.py", *runs, "--measure", "RR", "--plot", plot, "--output", file)
    content = Path("one.svg").read_text()
    assert content == Path("two.svg").read_text() and ">one<" in content and ">two<" in content and ">RR<" in content
    assert plot != "heatmap" or (">0.667<" in content and ">-<" in content)


def test_a_grid_refuses_what_has_no_cell_or_no_judgements(cells: tuple[str, ...]) -> None:
    for flags, words in (
        (("--run", "first.trec", "--qrels", "abc.qrels"), "--run first.trec: expected ROW/COLUMN=PATH"),
        (("--run", "a/b=first.trec", "--run", "a/b=second.trec", "--qrels", "abc.qrels"), "a/b=…: the cell is given twice"),
        (("--run", "a/b=first.trec", "--qrels", "c=abc.qrels"), "needs --qrels b=PATH, the judgements of this column"),
        (("--run", "a/b=none.trec", "--qrels", "abc.qrels"), "none.trec: no such file"),
        (("--run", "a/b=first.trec", "--qrels", "abc.qrels", "--plot", "lines", "--output", "x.svg"), "expected numbers as columns"),
        (
            ("--run", "a/1=first.trec", "--run", "a/1.0=first.trec", "--qrels", "abc.qrels", "--plot", "lines", "--output", "x.svg"),
            "the same",
        ),
    ):
        assert words in refusal_of("grid.py", *flags)


def test_costs_of_searches_stand_in_one_table(index: Path, toy: Path, tmp_path: Path, moeir: Callable[..., CommandResult]) -> None:
    for name, size in (("single", 1), ("batch", 256)):
        command = ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--batch-size", size, "--output", tmp_path / name)
        assert moeir(*command).code == 0
    speed = json.loads((tmp_path / "single" / "manifest.json").read_text())["counts"]["speed"]
    lines = run_program("costs.py", tmp_path / "single", tmp_path / "batch").splitlines()
    assert " ".join(lines[0].split()) == "run step threads batch queries/s p50 ms p95 ms p99 ms index MiB memory MiB"
    rows = [line.split() for line in lines[2:]]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (run, step, size) for run, size in (("single", "1"), ("batch", "256")) for step in ("encode", "search", "fuse")
    ]
    numbers = (speed["search"]["queries_per_second"], speed["search"]["p95_ms"], speed["machine"]["peak_memory_bytes"] / 2**20)
    assert [rows[1][column] for column in (4, 6, 9)] == [f"{number:,.2f}" for number in numbers]
    assert all(row[6] == "-" for row in rows[3:]), "a batch is not a query"
    assert "its costs are not known" in refusal_of("costs.py", index)


FORMS = {
    "question": ("what do owls eat", "Is it an owl", "In which tree do owls sleep?"),
    "statement": ("When the owl hunts, mice hide.", "owls are birds", "(owls can fly.)", "No!"),  # a final mark tells it from a question
    "phrase": ("the owl hunts mice", "average price of an owl", "being an owl"),  # a full verb is not known without a parser
}


def test_forms_of_sentences() -> None:
    program = load_program("text_forms")
    assert {form: {program.sentence_form(sentence) for sentence in sentences} for form, sentences in FORMS.items()} == {
        form: {form} for form in FORMS
    }


def test_statistics_of_texts_by_hand() -> None:
    program = load_program("text_forms")
    statistics = program.TextStatistics()
    for text in ("The owl hunts at night. It sleeps by day.", "is owl bird", "do the mice hide"):
        statistics.add(text)
    assert dict(statistics.rows()) == {
        "texts": 3,
        "median words per text": 4,
        "sentences per text": pytest.approx(4 / 3),
        "words per sentence": pytest.approx(16 / 4),
        "share of questions": 0.5,
        "share of statements": 0.5,
        "share of phrases": 0.0,
    }
    lengths = program.list_shares({"query": statistics})["words per text"]
    assert {length: share for (_, length), share in lengths.items() if share} == dict.fromkeys(("2-3", "4-7", "8-15"), pytest.approx(1 / 3))


def test_ranks_of_relevant_documents_stand_beside_each_other(cells: tuple[str, ...]) -> None:
    Path("some.qrels").write_text("c 0 right 1\na 0 right 1\na 0 x2 2\na 0 x3 0\na 0 nowhere 1\nb 0 x1 1\n")
    Path("queries.tsv").write_text("a\tmice\nc\towls\n")
    flags = ("--run", "one=first.trec", "--run", "two=second.trec", "--qrels", "some.qrels", "--queries", "queries.tsv", "--depth", 3)
    header, _, *rows = [line.split() for line in run_program("ranks.py", *flags, "--query", "c", "--query", "a").splitlines()]
    assert header == ["query", "text", "document", "one", "two"]
    assert rows == [["c", "owls", "right", "-", "1"], ["a", "mice", "right", "1", "2"], ["a", "mice", "x2", "2", "-"],
                    ["a", "mice", "nowhere", "-", "-"]]  # fmt: skip
    assert "--query b: expected a query of queries.tsv that is judged in some.qrels" in refusal_of("ranks.py", *flags, "--query", "b")


def test_judgements_from_answers_count_as_answers_do(collections: Path, moeir: Callable[..., CommandResult], tmp_path: Path) -> None:
    nq, run = collections / "nq", tmp_path / "some.trec"
    documents = [document.id for document in texts.read_texts(nq / "corpus.jsonl")][:5]  # some answers are in none of them
    hits = [(question.id, document) for question in texts.read_texts(nq / "test-queries.jsonl") for document in documents]
    run.write_text("".join(f"{query} Q0 {document} 1 {-row} x\n" for row, (query, document) in enumerate(hits)), encoding="utf-8")
    inputs = ["--answers", nq / "test-queries.jsonl", "--corpus", nq / "corpus.jsonl"]
    run_program("answer_qrels.py", run, *inputs, "--output", tmp_path / "answers.qrels")
    measures = ["--run", run, "--measure", "Success@2", "--measure", "RR@10", "--form", "tsv", "--output", "-"]
    by_answers, by_qrels = moeir("evaluate", *measures, *inputs), moeir("evaluate", *measures, "--qrels", tmp_path / "answers.qrels")
    assert (by_answers.code, by_qrels.code) == (0, 0), by_answers.stderr + by_qrels.stderr
    assert by_answers.stdout == by_qrels.stdout != ""


def test_the_folders_of_dpr_become_a_collection(tmp_path: Path) -> None:
    positive = {"title": "Owl", "text": "An owl hunts.", "score": 1, "passage_id": "1"}
    entries = [{"question": "no positive", "answers": ["a"]}, {"question": "who hunts", "answers": ["owl"], "positive_ctxs": [positive]}]
    files = {f"retriever/nq-{name}.json": json.dumps([{"positive_ctxs": []} | entry for entry in entries]) for name in ("train", "dev")}
    files["wikipedia_split/psgs_w100.tsv"] = 'id\ttext\ttitle\n1\t"An ""owl"" hunts."\tOwl\n'
    toy_collections.write_files(tmp_path / "dpr", files | {"retriever/qas/nq-test.csv": "who hunts\t['owl', \"the owl's\"]\n"})
    run_program("nq_from_dpr.py", tmp_path / "dpr", tmp_path / "nq")
    assert [text.content for text in texts.read_texts(tmp_path / "nq/corpus.jsonl")] == ['Owl An "owl" hunts.']
    assert [(text.id, text.answers) for text in texts.read_texts(tmp_path / "nq/test-queries.jsonl")] == [("test0", ("owl", "the owl's"))]
    assert qrels.read_qrels(tmp_path / "nq/dev.qrels") == {"dev1": {"1": 1}}
    assert [text.text for text in texts.read_texts(tmp_path / "nq/train-queries.jsonl")] == ["who hunts"]


def test_a_query_belongs_to_every_expert_that_ranks_its_positive_best(tmp_path: Path) -> None:
    lists = {"lexical": {"q1": "da", "q2": "ad"}, "local": {"q1": "ad", "q2": "da"}, "global": {"q1": "da", "q2": "ad"}, "fused": {}}
    for expert, hits in lists.items():
        lines = [f"{query} Q0 {document} 1 {-index} x\n" for query, documents in hits.items() for index, document in enumerate(documents)]
        (tmp_path / f"{expert}.trec").write_text("".join(lines), encoding="utf-8")
    qrels.write_qrels({query: {"d": 1} for query in ("q1", "q2", "q3")}, tmp_path / "qrels")
    rows = [{"query_id": query, "positive_ids": ["d"], "negative_ids": ["a"]} for query in ("q1", "q2", "q3")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {"--examples": "train.jsonl", "--qrels": "qrels", "--runs": ".", "--output": "parts"}
    arguments = [word for flag, name in files.items() for word in (flag, str(tmp_path / name))]
    completed = shell.run_program("suit_split.py", *arguments)
    parts = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "parts").glob("*.jsonl")}
    queries = {expert: [json.loads(line)["query_id"] for line in part.splitlines()] for expert, part in parts.items()}
    assert queries == {"lexical": ["q1", "q3"], "local": ["q2", "q3"], "global": ["q1", "q3"]}, "no list has q3, so all experts share it"
    assert "2 of them shared" in completed.stderr
