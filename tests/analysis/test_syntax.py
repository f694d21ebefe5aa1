"""Form of texts: questions, statements, phrases and function words, counted by eye."""

import pytest

from moeir.analysis.syntax import SyntaxCounts, analyze_syntax, find_sentences, sentence_form


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("who hunts at night", ["who hunts at night"]),
        ("The owl hunts. It sleeps by day!", ["The owl hunts.", "It sleeps by day!"]),
        ("The U.S. has 3.5 owls... Really?", ["The U.S.", "has 3.5 owls...", "Really?"]),  # an abbreviation ends one: no list of them
        ("Owl\nBirds of prey", ["Owl", "Birds of prey"]),
        (" . ? ", []),
        ('"Why?" he asked.', ['"Why?" he asked.']),
    ],
)
def test_sentences_end_at_marks_before_white_space_and_at_lines(text, sentences):
    assert find_sentences(text) == sentences


@pytest.mark.parametrize(
    "sentence, form",
    [
        ("what do owls eat", "question"),
        ("Is it an owl", "question"),
        ("In which tree do owls sleep?", "question"),
        ("When the owl hunts, mice hide.", "statement"),  # a final mark tells it from a question
        ("owls are birds", "statement"),
        ("the owl hunts mice", "phrase"),  # a full verb is not known without a parser
        ("average price of an owl", "phrase"),
        ("being an owl", "phrase"),
        ("(owls can fly.)", "statement"),
        ("No!", "statement"),
    ],
)
def test_forms_of_sentences(sentence, form):
    assert sentence_form(sentence) == form


def test_statistics_by_hand():
    """Sixteen words, of which the, at, by, it, is, do and the are function words."""
    counts = SyntaxCounts()
    for text in ("The owl hunts at night. It sleeps by day.", "is owl bird", "do the mice hide"):
        counts.add(text)
    assert counts.statistics() == {
        "texts": 3,
        "sentences per text": pytest.approx(4 / 3),
        "words per sentence": pytest.approx(16 / 4),
        "share of questions": 0.5,
        "share of statements": 0.5,
        "share of phrases": 0.0,
        "share of function words": pytest.approx(7 / 16),
    }


def test_the_rows_and_marks_of_both_sides():
    result = analyze_syntax({"query": iter(["owl food"]), "document": ["Owls hunt. They see."]})
    assert [row for row in result.rows if row[1].startswith("share of") and row[2] == 1.0] == [
        ("query", "share of phrases", 1.0),
        ("document", "share of statements", 1.0),
    ]
    assert result.plot.kind == "bars" and [mark[1:] for mark in result.plot.marks if mark[3]] == [
        ("query", "phrase", 1.0),
        ("document", "statement", 1.0),
    ]
