"""Candidates, pairs and ensembles against loops; a score journal resumes after the last saved score."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir import variants
from moeir.architectures.cross_encoder import PairTokenizer
from moeir.architectures.input_config import InputConfig
from moeir.backbones.packed_pairs import PairTemplate, RaggedIds
from moeir.records.runs import Run
from moeir.reranking.candidates import Candidates, combine_scores
from moeir.reranking.score_journal import ScoreJournal
from tests.oracles import reranking as oracles

quick = settings(deadline=None, max_examples=50)
numbers = st.integers(-8, 8).map(lambda number: number / 2)
FRAME = PairTemplate((1,), (2, 2), (3,), (0, 0, 0, 1, 1))
BERT = Run.from_hits({"q": {"a": 9.0, "b": 8.0, "c": 7.0, "d": 6.0}, "r": {"b": 3.0}, "s": {}})


@st.composite
def lists(draw):
    """A run of some queries, a depth, and a new score for every document."""
    documents = st.dictionaries(st.sampled_from("abcdefg"), numbers, max_size=7)
    hits = {f"q{number}": draw(documents) for number in range(draw(st.integers(1, 3)))}
    return hits, draw(st.integers(1, 5)), draw(st.lists(numbers, min_size=21, max_size=21))


@quick
@given(lists(), st.booleans())
def test_a_reranked_run_is_that_of_the_loop(case, rest):
    hits, depth, new_scores = case
    run = Run.from_hits(hits)
    candidates = Candidates.from_run(run, depth)
    scores = np.array(new_scores[: len(candidates)], dtype=np.float32)
    reranked = candidates.apply_scores(scores, rest=rest)
    for query_number, query in enumerate(run.queries):
        own = candidates.query == query_number
        new = dict(zip([run.document_ids[code] for code in candidates.document[own]], scores[own].tolist(), strict=True))
        assert reranked.documents_of(query) == oracles.rerank(run.documents_of(query), depth, new, rest=rest)
        values = [score for _, score in reranked.hits(query)]
        assert values[: len(new)] == sorted(new.values(), reverse=True)
        assert all(after < before for before, after in zip(values[len(new) - 1 :], values[len(new) :], strict=False))


def test_what_lies_below_stands_one_step_behind_the_last():
    reranked = Candidates.from_run(BERT, 2).apply_scores([1.5, 2.5, 0.25])
    assert reranked.hits("q") == [("b", 2.5), ("a", 1.5), ("c", 0.5), ("d", -0.5)]
    assert reranked.hits("r") == [("b", 0.25)] and reranked.hits("s") == []
    large = Candidates.from_run(BERT, 2).apply_scores([3e9, 2e9, 0.0])
    assert large.documents_of("q") == ["a", "b", "c", "d"] and len({score for _, score in large.hits("q")}) == 4


@quick
@given(st.data(), st.sampled_from(["zscore", "mean"]))
def test_ensembles_are_those_of_the_loop(data, how):
    models, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    rows = data.draw(st.lists(st.lists(numbers, min_size=count, max_size=count), min_size=models, max_size=models))
    combined_scores = variants.bind_variant("reranking.ensembles", how)(np.array(rows))
    assert combined_scores.tolist() == pytest.approx(oracles.ensemble_scores(rows, how), abs=1e-9)


def test_an_ensemble_is_taken_query_by_query_and_one_model_alone_keeps_its_scores():
    candidates = Candidates.from_run(BERT, 2)
    one, two = np.array([1.0, 3.0, 7.0], dtype=np.float32), np.array([20.0, 10.0, 5.0], dtype=np.float32)
    assert combine_scores(candidates, [one], "zscore") is one
    assert combine_scores(candidates, [one, two], "zscore").tolist() == [0.0, 0.0, 0.0]
    assert combine_scores(candidates, [one, two], "mean").tolist() == [10.5, 6.5, 6.0]


def test_pairs_are_joined_token_by_token_and_a_document_is_cut_to_what_fits():
    pairing = PairTokenizer(None, InputConfig(query_length=6, document_length=14), FRAME, (2,), True)
    queries, sizes = RaggedIds.from_lists([[10], [11, 12, 13, 14]]), [0, 1, 5, 6, 7, 30]
    documents = RaggedIds.from_lists([list(range(100, 100 + size)) for size in sizes])
    pairs = pairing.make_pairs(queries, documents, np.repeat([0, 1], len(sizes)), np.tile(np.arange(len(sizes)), 2))
    assert pairs.document_lengths.tolist() == [0, 1, 5, 6, 7, 9, 0, 1, 5, 6, 6, 6]
    tokens = pairs.pack([11, 0])
    assert tokens.lengths == (14, 5)
    assert tokens.ids.tolist() == [1, 11, 12, 13, 14, 2, 2, 100, 101, 102, 103, 104, 105, 3, 1, 10, 2, 2, 3]
    assert tokens.segments.tolist() == [0] * 7 + [1] * 7 + [0] * 4 + [1]


def test_a_journal_hands_back_what_is_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.reranking.score_journal.FLUSH_SECONDS", 0.0)
    journal = ScoreJournal(tmp_path / "resume" / "a", 4)
    journal.add(np.array([1.1, 2.0], dtype=np.float32))
    monkeypatch.setattr("moeir.reranking.score_journal.FLUSH_SECONDS", 1e9)
    journal.add(np.array([7.0], dtype=np.float32))  # not on disk: lost
    again = ScoreJournal(tmp_path / "resume" / "a", 4)
    assert (again.done, ScoreJournal(tmp_path / "resume" / "b", 1).done) == (2, 0)
    again.add(np.array([3.0, 4.0], dtype=np.float32))
    assert again.close().tolist() == np.array([1.1, 2.0, 3.0, 4.0], dtype=np.float32).tolist()
    assert ScoreJournal(tmp_path / "resume" / "a", 4).done == 4
