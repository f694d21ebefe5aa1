"""Batches are a pure function of the step: context and masks of a span depend on (seed, epoch, span) alone."""

from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest

from moeir.architectures.initialize import build_checkpoint
from moeir.architectures.input_config import InputConfig
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import DataError, UsageError
from moeir.pretraining import batches, span_cache
from moeir.pretraining.batches import BatchRequirements, InputTemplate, PretrainingBatch, SpanSampler
from moeir.pretraining.masking import WordVocabulary
from tests.pretraining.test_span_cache import build_cache, make_documents, write_corpus, write_queries

LAST = ("bee", "fox", "hen", "oak", "eel")
PARTS = ANCHORS, CONTEXTS, DECODER_ANCHORS, DECODER_CONTEXTS = tuple(item.name for item in fields(PretrainingBatch)[:4])


@pytest.fixture(scope="module")
def reader(tiny_model: Path) -> TextTokenizer:
    """The tokenizer of the toy texts."""
    return TextTokenizer(tiny_model)


@pytest.fixture(scope="module")
def cache(tmp_path_factory, reader) -> span_cache.SpanCache:
    """Thirty documents, of which the last has one span."""
    folder = tmp_path_factory.mktemp("tokens")
    return build_cache(folder, write_corpus(folder / "c.jsonl", [*make_documents(29), ("last", "", "The owl.")]), reader)


@pytest.fixture(scope="module")
def questions(cache, reader) -> span_cache.QueryCache:
    """Two queries for each of five documents."""
    folder = cache.folder.parent
    queries_by_document = [(f"d{row}", ["the owl hunts the bat", f"a {LAST[row]}"]) for row in range(5)]
    return span_cache.build_query_cache(folder, cache, [write_queries(folder / "q.jsonl", queries_by_document)], reader, digests=["q"])


def make_template(reader, length=8, **before):
    return InputTemplate(reader.special_tokens, WordVocabulary.from_tokenizer(reader), length, before)


def make_sampler(cache, reader, needs=None, questions=None, **options):
    needs = needs or BatchRequirements("mixed", 0.3, 0.45)
    template = options.pop("template", None) or make_template(reader)
    return SpanSampler(cache, questions, template, needs, **({"size": 16, "steps": 50, "seed": 3} | options))


def to_lists(texts):
    """The texts of a batch as lists: masked ids, original ids, masked positions."""
    if texts is None:
        return None
    tokens, entries = texts.tokens, []
    for begin, end in zip(tokens.starts[:-1].tolist(), tokens.starts[1:].tolist(), strict=True):
        positions = [position - begin for position in texts.masked_positions.tolist() if begin <= position < end]
        entries.append((tokens.ids[begin:end].tolist(), texts.original_ids[begin:end].tolist(), positions))
    assert tokens.lengths == tuple(len(ids) for ids, _, _ in entries)
    assert texts.masked_positions.tolist() == sorted(texts.masked_positions.tolist())
    return entries


def batch_to_lists(batch):
    return {name: to_lists(getattr(batch, name)) for name in PARTS}


def epoch(made_plan, number=0):
    """All texts of an epoch, by span."""
    by_span = {}
    for step in range(number * made_plan.steps_per_epoch, (number + 1) * made_plan.steps_per_epoch):
        whole = batch_to_lists(made_plan.batch_at(step))
        for row, span in enumerate(made_plan.anchors_at(step).tolist()):
            by_span[span] = {name: texts and texts[row] for name, texts in whole.items()}
    return by_span


def test_texts_are_what_the_cache_holds_and_masks_lie_on_their_own_tokens(cache, reader):
    """Every text equals the cache's except at its masked positions."""
    signs, parts = reader.special_tokens, cache.boundaries
    for span, texts in epoch(make_sampler(cache, reader)).items():
        begin, end = (int(bound[0]) for bound in parts.token_bounds(np.array([span])))
        own = [signs.beginning, *cache.ids[begin:end].tolist(), signs.separator]
        for name, (masked_ids, plain, positions) in texts.items():
            assert 2 <= len(plain) <= 16
            assert plain == own or name in (CONTEXTS, DECODER_CONTEXTS)
            assert positions
            assert not set(positions) & {0, len(plain) - 1}
            assert all(masked_ids[position] == plain[position] for position in set(range(len(plain))) - set(positions))
        assert texts[CONTEXTS][1] == texts[DECODER_CONTEXTS][1]
        assert texts[CONTEXTS][2] != texts[DECODER_CONTEXTS][2] or len(texts[CONTEXTS][1]) < 8
        assert tuple(texts["contexts"][1][1:-1]) in windows(cache, int(parts.document_rows(np.array([span]))[0]))


def windows(cache, document):
    """Every run of tokens of a document."""
    parts = cache.boundaries
    begin, end = (int(parts.sentences[parts.spans[parts.documents[document + one]]]) for one in (0, 1))
    own = cache.ids[begin:end].tolist()
    return {tuple(own[first:last]) for first in range(len(own)) for last in range(first + 1, len(own) + 1)}


def test_the_rates_are_the_encoders_and_the_decoders(cache, reader):
    by_span = epoch(make_sampler(cache, reader, size=1)).values()
    for name, rate in zip(PARTS, (0.3, 0.3, 0.45, 0.45), strict=True):
        budgets = [max(1, round(rate * (len(one[name][1]) - 2))) for one in by_span]
        hidden = [len(one[name][2]) for one in by_span]
        assert all(1 <= count <= budget for count, budget in zip(hidden, budgets, strict=True))
        assert sum(hidden) > 0.9 * sum(budgets)


@pytest.mark.parametrize("draw", ["documents", "spans"])
def test_a_step_is_the_same_whenever_and_however_it_is_asked_for(cache, reader, draw):
    first, second = (make_sampler(cache, reader, draw=draw, size=8) for _ in range(2))
    steps = range(2 * first.steps_per_epoch + 1)
    forward = [batch_to_lists(first.batch_at(step)) for step in steps]
    assert [batch_to_lists(second.batch_at(step)) for step in reversed(steps)] == forward[::-1]


def test_what_a_span_meets_depends_on_nothing_but_seed_and_epoch(cache, reader):
    alone, together = epoch(make_sampler(cache, reader, size=1)), epoch(make_sampler(cache, reader))
    assert all(alone[span] == texts for span, texts in together.items())
    later, other = epoch(make_sampler(cache, reader, size=1), 1), epoch(make_sampler(cache, reader, size=1, seed=4))
    for different in (later, other):
        assert different.keys() == alone.keys()
        assert sum(different[span]["anchors"] == alone[span]["anchors"] for span in alone) < len(alone) / 4
    assert list(later) != list(alone)


def test_processes_share_a_batch(cache, reader):
    made_plan = make_sampler(cache, reader)
    whole, shares = batch_to_lists(made_plan.batch_at(1)), [batch_to_lists(made_plan.batch_at(1, rank, 3)) for rank in range(3)]
    assert [len(share["anchors"]) for share in shares] == [6, 5, 5]
    assert {name: [text for share in shares for text in share[name]] for name in PARTS} == whole


def test_an_epoch_meets_every_span_that_has_companions_once(cache, reader):
    made_plan = make_sampler(cache, reader, size=1)
    assert made_plan.anchor_count == len(cache) - 1
    assert sorted(epoch(made_plan)) == list(range(len(cache) - 1))
    alone = make_sampler(cache, reader, BatchRequirements("none", 0.15, 0.5), size=1)
    assert alone.anchor_count == len(cache)
    assert [name for name, texts in batch_to_lists(alone.batch_at(0)).items() if texts] == [ANCHORS, DECODER_ANCHORS]
    assert make_sampler(cache, reader, size=10**6).steps_per_epoch == 1


def test_queries_are_contexts_on_their_own_side(cache, reader, questions):
    made_plan = make_sampler(cache, reader, BatchRequirements("query", 0.3), questions, size=1, template=make_template(reader, 5))
    by_span, signs = epoch(made_plan), reader.special_tokens
    assert made_plan.anchor_count == int(cache.boundaries.documents[5])
    assert make_sampler(cache, reader, BatchRequirements("query", 0.3), questions, draw="documents", size=1).anchor_count == 5
    assert made_plan.batch_at(0).contexts.tokens.side == "query"
    assert made_plan.batch_at(0).anchors.tokens.side == "document"
    for span, one in by_span.items():
        row = int(cache.boundaries.document_rows(np.array([span]))[0])
        last = [reader.encode([text])[0][1:-1] for text in ("the owl hunts", f"a {LAST[row]}")]  # cut at 3 tokens
        assert one["contexts"][1][1:-1] in last
        assert (one["contexts"][1][0], one["contexts"][1][-1]) == (signs.beginning, signs.separator)
    queries_by_epoch = [[one["contexts"][1] for one in epoch(made_plan, number).values()] for number in range(2)]
    assert queries_by_epoch[0] != queries_by_epoch[1]


def test_what_stands_before_a_text_counts_and_is_never_hidden(cache, reader, questions):
    template = make_template(reader, 6, query=(1, 90, 91), document=(2,))
    batch = batch_to_lists(make_sampler(cache, reader, BatchRequirements("query", 0.9), questions, template=template).batch_at(0))
    for name, before in (("anchors", [2]), ("contexts", [1, 90, 91])):
        for ids, plain, positions in batch[name]:
            assert ids[1 : 1 + len(before)] == plain[1 : 1 + len(before)] == before
            assert min(positions) > len(before)
    assert {len(plain) for _, plain, _ in batch["contexts"]} == {6}


def test_a_checkpoints_rules_say_what_stands_before_a_text(tiny_model, reader):
    rules = InputConfig(query_prefix="owl: ", query_length=9, document_length=32)
    plain = build_checkpoint(tiny_model, "dense", asdict(rules), [], 1)
    with_markers = build_checkpoint(tiny_model, "colbert:markers=true,augmentation=false", asdict(rules), [], 1)
    prefix = reader.encode(["owl:"])[0][1:-1]
    assert InputTemplate.from_model(plain).prefix_ids == {"query": prefix, "document": []}
    assert InputTemplate.from_model(with_markers).prefix_ids == {
        "query": [reader.special_tokens.query_marker, *prefix],
        "document": [reader.special_tokens.document_marker],
    }
    for checkpoint in (plain, with_markers):
        template, signs = InputTemplate.from_model(checkpoint), reader.special_tokens
        [expected_ids], _ = checkpoint.token_ids(["the owl hunts the bat and the bee"], "query")
        own = reader.encode(["the owl hunts the bat and the bee"])[0][1:-1][: template.content_budget("query", rules.query_length)]
        assert expected_ids == [signs.beginning, *template.prefix_ids["query"], *own, signs.separator]


def test_what_cannot_be_planned_is_refused(tmp_path, cache, reader):
    with pytest.raises(UsageError, match="--query-length 4: no room"):
        make_sampler(cache, reader, template=make_template(reader, 4, query=(1, 2)))
    single = build_cache(tmp_path, write_corpus(tmp_path / "s.jsonl", [("a", "", "The owl."), ("b", "", "The bee.")]), reader)
    with pytest.raises(DataError, match="no document has two spans"):
        make_sampler(single, reader)


def test_by_documents_each_has_one_span_in_an_epoch_and_all_its_spans_are_equally_likely(cache, reader):
    sampler = make_sampler(cache, reader, draw="documents", size=4)
    parts = cache.boundaries
    counts = np.diff(parts.documents)
    assert sampler.anchor_count == int((counts > 1).sum()) == 29, "the last document has no second span"
    epochs = 400
    drawn = np.concatenate([sampler.anchors_at(step) for step in range(epochs * sampler.steps_per_epoch)])
    owners = np.bincount(parts.document_rows(drawn), minlength=30)
    per_epoch = sampler.steps_per_epoch * 4
    assert owners[:29].sum() == epochs * per_epoch and owners[29] == 0
    assert abs(owners[:29] - epochs * per_epoch / 29).max() < 5 * np.sqrt(epochs), "long documents count no more than short ones"
    spans = np.bincount(drawn, minlength=len(cache))[: parts.documents[29]]
    expected = np.repeat(owners[:29] / counts[:29], counts[:29])
    statistic = ((spans - expected) ** 2 / expected).sum()  # chi-squared with a degree of freedom for each span beyond a document's first
    freedom = len(spans) - 29
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)
    first = drawn[:per_epoch]
    assert len(set(parts.document_rows(first).tolist())) == len(first)


@pytest.mark.parametrize("draw", ["documents", "spans"])
def test_held_out_documents_and_the_others_share_no_span(cache, reader, draw):
    is_held_out = batches.hold_out_documents(30, 0.3, seed=3)
    assert is_held_out.tolist() == batches.hold_out_documents(40, 0.3, seed=3)[:30].tolist() and 3 <= is_held_out.sum() <= 15
    rows = [batches.hold_out_documents(100_000, 0.01, seed=seed) for seed in (1, 2)]
    assert all(abs(chosen.sum() - 1000) < 5 * np.sqrt(1000) for chosen in rows) and (rows[0] & rows[1]).sum() < 50, "other seeds, others"
    parts = cache.boundaries
    for documents in (is_held_out, ~is_held_out):
        sampler = make_sampler(cache, reader, size=1, draw=draw, documents=documents)
        drawn = np.concatenate([sampler.anchors_at(step) for step in range(sampler.steps_per_epoch)])
        assert set(parts.document_rows(drawn).tolist()) == set(np.flatnonzero(documents[:29]).tolist())
