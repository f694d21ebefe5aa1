"""Runs as Arrow and numpy read them are those that plain Python reads, line by line."""

import random

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.records import ids, lines, runs
from tests.oracles import rank_order

LETTERS = "abz019-_éß日🦉"
NUMBERS = ["123456789012345678", "-0.0", "0", "1E5", "+3", ".5", "5.", "1e-30", "27.123456789012345", "0.1", "1e-7", "-12.5"]
ODD_NUMBERS = [
    *("0", "-0.0", "+3", ".5", "5.", "1E5", "1e-5", "-2.5e+3", "00012", "16777217", "0.1", "9007199254740993", "9007199254740992"),
    *("1e-40", "12345678901234567890123", "0.10000000000000000000000001", "16777217.0000000000001"),
    *("123456789012345678", "3.4028235677973362e38", "1e-320", "1e-45", "1e23", "99999999999999999999"),
]
NO_NUMBERS = [
    *("inf", "nan", "3.4028235677973366e38", "1_0", "0x10", ".", "+", "e5", "1e", "1e+", "1.2.3", "1e5x", "1d5", "٣", "null", "NA", "true"),
    '"1"',
]


def random_rows(seed, numbers, widest):
    generator = random.Random(seed)
    names = {"".join(generator.choices(LETTERS, k=generator.randint(1, widest))) for _ in range(60)}
    names |= {name[: generator.randint(1, len(name))] for name in names}
    queries = generator.sample(sorted(names), 5)
    rows = []
    for query in queries:
        documents = generator.sample(sorted(names), generator.randint(1, len(names)))
        rows += [(query, name, generator.choice([*numbers, f"{generator.random():.6f}", repr(generator.random())])) for name in documents]
    if seed % 2:
        generator.shuffle(rows)
    return rows


def plain_run(rows):
    hits: dict[str, dict[str, float]] = {}
    for query, name, number in rows:
        hits.setdefault(query, {})[name] = float(np.float32(float(number))) + 0.0
    return {query: [(name, scores[name]) for name in rank_order.rank_order(scores)] for query, scores in hits.items()}


def assert_same_run(one, other):
    assert (one.queries, list(one.document_ids), one.tag) == (other.queries, list(other.document_ids), other.tag)
    for name in ("starts", "documents", "scores"):
        assert getattr(one, name).dtype == getattr(other, name).dtype
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@pytest.mark.parametrize("size", [1 << 20, 300])
@pytest.mark.parametrize(("numbers", "widest"), [(NUMBERS, 2), (NUMBERS + ODD_NUMBERS[-10:], 7), (NUMBERS, 40)])
def test_a_run_is_the_one_that_plain_python_reads(monkeypatch, tmp_path, size, numbers, widest):
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    for seed in range(4):
        rows = random_rows(seed, numbers, widest)
        path, irregular = tmp_path / f"{seed}.trec", tmp_path / f"{seed}.irregular.trec"
        space = "\t" if seed == 2 else " "
        content = "".join(space.join([query, "Q0", name, "1", number, "tag"]) + "\n" for query, name, number in rows)
        path.write_text(content)
        irregular.write_text("".join(f" {line} \n\n" for line in content.splitlines()))
        run = runs.read_run(path)
        assert {query: run.hits(query) for query in run.queries} == plain_run(rows)
        assert run.queries == list(dict.fromkeys(row[0] for row in rows))
        assert list(run.document_ids) == sorted({row[1] for row in rows}, key=str.encode)
        assert_same_run(run, runs.read_run(irregular))


@pytest.mark.parametrize(
    "content",
    [
        "\n\nq Q0 d 1 1 t\n\n q Q0 e 2 0.5 t",
        "q\tQ0\td\t1\t 1\tt\r\nq Q0 e 2 0.5 t\r\n",
        "q Q0 d 1 1 t\r\nq Q0 e 2 0.5 t\r",
        "q \x0bQ0  d 1\x0c1 t\nq Q0 e 2 0.5 t\n",
        "\ufeffq Q0 d 1 1 t\nq Q0 e 2 0.5 t\n",
    ],
)
def test_lines_of_other_shapes_are_read(tmp_path, content):
    (tmp_path / "a.trec").write_text(content)
    run = runs.read_run(tmp_path / "a.trec")
    assert (run.queries, run.hits("q"), run.tag) == (["q"], [("d", 1.0), ("e", 0.5)], "t")


def test_a_byte_order_mark_within_a_file_is_a_part_of_an_id(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    (tmp_path / "a.trec").write_text("q Q0 d 1 1 t\n\ufeffq Q0 e 2 0.5 t\n")
    assert runs.read_run(tmp_path / "a.trec").queries == ["q", "\ufeffq"]


def test_characters_with_a_meaning_in_tables_are_letters_of_an_id(tmp_path):
    names = ['"d"', '"', "a,b", "'", "\\", "\\n", "NA", "null", "#", "\x01", "\x1f", "1_0", "é\u00a0日"]
    (tmp_path / "a.trec").write_text("".join(f"{name} Q0 {other} 1 1 t\n" for name in names for other in names))
    run = runs.read_run(tmp_path / "a.trec")
    assert run.queries == names
    assert all(run.documents_of(name) == sorted(names, key=str.encode, reverse=True) for name in names)


def test_numbers_are_those_of_float_and_others_are_refused(tmp_path):
    def read_numbers(words):
        (tmp_path / "a.trec").write_text("".join(f"{query} Q0 d 1 {word} t\n" for query, word in enumerate(words)))
        return runs.read_run(tmp_path / "a.trec").scores

    generator = random.Random(5)
    forms = ["{:.6f}", "{!r}", "{:.9g}", "{:.3e}", "{:.13f}", "{:.1f}", "{:.0f}"]
    values = [generator.choice([-1, 1]) * (0.1 + generator.random()) * 10.0 ** generator.randint(-4, 4) for _ in range(20_000)]
    formatted, shortest = [generator.choice(forms).format(value) for value in values], [repr(float(np.float32(value))) for value in values]
    for words in (formatted, shortest, *([word] for word in ODD_NUMBERS)):
        expected = np.array([float(word) for word in words]).astype(np.float32) + np.float32(0)  # a run has no minus zero
        assert read_numbers(words).view(np.uint32).tolist() == expected.view(np.uint32).tolist()
    for word in NO_NUMBERS:
        with pytest.raises(DataError, match=r"a\.trec:2: score is not (a number|finite): "):
            read_numbers(["1", word])


@pytest.mark.parametrize("longest", [1, 8, 9, 30, 90])
def test_ids_are_united_and_coded_as_sets_are(longest):
    generator = random.Random(longest)
    for sizes in ((3, 50, 0, 7), (0, 0), (9,), (20, 20, 20)):
        sets = ({"".join(generator.choices(LETTERS, k=generator.randint(1, longest))) for _ in range(size)} for size in sizes)
        lists = [sorted(one, key=str.encode) for one in sets]
        names, codes = ids.merge_ids([ids.Ids.from_strings(one) for one in lists])
        assert list(names) == sorted(set().union(*lists), key=str.encode)
        assert [[names[code] for code in own.tolist()] for own in codes] == lists
    for prefix in ("", "a-prefix-of-all-"):
        words = [(prefix + "".join(generator.choices(LETTERS, k=generator.randint(1, longest)))).encode() for _ in range(200)]
        names, codes = ids.dictionary_encode(ids.as_byte_strings(words))
        assert [name.encode() for name in names] == sorted(set(words))
        assert [names[code].encode() for code in codes.tolist()] == words


def columns_of(line):
    """The obvious rule: between tabs if there are any, else between spaces; None if a column is not one word, or one is missing."""
    columns = line.strip(" \r").split("\t") if "\t" in line else line.split()
    columns = [column.strip(" \r") for column in columns]
    return columns if len(columns) == 6 and all(column and " " not in column for column in columns) else None


def test_columns_between_tabs_and_spaces_are_those_of_the_obvious_rule(tmp_path):
    generator, path, results = random.Random(3), tmp_path / "a.trec", set()
    for number in range(200):
        space = generator.choice([[" "], ["\t"], ["\t", "\t ", " \t"], [" ", "  "], [" ", "\t"], ["\t", "\t\t"]])
        edges = ["", "", " ", "\r", "\t"]
        words = ["q", "Q0", f"d{number}", "1", "2.5", "t"]
        line = words[0] + "".join(generator.choice(space) + word for word in words[1:])
        if generator.random() < 0.3:
            line = line.replace("d", generator.choice(["a d", "a", "d "]), 1)
        line = generator.choice(edges[:3]) + line + generator.choice(edges)
        path.write_bytes(f"q\tQ0\tfirst\t1\t3\tt\n{line}\n".encode())
        wanted = columns_of(line)
        results.add(wanted is None)
        if wanted is None:
            with pytest.raises(DataError, match=r"a\.trec:2: "):
                runs.read_run(path)
        else:
            assert runs.read_run(path).hits("q") == [("first", 3.0), (wanted[2], 2.5)], repr(line)
    assert results == {True, False}
