import gzip
import io
import re
import time

import pyarrow
import pytest

from moeir.errors import DataError, UsageError
from moeir.records import lines


def compress_zstd(content):
    return pyarrow.compress(content, "zstd", asbytes=True)


def read(path):
    with lines.open_lines(path) as numbered:
        return list(numbered)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_written_lines_are_read_again_and_give_the_same_bytes(tmp_path, suffix):
    for content, numbered in (("Zürich\n日本\n", [(1, "Zürich"), (2, "日本")]), ("", []), ("a\n" * 1000, None)):
        for name in ("first", "second"):
            with lines.open_writer(tmp_path / f"{name}{suffix}") as output:
                output.write(content)
        assert numbered is None or read(tmp_path / f"first{suffix}") == numbered
        assert (tmp_path / f"first{suffix}").read_bytes() == (tmp_path / f"second{suffix}").read_bytes()


def test_a_file_that_cannot_be_opened_stays_and_one_that_cannot_be_finished_goes(tmp_path, monkeypatch):
    path = tmp_path / "words.txt"
    path.write_text("mine")

    def refuse(*arguments):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(PermissionError):
            lines.write_lines(["a"], path)
    assert path.read_text() == "mine"
    monkeypatch.chdir(tmp_path)
    path.rename("-")
    with pytest.raises(DataError, match="half a character"):
        lines.write_lines(["\ud800"], "-")
    assert (tmp_path / "-").read_text() == "mine", "standard output is no file"
    with pytest.raises(DataError, match="half a character"):
        lines.write_lines(["a", "\ud800"], path)
    assert not path.exists()


def test_only_a_newline_ends_a_line(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\nd\r\n\ne".encode())
    assert read(path) == [(1, "a\u2028b\x0bc"), (2, "d"), (3, ""), (4, "e")]


def test_blocks_do_not_change_the_lines(tmp_path, monkeypatch):
    path = tmp_path / "words.txt"
    words = [f"word {number} é" * (number % 7) for number in range(200)]
    path.write_text("\n".join(words), encoding="utf-8")
    for size in (1, 2, 3, 64, 1 << 20):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        assert read(path) == list(enumerate(words, 1))


def test_zstandard_frames_may_follow_one_another(tmp_path):
    path = tmp_path / "words.zst"
    path.write_bytes(compress_zstd(b"a\nb") + compress_zstd(b"c\nd\n"))
    assert read(path) == [(1, "a"), (2, "bc"), (3, "d")]


def test_a_dash_is_a_pipe(monkeypatch, capsysbinary):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\n".encode())))
    assert read("-") == [(1, "é")]
    with lines.open_writer("-") as output:
        output.write("é\n")
    with lines.open_writer("-") as output:
        output.write("b\n")
    assert capsysbinary.readouterr().out == "é\nb\n".encode()


def test_faults_name_file_and_line(tmp_path):
    faulty = {
        "latin.txt": (b"fine\nZ\xfcrich\n", ":2: not UTF-8: byte 0xfc; convert the file to UTF-8"),
        "zero.txt": (b"fine\na\0b\n", ":2: not a text file: found a zero byte; expected UTF-8 text"),
        "cut.gz": (gzip.compress(b"fine\n" * 99)[:-9], ": damaged archive near line 1: "),
        "plain.gz": (b"fine\n", ": damaged archive near line 1: "),
        "cut.zst": (compress_zstd(b"fine\n" * 99)[:-5], ": damaged archive near line 1: Truncated compressed stream"),
        "plain.zst": (b"fine\n", ": damaged archive near line 1: "),
    }
    for name, (content, message) in faulty.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}{message}")
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"absent\.tsv: no such file"):
        read(tmp_path / "absent.tsv")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_long_line_takes_linear_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 14)
    (tmp_path / "long.txt").write_bytes(b"a" * (64 << 20))
    began = time.process_time()
    with lines.read_blocks(tmp_path / "long.txt") as blocks:
        assert sum(len(block) for _, block in blocks) == 64 << 20
    assert time.process_time() - began < 2  # four thousand copies of half of it take 10


def test_blocks_of_a_small_archive_of_much_text_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 20)
    path = tmp_path / "zeros.zst"
    path.write_bytes(compress_zstd(b"a\n" * (4 << 20)))
    assert path.stat().st_size < 2000
    with lines.read_blocks(path, check=False) as blocks:
        sizes = [len(block) for _, block in blocks]
    assert sum(sizes) + len(sizes) == 8 << 20  # each block lacks its last newline
    assert max(sizes) <= (1 << 20) + 2


def test_a_line_has_a_most_of_bytes(tmp_path, monkeypatch):
    for name, compress in {"a.txt": bytes, "a.gz": gzip.compress, "a.zst": compress_zstd}.items():
        path = tmp_path / name
        path.write_bytes(compress(b"short\n" + b"a" * (5 << 20)))
        with monkeypatch.context() as patch:
            patch.setattr(lines, "MAX_LINE_BYTES", 3 << 20)
            with pytest.raises(UsageError, match=f"^{re.escape(str(path))}:2: a line of more than 3,145,728 bytes"):
                read(path)
        assert len(read(path)[1][1]) == 5 << 20


def test_a_stem_has_no_packing_suffix():
    assert [str(lines.strip_compression_suffix(name)) for name in ("a.tsv.gz", "a.jsonl.zst", "a.tsv")] == ["a.tsv", "a.jsonl", "a.tsv"]
