import random

import numpy as np
import pytest

from moeir.kernels import trec_parser

ODD = [
    *("0", "-0.0", "+3", ".5", "5.", "1E5", "1e-5", "-2.5e+3", "00012", "16777217", "0.1", "9007199254740993", "9007199254740992"),
    *("123456789012345678", "3.4028235677973366e37"),
]
LEFT = [
    *("1e-320", "inf", "nan", "1e39", "1_0", "0x10", ".", "+", "e5", "1e", "1e+", "1.2.3", "1e5x", "99999999999999999999", "1e23"),
    *("1e-45", "1d5", "٣"),
]


def cut(text, width=1, limit=1):
    """Keys and numbers of lines whose first word is a number and whose others are keys; or the negative code."""
    roles = np.array([trec_parser.NUMBER, *range(0, limit * (width - 1), limit)])
    keys, numbers = np.zeros((99999, max(limit * (width - 1), 1)), np.uint64), np.zeros(99999, np.float32)
    letters = np.frombuffer(text.encode(), np.uint8)
    rows = trec_parser.parse_lines(letters, roles, np.full(width, limit), keys, numbers, 0)
    return (keys[:rows], numbers[:rows]) if rows >= 0 else rows


def same(words):
    numbers = cut("".join(word + "\n" for word in words))[1]
    expected = np.array([float(word) for word in words]).astype(np.float32)
    assert numbers.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


def test_odd_numbers_are_those_of_float():
    same(ODD)


@pytest.mark.parametrize("word", LEFT)
def test_what_is_not_certain_is_left(word):
    assert cut(f"1\n{word}\n") == trec_parser.IRREGULAR


def test_numbers_as_programs_print_them_are_those_of_float():
    generator = random.Random(5)
    forms = ["{:.6f}", "{!r}", "{:.9g}", "{:.3e}", "{:.13f}", "{:+.1f}", "{:.0f}"]
    values = [generator.choice([-1, 1]) * (0.1 + generator.random()) * 10.0 ** generator.randint(-4, 4) for _ in range(20_000)]
    same([generator.choice(forms).format(value) for value in values])
    same([repr(float(np.float32(value))) for value in values])


def test_numbers_between_two_float32_are_those_of_float_or_left():
    generator, certain = random.Random(6), 0
    for _ in range(2000):
        low = np.float32(generator.random() * 8)
        middle = (float(low) + float(np.nextafter(low, np.float32(9)))) / 2
        word = f"{middle:.17f}" if generator.random() < 0.5 else f"{middle:.17f}"[:17] + str(generator.randint(0, 9))
        result = cut(word + "\n")
        certain += result != trec_parser.IRREGULAR if isinstance(result, int) else 1
        assert isinstance(result, int) or result[1][0] == np.float32(float(word)), word
    assert 100 < certain < 2000


def test_words_are_numbers_that_ascend_as_bytes_do():
    words = sorted(["a", "ab", "b", "é", "日本語", "1", "10", "123456789", "12345678", "12345678é", "zzzzzzzzzzzzzzzz"], key=str.encode)
    keys, _ = cut("".join(f"1 {word}\n" for word in words), 2, 2)
    assert [row.astype(">u8").tobytes().rstrip(b"\0").decode() for row in keys] == words
    assert keys.tolist() == sorted(keys.tolist())


def test_a_word_that_is_too_long_names_its_column():
    assert cut("1 abc 12345678\n2 x 123456789\n", 3) == -2 - 2


@pytest.mark.parametrize(
    "text", ["1\t\ta\n", "\t1 a\n", "1 a\t\n", "1 a\n\n2 b\n", "1 a b\n", "1\n", "\n", " \n", "1 a\n 2\n", "1 \x01\n", "1 a\x1f\n", "x a\n"]
)
def test_lines_of_another_shape_are_left(text):
    assert cut(text, 2) == trec_parser.IRREGULAR


def test_tabs_stand_between_all_columns_or_none():
    assert cut("1\ta\tb\n2 c d\n", 3, 1)[1].tolist() == [1, 2]
    assert cut("1\ta b\n", 3, 1) == cut("1 a\tb\n", 3, 1) == trec_parser.IRREGULAR


def test_any_white_space_parts_words():
    keys, numbers = cut(" 1\t a\r\n2\x0b\x0cb \n", 2)
    assert numbers.tolist() == [1, 2]
    assert [chr(int(row[0]) >> 56) for row in keys] == ["a", "b"]
