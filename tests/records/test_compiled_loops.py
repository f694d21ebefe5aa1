"""The compiled loops give the same runs, faults and fusions as numpy and as plain Python."""

import random

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.fusion import formulas
from moeir.records import compiled_loops, ids, lines, runs
from moeir.records.runs import first_duplicate
from tests.oracles import rank_order
from tests.records.test_runs import FAULTY, assert_refused

LETTERS = "abz019-_éß日🦉"
NUMBERS = ["123456789012345678", "-0.0", "0", "1E5", "+3", ".5", "5.", "1e-30", "27.123456789012345", "0.1", "1e-7", "-12.5"]
UNUSUAL_NUMBERS = ["1e-320", "1e-40", "12345678901234567890123", "0.10000000000000000000000001", "16777217.0000000000001"]


@pytest.fixture
def fast(monkeypatch):
    """Compiled loops for every file and any number of rows."""
    monkeypatch.setattr(compiled_loops, "MIN_FILE_BYTES", 0)
    monkeypatch.setattr(compiled_loops, "MIN_ROWS", 0)
    yield monkeypatch
    compiled_loops._load.cache_clear()


@pytest.fixture
def plainly(fast):
    """Call a function without the compiled loops."""

    def call(function, *arguments):
        with fast.context() as without:
            without.setattr(compiled_loops, "load_for_rows", lambda rows: None)
            without.setattr(compiled_loops, "load_for_file", lambda path: None)
            return function(*arguments)

    return call


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


@pytest.mark.parametrize(("size", "most"), [(1 << 20, 2**23), (700, 2**23), (300, 64)])
@pytest.mark.parametrize(("numbers", "widest"), [(NUMBERS, 2), (NUMBERS, 7), (NUMBERS, 20), (NUMBERS + UNUSUAL_NUMBERS, 7), (NUMBERS, 40)])
def test_a_run_is_the_one_that_plain_python_reads(fast, plainly, tmp_path, size, most, numbers, widest):
    fast.setattr(lines, "BLOCK_BYTES", size)
    fast.setattr(ids, "MAX_KEYS", most)
    for seed in range(4):
        rows = random_rows(seed, numbers, widest)
        path = tmp_path / f"{seed}.trec"
        space = "\t" if seed == 2 else " "
        path.write_text("".join(space.join([query, "Q0", name, "1", number, "tag"]) + "\n" for query, name, number in rows))
        run = runs.read_run(path)
        assert {query: run.hits(query) for query in run.queries} == plain_run(rows)
        assert run.queries == list(dict.fromkeys(row[0] for row in rows))
        assert list(run.document_ids) == sorted({row[1] for row in rows}, key=str.encode)
        assert_same_run(run, plainly(runs.read_run, path))
        for by in ("file", "rank"):
            assert_same_run(runs.read_run(path, by), plainly(runs.read_run, path, by))


@pytest.mark.parametrize(("content", "message"), FAULTY)
@pytest.mark.parametrize("size", [5, 1 << 20])
def test_faults_are_named_with_their_line(fast, tmp_path, size, content, message):
    assert_refused(fast, tmp_path, size, content, message)


@pytest.mark.parametrize(
    "content", ["\n\nq Q0 d 1 1 t\n\n q Q0 e 2 0.5 t", "q\tQ0\td\t1\t 1\tt\r\nq Q0 e 2 0.5 t\r\n", "q Q0 d 1 1 t\nq Q0 e\x01 2 0.5 t\n"]
)
def test_lines_of_other_shapes_are_read(fast, plainly, tmp_path, content):
    (tmp_path / "a.trec").write_text(content)
    assert_same_run(runs.read_run(tmp_path / "a.trec"), plainly(runs.read_run, tmp_path / "a.trec"))


def test_words_beyond_what_keys_hold_are_coded_with_the_others(fast, plainly, tmp_path):
    fast.setattr(lines, "BLOCK_BYTES", 200)
    names = ["x" * 200, "a", "b" * 64, "b" * 65, "é" * 32, "é" * 33, "c", *(f"d{number}" for number in range(30))]
    rows = [f"{query} Q0 {name} 1 {index} t\n" for query in ("q", "u" * 100) for index, name in enumerate(names)]
    (tmp_path / "a.trec").write_text("".join(rows))
    run = runs.read_run(tmp_path / "a.trec")
    assert run.documents_of("q") == run.documents_of("u" * 100) == names[::-1]
    assert_same_run(run, plainly(runs.read_run, tmp_path / "a.trec"))


@pytest.mark.parametrize("sizes", [(3, 50, 0, 7), (0, 0), (9,), (20, 20, 20)])
def test_lists_of_ids_are_united_as_sets_are(fast, sizes):
    generator = random.Random(sum(sizes))
    lists = [
        sorted({"".join(generator.choices(LETTERS, k=generator.randint(1, 12))) for _ in range(size)}, key=str.encode) for size in sizes
    ]
    names, codes = ids.merge_vocabularies([ids.Ids.from_strings(one) for one in lists])
    assert list(names) == sorted(set().union(*lists), key=str.encode)
    assert [[names[code] for code in own.tolist()] for own in codes] == lists


def test_a_document_that_stands_twice_is_found(fast, plainly):
    generator = np.random.default_rng(4)
    for _ in range(300):
        sizes = generator.integers(0, 90, 4)
        starts, documents = np.concatenate([[0], np.cumsum(sizes)]), generator.integers(0, 2000, sizes.sum()).astype(np.int32)
        assert first_duplicate(starts, documents, None) == plainly(first_duplicate, starts, documents, None)


@pytest.mark.parametrize("formula", ["came_sum", "rrf", "normsum", "normmax", "zscore", "combmnz", "maxrr", "hybrid"])
def test_fusions_are_the_same_bits(fast, plainly, formula):
    generator = random.Random(7)
    names, values = [f"d{number}" for number in range(50)], [0.0, -0.0, 1.0, 2.5, -1.0]
    many = [
        {
            f"q{query}": {name: generator.choice(values) for name in generator.sample(names, generator.randint(0, 30))}
            for query in query_numbers
        }
        for query_numbers in ([3, 1, 2, 5], [1, 2, 4, 3])
    ]
    many = [runs.Run.from_hits(hits) for hits in many]
    for depth in (None, 10):
        assert_same_run(
            formulas.fuse_runs(many, getattr(formulas, formula), depth),
            plainly(formulas.fuse_runs, many, getattr(formulas, formula), depth),
        )


def test_a_small_file_and_a_pipe_are_read_without_the_loops(tmp_path):
    (tmp_path / "a.trec").write_text("q Q0 d 1 1 t\n")
    assert compiled_loops.load_for_file(tmp_path / "a.trec") is None
    assert compiled_loops.load_for_file("-") is None
    assert compiled_loops.load_for_file(tmp_path / "absent") is None


def columns_of(line):
    """The obvious rule: between tabs if there are any, else between spaces; None if a column is not one word, or one is missing."""
    columns = line.strip(" \r").split("\t") if "\t" in line else line.split()
    columns = [column.strip(" \r") for column in columns]
    return columns if len(columns) == 6 and all(column and " " not in column for column in columns) else None


def test_columns_between_tabs_and_spaces_are_those_of_the_obvious_rule(fast, plainly, tmp_path):
    generator, path, results = random.Random(3), tmp_path / "a.trec", set()
    for number in range(600):
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
        for read in (runs.read_run, lambda path: plainly(runs.read_run, path)):
            if wanted is None:
                with pytest.raises(DataError, match=r"a\.trec:2: "):
                    read(path)
            else:
                assert read(path).hits("q") == [("first", 3.0), (wanted[2], 2.5)], repr(line)
    assert results == {True, False}
