"""Packed tokens, the tokenizer beside the weights, and the choice of precision."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.backbones.device import select_device, select_dtype
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError, UsageError

id_lists = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=7), min_size=1, max_size=6)


def unpacked(tokens, column="ids"):
    return [part.tolist() for part in getattr(tokens, column).split(tokens.lengths)]


@settings(deadline=None)
@given(texts=id_lists, data=st.data())
def test_sorting_by_length_keeps_texts_whole_and_leads_back(texts, data):
    silent = [data.draw(st.integers(0, len(text))) for text in texts]
    tokens = PackedTokens.from_lists(texts, "query", silent)
    ordered = tokens.sort_by_length()
    back = torch.arange(len(texts)) if ordered.order is None else ordered.order
    assert (ordered.order is None) == (list(tokens.lengths) == sorted(tokens.lengths)) and ordered.sort_by_length() is ordered
    assert list(ordered.lengths) == sorted(tokens.lengths)
    assert [unpacked(ordered)[row] for row in back.tolist()] == texts
    assert ordered.starts.tolist() == torch.tensor([0, *ordered.lengths]).cumsum(0).tolist()
    if any(silent):
        assert [unpacked(ordered, "no_attend_mask")[row] for row in back.tolist()] == unpacked(tokens, "no_attend_mask")
        assert [sum(text) for text in unpacked(tokens, "no_attend_mask")] == silent
    else:
        assert ordered.no_attend_mask is None


def test_owners_and_positions_count_from_zero():
    tokens = PackedTokens.from_lists([[7, 8], [9], [4, 5, 6]], "document")
    assert tokens.text_indices().tolist() == [0, 0, 1, 2, 2, 2]
    assert tokens.positions().tolist() == [0, 1, 0, 0, 1, 2]


def test_special_tokens_in_a_text_are_text(tiny_model):
    reader = TextTokenizer(tiny_model)
    ids = reader.encode(["[MASK] owl", "owl"])
    assert reader.special_tokens.mask not in ids[0]
    assert ids[1] == [reader.special_tokens.beginning, *ids[1][1:-1], reader.special_tokens.separator]
    assert [reader.id_to_token(number) for number in ids[1]] == ["[CLS]", "owl", "[SEP]"]


def test_a_word_list_alone_is_a_tokenizer(tiny_model, tmp_path):
    (tmp_path / "vocab.txt").write_bytes((tiny_model / "vocab.txt").read_bytes())
    alone, full = TextTokenizer(tmp_path), TextTokenizer(tiny_model)
    assert alone.encode(["An owl, hunting!"]) == full.encode(["An owl, hunting!"]) and alone.special_tokens == full.special_tokens
    (tmp_path / "copy").mkdir()
    alone.copy_files(tmp_path / "copy")
    assert TextTokenizer(tmp_path / "copy").encode(["An owl, hunting!"]) == full.encode(["An owl, hunting!"])


def test_signs_are_read_from_the_files(tiny_model):
    reader = TextTokenizer(tiny_model)
    names = [
        reader.id_to_token(number)
        for number in (reader.special_tokens.mask, reader.special_tokens.query_marker, reader.special_tokens.document_marker)
    ]
    assert names == ["[MASK]", "[unused0]", "[unused1]"]
    assert sorted(reader.id_to_token(number) for number in reader.special_tokens.punctuation) == sorted(",.?!-':")


def test_folders_without_a_usable_tokenizer_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"no tokenizer.json or vocab.txt"):
        TextTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "?"}))
    with pytest.raises(ArtifactError, match="its tokenizer cannot be opened") as caught:
        TextTokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_precision_is_chosen_by_name_or_by_probe(monkeypatch):
    assert select_dtype("float32", "cpu") is torch.float32 and select_dtype("bfloat16", "cpu") is torch.bfloat16
    for answer, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("moeir.backbones.device.has_native_bfloat16", lambda device, answer=answer: answer)
        assert select_dtype("auto", "cpu") is expected
    with pytest.raises(UsageError, match="--dtype float16: expected auto, float32, bfloat16"):
        select_dtype("float16", "cpu")
    with pytest.raises(UsageError, match="--device gpu: expected auto, cpu, cuda"):
        select_device("gpu")
    assert select_device("cpu") == "cpu"
