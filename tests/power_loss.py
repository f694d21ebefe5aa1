"""Power loss: a model of the file system that keeps what was written apart from what was synced, and stages run again in what a cut leaves.

A stage runs once, undisturbed. `Recorder` follows its folder at every call that changes names or syncs: each file has the content that it
holds and the content that its last fsync made durable, each change of names is durable when a folder that it changes is synced. Between two
calls the folder is scanned, so that what native code writes is seen as well. Just before every call and at the end, the power may be cut:
`CUTS` says which changes of names and which unsynced contents the disk has then. POSIX promises no order among them. A kill loses nothing
of what was written.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults import Programme
from tests.kill_points import wrap_calls

CALLS = ("fsync", "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink")
SECTOR = 512  # bytes that a disk writes at once
Disk = dict[str, bytes | None]  # what a cut leaves: the bytes of a file, None for a folder


class Node:
    """A file or a folder by its identity, which a rename keeps."""

    def __init__(self, *, is_folder: bool) -> None:
        self.is_folder, self.content, self.durable = is_folder, b"", b""
        self.names: dict[str, Node] = {}


Change = dict[tuple[Node, str], Node | None]  # of names, at once: (folder, name) -> what it names from then on


class Cut(NamedTuple):
    """What a power cut leaves of unsynced changes of names, in their order, and of unsynced contents (now, durable) of files."""

    choose: Callable[[random.Random, list[Change]], list[Change]]
    tear: Callable[[random.Random, bytes, bytes], bytes]


def _keep_some(rng: random.Random, changes: list[Change]) -> list[Change]:
    return [change for change in changes if rng.random() < 0.5]


def _tear(rng: random.Random, now: bytes, durable: bytes) -> bytes:
    """The first bytes are new, the rest is as it was."""
    length = rng.randrange(len(now) + 1)
    return now[:length] + durable[length:]


def _fill_with_zeros(rng: random.Random, now: bytes, durable: bytes) -> bytes:
    """The new size without the new bytes, as a file system that writes the size first."""
    return durable[: len(now)].ljust(len(now), b"\0")


def _mix_sectors(rng: random.Random, now: bytes, durable: bytes) -> bytes:
    """Each sector is new or old."""
    old = _fill_with_zeros(rng, now, durable)
    return b"".join((now if rng.random() < 0.5 else old)[first : first + SECTOR] for first in range(0, len(now), SECTOR))


def _tear_anyhow(rng: random.Random, now: bytes, durable: bytes) -> bytes:
    return rng.choice((_tear, _fill_with_zeros, _mix_sectors, lambda *_: durable, lambda *_: now))(rng, now, durable)


KILL = "nothing lost"
CUTS = {
    KILL: Cut(lambda _, changes: changes, lambda _, now, durable: now),
    "all lost": Cut(lambda _, changes: [], lambda _, now, durable: durable),
    "contents lost": Cut(lambda _, changes: changes, lambda _, now, durable: durable),
    "contents zero": Cut(lambda _, changes: changes, _fill_with_zeros),
    "contents torn": Cut(lambda _, changes: changes, _tear),
    "last names lost": Cut(lambda rng, changes: changes[: rng.randrange(len(changes) + 1)], _tear_anyhow),
    "first names lost": Cut(lambda rng, changes: changes[rng.randrange(len(changes) + 1) :], _tear_anyhow),
    "names lost": Cut(_keep_some, lambda _, now, durable: now),
    "any": Cut(_keep_some, _tear_anyhow),
}


class State(NamedTuple):
    """What a cut leaves on the disk; `lost` if that differs from what the stage had written, `ended` if the stage had ended."""

    row: str
    event: str
    disk: Disk
    lost: bool
    ended: bool

    def __str__(self) -> str:
        return f"{self.row}, at {self.event}"

    def check(self, programme: Programme) -> str | None:
        """Run the commands again in this state."""
        shutil.rmtree("out")
        Path("out").mkdir()
        for path, content in sorted(self.disk.items()):
            file = Path("out", path)
            (file if content is None else file.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                file.write_bytes(content)
        programme.counts[self.row, "faults"] += 1
        problem, before = programme.check_products(ended=self.ended, refusable=True), len(programme.refusals)
        problem = problem or programme.run_again(max_refusals=3)
        programme.counts[self.row, "refusals"] += len(programme.refusals) > before
        return problem


class Recorder:
    """Follows a folder whose content is durable at first, and collects the distinct states of it that cuts leave."""

    def __init__(self, folder: Path, cuts: dict[str, Cut], seed: int) -> None:
        self._folder, self._cuts, self._seed = folder, cuts, seed
        self._root, self._changes = Node(is_folder=True), list[Change]()
        self._node_of = {os.stat(folder).st_ino: self._root}
        self._scan()
        for node in self._node_of.values():
            node.durable = node.content
        self._durable_names = {node: dict(node.names) for node in self._node_of.values()}
        self._changes.clear()
        self._seen: set[tuple[str, bool]] = set()
        self.states: list[State] = []
        self.events = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record the calls of this process; the end counts as an event."""
        with pytest.MonkeyPatch.context() as patch:
            wrap_calls(patch, CALLS, self._record)
            yield
        self._cut_power("end", ended=True)

    def _record(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.events += 1
        self._cut_power(f"{name}, event {self.events}", ended=False)
        result = call(*arguments, **options)
        if name == "fsync":
            self._sync(arguments[0])
        else:
            self._scan()
        return result

    def _sync(self, descriptor: int) -> None:
        """Make the content of a file durable, or all changes of the names in a folder."""
        node = self._node_of.get(os.fstat(descriptor).st_ino)
        if node is None:
            return
        node.durable = node.content
        for change in [change for change in self._changes if any(folder is node for folder, _ in change)]:
            earlier = self._changes[: self._changes.index(change)]
            for older in earlier:  # what is durable is not undone by an older change that is not
                for key in [key for key, moved in older.items() if key in change or (moved is not None and moved in change.values())]:
                    del older[key]
            self._changes.remove(change)
            _apply(self._durable_names, change)

    def _scan(self) -> None:
        """Compare the folder with what is known of it: the changes since the last scan."""
        names, new, node_of = dict[Node, dict[str, Node]](), set[Node](), {os.stat(self._folder).st_ino: self._root}
        pending = [(self._root, str(self._folder))]
        while pending:
            folder, path = pending.pop()
            names[folder] = {}
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                node = self._node_of.get(entry.inode())
                if node is None or node.is_folder != entry.is_dir(follow_symlinks=False):
                    node = Node(is_folder=entry.is_dir(follow_symlinks=False))
                    new.add(node)
                names[folder][entry.name] = node_of[entry.inode()] = node
                if node.is_folder:
                    pending.append((node, entry.path))
                else:
                    node.content = Path(entry.path).read_bytes()
        single, move = list[Change](), Change()
        for folder in dict.fromkeys((*names, *self._node_of.values())):
            before, after = folder.names, names.get(folder, {})
            for name in sorted(before.keys() | after.keys()):
                if before.get(name) is not after.get(name):
                    is_moved = (name in after and after[name] not in new) or before.get(name) in node_of.values()
                    change: Change = {(folder, name): after.get(name)}
                    move.update(change) if is_moved else single.append(change)
            folder.names = after
        self._changes += [*single, *([move] if move else [])]
        self._node_of = node_of

    def _cut_power(self, event: str, *, ended: bool) -> None:
        self._scan()
        current = self._write_out({node: node.names for node in self._node_of.values()}, lambda node: node.content)
        for name, cut in self._cuts.items():
            rng = random.Random(f"{self._seed} {name} {len(self._changes)}")
            names = {folder: dict(entries) for folder, entries in self._durable_names.items()}
            for change in cut.choose(rng, self._changes):
                _apply(names, change)
            disk = self._write_out(names, partial(_read_torn, cut, rng))
            digest = _digest(disk)
            if (digest, ended) not in self._seen:
                self._seen.add((digest, ended))
                self.states.append(State(name, event, disk, disk != current, ended))

    def _write_out(self, names: dict[Node, dict[str, Node]], read: Callable[[Node], bytes]) -> Disk:
        disk, pending = Disk(), [(self._root, "")]
        while pending:
            folder, path = pending.pop()
            for name, node in sorted(names.get(folder, {}).items()):
                disk[f"{path}{name}"] = None if node.is_folder else read(node)
                if node.is_folder:
                    pending.append((node, f"{path}{name}/"))
        return disk


def _read_torn(cut: Cut, rng: random.Random, node: Node) -> bytes:
    return node.content if node.content == node.durable else cut.tear(rng, node.content, node.durable)


def _digest(disk: Disk) -> str:
    contents = sorted((path, content and hashlib.sha256(content).hexdigest()) for path, content in disk.items())
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _apply(names: dict[Node, dict[str, Node]], change: Change) -> None:
    """Apply a change of names; what it moves loses its older name."""
    placed = {node for node in change.values() if node is not None}
    for entries in names.values():
        for name in [name for name, node in entries.items() if node in placed]:
            del entries[name]
    for (folder, name), node in change.items():
        entries = names.setdefault(folder, {})
        if node is not None:
            entries[name] = node
        else:
            entries.pop(name, None)


def record_programme(name: str, folder: Path, inputs: Path, cuts: dict[str, Cut] = CUTS) -> tuple[Programme, list[State]]:
    """A programme, and the distinct states that cuts of the power leave at each event of its undisturbed commands."""
    states: list[State] = []

    @contextmanager
    def record() -> Iterator[None]:
        recorder = Recorder(Path("out"), cuts, seed=1)
        with recorder.watch():
            yield
        states.extend(recorder.states)

    return Programme(name, folder, inputs, record), states
