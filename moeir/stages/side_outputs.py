"""Optional side outputs of a stage, checked and written atomically like its main output."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moeir.artifacts import atomic_write
from moeir.errors import UsageError
from moeir.stages.base import STREAM, Stage, build_provenance


def check_side_outputs(stage: Stage) -> None:
    """UsageError if a side output would replace a source or another output; `run_stage` checks what exists."""
    product = stage.product()
    claimed = {} if product is None or product[0] == STREAM else {product[0].resolve(): "--output"}
    for flag, path in stage.side_products().items():
        if path == STREAM or path.is_dir():
            raise UsageError(f"{flag} {path}: expected a file to write")
        if (other_flag := claimed.setdefault(path.resolve(), flag)) != flag:
            raise UsageError(f"{flag} {path}: {other_flag} writes there; name another file")
        if product is not None and path.resolve().is_relative_to(product[0].resolve()):
            raise UsageError(f"{flag} {path}: is inside the folder that --output replaces; write it elsewhere")
        for setting, source in stage.sources():
            if source != STREAM and path.resolve() == source.resolve():
                raise UsageError(f"{flag} {path}: would replace what {setting.flag} reads; write elsewhere")


@contextmanager
def write_side_output(stage: Stage, path: Path, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The partial path and the counts of a side output, renamed to `path` when the block ends without an error."""
    with atomic_write.atomic_output(path, kind, build_provenance(stage), force=True, folder=False) as partial:
        yield partial
