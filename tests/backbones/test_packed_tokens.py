"""Packed tokens."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.backbones.packed_tokens import PackedTokens

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
