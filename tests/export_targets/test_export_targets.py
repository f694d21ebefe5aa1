"""The lines and files of each export target for one small document."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from moeir import variants
from moeir.errors import UsageError
from moeir.export_targets.base import ExportedDocument, ExportSchema, float16_to_lists
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


def export_target(spec: str) -> Any:
    return variants.bind_variant("export_targets", spec)(SCHEMA)


def test_half_precision_is_written_so_that_float32_reads_it_back() -> None:
    all_values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = all_values[np.isfinite(all_values)]
    assert (np.array(json.loads(json.dumps(float16_to_lists(finite))), dtype=np.float32) == finite).all()


def test_qdrant_has_points_with_named_vectors() -> None:
    [point] = export_target("qdrant").lines(DOCUMENT)
    assert point == {
        "id": 7,
        "vector": {
            "global": [0.5, -1.0, 0.0999755859],
            "lexical": {"indices": [1, 2, 3], "values": [2.0, 0.25, 0.0009765625]},
            "local": [[1.0, 0.0], [0.5, 0.25]],
        },
        "payload": {"id": "d7", "title": "Owl", "text": "An owl."},
    }
    schema = json.loads(export_target("qdrant:name=owls").files()["collection.json"])
    assert schema["name"] == "owls" and schema["vectors"]["local"]["multivector_config"] == {"comparator": "max_sim"}
    assert schema["vectors"]["global"] == {"size": 3, "distance": "Dot"} and schema["sparse_vectors"] == {"lexical": {}}


def test_opensearch_has_bulk_lines_whose_features_have_no_full_stop() -> None:
    action, fields = export_target("opensearch").lines(DOCUMENT)
    assert action == {"index": {"_id": "d7"}}
    assert fields["lexical_terms"] == {"owl": 2.0, "․": 0.25, "mice": 0.0009765625}
    properties = json.loads(export_target("opensearch").files()["index.json"])["mappings"]["properties"]
    assert set(fields) <= set(properties)
    assert properties["global_vector"]["dimension"] == 3 and properties["lexical_terms"] == {"type": "rank_features"}


def test_vespa_has_tensors_and_a_schema_that_names_them() -> None:
    [put] = export_target("vespa").lines(DOCUMENT)
    assert put["put"] == "id:passages:passages::d7"
    fields = put["fields"]
    assert fields["global_vector"] == {"values": [0.5, -1.0, 0.0999755859]}
    assert fields["lexical_terms"] == {"cells": {"owl": 2.0, ".": 0.25, "mice": 0.0009765625}}
    assert fields["lexical_impacts"] == {"owl": 200, ".": 25}
    assert fields["local_tokens"] == {"blocks": {"0": [1.0, 0.0], "1": [0.5, 0.25]}}
    files = export_target("vespa").files()
    schema = files["app/schemas/passages.sd"]
    assert all(f"field {name} type " in schema for name in fields)
    assert schema.count("{") == schema.count("}")
    assert ElementTree.fromstring(files["app/services.xml"].encode()).tag == "services"


def test_anserini_has_impacts_by_its_convention() -> None:
    [line] = export_target("anserini").lines(DOCUMENT)
    assert line == {"id": "d7", "contents": "Owl An owl.", "vector": {"owl": 102, ".": 13}}
    assert export_target("anserini:levels=100,largest=1").lines(DOCUMENT)[0]["vector"] == {"owl": 200, ".": 25}
    with pytest.raises(UsageError, match="takes the weighted terms of one expert; the encodings have none"):
        variants.bind_variant("export_targets", "anserini")(ExportSchema({"global": "dense"}, {"global": 3}, []))


@pytest.mark.parametrize("spec", ["qdrant", "opensearch", "vespa", "anserini"])
def test_files_end_when_they_are_full(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeir.export_targets.base.MEGABYTE", 100)
    assert export_target(f"{spec}:file_megabytes=1").write([DOCUMENT] * 5, tmp_path) == 5
    files = sorted(tmp_path.rglob("documents-*.jsonl"))
    assert len(files) > 1
    assert sum(len(file.read_text().splitlines()) for file in files) == 5 * len(export_target(spec).lines(DOCUMENT))
    assert (tmp_path / "README.md").read_text().startswith("# passages\n")
    assert (tmp_path / "terms.txt").read_text().splitlines() == SCHEMA.terms
