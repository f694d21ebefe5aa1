"""Atomic writes: a product is written in a folder beside its path, synced and renamed, so its name never has an incomplete product.

Only this folder calls fsync, rename and flock.
"""

import ctypes
import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from moeir.artifacts.identity import confirm_held
from moeir.artifacts.manifests import (
    MANIFEST,
    build_manifest,
    compute_sha256,
    diff_records,
    find_versions,
    list_files,
    manifest_path,
    read_manifest,
    serialize_manifest,
)
from moeir.artifacts.unfinished import RESUME as RESUME
from moeir.artifacts.unfinished import WorkFolder, read_json
from moeir.artifacts.unfinished import final_path as final_path
from moeir.artifacts.unfinished import partial_path as partial_path
from moeir.artifacts.unfinished import resume_path as resume_path
from moeir.errors import ArtifactError, MoeirError, OutputInUse, UsageError

TOKEN_CACHE = "tokens"  # within resume/: caches named by their inputs, so that runs with other settings can reuse them
VERSIONS = "versions"  # in a record and a manifest: of the packages that the work is done with
DISCARDED = f"{RESUME}.forgotten"
MAX_NAME_BYTES = 255 - len(f".{MANIFEST}.new")  # of an output; the longest name of a file beside it has what is subtracted
LOCK_ATTEMPTS, SECONDS_BETWEEN = 10, 0.01  # a reader holds the lock for a moment to see whether there is a writer
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2
log = logging.getLogger(__name__)


@contextmanager
def atomic_output(
    path: Path, kind: str, record: Mapping[str, Any], *, force: bool, folder: bool, discard: bool = False
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a partial path for `path` and a dictionary for counts; then write the manifest, fsync and rename.

    `record` has the stage, settings and source digests: unfinished work of the same record is yielded again to be resumed. It may have the
    `VERSIONS` of earlier steps of the work. With `discard` what is at `path` stays, and what was written is removed. What no manifest
    lists is never replaced: if it comes while the block runs, the output gets a free name, and ArtifactError says which.
    """
    with _open_work(path) as work:
        if not discard:
            _check_replaceable(path, folder=folder)
        versions, existed, began, counts = _begin(work, record, force=force), os.path.lexists(path), time.time(), dict[str, Any]()
        try:
            write_text_atomically(work.record, json.dumps({**record, VERSIONS: versions}))
            _fsync(work.folder)
            if folder:
                work.partial.mkdir(exist_ok=True)
                _remove(_new_path(work.partial / MANIFEST))  # of an interrupted commit; the next manifest would list it
                _fsync(work.folder)
            yield work.partial, counts
            confirm_held()
            if not discard:
                is_taken = os.path.lexists(path) > existed or bool(list_foreign(path, folder=folder))
                target = _find_free_path(path, "new") if is_taken else path
                manifest = build_manifest(work.partial, kind, record, target.name, (RESUME,))
                manifest[VERSIONS] |= {name: version for name, version in versions.items() if name in manifest[VERSIONS]}
                _commit(work, target, {**manifest, "counts": counts, "seconds": round(time.time() - began, 3)})
                if is_taken:
                    raise ArtifactError(f"{path}: something else was put there meanwhile, and stays; the finished output is {target}")
        except BaseException as problem:
            is_unsynced = isinstance(problem, OSError) and work.old.exists() and path.exists()
            if not is_unsynced:  # else what was replaced stays, as a power cut may give it its name back
                _recover(work, raise_errors=False)
                is_expected = isinstance(problem, MoeirError | OSError)  # a user's error or a disk's; any other failure may be resumed
                if not _has_resumable_state(work) and (is_expected or not (work.partial / RESUME / TOKEN_CACHE).exists()):
                    _remove_work(work, raise_errors=False)
            if isinstance(problem, OSError) and problem.filename is None and problem.errno is not None:
                problem.filename = str(path)
            raise
        try:
            _remove_work(work)
        except OSError as problem:
            file = problem.filename or work.folder
            log.warning("%s: is finished, but a file beside it cannot be removed: %s: %s", path, file, problem.strerror)


def check_writable(path: Path, record: Mapping[str, Any], *, force: bool, folder: bool) -> None:
    """Refuse what `atomic_output` would refuse, without a change of any file."""
    work = WorkFolder(path)
    if work.is_locked():
        raise _refuse_in_use(path)
    _check_owner(work)
    _check_replaceable(path, folder=folder)
    _can_resume(work, record, force=force)
    above = next(parent for parent in path.parents if os.path.lexists(parent))
    _check_folder(above)
    if not os.access(above, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(above))


def check_overwrite(path: Path, record: Mapping[str, Any], *, force: bool, flag: str = "--output") -> None:
    """UsageError if `path`, which `flag` names, exists and may not be replaced."""
    if path.is_symlink():
        raise UsageError(f"{path}: a symbolic link, which is not replaced; name what it leads to as {flag}, {os.readlink(path)}")
    _check_replaceable(path, folder=path.is_dir(), flag=flag)
    if not force and path.exists() and not _is_empty(path):
        manifest = read_manifest(path)
        differences = diff_records(manifest, record)
        reason = f"made with other settings or sources ({', '.join(sorted(differences))})"
        if "stage" in differences:
            reason = f"made by moeir {manifest.get('stage')}"
        elif not differences:
            reason = "and may differ from what these settings and sources make"
        raise UsageError(f"{path}: exists, {reason}; --force replaces it")


def clean_leftovers(path: Path, record: Mapping[str, Any]) -> None:
    """Remove what a kill right after the rename left next to a product; `record` is that of the existing product."""
    work = WorkFolder(path)
    if work.folder.exists() and {**(work.read_record() or record), VERSIONS: None} == {**record, VERSIONS: None}:
        with suppress(MoeirError, OSError), _open_work(path):  # another process rebuilds it, or the folder is read-only
            _remove_work(work)


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
    is_effective = os.access in os.supports_effective_ids
    if path.is_dir() and path.stat().st_uid != os.geteuid() and not os.access(path, os.W_OK, effective_ids=is_effective):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))  # it could not be renamed into another folder


def _check_owner(work: WorkFolder) -> None:
    """UsageError if the folder of the work is somebody else's: ours has a record, or what a kill leaves before there is one."""
    first = {work.lock.name, _new_path(work.record).name}
    is_folder = work.folder.is_dir() and not work.folder.is_symlink()
    is_ours = is_folder and (work.read_record() is not None or {entry.name for entry in work.folder.iterdir()} <= first)
    if os.path.lexists(work.folder) and not is_ours:
        problem = f"was not made by moeir, which needs this name to write {work.path}"
        raise UsageError(f"{work.folder}: {problem}; move it away, or write elsewhere")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _find_free_path(path: Path, word: str) -> Path:
    """The first of NAME.WORD, NAME.WORD-2, … that does not exist."""
    others = (path.with_name(f"{path.name}.{word}{f'-{number}' if number > 1 else ''}") for number in count(1))
    return next(other for other in others if not os.path.lexists(other) and not os.path.lexists(WorkFolder(other).manifest_beside))


@contextmanager
def _open_work(path: Path) -> Iterator[WorkFolder]:
    """Lock the folder of the work on `path`, made if missing, and settle what a kill left. Folders that are empty in the end go."""
    work = WorkFolder(path)
    _check_owner(work)
    missing = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    try:
        with _lock(work):
            _recover(work)
            yield work
    finally:
        for folder in (work.folder, *missing):
            with suppress(OSError):  # it holds a product, what is to be resumed, or what another process writes
                folder.rmdir()


@contextmanager
def _lock(work: WorkFolder) -> Iterator[None]:
    with ExitStack() as stack:
        for attempt in range(LOCK_ATTEMPTS):
            try:
                make_folder(work.folder)
                file = stack.enter_context(open(work.lock, "a", encoding="utf-8"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if work.lock.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    break
            except BlockingIOError:
                pass
            except FileNotFoundError:  # another process removes the folder, as its work has ended
                if attempt == LOCK_ATTEMPTS - 1:
                    raise
            time.sleep(SECONDS_BETWEEN)
        else:
            raise _refuse_in_use(work.path)
        try:
            yield
        finally:
            work.lock.unlink(missing_ok=True)


def _refuse_in_use(path: Path) -> OutputInUse:
    return OutputInUse(f"{path}: another process is writing it; wait for it, or write elsewhere")


def wait_for_writer(path: Path) -> None:
    """Wait until no process is writing `path`."""
    with suppress(FileNotFoundError), open(WorkFolder(path).lock, encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _recover(work: WorkFolder, *, raise_errors: bool = True) -> None:
    """Finish or undo a commit that was interrupted; without `raise_errors` where another error is raised already."""
    if work.manifest.exists() and not work.partial.exists() and _is_file_of(work.path, work.manifest):
        os.replace(work.manifest, work.manifest_beside)
        _fsync(work.path.parent, raise_errors=raise_errors)
    _remove(work.manifest, *([work.partial / DISCARDED] if work.partial.is_dir() else []))
    if work.old.exists() and not work.path.exists():  # between two renames
        os.rename(work.old, work.path)
    if (work.partial / MANIFEST).exists() and not work.old.exists() and not (work.partial / RESUME).exists():
        os.rename(work.partial, work.old)  # what was replaced, or a product whose resume state is gone
    _remove_old_folder(work, raise_errors=raise_errors)


def _is_file_of(path: Path, manifest_file: Path) -> bool:
    files = (read_json(manifest_file) or {}).get("files", {})
    return path.is_file() and [entry["sha256"] for entry in files.values()] == [compute_sha256(path)]


def _remove_old_folder(work: WorkFolder, *, raise_errors: bool = True) -> None:
    """Remove the folder that was replaced: the files of its manifest. What is not removed gets a visible name, with a warning."""
    own = {work.old / name for name in list_files(work.old / MANIFEST) or ()}
    try:
        for root, _, names in os.walk(work.old, topdown=False):
            os.chmod(root, 0o700)
            _remove(*(file for name in names if (file := Path(root, name)) in own))
            with suppress(OSError):  # it holds something else
                os.rmdir(root)
        if {entry.name for entry in work.old.glob("*")} == {MANIFEST}:
            _fsync(work.old, raise_errors=raise_errors)  # the manifest goes last: it says whose the rest is
            _remove(work.old)
    except OSError as problem:
        log.warning("%s: %s", problem.filename, problem.strerror)
    if os.path.lexists(work.old):
        target = _find_free_path(work.path, "old")
        os.rename(work.old, target)
        log.warning("%s: what it held before could not be removed whole; what remains is %s", work.path, target)


def _remove_work(work: WorkFolder, *, has_successor: bool = False, raise_errors: bool = True) -> None:
    """Remove all work and then, when that is on the disk, its record, which says that it is ours."""
    records = (_new_path(work.record), work.record)
    if rest := [entry for entry in work.folder.iterdir() if entry not in (*records, work.lock)]:
        _remove(*rest)
        _fsync(work.folder, raise_errors=raise_errors)
    if not has_successor:
        _remove(*records)


def _begin(work: WorkFolder, record: Mapping[str, Any], *, force: bool) -> dict[str, str]:
    """Keep unfinished work of the same record, remove other work -> the versions of packages, which a product of both lists."""
    resume, versions = resume_path(work.partial), find_versions()
    if _can_resume(work, record, force=force):
        for backup in resume.glob(".*.old"):  # of `replace_folder`
            if not (state := backup.with_name(backup.name[1:].removesuffix(".old"))).exists():
                os.rename(backup, state)
        return _join_versions(work.path, (work.read_record() or {}).get(VERSIONS, {}), versions)
    if not force and (resume / TOKEN_CACHE).is_dir():
        others = [path for folder in (work.partial, resume) for path in folder.iterdir()]
        _remove(*(path for path in others if path not in (resume, resume / TOKEN_CACHE)))
        _fsync(resume)
        _fsync(work.partial)
    else:
        _remove_work(work, has_successor=True)  # before the new record: it must not be that of the old state after a power cut
    return _join_versions(work.path, record.get(VERSIONS, {}), versions)


def _can_resume(work: WorkFolder, record: Mapping[str, Any], *, force: bool) -> bool:
    """Whether there is unfinished work to be resumed; UsageError if it has other settings."""
    unfinished = {name: value for name, value in (work.read_record() or {}).items() if name != VERSIONS}
    if force or not unfinished or not _has_resumable_state(work):
        return False
    if unfinished != {name: value for name, value in record.items() if name != VERSIONS}:
        differences = ", ".join(sorted(diff_records(unfinished, record)))
        advice = "repeat those to finish it, or --force to start over"
        raise UsageError(f"{work.path}: unfinished work of other settings ({differences}); {advice}")
    return True


def _has_resumable_state(work: WorkFolder) -> bool:
    """Whether an interrupted stage left a state to resume from, other than token caches."""
    resume = resume_path(work.partial)
    files = (file for file in resume.rglob("*") if file.relative_to(resume).parts[0] != TOKEN_CACHE)
    return any(file.is_file() and file.stat().st_size for file in files)


def _join_versions(path: Path, earlier: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, str]:
    """The versions of packages; where work is resumed that others have begun, warn, and list them all."""
    changed = [name for name, version in versions.items() if earlier.get(name, version).split(", ")[-1] != version]
    if changed:
        steps = ", ".join(f"{name} {earlier[name]}, now {versions[name]}" for name in changed)
        log.warning("%s: was begun with %s: its numbers may be those of neither; --force starts over", path, steps)
    return {**versions, **earlier, **{name: f"{earlier[name]}, {versions[name]}" for name in changed}}


def _commit(work: WorkFolder, target: Path, manifest: dict[str, Any]) -> None:
    partial, text = work.partial, serialize_manifest(manifest)
    if partial.is_dir():
        for file in sorted(partial.rglob("*")):
            _fsync(file)
        write_text_atomically(partial / MANIFEST, text)
        _drop_resume(partial)
        _fsync(partial)
        _swap_into_place(partial, target, work.old)
        _remove_old_folder(work)
    else:
        _fsync(partial)
        write_text_atomically(work.manifest, text)
        _fsync(work.folder)
        os.replace(partial, target)  # from here on readers take the manifest in the folder of the work
        _fsync(target.parent)
        os.replace(work.manifest, WorkFolder(target).manifest_beside)
        _fsync(target.parent)


def _drop_resume(partial: Path) -> None:
    """Drop the resume state at once: rename it to a name that is never resumed, then delete it."""
    if (partial / RESUME).exists():
        os.rename(partial / RESUME, partial / DISCARDED)
        _fsync(partial)  # no power cut may leave a part of it under its name
        _remove(partial / DISCARDED)


def _swap_into_place(partial: Path, path: Path, backup: Path) -> None:
    """Replace `path` by `partial`, in one step where the system supports it; what was there becomes the backup."""
    if not path.exists():
        os.rename(partial, path)
    else:
        with suppress(OSError):
            os.chmod(path, path.stat().st_mode | 0o700)  # a folder that is moved into another one is written
        if _exchange_names(partial, path):
            os.rename(partial, backup)
        else:
            os.rename(path, backup)
            os.rename(partial, path)
    _fsync(path.parent)


def _exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names with renameat2; False if the system or file system does not support it."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and bool(call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


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
    backup = path.with_name(f".{path.name}.old")
    for file in (*sorted(partial.rglob("*")), partial):
        _fsync(file)
    _remove(backup)
    _swap_into_place(partial, path, backup)
    _remove(backup)


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
    """Give a file a second name, in folders that are made if missing, that of an earlier attempt too; a copy where links are impossible."""
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sync_file(path: Path) -> None:
    """Sync the content and the name of a file to disk."""
    _fsync(path)
    _fsync(path.parent)


def _fsync(path: Path, *, raise_errors: bool = True) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if raise_errors:
            raise
    finally:
        os.close(number)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
