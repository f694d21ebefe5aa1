"""Optional side outputs of a stage, checked and written atomically like its main output."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moeir.artifacts import atomic_write, manifests
from moeir.errors import UsageError
from moeir.settings import to_dict
from moeir.stages.base import STREAM, Stage, is_stream


def check_side_outputs(stage: Stage, flags: Mapping[str, Path | None]) -> None:
    """UsageError if a side output would replace a source, a file that moeir did not make, or another output."""
    outputs = {flag: path for flag, path in flags.items() if path is not None}
    product = stage.product()
    claimed = {} if product is None or product[0] == STREAM else {product[0].resolve(): "--output"}
    for flag, path in outputs.items():
        if path == STREAM or path.is_dir():
            raise UsageError(f"{flag} {path}: expected a file to write")
        if (other_flag := claimed.setdefault(path.resolve(), flag)) != flag:
            raise UsageError(f"{flag} {path}: {other_flag} writes there; name another file")
        if product is not None and path.resolve().is_relative_to(product[0].resolve()):
            raise UsageError(f"{flag} {path}: is inside the folder that --output replaces; write it elsewhere")
        for setting, source in stage.sources():
            if source != STREAM and path.resolve() == source.resolve():
                raise UsageError(f"{flag} {path}: would replace what {setting.flag} reads; write elsewhere")
        if path.exists() and not manifests.manifest_path(path).is_file():
            raise UsageError(f"{flag} {path}: exists and was not made by moeir; move it away or choose another name")


@contextmanager
def write_side_output(stage: Stage, path: Path, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The partial path and the counts of a side output, renamed to `path` when the block ends without an error."""
    provenance: dict[str, Any] = {"stage": stage.name, "settings": to_dict(stage, results_only=True), "sources": {}}
    for setting, source in stage.sources():
        digest = "stdin" if is_stream(source) else manifests.compute_digest(source)
        provenance["sources"].setdefault(setting.flag.removeprefix("--"), []).append(digest)
    with atomic_write.atomic_output(path, kind, provenance, force=True, folder=False) as partial:
        yield partial
