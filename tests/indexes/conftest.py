"""Fixtures of engines' tests."""

import pytest

from moeir.indexes import postings


@pytest.fixture(scope="module", params=["plain", "compiled"])
def form(request):
    """Search over postings by numpy, and by compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            patch.setattr(postings, "PLAIN_ENTRIES", -1)
        yield request.param
