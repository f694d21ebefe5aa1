"""Atomic writes: a product is written to a partial path, synced and renamed, so its name never has an incomplete product.

Only this folder calls fsync, rename and flock.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from moeir.artifacts.manifests import MANIFEST, build_manifest, diff_records, manifest_path, read_manifest, serialize_manifest
from moeir.artifacts.unfinished import RESUME as RESUME
from moeir.artifacts.unfinished import backup_path, read_json, record_path
from moeir.artifacts.unfinished import final_path as final_path
from moeir.artifacts.unfinished import partial_path as partial_path
from moeir.artifacts.unfinished import resume_path as resume_path
from moeir.errors import ArtifactError, MoeirError, OutputInUse, UsageError

TOKEN_CACHE = "tokens"  # within resume/: caches named by their inputs, so that runs with other settings can reuse them
LINKED = "linked files"
DISCARDED = f"{RESUME}.forgotten"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2


@contextmanager
def atomic_output(path: Path, kind: str, record: Mapping[str, Any], *, force: bool, folder: bool) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a partial path next to `path` and a dictionary for counts; then write the manifest, fsync and rename.

    `record` has the stage, settings and source digests: unfinished work of the same record is yielded again to be resumed. `counts` may
    have the manifest entries of linked files as `LINKED`.
    """
    partial = partial_path(path)
    record_file = record_path(path)
    with _make_parents(path), _lock(path):
        _recover(path)
        _settle_manifest(path, partial)
        _discard_stale_work(path, partial, read_json(record_file), record, force=force)
        began, counts = time.time(), dict[str, Any]()
        try:
            write_text_atomically(record_file, json.dumps(record))
            if folder:
                partial.mkdir(exist_ok=True)
                _remove(_new_path(partial / MANIFEST))  # of an interrupted commit; the next manifest would list it
            _fsync(path.parent)
            yield partial, counts
            manifest = build_manifest(partial, kind, record, path.name, (RESUME, DISCARDED), counts.pop(LINKED, None))
            _commit(path, partial, {**manifest, "counts": counts, "seconds": round(time.time() - began, 3)})
        except BaseException as problem:
            _recover(path)
            is_expected = isinstance(problem, MoeirError | OSError)  # a user's error or a disk's; any other failure may be resumed
            if not _has_resumable_state(partial) and (is_expected or not (partial / RESUME / TOKEN_CACHE).exists()):
                backups = [] if is_expected else _backup_paths(path)
                _remove(partial, resume_path(partial), record_file, _new_path(record_file), *backups)
            if isinstance(problem, OSError) and problem.filename is None and problem.errno is not None:
                problem.filename = str(path)
            raise
        _remove(resume_path(partial), record_file)


def clean_leftovers(path: Path, record: Mapping[str, Any]) -> None:
    """Remove what a kill right after the rename left next to a product; `record` is that of the existing product."""
    record_file, partial = record_path(path), partial_path(path)
    is_same = read_json(record_file) == dict(record)
    leftovers = [partial, resume_path(partial), *_backup_paths(path), record_file] if is_same else []
    if leftovers or _lock_path(path).exists():
        with contextlib.suppress(ArtifactError, OSError), _lock(path):  # another process rebuilds it, or the folder is read-only
            if is_same:
                _settle_manifest(path, partial)
            _remove(*leftovers)


def _discard_stale_work(path: Path, partial: Path, unfinished: dict[str, Any] | None, record: Mapping[str, Any], *, force: bool) -> None:
    if _has_resumable_state(partial) and unfinished and not force:
        if unfinished == dict(record):
            return
        differences = ", ".join(sorted(diff_records(unfinished, record)))
        raise UsageError(f"{path}: unfinished work of other settings ({differences}); repeat those to finish it, or --force to start over")
    if not force and (partial / RESUME / TOKEN_CACHE).is_dir():
        others = [path for folder in (partial, partial / RESUME) for path in folder.iterdir()]
        _remove(*(path for path in others if path not in (partial / RESUME, partial / RESUME / TOKEN_CACHE)))
        _fsync(partial / RESUME)
        _fsync(partial)
    elif partial.exists() or resume_path(partial).exists():
        _remove(partial, resume_path(partial))
        _fsync(partial.parent)  # before the new record: it must not be that of the old state after a power cut


def _has_resumable_state(partial: Path) -> bool:
    """Whether an interrupted stage left a state to resume from, other than token caches."""
    resume = resume_path(partial)
    for backup in resume.glob(".*.old"):
        _recover(backup.with_name(backup.name.removeprefix(".").removesuffix(".old")))
    files = (file for file in resume.rglob("*") if file.relative_to(resume).parts[0] != TOKEN_CACHE)
    return any(file.is_file() and file.stat().st_size for file in files)


def _commit(path: Path, partial: Path, manifest: dict[str, Any]) -> None:
    text = serialize_manifest(manifest)
    if partial.is_dir():
        for file in sorted(partial.rglob("*")):
            _fsync(file)
        write_text_atomically(partial / MANIFEST, text)
        _drop_resume(partial)
        _fsync(partial)
        _swap_into_place(partial, path)
    else:
        _fsync(partial)
        manifest_file = manifest_path(path)
        has_earlier, backup = manifest_file.exists(), backup_path(manifest_file)
        try:
            if has_earlier:
                write_text_atomically(backup, manifest_file.read_text(encoding="utf-8"))
                _fsync(path.parent)
            write_text_atomically(manifest_file, text)  # until `partial` has its name, readers take the backup
            _fsync(path.parent)
            os.replace(partial, path)
        except BaseException:
            if partial.exists() and not has_earlier:
                manifest_file.unlink(missing_ok=True)
            _settle_manifest(path, partial)  # a full disk has room for a rename
            raise
        _fsync(path.parent)
        _remove(backup)


def _settle_manifest(path: Path, partial: Path) -> None:
    """Give the file at `path` its manifest back if its successor at `partial` was not renamed, else remove the copy of that manifest."""
    backup = backup_path(manifest_path(path))
    if backup.exists() and partial.exists():
        os.replace(backup, manifest_path(path))
        _fsync(path.parent)
    else:
        _remove(backup)


def _drop_resume(partial: Path) -> None:
    """Drop the resume state at once: rename it to a name that is never resumed, then delete it."""
    _remove(partial / DISCARDED)
    if (partial / RESUME).exists():
        os.rename(partial / RESUME, partial / DISCARDED)
        _fsync(partial)  # no power cut may leave a part of it under its name
        _remove(partial / DISCARDED)


def _swap_into_place(partial: Path, path: Path) -> None:
    """Replace `path` by `partial`, in one step where the system supports it."""
    backup = backup_path(path)
    _remove(backup)
    if not path.exists():
        os.rename(partial, path)
    elif _exchange_names(partial, path):
        os.rename(partial, backup)
    else:
        os.rename(path, backup)
        os.rename(partial, path)
    _fsync(path.parent)
    _remove(backup)


def _backup_paths(path: Path) -> list[Path]:
    """Those of a product and of the manifest beside it."""
    return [backup_path(path), backup_path(manifest_path(path))]


def _exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names with renameat2; False if the system or file system does not support it."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and bool(call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _recover(path: Path) -> None:
    """Restore the backup if a kill between two renames left only that."""
    if backup_path(path).exists() and not path.exists():
        os.rename(backup_path(path), path)


@contextmanager
def _make_parents(path: Path) -> Iterator[None]:
    """Make the folders above a path; if the block fails, those that were made and are empty are removed again."""
    missing = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    try:
        make_folder(path.parent)
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # it holds what is to be resumed, or what another process writes
                folder.rmdir()
        raise


def _open_lock(lock: Path) -> IO[str]:
    try:
        return open(lock, "w", encoding="utf-8")
    except FileNotFoundError:  # another process has failed and removed the folders that it had made
        make_folder(lock.parent)
        return open(lock, "w", encoding="utf-8")


def wait_for_writer(path: Path) -> None:
    """Wait until no process is writing `path`."""
    with contextlib.suppress(FileNotFoundError), open(_lock_path(path), encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    lock = _lock_path(path)
    refusal = OutputInUse(f"{path}: another process is writing it; wait for it, or write elsewhere")
    with _open_lock(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
            raise refusal
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def check_overwrite(path: Path, record: Mapping[str, Any], *, force: bool, flag: str = "--output") -> None:
    """UsageError if `path`, which `flag` names, exists and may not be replaced."""
    if path.is_symlink() and (not path.exists() or (path.is_dir() and not any(path.iterdir()))):
        raise UsageError(f"{path}: a symbolic link to nothing, or to an empty folder; name what it leads to as {flag}")
    if not path.exists():
        return
    if not manifest_path(path).is_file():
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            return
        raise UsageError(f"{path}: exists and was not made by moeir; move it away or choose another {flag}")
    if not force:
        manifest = read_manifest(path)
        differences = diff_records(manifest, record)
        reason = f"made with other settings or sources ({', '.join(sorted(differences))})"
        if "stage" in differences:
            reason = f"made by moeir {manifest.get('stage')}"
        elif not differences:
            reason = "and may differ from what these settings and sources make"
        raise UsageError(f"{path}: exists, {reason}; --force replaces it")


def write_text_atomically(path: Path, text: str) -> None:
    """Write a small file atomically: partial file, fsync, rename."""
    partial = _new_path(path)
    try:
        partial.write_text(text, encoding="utf-8")
        _fsync(partial)
        os.replace(partial, path)
    except OSError:  # a full disk, say
        partial.unlink(missing_ok=True)
        raise


def _new_path(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def replace_folder(partial: Path, path: Path) -> None:
    """Replace an inner folder (a saved training state) by a finished one."""
    for file in (*sorted(partial.rglob("*")), partial):
        _fsync(file)
    _swap_into_place(partial, path)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if missing, and sync their names to disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _fsync(path.parent)


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name, in folders that are made if missing; a copy where the file system has no links."""
    make_folder(target.parent)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sync_file(path: Path) -> None:
    """Sync the content and the name of a file to disk."""
    _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
