"""How search makes one list of several: by a formula over the lists, or by the exact sum, which needs the engines."""

from typing import Any

from moeir import variants
from moeir.errors import UsageError
from moeir.values import convert

EXACT_SUM = "exact-sum"


def exact_sum(spec: str) -> tuple[bool, dict[str, Any]]:
    """Whether a spec means the exact sum, which needs the engines, and the options it gives it; UsageError if it means nothing."""
    parsed = variants.parse(spec)
    if parsed.name.replace("_", "-") != EXACT_SUM:
        variants.resolve("fusion", spec)
        return False, {}
    for key in dict(parsed.options):
        if key != "deepen":
            raise UsageError(f"{spec}: {EXACT_SUM} has no option {key!r}; it has deepen=true")
    return True, {key: convert(value, "bool", f"{spec}: {key}") for key, value in parsed.options}
