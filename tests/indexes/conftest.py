"""Fixtures of engines' tests."""

import pytest

from moeir.indexes import postings, vector_store


@pytest.fixture(scope="module", params=["plain", "compiled"])
def form(request):
    """Search by numpy or torch alone, as for little work, and by compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            patch.setattr(postings, "PLAIN_ENTRIES", -1)
            patch.setattr(vector_store, "PLAIN_NUMBERS", -1)
        yield request.param
