"""Searcher: the indexes of all experts with the checkpoint that encodes queries; fusion by a formula or by the exact sum."""

from typing import Any

from moeir import variants
from moeir.errors import UsageError
from moeir.values import parse_value

EXACT_SUM = "exact-sum"


def parse_exact_sum(spec: str) -> tuple[bool, dict[str, Any]]:
    """Whether a spec names the exact sum, which needs the engines, and its options; UsageError for an unknown spec."""
    parsed = variants.parse_spec(spec)
    if parsed.name.replace("_", "-") != EXACT_SUM:
        variants.resolve_spec("fusion", spec)
        return False, {}
    for key in dict(parsed.options):
        if key != "deepen":
            raise UsageError(f"{spec}: {EXACT_SUM} has no option {key!r}; it has deepen=true")
    return True, {key: parse_value(value, "bool", f"{spec}: {key}") for key, value in parsed.options}
