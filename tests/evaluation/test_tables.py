import pytest

from moeir.evaluation import tables


def test_numbers_stand_to_the_right_and_words_to_the_left_and_a_row_that_lacks_a_column_becomes_no_object():
    rows = [["bm25", 0.5, "-", 3], ["2025", 0.25, "<0.001", 12], ["日本", 1.0, "0.5", 7]]
    assert tables.format_table(["system", "RR@10", "p", "n"], rows).splitlines() == [
        "system   RR@10       p   n",
        "------  ------  ------  --",
        "bm25    0.5000       -   3",
        "2025    0.2500  <0.001  12",
        "日本    1.0000     0.5   7",
    ]
    assert tables.format_table(["a", "bc"], []) == "a  bc\n-  --"
    assert tables.format_table(["x"], [[0.12345]], number_format=".2f").splitlines()[-1] == "0.12"
    with pytest.raises(ValueError, match="shorter"):
        list(tables.format_lines(["run", "RR@10"], [["bm25"]], "jsonl"))
