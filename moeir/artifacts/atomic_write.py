"""Atomic writes: a product is written to a partial path, synced and renamed, so its name never has an incomplete product.

Only this folder calls fsync, rename and flock.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

from moeir.artifacts.identity import confirm_held
from moeir.artifacts.manifests import (
    MANIFEST,
    build_manifest,
    diff_records,
    find_versions,
    list_files,
    manifest_path,
    read_manifest,
    serialize_manifest,
)
from moeir.artifacts.unfinished import RESUME as RESUME
from moeir.artifacts.unfinished import backup_path, is_locked, lock_path, read_record, record_path
from moeir.artifacts.unfinished import final_path as final_path
from moeir.artifacts.unfinished import partial_path as partial_path
from moeir.artifacts.unfinished import resume_path as resume_path
from moeir.errors import ArtifactError, MoeirError, OutputInUse, UsageError

TOKEN_CACHE = "tokens"  # within resume/: caches named by their inputs, so that runs with other settings can reuse them
LINKED = "linked files"
VERSIONS = "versions"  # in a record and a manifest: of the packages that the work is done with
DISCARDED = f"{RESUME}.forgotten"
RECORD_BEGIN = b'{"stage": '
MAX_NAME_BYTES = 255 - len(f"..{MANIFEST}.old.new")  # of an output; the longest name of a file beside it has what is subtracted
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2
log = logging.getLogger(__name__)


@contextmanager
def atomic_output(
    path: Path, kind: str, record: Mapping[str, Any], *, force: bool, folder: bool, discard: bool = False
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a partial path next to `path` and a dictionary for counts; then write the manifest, fsync and rename.

    `record` has the stage, settings and source digests: unfinished work of the same record is yielded again to be resumed. It may have the
    `VERSIONS` of earlier steps of the work, and `counts` the manifest entries of linked files as `LINKED`. With `discard` what is at `path`
    stays, and what was written is removed. What no manifest lists is never replaced: if it comes while the block runs, the output gets a
    free name, and ArtifactError says which.
    """
    partial = partial_path(path)
    record_file = record_path(path)
    with _make_parents(path), _lock(path):
        _check_helpers(path)
        _recover(path)
        if not discard:
            _check_replaceable(path, folder=folder)
        _retire(path)
        _settle_manifest(path, partial)
        unfinished = read_record(path) or {}
        earlier_versions = unfinished.pop(VERSIONS, {})
        is_resumed = _discard_stale_work(path, partial, unfinished, record, force=force)
        versions = _join_versions(path, earlier_versions if is_resumed else record.get(VERSIONS, {}), find_versions())
        existed, began, counts = os.path.lexists(path), time.time(), dict[str, Any]()
        try:
            write_text_atomically(record_file, json.dumps({**record, VERSIONS: versions}))
            if folder:
                partial.mkdir(exist_ok=True)
                _remove(_new_path(partial / MANIFEST))  # of an interrupted commit; the next manifest would list it
            _fsync(path.parent)
            yield partial, counts
            confirm_held()
            if not discard:
                is_taken = os.path.lexists(path) > existed or bool(list_foreign(path, folder=folder))
                target = _find_free_path(path, "new") if is_taken else path
                manifest = build_manifest(partial, kind, record, target.name, (RESUME, DISCARDED), counts.pop(LINKED, None))
                manifest[VERSIONS] |= {name: version for name, version in versions.items() if name in manifest[VERSIONS]}
                _commit(target, partial, {**manifest, "counts": counts, "seconds": round(time.time() - began, 3)})
                if is_taken:
                    raise ArtifactError(f"{path}: something else was put there meanwhile, and stays; the finished output is {target}")
        except BaseException as problem:
            _recover(path)
            is_expected = isinstance(problem, MoeirError | OSError)  # a user's error or a disk's; any other failure may be resumed
            if not _has_resumable_state(partial) and (is_expected or not (partial / RESUME / TOKEN_CACHE).exists()):
                if not is_expected:
                    _retire(path)
                    _remove(backup_path(manifest_path(path)))
                _remove_unfinished(path)
            if isinstance(problem, OSError) and problem.filename is None and problem.errno is not None:
                problem.filename = str(path)
            raise
        try:
            _remove_unfinished(path)
        except OSError as problem:
            log.warning("%s: is finished, but a file beside it cannot be removed: %s: %s", path, problem.filename, problem.strerror)


def check_writable(path: Path, record: Mapping[str, Any], *, force: bool, folder: bool) -> None:
    """Refuse what `atomic_output` would refuse, without a change of any file."""
    if is_locked(path):
        raise _refuse_in_use(path)
    _check_helpers(path)
    _check_replaceable(path, folder=folder)
    _can_resume(path, {name: value for name, value in (read_record(path) or {}).items() if name != VERSIONS}, record, force=force)
    above = next(parent for parent in path.parents if os.path.lexists(parent))
    _check_folder(above)
    if not os.access(above, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(above))


def list_foreign(path: Path, *, folder: bool) -> list[Path]:
    """What is where a product would be written and was not made by moeir: neither in a manifest of ours nor that manifest."""
    manifest_file, names = manifest_path(path), list_files(manifest_path(path))
    if names is None and not folder and os.path.lexists(manifest_file):
        return [manifest_file]
    if path.is_symlink() or (names is None and path.exists() and not _is_empty(path)):
        return [path]
    files = {path / name for name in (*(names or ()), MANIFEST)}
    own = files.union(*(file.parents for file in files))
    return sorted(entry for entry in path.rglob("*") if entry.is_symlink() or entry not in own)


def _check_replaceable(path: Path, *, folder: bool, flag: str = "path") -> None:
    """UsageError if a product cannot be written to `path` without the loss of something else."""
    if path.exists() and path.is_dir() != folder:
        raise UsageError(f"{path}: is a {'file' if folder else 'folder'}, not a {'folder' if folder else 'file'}; choose another {flag}")
    if foreign := list_foreign(path, folder=folder):
        more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
        is_inside = foreign[0] not in (path, manifest_path(path))
        problem = f"is no file of the product {path}, or was edited" if is_inside else "exists and was not made by moeir"
        raise UsageError(f"{foreign[0]}{more}: {problem}; move it away or choose another {flag}")


def _check_helpers(path: Path) -> None:
    """UsageError if a name beside `path` that is needed while it is written is that of a file or folder of somebody else."""
    partial, record, backup = partial_path(path), record_path(path), backup_path(path)
    manifest_copy, has_record = backup_path(_manifest_beside(path)), read_record(path) is not None
    is_ours = dict.fromkeys(_list_unfinished(path), has_record) | {
        partial: has_record or _is_empty(partial),
        record: has_record,
        _new_path(record): _begins_as_record(_new_path(record)),
        backup: list_files(backup / MANIFEST) is not None or _is_empty(backup),
        manifest_copy: list_files(manifest_copy) is not None,
        lock_path(path): _is_lock(lock_path(path)),
    }
    for helper, is_own in is_ours.items():
        if os.path.lexists(helper) and (helper.is_symlink() or not is_own):
            raise UsageError(f"{helper}: was not made by moeir, which needs this name to write {path}; move it away, or write elsewhere")


def _list_unfinished(path: Path) -> list[Path]:
    """The paths beside `path` that only unfinished work has, besides its record."""
    partial, manifest_file = partial_path(path), _manifest_beside(path)
    return [partial.with_name(f"{partial.name}.{RESUME}"), partial, *map(_new_path, (manifest_file, backup_path(manifest_file)))]


def _manifest_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{MANIFEST}")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _begins_as_record(file: Path) -> bool:
    """Whether a file is what a kill or a power cut left of a record."""
    return file.is_file() and RECORD_BEGIN.startswith(file.read_bytes()[: len(RECORD_BEGIN)].rstrip(b"\0"))


def _find_free_path(path: Path, word: str) -> Path:
    """The first of NAME.WORD, NAME.WORD-2, … that does not exist."""
    others = (path.with_name(f"{path.name}.{word}{f'-{number}' if number > 1 else ''}") for number in count(1))
    return next(other for other in others if not os.path.lexists(other) and not os.path.lexists(_manifest_beside(other)))


def _remove_unfinished(path: Path, *, has_successor: bool = False) -> None:
    """Remove unfinished work and then, when that is on the disk, its record, which says that it is ours."""
    unfinished, record = [one for one in _list_unfinished(path) if os.path.lexists(one)], record_path(path)
    _remove(*unfinished)
    if unfinished:
        with contextlib.suppress(OSError):
            _fsync(path.parent)
    if not has_successor:
        _remove(_new_path(record), record)


def _retire(path: Path) -> None:
    """Remove the folder that was replaced at `path`: the files of its manifest. What is not removed gets a visible name, with a warning."""
    backup = backup_path(path)
    own = {backup / name for name in list_files(backup / MANIFEST) or ()}
    try:
        for root, folders, names in os.walk(backup, topdown=False):
            os.chmod(root, 0o700)
            _remove(*(file for name in names if (file := Path(root, name)) in own))
            for folder in folders:
                with contextlib.suppress(OSError):  # it holds something else
                    os.rmdir(Path(root, folder))
        if backup.is_dir() and {entry.name for entry in backup.iterdir()} <= {MANIFEST}:
            _fsync(backup)  # the manifest goes last: it says whose the rest is
            _remove(backup / MANIFEST)
            backup.rmdir()
    except OSError as problem:
        log.warning("%s: %s", problem.filename, problem.strerror)
    if os.path.lexists(backup):
        target = _find_free_path(path, "old")
        os.rename(backup, target)
        log.warning("%s: what it held before could not be removed whole; what remains is %s", path, target)


def clean_leftovers(path: Path, record: Mapping[str, Any]) -> None:
    """Remove what a kill right after the rename left next to a product; `record` is that of the existing product."""
    is_same = {**(read_record(path) or {}), VERSIONS: None} == {**record, VERSIONS: None}
    if is_same or lock_path(path).exists():
        with contextlib.suppress(MoeirError, OSError), _lock(path):  # another process rebuilds it, or the folder is read-only
            if is_same:
                _check_helpers(path)
                _settle_manifest(path, partial_path(path))
                _retire(path)
                _remove_unfinished(path)


def _discard_stale_work(path: Path, partial: Path, unfinished: Mapping[str, Any], record: Mapping[str, Any], *, force: bool) -> bool:
    """Whether unfinished work is resumed; other work is removed."""
    if _can_resume(path, unfinished, record, force=force):
        for backup in resume_path(partial).glob(".*.old"):
            _recover(backup.with_name(backup.name.removeprefix(".").removesuffix(".old")))
        return True
    if not force and (partial / RESUME / TOKEN_CACHE).is_dir():
        others = [path for folder in (partial, partial / RESUME) for path in folder.iterdir()]
        _remove(*(path for path in others if path not in (partial / RESUME, partial / RESUME / TOKEN_CACHE)))
        _fsync(partial / RESUME)
        _fsync(partial)
    else:
        _remove_unfinished(path, has_successor=True)  # before the new record: it must not be that of the old state after a power cut
    return False


def _can_resume(path: Path, unfinished: Mapping[str, Any], record: Mapping[str, Any], *, force: bool) -> bool:
    """Whether there is unfinished work to be resumed; UsageError if it has other settings."""
    if force or not unfinished or not _has_resumable_state(partial_path(path)):
        return False
    if unfinished != dict(record):
        differences = ", ".join(sorted(diff_records(unfinished, record)))
        raise UsageError(f"{path}: unfinished work of other settings ({differences}); repeat those to finish it, or --force to start over")
    return True


def _join_versions(path: Path, earlier: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, str]:
    """The versions of packages; where work is resumed that others have begun, warn, and list them all."""
    changed = [name for name, version in versions.items() if earlier.get(name, version).split(", ")[-1] != version]
    if changed:
        steps = ", ".join(f"{name} {earlier[name]}, now {versions[name]}" for name in changed)
        log.warning("%s: was begun with %s: its numbers may be those of neither; --force starts over", path, steps)
    return {**versions, **earlier, **{name: f"{earlier[name]}, {versions[name]}" for name in changed}}


def _has_resumable_state(partial: Path) -> bool:
    """Whether an interrupted stage left a state to resume from, other than token caches."""
    resume = resume_path(partial)
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
        _retire(path)
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
        with contextlib.suppress(OSError):  # it is the next writer's to remove
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
    """Replace `path` by `partial`, in one step where the system supports it; what was there becomes the backup."""
    backup = backup_path(path)
    if not path.exists():
        os.rename(partial, path)
    elif _exchange_names(partial, path):
        os.rename(partial, backup)
    else:
        os.rename(path, backup)
        os.rename(partial, path)
    _fsync(path.parent)


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
    if lock.is_dir():
        raise UsageError(f"{lock}: was not made by moeir, which needs this name; move it away, or write elsewhere")
    try:
        return open(lock, "a", encoding="utf-8")
    except FileNotFoundError:  # another process has failed and removed the folders that it had made
        make_folder(lock.parent)
        return open(lock, "a", encoding="utf-8")


def wait_for_writer(path: Path) -> None:
    """Wait until no process is writing `path`."""
    with contextlib.suppress(FileNotFoundError), open(lock_path(path), encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _refuse_in_use(path: Path) -> OutputInUse:
    return OutputInUse(f"{path}: another process is writing it; wait for it, or write elsewhere")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    lock, refusal = lock_path(path), _refuse_in_use(path)
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
            if _is_lock(lock):
                lock.unlink(missing_ok=True)


def _is_lock(lock: Path) -> bool:
    return lock.is_file() and not lock.is_symlink() and lock.stat().st_size == 0


def check_overwrite(path: Path, record: Mapping[str, Any], *, force: bool, flag: str = "--output") -> None:
    """UsageError if `path`, which `flag` names, exists and may not be replaced."""
    if path.is_symlink():
        raise UsageError(f"{path}: a symbolic link, which is not replaced; name what it leads to as {flag}, {os.readlink(path)}")
    _check_replaceable(path, folder=path.is_dir(), flag=flag)
    if not path.exists() or _is_empty(path):
        return
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
    _remove(backup_path(path))
    _swap_into_place(partial, path)
    _remove(backup_path(path))


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise UsageError(f"{path}: is no folder, so nothing can be written below it; write elsewhere")


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if missing, and sync their names to disk."""
    if not path.is_dir():
        if os.path.lexists(path):
            _check_folder(path)
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
