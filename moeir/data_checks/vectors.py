"""Findings of encodings: faults of their rows, and ids that repeat or differ from those of the corpus."""

from moeir.data_checks.findings import Findings


def add_row_fault(findings: Findings, file: str, ids: list[str], row: int | None, kind: str, message: str) -> None:
    """Add a fault that `Representation.check_rows` reports about a text, or about all if `row` is None."""
    if row is None:
        findings.add(file, None, kind, message)
    else:
        findings.add(file, row + 1, kind, f"text {ids[row]!r}: {message}")


def check_ids(file: str, ids: list[str], findings: Findings, documents: set[str] | None) -> None:
    """Check the ids of encodings: each once, and equal to those of the corpus if it is given."""
    seen: set[str] = set()
    for number, document in enumerate(ids, 1):
        if document in seen:
            findings.add(file, number, "duplicate-id", f"{document!r} occurs on an earlier line too")
        elif documents is not None and document not in documents:
            findings.add(file, number, "unknown-document", f"{document!r} is not in the corpus")
        seen.add(document)
    for document in documents or ():
        if document not in seen:
            findings.add(file, None, "missing-document", f"{document!r} of the corpus is not encoded")
