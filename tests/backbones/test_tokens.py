"""Packed tokens, the tokenizer beside the weights, and the choice of precision."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.backbones import precision
from moeir.backbones.tokenizer import TextReader
from moeir.backbones.tokens import Tokens
from moeir.errors import ArtifactError, UsageError

id_lists = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=7), min_size=1, max_size=6)


def unpacked(tokens, column="ids"):
    return [part.tolist() for part in getattr(tokens, column).split(tokens.lengths)]


@settings(deadline=None)
@given(texts=id_lists, data=st.data())
def test_sorting_by_length_keeps_texts_whole_and_leads_back(texts, data):
    silent = [data.draw(st.integers(0, len(text))) for text in texts]
    tokens = Tokens.pack(texts, "query", silent)
    ordered = tokens.sort_by_length()
    back = torch.arange(len(texts)) if ordered.order is None else ordered.order
    assert (ordered.order is None) == (list(tokens.lengths) == sorted(tokens.lengths)) and ordered.sort_by_length() is ordered
    assert list(ordered.lengths) == sorted(tokens.lengths)
    assert [unpacked(ordered)[row] for row in back.tolist()] == texts
    assert ordered.starts.tolist() == torch.tensor([0, *ordered.lengths]).cumsum(0).tolist()
    if any(silent):
        assert [unpacked(ordered, "silent")[row] for row in back.tolist()] == unpacked(tokens, "silent")
        assert [sum(text) for text in unpacked(tokens, "silent")] == silent
    else:
        assert ordered.silent is None


def test_owners_and_positions_count_from_zero():
    tokens = Tokens.pack([[7, 8], [9], [4, 5, 6]], "document")
    assert tokens.owners().tolist() == [0, 0, 1, 2, 2, 2]
    assert tokens.positions().tolist() == [0, 1, 0, 0, 1, 2]


def test_special_tokens_in_a_text_are_text(tiny_model):
    reader = TextReader(tiny_model)
    ids = reader.ids(["[MASK] owl", "owl"])
    assert reader.signs.mask not in ids[0]
    assert ids[1] == [reader.signs.beginning, *ids[1][1:-1], reader.signs.separator]
    assert [reader.token(number) for number in ids[1]] == ["[CLS]", "owl", "[SEP]"]


def test_a_word_list_alone_is_a_tokenizer(tiny_model, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((tiny_model / "vocab.txt").read_bytes())
    alone, full = TextReader(tmp_path), TextReader(tiny_model)
    assert alone.ids(["An owl, hunting!"]) == full.ids(["An owl, hunting!"]) and alone.signs == full.signs
    (tmp_path / "copy").mkdir()
    alone.copy_to(tmp_path / "copy")
    assert TextReader(tmp_path / "copy").ids(["An owl, hunting!"]) == full.ids(["An owl, hunting!"])


def test_signs_are_read_from_the_files(tiny_model):
    reader = TextReader(tiny_model)
    names = [reader.token(number) for number in (reader.signs.mask, reader.signs.query_marker, reader.signs.document_marker)]
    assert names == ["[MASK]", "[unused0]", "[unused1]"]
    assert sorted(reader.token(number) for number in reader.signs.punctuation) == sorted(",.?!-':")


def test_folders_without_a_usable_tokenizer_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"no tokenizer.json or vocab.txt"):
        TextReader(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "?"}))
    with pytest.raises(ArtifactError, match="its tokenizer cannot be opened") as caught:
        TextReader(tmp_path)
    assert "\n" not in str(caught.value)


def test_precision_is_chosen_by_name_or_by_probe(monkeypatch):
    assert precision.dtype_for("float32", "cpu") is torch.float32 and precision.dtype_for("bfloat16", "cpu") is torch.bfloat16
    for answer, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device, answer=answer: answer)
        assert precision.dtype_for("auto", "cpu") is expected
    with pytest.raises(UsageError, match="--dtype float16: expected auto, float32 or bfloat16"):
        precision.dtype_for("float16", "cpu")
    with pytest.raises(UsageError, match="--device gpu: expected auto, cpu, cuda"):
        precision.device_for("gpu")
    assert precision.device_for("cpu") == "cpu"
