"""The small Python programs of `examples/`, each on files that can be read by eye."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moeir.backbones.tokenizer import TextTokenizer
from moeir.pretraining import span_cache
from moeir.pretraining.batches import BatchRequirements, InputTemplate, SpanSampler
from moeir.pretraining.masking import WordVocabulary
from moeir.records import examples, generated_queries, qrels, texts
from tests.examples import toy_collections
from tests.examples.shell import EXAMPLES


def run_program(name: str, *arguments: object) -> None:
    subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments)], check=True)


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
    for folder in ("wikipedia_split", "retriever/qas"):
        (tmp_path / "dpr" / folder).mkdir(parents=True)
    (tmp_path / "dpr/wikipedia_split/psgs_w100.tsv").write_text("id\ttext\ttitle\n1\tfirst\tA\n", encoding="utf-8")
    contexts = {number: {"title": "A", "text": "a", "passage_id": number} for number in ("9", "2", "5")}
    entry = {"question": "q", "answers": ["a"], "positive_ctxs": [contexts["9"], contexts["2"]], "hard_negative_ctxs": [contexts["5"]]}
    for part in ("train", "dev"):
        (tmp_path / f"dpr/retriever/nq-{part}.json").write_text(json.dumps([entry]), encoding="utf-8")
    for part in ("test", "dev"):
        (tmp_path / f"dpr/retriever/qas/nq-{part}.csv").write_text("q\t['a']\n", encoding="utf-8")
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


def test_only_judged_queries_are_kept(toy: Path, tmp_path: Path) -> None:
    run_program("judged.py", toy / "test-queries.tsv", toy / "test-qrels.tsv", tmp_path / "data/kept.jsonl")
    grades_by_query = qrels.read_qrels(toy / "test-qrels.tsv")
    assert [text.id for text in texts.read_texts(tmp_path / "data/kept.jsonl")] == [
        text.id for text in texts.read_texts(toy / "test-queries.tsv") if text.id in grades_by_query
    ]


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


def test_documents_are_cut_into_the_spans_that_pre_training_reads(toy: Path, tmp_path: Path, tiny_model: Path) -> None:
    run_program("spans.py", tiny_model, toy / "corpus.jsonl", tmp_path / "data/spans.jsonl", 12)
    span_texts = {text.id: text.text for text in texts.read_texts(tmp_path / "data/spans.jsonl")}
    reader = TextTokenizer(tiny_model)
    cache = span_cache.build_span_cache(tmp_path / "cache", toy / "corpus.jsonl", reader, digest="toy", maximum=10)
    bounds = zip(*cache.boundaries.token_bounds(np.arange(len(cache))), strict=True)
    expected = [cache.ids[first:last].tolist() for first, last in bounds]
    assert [ids[1:-1] for ids in reader.encode(list(span_texts.values()))] == expected and len(expected) > len(
        list(texts.read_texts(toy / "corpus.jsonl"))
    )
    for document in texts.read_texts(toy / "corpus.jsonl"):
        parts = [text for name, text in span_texts.items() if name.partition("#")[0] == document.id]
        assert "".join("".join(parts).split()) == "".join(document.content.split()), "no text is lost, though a long sentence is cut"


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
        query_cache = span_cache.build_query_cache(tmp_path / "cache", cache, [path], None, reader, digests={"queries": [name]})
        sampler = SpanSampler(cache, query_cache, template, BatchRequirements("query", 0.3), size=1, steps=1, seed=3)
        batches = [sampler.batch_at(step) for step in range(sampler.steps_per_epoch)]
        assert len(batches) == len(spans) == len(cache)
        same[name] = sum(batch.anchors.original_ids.equal(batch.contexts.original_ids) for batch in batches if batch.contexts is not None)
    assert same["span"] == len(spans) > same["document"]
