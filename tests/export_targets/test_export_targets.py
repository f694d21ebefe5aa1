"""The lines and files of each export target for one small document, those in examples/untried/ included."""

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from moeir import variants
from moeir.export_targets.base import ExportedDocument, ExportSchema, float16_to_lists
from moeir.export_targets.loaders import documents as loader
from moeir.export_targets.loaders.documents import load_documents, read_points
from moeir.records.texts import Text

KINDS = {"lexical": "sparse", "local": "multivector", "global": "dense"}
SCHEMA = ExportSchema(KINDS, {"local": 2, "global": 3}, ["[PAD]", "owl", ".", "mice"])
DOCUMENT = ExportedDocument(
    7,
    Text("d7", "An owl.", "Owl"),
    {"global": np.array([0.5, -1.0, 0.1], np.float16)},
    {"lexical": (np.array([1, 2, 3]), np.array([2.0, 0.25, 0.0009765625], np.float32))},
    {"local": np.array([[1.0, 0.0], [0.5, 0.25]], np.float16)},
)


VESPA, OPENSEARCH = "examples.untried.vespa:Vespa", "examples.untried.opensearch:Opensearch"


def export_target(spec: str) -> Any:
    variants.import_code_of(spec)
    return variants.bind_variant("export_targets", spec)(SCHEMA)


def test_half_precision_is_written_so_that_float32_reads_it_back() -> None:
    all_values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = all_values[np.isfinite(all_values)]
    assert (np.array(json.loads(json.dumps(float16_to_lists(finite))), dtype=np.float32) == finite).all()


@pytest.mark.parametrize("engine", ["qdrant", "milvus"])
def test_a_document_is_a_point_with_a_vector_of_each_expert_and_its_loader_imports_nothing_of_moeir(engine: str) -> None:
    vectors = {
        "global": [0.5, -1.0, 0.0999755859],
        "lexical": {"indices": [1, 2, 3], "values": [2.0, 0.25, 0.0009765625]},
        "local": [[1.0, 0.0], [0.5, 0.25]],
    }
    payload = {"id": "d7", "title": "Owl", "text": "An owl."}
    assert export_target(engine).lines(DOCUMENT) == [{"id": 7, "vector": vectors, "payload": payload}]
    files = export_target(engine).files()
    nodes = [node for source in files.values() for node in ast.walk(ast.parse(source))]
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert "documents" in imported and not [name for name in imported if name.startswith("moeir")]


def test_the_schema_names_experts_and_the_digest_of_the_content(tmp_path: Path) -> None:
    digests = set()
    for number, (spec, documents) in enumerate((("qdrant:name=owls,hnsw=true", 2), ("qdrant:name=owls", 2), ("qdrant:name=owls", 3))):
        (tmp_path / f"{number}").mkdir()
        export_target(spec).write([DOCUMENT] * documents, tmp_path / f"{number}")
        schema = json.loads((tmp_path / f"{number}" / "schema.json").read_text())
        digests.add(schema["digest"])
        assert schema["documents"] == documents and schema["name"] == "owls"
        assert schema["experts"] == {name: {"kind": kind, "width": SCHEMA.widths.get(name)} for name, kind in KINDS.items()}
    assert len(digests) == 3


def test_opensearch_has_bulk_lines_whose_features_have_no_full_stop() -> None:
    action, fields = export_target(OPENSEARCH).lines(DOCUMENT)
    assert action == {"index": {"_id": "d7"}}
    assert fields["lexical_terms"] == {"owl": 2.0, "․": 0.25, "mice": 0.0009765625}
    properties = json.loads(export_target(OPENSEARCH).files()["index.json"])["mappings"]["properties"]
    assert set(fields) <= set(properties)
    assert properties["global_vector"]["dimension"] == 3 and properties["lexical_terms"] == {"type": "rank_features"}


def test_vespa_has_tensors_and_a_schema_that_names_them() -> None:
    [put] = export_target(VESPA).lines(DOCUMENT)
    assert put["put"] == "id:passages:passages::d7"
    fields = put["fields"]
    assert fields["global_vector"] == {"values": [0.5, -1.0, 0.0999755859]}
    assert fields["lexical_terms"] == {"cells": {"owl": 2.0, ".": 0.25, "mice": 0.0009765625}}
    assert fields["lexical_impacts"] == {"owl": 200, ".": 25}
    assert fields["local_tokens"] == {"blocks": {"0": [1.0, 0.0], "1": [0.5, 0.25]}}
    files = export_target(VESPA).files()
    schema = files["app/schemas/passages.sd"]
    assert all(f"field {name} type " in schema for name in fields)
    assert schema.count("{") == schema.count("}")
    assert ElementTree.fromstring(files["app/services.xml"].encode()).tag == "services"


@pytest.mark.parametrize("spec", ["qdrant", "milvus", VESPA, OPENSEARCH])
def test_files_end_when_they_are_full(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeir.export_targets.base.MAX_FILE_BYTES", 100)
    assert export_target(spec).write([DOCUMENT] * 5, tmp_path) == 5
    files = sorted(tmp_path.glob("documents-*.jsonl"))
    assert len(files) > 1
    assert sum(len(file.read_text().splitlines()) for file in files) == 5 * len(export_target(spec).lines(DOCUMENT))
    assert (tmp_path / "terms.txt").read_text().splitlines() == SCHEMA.terms


def test_points_are_read_one_at_a_time_from_any_number_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeir.export_targets.base.MAX_FILE_BYTES", 500)
    points = [replace(DOCUMENT, number=number) for number in range(9)]
    export_target("qdrant").write(points, tmp_path)
    assert len(list(tmp_path.glob("documents-*.jsonl"))) > 2
    for first in range(11):
        assert [point["id"] for point in read_points(tmp_path, first)] == list(range(9))[first:]
    (tmp_path / "documents-00001.jsonl").write_text("no JSON")
    assert next(read_points(tmp_path))["id"] == 0  # the second file is not read yet


def test_no_request_is_larger_than_an_engine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [{"id": number, "vector": {"local": [[0.5] * number]}} for number in (1, 90, 10, 10, 10, 10)]
    monkeypatch.setattr(loader, "MAX_REQUEST_BYTES", 200)
    parts = list(loader.split_points(points))
    assert [[point["id"] for point in part] for part in parts] == [[1], [90], [10, 10], [10, 10]]
    assert all(len(json.dumps(part)) <= 200 + 4 for part in parts if len(part) > 1)


def load(folder: Path, documents: int = 12, **functions: Any) -> int:
    """Load an export of so many documents into a collection of these functions."""
    export_target("qdrant").write([DOCUMENT] * documents, folder)
    collection = SimpleNamespace(points_per_batch=5, finish=lambda: None, add=lambda points: None, **functions)
    return load_documents(collection, "here", replace=True, folder=folder)


def test_replace_never_deletes_documents_of_another_origin(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds documents of another origin, expected this export .*; export with another name=…$"):
        load(tmp_path, read_digest=lambda: "", drop=lambda: pytest.fail("the documents are deleted"))


@pytest.mark.parametrize(("stored", "digest"), [(24, "0123"), (11, "0123"), (12, "4567"), (0, None)])
def test_what_is_loaded_is_counted_in_the_engine(stored: int, digest: str | None, tmp_path: Path) -> None:
    digests = iter([None, digest])
    with pytest.raises(SystemExit, match=rf"passages at here has {stored} documents of {digest}, expected 12 of .*: changed while"):
        load(tmp_path, read_digest=lambda: next(digests), create=lambda: None, stored_count=lambda: stored)


@pytest.mark.parametrize(("name", "change", "words"), [
    ("documents-00000.jsonl", lambda text: text[: text.rindex("\n", 0, -1) + 1], "damaged or changed: its checksum"),
    ("documents-00000.jsonl", lambda text: text.replace("d7", "d9", 1), "damaged or changed: its checksum"),
    ("documents-00000.jsonl", None, "damaged or changed: its checksum"),
    ("schema.json", lambda text: text[:-9], "schema.json: Unterminated string"),
    ("schema.json", None, "schema.json: .*; export again"),
])  # fmt: skip
def test_a_changed_export_is_not_loaded(name: str, change: Callable[[str], str] | None, words: str, tmp_path: Path) -> None:
    export_target("qdrant").write([DOCUMENT] * 3, tmp_path)
    content = (tmp_path / name).read_text(encoding="utf-8")
    (tmp_path / name).unlink()
    if change is not None:
        (tmp_path / name).write_text(change(content), encoding="utf-8")
    with pytest.raises(SystemExit, match=words):
        load_documents(SimpleNamespace(), "here", folder=tmp_path)
