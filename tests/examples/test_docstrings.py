"""The collection of the quickstart: the standard library's whole, and a library that can be read by eye."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from moeir.records import qrels, texts
from tests.examples import toy_collections
from tests.examples.shell import EXAMPLES, run_program
from tests.examples.test_quickstart import MODULES, copy_modules

PARTS = ("train", "dev", "test")
NEST = '''"""Nests of birds and of mice: all of this is about where they sleep at night.

A nest has one door.
"""

class Nest(object):
    """A place of straw where animals sleep. It is made of straw or of moss, and has one door to the south."""

    def __init__(self, straw, *, moss=None):
        self.straw = straw

    def line(self): ...
    def fill_with_moss(self, amount=3): ...
    def _hide(self): ...


class Burrow(Nest):
    def dig_tunnel(self, depth, /, width="narrow", *, exits):
        """Dig a tunnel that leads out of the burrow. The tunnel goes down first, so that no rain comes into the chamber.
        """
        def helper():
            raise KeyError("not one of its errors")
        if depth > 9:
            raise errors.DepthError("the tunnel is too deep: %d metres below" % depth)
        raise ValueError(f"width {width} does not " + "fit")
        raise OSError(depth)

    async def leave(self, *exits):
        """Leave by the exit that is next to the animal. Leave by the exit that is next to the animal; no exit is closed."""


def measure(nest, unit, scale):
    """Measure how wide the nest is inside. The result is a number of straws, which differ in length from year to year."""


def estimate(nest, unit, scale):
    """Estimate how wide the nest may be. The result is a number of straws, which differ in length from one to the other."""


def too_short(nest):
    """Give no answer to anybody. Short."""
'''


def words_of(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w+(?:'\w+)*", text)}


def read_part(folder: Path, part: str) -> list[tuple[str, str, str]]:
    """Kind, text and passage of every query of a part."""
    kinds = texts.read_field(folder / f"{part}-queries.jsonl", "kind")
    judged = qrels.read_qrels(folder / f"{part}.qrels")
    queries = list(texts.read_texts(folder / f"{part}-queries.jsonl"))
    assert {query.id for query in queries} == set(judged) and all(list(grades.values()) == [1] for grades in judged.values())
    return [(kinds[query.id], query.text, next(iter(judged[query.id]))) for query in queries]


def test_the_collection_of_a_dozen_packages_of_the_standard_library(tmp_path: Path) -> None:
    """Every part has both kinds of queries, of modules of its own; no query is in a passage that it is not judged on."""
    more = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "wsgiref", "xml")
    library = tmp_path / "collection"
    assert run_program("docstrings.py", library, copy_modules(tmp_path / "sources", (*MODULES, *more))).code == 0
    passages = {text.id: text.text for text in texts.read_texts(library / "corpus.jsonl")}
    rows = {part: read_part(library, part) for part in PARTS}
    modules = {part: {re.split(r"[.,]", passages[document])[0] for _, _, document in of_part} for part, of_part in rows.items()}
    for part, of_part in rows.items():
        kinds = Counter(kind for kind, _, _ in of_part)
        assert set(kinds) == {"description", "name"} and 0.3 < kinds["name"] / len(of_part) < 0.6, (part, kinds)
        assert all(modules[part].isdisjoint(modules[other]) for other in PARTS if other != part)
    buckets = {module: int(hashlib.sha256(module.encode()).hexdigest(), 16) % 100 for module in modules["test"]}
    assert all(bucket >= 84 for bucket in buckets.values()), "the part of a module is that of its hash"
    ids = [text.id for part in PARTS for text in texts.read_texts(library / f"{part}-queries.jsonl")]
    assert len(ids) == len(set(ids)) and len(set(passages.values())) == len(passages) > 500
    described = [(text.lower(), passages[document].lower()) for of_part in rows.values() for kind, text, document in of_part
                 if kind == "description"]  # fmt: skip
    assert not [text for text, passage in described if text in passage] and len({text for text, _ in described}) == len(described)
    vocabularies = {document: words_of(passage) for document, passage in passages.items()}
    names = [(words_of(text), document) for kind, text, document in rows["test"] if kind == "name"]
    assert len(names) > 100
    for words, document in names:
        assert {other for other, vocabulary in vocabularies.items() if words <= vocabulary} <= {document}, words


def test_wrong_sources_are_one_line_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = ".: no docstring that makes a passage; expected a folder of Python sources with docstrings of 8 words or more"
    messages = {"none": "none: no such folder; expected SOURCES, a folder of Python sources", ".": nothing}
    for arguments, message in (((), "FOLDER [SOURCES]"), *((("collection", folder), message) for folder, message in messages.items())):
        refused = run_program("docstrings.py", *arguments)
        assert refused.code == 1 and refused.stderr.endswith(f"{message}\n") and refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_passages_and_queries_of_a_library_read_by_eye(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    skipped = dict.fromkeys(("animals/tests/skipped.py", "not-a-module.py"), NEST.replace("nest", "cave"))
    toy_collections.write_files(sources, {"animals/nest.py": NEST, "broken.py": "def"} | skipped)
    folder, again = tmp_path / "collection", tmp_path / "again"
    assert run_program("docstrings.py", folder, sources).code == 0
    subprocess.run([sys.executable, EXAMPLES / "docstrings.py", again, sources], check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in folder.iterdir()), "whatever the order of sets"
    passages = {text.id: text.text for text in texts.read_texts(folder / "corpus.jsonl")}
    rows = [row for part in PARTS if (folder / f"{part}.qrels").stat().st_size for row in read_part(folder, part)]
    tunnel = (
        "animals.nest, class Burrow, dig_tunnel(depth, width='narrow', exits). The tunnel goes down first, so that no rain comes into the "
        "chamber. Raises DepthError: the tunnel is too deep: %d metres below; ValueError: width %s does not fit."
    )
    nest = (
        "animals.nest, class Nest(straw, moss=None). It is made of straw or of moss, and has one door to the south. "
        "Methods: line, fill_with_moss."
    )
    results = [
        f"animals.nest, {name}(nest, unit, scale). The result is a number of straws, which differ in length from {words}."
        for name, words in (("measure", "year to year"), ("estimate", "one to the other"))
    ]
    module = "animals.nest. all of this is about where they sleep at night. A nest has one door."
    assert list(passages.values()) == [module, nest, tunnel, *results]
    queries = {document: [(kind, text) for kind, text, judged in rows if judged == document] for document in passages}
    descriptions, names = (
        [[text for one, text in queries[document] if one == kind] for document in passages] for kind in ("description", "name")
    )
    assert descriptions == [
        ["Nests of birds and of mice"], ["A place of straw where animals sleep"], ["Dig a tunnel that leads out of the burrow"],
        ["Measure how wide the nest is inside"], ["Estimate how wide the nest may be"],
    ]  # fmt: skip
    assert sorted(names[1][0].split()) == ["fill_with_moss", "line"] and names[1][1] in ("Nest straw", "Nest moss")
    assert names[2][0] == "DepthError the tunnel is too deep metres" and names[2][1].split()[0] == "dig_tunnel"
    assert [text.split()[0] for texts_of_one in names[3:] for text in texts_of_one] == ["measure", "estimate"]
    assert len(names[3]) == len(names[4]) == 1, "the three parameters belong to both functions"
