"""Files that no tool writes and somebody will send: one line with the place, the code of data, and nothing made."""

import pytest

CASES = {
    "deep": ("deep.jsonl", "[" * 3000, "convert --input deep.jsonl --to texts", None),
    "csv with a return": ("d.csv", "anchor,positive\na\rb,c\n", "convert --input d.csv --from pairs --to examples", "d.csv:"),
    "no array": ("a.json", "{}", "convert --input a.json --from dpr --to examples", "a.json:1: no query_id"),
    "a rank of 5,000 digits": ("f.trec", f"1 Q0 a {'9' * 5000} 1.0 x\n", "check --run f.trec", None),
    "a score of 5,000 digits": ("j", f"1 Q0 a 1 {'9' * 5000} x\n", "convert --input j --from run --to run", "j:1: score is not finite"),
    "a control character in broken JSON": ("m.jsonl", '{"_id": "1", "text": "a\x01"', "check --corpus m.jsonl", None),
    "a grade of 2^63": ("l.qrels", "1 0 a 9223372036854775808\n", "evaluate --run run.trec --qrels l.qrels", "l.qrels:1: grade is not"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_told_in_one_line(case, tmp_path, moeir, monkeypatch):
    name, content, command, message = CASES[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content.encode())
    (tmp_path / "run.trec").write_text("1 Q0 a 1 1.0 x\n")
    result = moeir(*command.split(), *(("--output", "out") if command.startswith("convert") else ()))
    assert result.code == (2 if case == "deep" else 3), result.stderr
    assert "bug of moeir" not in result.stderr and len(result.stderr) < 2_000
    assert message is None or (message in result.stderr and result.stderr.count("\n") == 1), result.stderr


def test_a_long_field_of_a_table_is_read(tmp_path, moeir):
    (tmp_path / "long.csv").write_text(f"anchor,positive\n{'w ' * 100_000},c\n")
    assert moeir("convert", "--input", tmp_path / "long.csv", "--from", "pairs", "--to", "examples", "--output", "-").code == 0


def test_a_data_set_without_a_name_is_refused(moeir):
    result = moeir("check", "--corpus", "hf:")
    assert result.code == 2 and result.stderr.count("\n") == 1 and "bug" not in result.stderr, result.stderr
