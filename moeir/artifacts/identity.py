"""What is at a path while it is read, so that nobody takes the files of two products for those of one.

Readers open one file after another by path, and each may be replaced before the next. What they have read is one content if the identity
of the path was the same before the first and after the last: of a product that is a folder its manifest and its times, of a file its size
and times.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from moeir.artifacts.unfinished import MANIFEST
from moeir.errors import ArtifactError, DataError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_held: ContextVar[dict[Path, Any] | None] = ContextVar("held", default=None)  # identities when reading began


def read_identity(path: Path) -> Any:
    """The identity of a product's folder, of a file, or of all files of another folder; None if there is none of these, or no access."""
    try:
        facts, manifest = path.stat(), path / MANIFEST
        if manifest.is_file():
            return manifest.read_bytes(), (facts.st_ino, manifest.stat().st_mtime_ns), facts.st_ctime_ns, facts.st_mtime_ns
        if path.is_file():
            return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
        return {file: read_identity(file) for file in path.rglob("*") if file.is_file()} or None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _find_changed(held: Mapping[Path, Any]) -> Path | None:
    for path, before in held.items():
        after = read_identity(path)
        # what is put beside a manifest changes both times of the folder; to move the folder away and back changes one
        has_note = _is_product(before) and _is_product(after) and before[-1] != after[-1]
        if before[:2] != after[:2] if has_note else before != after:
            return path
    return None


def _is_product(identity: Any) -> bool:
    return isinstance(identity, tuple) and isinstance(identity[0], bytes)


def hold(path: Path) -> None:
    """Note the identity of what is read from now on, if somebody will compare it, and it is not noted already."""
    if (held := _held.get()) is not None and path not in held:
        held[path] = read_identity(path)


def confirm_held() -> None:
    """Compare what is held: DataError for a file, ArtifactError for a product, that was replaced or has changed."""
    if (path := _find_changed(held := _held.get() or {})) is not None:
        error = ArtifactError if _is_product(held[path]) else DataError
        raise error(f"{path}: was replaced, or has changed, while it was read; run the command again")


def release_held(*, products_only: bool) -> None:
    """Compare what is held for the last time: all of it, or the products, have been read, and may be replaced from now on."""
    confirm_held()
    held = _held.get() or {}
    for path in [path for path, own in held.items() if not products_only or _is_product(own)]:
        del held[path]


@contextmanager
def hold_sources() -> Iterator[None]:
    """Let the block hold what it reads; after an error, which a change may have caused, it is compared."""
    held = dict[Path, Any]()
    token = _held.set(held)
    try:
        yield
    except Exception:
        given_up = [path for path in held if not path.exists() and any(part.endswith(".partial") for part in path.parts)]
        for path in given_up:  # a cache in an output
            del held[path]
        confirm_held()
        raise
    finally:
        _held.reset(token)


def read_unchanged(read: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a reader of products, whose path or paths are its first argument: it reads again if one was replaced in the meantime."""
    first_name = next(iter(inspect.signature(read).parameters))

    @functools.wraps(read)
    def read_again(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        argument: Any = args[0] if args else keywords.get(first_name, ())
        paths = [Path(argument)] if isinstance(argument, str | Path) else list(map(Path, argument))
        while True:
            # a folder that is no product is not compared: shards are products, each with a reader of its own
            outer, held = _held.get(), {path: own for path in paths if not isinstance(own := read_identity(path), dict)}
            token = _held.set(held)
            try:
                result = read(*args, **keywords)
            except Exception:
                if _find_changed(held) is None:
                    raise
            else:
                if _find_changed(held) is None:
                    if outer is not None:
                        outer |= held | outer  # what was noted earlier stays
                    return result
            finally:
                _held.reset(token)

    return read_again
