"""A saved fusion knows the runs that it was learned on, as far as their names show them."""

import json
import logging

import pytest

from moeir.errors import UsageError
from moeir.fusion.files import SavedFusion, read_fusion, write_fusion

FUSION = SavedFusion("linear:weights=1+2", ("train/bm25", "came.train"), {})
WRITTEN = {"moeir_fusion": 1, "method": "linear:weights=1+2", "runs": ["one", "naïve"], "found": {"depth": 100}}


def test_the_format_is_that_of_earlier_versions(tmp_path):
    path, fusion = tmp_path / "linear.json", SavedFusion("linear:weights=1+2", ("one", "naïve"), {"depth": 100})
    text = json.dumps(WRITTEN, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
    assert read_fusion(path) == fusion
    write_fusion(fusion, path)
    assert path.read_text(encoding="utf-8") == text


def test_runs_in_another_order_than_those_learned_on_are_refused_and_those_of_other_names_used_and_named(tmp_path, caplog):
    with pytest.raises(UsageError, match=r"in the order train/bm25, came\.train, found came\.test, test/bm25; give --run in that order"):
        FUSION.check_runs(tmp_path, ["came.test", "test/bm25"])
    caplog.set_level(logging.INFO, "moeir")
    for names, messages in ((["bm25.test", "test/came"], 0), (["bm25", "splade"], 1), (["came", "splade"], 1)):
        caplog.clear()
        FUSION.check_runs(tmp_path, names)
        assert [f"now used with {', '.join(names)}" in message for message in caplog.messages] == [True] * messages
