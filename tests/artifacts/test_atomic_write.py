"""A product exists completely or not at all, whatever interrupts its writing."""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeir.artifacts import atomic_write, manifests, unfinished
from moeir.errors import ArtifactError, UsageError
from tests.kill_points import DISK_CALLS, wrap_calls

OLD = {"stage": "encode", "settings": {"dtype": "float32"}, "sources": {"corpus": ["1"]}}
NEW = {"stage": "encode", "settings": {"dtype": "bfloat16"}, "sources": {"corpus": ["1"]}}

WAYS = [(True, True, True), (True, True, False), (True, False, True), (False, True, True), (False, False, True)]


def make(path: Path, content: str, record: dict, *, folder: bool = True, force: bool = False) -> None:
    """A folder of three files, or a file."""
    atomic_write.check_overwrite(path, record, force=force)
    with atomic_write.atomic_output(path, "encodings", record, force=force, folder=folder) as (partial, counts):
        counts["texts"] = 2
        fill(partial, content, folder=folder)


@contextlib.contextmanager
def open_output(path: Path, record: dict, *, folder: bool = True, force: bool = False) -> Iterator[Path]:
    with atomic_write.atomic_output(path, "encodings", record, force=force, folder=folder) as (partial, _):
        yield partial


def fill(partial: Path, content: str, *, folder: bool) -> None:
    if not folder:
        partial.write_text(content)
        return
    (partial / "expert").mkdir(exist_ok=True)
    for name in ("ids.txt", "expert/vectors.npy", "moeir.json"):
        (partial / name).write_text(content + name)


def state(path: Path) -> str | None:
    """The state of the product: old, new, or None if it does not exist."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else [path / name for name in ("ids.txt", "expert/vectors.npy", "moeir.json")]
    if path.is_dir():
        manifests.verify_artifact(path, "encodings")
    else:
        manifests.verify_file(path)
    (content,) = {file.read_text()[:3] for file in files}
    return content


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["out", ".hidden", "x.partial"])
def test_unfinished_work_is_described_by_its_name_and_by_its_partial_path(tmp_path, name):
    product = tmp_path / name
    work = unfinished.WorkFolder(product)
    assert unfinished.describe_unfinished(product) is None
    work.partial.mkdir(parents=True)
    assert unfinished.describe_unfinished(product) is None  # without a record
    work.record.write_text(json.dumps(NEW))
    for path in (product, work.folder, work.partial):
        assert unfinished.describe_unfinished(path) == "unfinished: run the same encode command again to continue"
    work.partial.rmdir()
    assert unfinished.describe_unfinished(product) is None  # a record alone


@pytest.mark.parametrize("folder", [True, False])
def test_a_product_has_a_manifest_and_nothing_stays_beside_it(tmp_path, folder):
    if folder:
        (tmp_path / "out").mkdir()  # an empty one is replaced
    make(tmp_path / "out", "old", OLD, folder=folder)
    manifest = manifests.read_manifest(tmp_path / "out")
    assert manifest["counts"] == {"texts": 2} and manifest["settings"] == OLD["settings"] and manifest["seconds"] >= 0
    assert names(tmp_path) == ({"out"} if folder else {"out", "out.manifest.json"})
    assert manifests.is_up_to_date(tmp_path / "out", OLD) and not manifests.is_up_to_date(tmp_path / "out", NEW)


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("problem", [ArtifactError("x"), OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, problem, folder):
    make(tmp_path / "out", "old", OLD, folder=folder)
    before = sorted(tmp_path.rglob("*"))
    for path in (tmp_path / "out", tmp_path / "new" / "newer" / "out"):
        raised = type(problem)(*problem.args)
        with pytest.raises(type(problem)), open_output(path, NEW, folder=folder, force=True) as partial:
            fill(partial, "new", folder=folder)
            raise raised
        assert sorted(tmp_path.rglob("*")) == before and state(tmp_path / "out") == "old"
        assert not isinstance(raised, OSError) or raised.filename == str(path)


def test_a_folder_that_another_failure_took_along_is_made_again(tmp_path, monkeypatch):
    """Between the making of the folder and that of the lock in it."""
    mkdir = Path.mkdir

    def make_and_remove(path, *arguments, **options):
        monkeypatch.undo()
        mkdir(path, *arguments, **options)
        path.rmdir()

    monkeypatch.setattr(Path, "mkdir", make_and_remove)
    make(tmp_path / "new" / "out", "new", NEW)
    assert state(tmp_path / "new" / "out") == "new"


def test_unfinished_work_stays_in_a_new_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "new" / "out", NEW) as partial:
        (partial / atomic_write.RESUME).mkdir()
        (partial / atomic_write.RESUME / "journal.jsonl").write_text("{}")
        raise KeyboardInterrupt
    assert (tmp_path / "new" / ".out.partial").is_dir()
    make(tmp_path / "new" / "out", "new", NEW)
    assert state(tmp_path / "new" / "out") == "new"


def interrupt_at(patch: pytest.MonkeyPatch, moment: int, *, kill: bool) -> list[str]:
    """Raise KeyboardInterrupt after the `moment`-th disk call, as Ctrl-C within it does; `kill`: instead of it and of all later ones, so
    that no handler of the exception changes the disk -> the names of the calls, as they are made."""
    calls: list[str] = []

    def call_or_interrupt(name: str, call: Callable[..., object], *arguments: object, **options: object) -> object:
        result = None if kill and len(calls) + 1 >= moment else call(*arguments, **options)
        calls.append(name)
        if len(calls) == moment or (kill and len(calls) > moment):
            raise KeyboardInterrupt
        return result

    wrap_calls(patch, DISK_CALLS, call_or_interrupt)
    wrap_calls(patch, ["_exchange_names"], call_or_interrupt, atomic_write)
    return calls


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize(("folder", "exists", "in_one_step"), WAYS)
def test_a_kill_or_ctrl_c_at_any_moment_leaves_the_old_or_the_new_and_running_again_gives_the_new(
    tmp_path, monkeypatch, folder, exists, in_one_step, kill
):
    if not in_one_step:
        monkeypatch.setattr(atomic_write, "_exchange_names", lambda one, other: False)
    states = {"old" if exists else None, "new"} | ({None} if kill and folder and not in_one_step else set())
    for moment in range(1, 100):
        path = tmp_path / str(moment) / "out"
        path.parent.mkdir()
        if exists:
            make(path, "old", OLD, folder=folder)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            calls = interrupt_at(patch, moment, kill=kill)
            make(path, "new", NEW, folder=folder, force=True)
        if len(calls) < moment:
            break
        content = state(path)
        assert content in states, moment
        assert not content or manifests.is_up_to_date(path, NEW if content == "new" else OLD), moment
        if content == "new" and not kill:
            atomic_write.clean_leftovers(path, NEW)
        else:
            make(path, "new", NEW, folder=folder, force=True)
        assert state(path) == "new" and manifests.is_up_to_date(path, NEW), moment
        assert names(path.parent) == ({"out"} if folder else {"out", "out.manifest.json"}), moment
    assert moment > (12 if folder else 8)


@pytest.mark.parametrize("folder", [True, False])
def test_what_a_kill_after_the_renaming_left_goes_when_the_product_is_found_made(tmp_path, monkeypatch, folder):
    make(tmp_path / "out", "old", OLD, folder=folder)
    product = names(tmp_path)

    remove = atomic_write._remove

    def killed(*paths):
        if any(path.suffix in (".record", ".resume") for path in paths):
            raise KeyboardInterrupt
        remove(*paths)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(atomic_write, "_remove", killed)
        with open_output(tmp_path / "out", NEW, folder=folder, force=True) as partial:
            atomic_write.resume_path(partial).mkdir()
            (atomic_write.resume_path(partial) / "journal").write_text("lines")
            fill(partial, "new", folder=folder)
    work = unfinished.WorkFolder(tmp_path / "out")
    left = names(work.folder)
    assert state(tmp_path / "out") == "new" and "out.record" in left and (folder or "out.resume" in left)
    atomic_write.clean_leftovers(tmp_path / "out", OLD)
    assert names(work.folder) == left, "a record of other settings is not touched"
    with open(work.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        atomic_write.clean_leftovers(tmp_path / "out", NEW)
        assert names(work.folder) == left | {"out.lock"}, "another process writes it"
    atomic_write.clean_leftovers(tmp_path / "out", NEW)
    assert names(tmp_path) == product and state(tmp_path / "out") == "new"
    work.folder.mkdir()
    work.lock.touch()
    atomic_write.clean_leftovers(tmp_path / "out", NEW)
    assert names(tmp_path) == product, "killed between the removals of the record and of the lock"


def test_a_second_writer_is_refused_and_harms_nothing_and_a_lock_that_was_left_is_none(tmp_path):
    work = unfinished.WorkFolder(tmp_path / "out")
    work.folder.mkdir()
    work.lock.touch()
    with open_output(tmp_path / "out", OLD) as partial:
        fill(partial, "old", folder=True)
        with pytest.raises(ArtifactError, match="another process is writing it"), open_output(tmp_path / "out", OLD, force=True):
            pass
        assert (partial / "ids.txt").read_text() == "oldids.txt"
    assert state(tmp_path / "out") == "old"


def leave_interrupted_work(path: Path, record: dict, journal: str = "{}\n") -> None:
    """Leave partial work with a resume state, as after a kill."""
    work = unfinished.WorkFolder(path)
    (work.partial / atomic_write.RESUME).mkdir(parents=True)
    (work.partial / atomic_write.RESUME / "journal.jsonl").write_text(journal)
    (work.partial / "half").write_text("half")
    work.record.write_text(json.dumps(record))


@pytest.mark.parametrize("problem, stay", [(ArtifactError("x"), False), (OSError(28, "full"), False), (KeyboardInterrupt(), True)])
def test_tokens_alone_hold_nobody_up_and_are_taken_over_by_other_settings(tmp_path, problem, stay):
    tokens = Path(atomic_write.RESUME) / atomic_write.TOKEN_CACHE / "texts-1" / "ids.npy"
    with pytest.raises(type(problem)), open_output(tmp_path / "out", OLD) as partial:
        (partial / tokens).parent.mkdir(parents=True)
        (partial / tokens).write_text("tokens")
        (partial / "metrics.jsonl").write_text("half")
        raise problem
    assert names(tmp_path) == ({".out.partial"} if stay else set())
    with open_output(tmp_path / "out", NEW) as partial:
        assert (partial / tokens).exists() == stay and not (partial / "metrics.jsonl").exists()
        (partial / "weights").write_text("new")
    assert names(tmp_path) == {"out"} and names(tmp_path / "out") == {"weights", "manifest.json"}


@pytest.mark.parametrize(("journal", "left"), [("{}\n", {"half", "resume"}), ("", set())])
def test_unfinished_work_of_the_same_record_is_continued_unless_it_got_nowhere(tmp_path, journal, left):
    leave_interrupted_work(tmp_path / "out", OLD, journal)
    with open_output(tmp_path / "out", OLD) as partial:
        assert names(partial) == left
    assert names(tmp_path / "out") == (left - {"resume"}) | {"manifest.json"}


def test_unfinished_work_of_another_record_is_refused_or_forgotten_by_force(tmp_path):
    leave_interrupted_work(tmp_path / "out", OLD)
    with pytest.raises(UsageError, match=r"unfinished work of other settings \(dtype\); repeat those"), open_output(tmp_path / "out", NEW):
        pass
    assert names(tmp_path) == {".out.partial"}
    make(tmp_path / "out", "new", NEW, force=True)
    assert names(tmp_path) == {"out"} and "half" not in names(tmp_path / "out")


def test_a_saved_state_survives_a_kill_between_two_renames(tmp_path):
    leave_interrupted_work(tmp_path / "out", OLD)
    resume = tmp_path / ".out.partial" / "out" / atomic_write.RESUME
    (resume / ".state.old").mkdir()
    (resume / ".state.old" / "state.json").write_text("old")
    (resume / "state.new").mkdir()
    with open_output(tmp_path / "out", OLD):
        assert (resume / "state" / "state.json").read_text() == "old"
    assert names(tmp_path / "out") == {"half", "manifest.json"}


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_what_is_put_in_the_way_while_the_work_runs_stays_and_so_does_the_finished_work(tmp_path, folder, exists):
    out, mine = tmp_path / "out", tmp_path / "out" / "mine" if folder else tmp_path / "out"
    if exists:
        make(out, "old", OLD, folder=folder)
    with (
        pytest.raises(ArtifactError, match=r"out: something else was put there meanwhile, and stays; the finished output is .*/out\.new$"),
        open_output(out, NEW, folder=folder, force=True) as partial,
    ):
        fill(partial, "new", folder=folder)
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        if not folder:
            manifests.manifest_path(out).unlink(missing_ok=True)
    assert mine.read_text() == "mine" and state(tmp_path / "out.new") == "new"
    assert names(tmp_path) == {"out", "out.new"} | (set() if folder else {"out.new.manifest.json"})


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_file_that_comes_at_the_last_moment_is_kept_beside_the_new_product(tmp_path, monkeypatch, caplog, in_one_step):
    make(tmp_path / "out", "old", OLD)
    exchange = atomic_write._exchange_names

    def write_and_exchange(one, other):
        (tmp_path / "out" / "expert" / "mine").write_text("mine")
        return in_one_step and exchange(one, other)

    monkeypatch.setattr(atomic_write, "_exchange_names", write_and_exchange)
    make(tmp_path / "out", "new", NEW, force=True)
    assert state(tmp_path / "out") == "new" and names(tmp_path) == {"out", "out.old"}
    assert [path.name for path in (tmp_path / "out.old").rglob("*") if path.is_file()] == ["manifest.json", "mine"]
    assert f"what remains is {tmp_path / 'out.old'}" in caplog.text


@pytest.mark.parametrize("folder", [True, False])
def test_what_cannot_be_removed_after_the_commit_is_a_warning_and_blocks_nothing(tmp_path, monkeypatch, caplog, folder):
    make(tmp_path / "out", "old", OLD, folder=folder)
    unlink = os.unlink

    def refuse(path, **options):
        if Path(path).name in ("ids.txt", "out.record"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        for number, record in enumerate((NEW, OLD, NEW), 1):
            make(tmp_path / "out", "new", record, folder=folder, force=True)
            assert state(tmp_path / "out") == "new" and manifests.is_up_to_date(tmp_path / "out", record)
            assert sum("Permission denied" in line for line in caplog.messages) == number * (2 if folder else 1)
    make(tmp_path / "out", "new", OLD, folder=folder, force=True)
    assert names(tmp_path) == ({"out", "out.old", "out.old-2", "out.old-3"} if folder else {"out", "out.manifest.json"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.parametrize("owner", [0, 65534])
def test_a_product_that_may_not_be_written_is_replaced_by_its_owner_alone(tmp_path, monkeypatch, owner):
    monkeypatch.chdir(tmp_path)
    make(Path("out"), "old", OLD)
    for path in (Path(), *Path("out").rglob("*"), Path("out")):
        os.chown(path, 65534 if path == Path() else owner, -1)
        path.chmod(0o755 if path == Path() else 0o555 if path.is_dir() else 0o444)
    os.seteuid(65534)
    try:
        for record in (NEW, OLD, NEW):
            with pytest.raises(PermissionError, match="'out'") if owner == 0 else contextlib.nullcontext():
                make(Path("out"), "new", record, force=True)
        assert state(Path("out")) == ("old" if owner == 0 else "new") and names(Path()) == {"out"}
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("target", ["nothing", "empty", "mine", "product", "file"])
def test_a_symbolic_link_is_never_replaced(tmp_path, target):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").touch()
    make(tmp_path / "product", "old", OLD)
    make(tmp_path / "file", "old", OLD, folder=False)
    (tmp_path / "out").symlink_to(tmp_path / target)
    for folder in (True, False):
        with pytest.raises(UsageError, match=f"a symbolic link, which is not replaced; name what it leads to as --output, .*/{target}"):
            make(tmp_path / "out", "new", NEW, folder=folder, force=True)
    assert (tmp_path / "out").is_symlink() and state(tmp_path / "product") == state(tmp_path / "file") == "old"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_small_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path, monkeypatch, call):
    atomic_write.write_text_atomically(tmp_path / "facts", "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"os.{call}", fail)
    with pytest.raises(OSError, match="No space left"):
        atomic_write.write_text_atomically(tmp_path / "facts", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["facts"] and (tmp_path / "facts").read_text() == "old"


def test_a_file_gets_a_second_name_or_where_there_are_no_links_a_copy(tmp_path, monkeypatch):
    (tmp_path / "one").write_text("x")
    atomic_write.link_file(tmp_path / "one", tmp_path / "new" / "second")
    assert (tmp_path / "new" / "second").samefile(tmp_path / "one")

    def refuse(*_):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    atomic_write.link_file(tmp_path / "one", tmp_path / "new" / "copy")
    assert (tmp_path / "new" / "copy").read_text() == "x" and not (tmp_path / "new" / "copy").samefile(tmp_path / "one")
