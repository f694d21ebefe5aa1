"""Manifests of artifacts: kind, stage, settings, sources, and the sizes and checksums of files.

The checksum of a large file is that of its blocks' checksums, so that all cores verify in parallel.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from moeir.artifacts.identity import read_unchanged
from moeir.artifacts.unfinished import MANIFEST as MANIFEST
from moeir.artifacts.unfinished import WorkFolder, describe_unfinished, maker, read_json
from moeir.errors import ArtifactError

CARD = "README.md"  # which its owner may edit
NOT_IN_DIGEST = ("metrics.jsonl", CARD, "settings.yaml")
FORMAT = 2  # of artifacts on disk; raised with each change, so that those of another version are refused
SEAL, JSON_END = "seal", '"\n}'
RECORDED_PACKAGES = ("moeir", "torch", "transformers", "tokenizers", "numpy", "numba", "ir_measures")
HASH_BLOCK_BYTES = 2**22
MAX_HASH_THREADS = 16


def compute_digest(path: Path) -> str:
    """Digest of a source's content, whatever its name: from the checksums of an artifact's or plain folder's files, or of a file.

    >>> import tempfile; folder = Path(tempfile.mkdtemp()); _ = (folder / "a.txt").write_text("a")
    >>> compute_digest(folder) == digest_files({"a.txt": {"sha256": compute_sha256(folder / "a.txt")}})
    True
    """
    if path.is_file():
        return compute_sha256(path)
    if (path / MANIFEST).is_file():
        return digest_files(read_manifest(path)["files"])
    return digest_files(
        _list_entries(path, [file for file in _find_files(path) if file.name != MANIFEST and not file.name.startswith(".")])
    )


def digest_files(files: Mapping[str, Mapping[str, Any]]) -> str:
    """One digest of the checksums of an artifact's product files, without those that contain times."""
    lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files) if name not in NOT_IN_DIGEST)
    return hashlib.sha256(lines.encode()).hexdigest()


def manifest_path(path: Path) -> Path:
    """The manifest's path: inside a folder, or next to a file, with its name, or still in its work folder."""
    if path.is_dir():
        return path / MANIFEST
    work = WorkFolder(path)
    return work.manifest if work.manifest.exists() and not work.partial.exists() else work.manifest_beside


def read_manifest(path: Path) -> dict[str, Any]:
    """Read an artifact's manifest and check its seal."""
    file = manifest_path(path)
    try:
        text = file.read_bytes().decode("utf-8")
        loaded = json.loads(text)
    except FileNotFoundError:
        if manifest_path(path) != file:  # it is beside the file now
            return read_manifest(path)
        if words := describe_unfinished(path):
            raise ArtifactError(f"{path}: {words}") from None
        raise ArtifactError(f"{path}: has no {MANIFEST}: unfinished, or not made by moeir; run the stage that makes it again") from None
    except (ValueError, RecursionError):
        loaded = None
    if not _is_manifest(loaded):
        raise ArtifactError(f"{file}: damaged: not a manifest; move {path} away and run the stage that made it again")
    if not _has_seal(text, loaded):
        raise ArtifactError(f"{file}: damaged: manifest checksum mismatch; {_repair_hint(loaded)}")
    return dict(loaded)


def serialize_manifest(manifest: Mapping[str, Any]) -> str:
    """A manifest as JSON; its last value, the seal, is the sha256 of the JSON with an empty seal.

    >>> serialize_manifest({"kind": "run"}) == serialize_manifest(json.loads(serialize_manifest({"kind": "run"})))
    True
    """
    text = json.dumps({name: value for name, value in manifest.items() if name != SEAL} | {SEAL: ""}, indent=1, ensure_ascii=False)
    return f"{text.removesuffix(JSON_END)}{hashlib.sha256(text.encode()).hexdigest()}{JSON_END}\n"


def _has_seal(text: str, manifest: Mapping[str, Any]) -> bool:
    try:
        return text == serialize_manifest(manifest)
    except UnicodeEncodeError:  # half a character, which no file can hold
        return False


def _is_manifest(loaded: Any) -> bool:
    types = {"kind": str, "files": dict, "counts": dict}
    if not isinstance(loaded, dict) or not all(isinstance(loaded.get(name), kind) for name, kind in types.items()):
        return False
    entries = loaded["files"].items()
    return all(
        "\0" not in name and isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and "sha256" in entry
        for name, entry in entries
    )


def list_files(manifest_file: Path) -> Collection[str] | None:
    """The names in a manifest, also if its checksum is wrong, without a card that its owner has edited; None if it is not ours."""
    manifest: Any = read_json(manifest_file)
    if not _is_manifest(manifest) or any(Path(name).is_absolute() or ".." in Path(name).parts for name in manifest["files"]):
        return None
    card, entry = manifest_file.with_name(CARD), manifest["files"].get(CARD)
    is_edited = entry is not None and card.is_file() and entry != compute_checksums([card])[0]
    return [name for name in manifest["files"] if name != CARD or not is_edited]


@read_unchanged
def verify_artifact(path: Path, kind: str) -> dict[str, Any]:
    """The manifest of a complete artifact of `kind`; ArtifactError if it is missing, unfinished, of another kind, or damaged."""
    if not path.exists():
        raise ArtifactError(f"{path}: {describe_unfinished(path) or f'no such {kind}'}")
    if not path.is_dir():
        raise ArtifactError(f"{path}: expected a folder with {kind}, found a file")
    if kind == "checkpoint" and (path / "config.json").is_file() and not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path}: plain weights, not a checkpoint; moeir init --model {path} --arch … --output … makes one")
    manifest = read_manifest(path)
    if manifest["kind"] != kind:
        actual = f"{_with_article(manifest['kind'])} (made by moeir {manifest.get('stage')})"
        raise ArtifactError(f"{path}: expected {_with_article(kind)}, found {actual}")
    check_format(path, manifest)
    files = {path / name: entry for name, entry in manifest["files"].items()}
    for name, (file, entry) in zip(manifest["files"], files.items(), strict=True):
        if not file.resolve().is_relative_to(path.resolve()):
            raise ArtifactError(f"{path}: its manifest names a file outside the folder: {name}")
        if not file.is_file():
            raise ArtifactError(f"{file}: damaged artifact: the file is missing; {_repair_hint(manifest)}")
        if name != CARD and file.stat().st_size != entry["bytes"]:
            raise ArtifactError(f"{file}: damaged: expected {entry['bytes']} bytes, found {file.stat().st_size}; {_repair_hint(manifest)}")
    if (file := first_mismatch({file: entry for file, entry in files.items() if file != path / CARD})) is not None:
        raise ArtifactError(f"{file}: damaged: its checksum is not the one in the manifest; {_repair_hint(manifest)}")
    return manifest


def read_counts(path: Path) -> dict[str, Any]:
    """The counts in the manifest of an artifact."""
    return dict(read_manifest(path)["counts"])


def check_format(path: Path, manifest: Mapping[str, Any]) -> None:
    """ArtifactError if an artifact is of another format than this version reads."""
    if (actual := manifest.get("format")) == FORMAT:
        return
    maker = f"version {(manifest.get('versions') or {}).get('moeir', 'unknown')} of moeir"
    message = f"{path}: {_with_article(manifest['kind'])} of format {actual}, made by {maker}; this one reads format {FORMAT}; "
    raise ArtifactError(message + ("update moeir" if isinstance(actual, int) and actual > FORMAT else _repair_hint(manifest)))


def _with_article(kind: str) -> str:
    return kind if kind == "encodings" else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _repair_hint(manifest: Mapping[str, Any]) -> str:
    return f"run moeir {maker(manifest)} again with --force"


def verify_file(path: Path) -> None:
    """ArtifactError if moeir made a file, alone or in a folder, and its checksum is not the one in the manifest."""
    if manifest_path(path).is_file():
        manifest = read_manifest(path)
    elif _is_manifest(read_json(path.parent / MANIFEST)):
        manifest = read_manifest(path.parent)
    else:
        return
    entry = manifest["files"].get(path.name)
    if entry is not None and compute_sha256(path) != entry["sha256"]:
        raise ArtifactError(f"{path}: damaged: its checksum is not the one in the manifest; {_repair_hint(manifest)}")


def is_up_to_date(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether a product of this record exists unchanged: a file is compared by checksum, a folder by the sizes of its files."""
    try:
        manifest = read_manifest(path)
    except ArtifactError:
        return False
    if any(manifest.get(key) != value for key, value in {"format": FORMAT, **record}.items()):
        return False
    if path.is_file():
        return compute_sha256(path) in (entry["sha256"] for entry in manifest["files"].values())
    sizes = {path / name: entry["bytes"] for name, entry in manifest["files"].items()}
    return all(file.is_file() and (file.name == CARD or file.stat().st_size == size) for file, size in sizes.items())


def diff_records(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Differences between two records: `stage`, `hub` (the commit that was pulled), and the names of settings and sources."""
    differences = {name for name in ("stage", "hub") if old.get(name) != new.get(name)}
    for part in ("settings", "sources"):
        before, after = old.get(part) or {}, new[part]
        differences |= {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return differences


def _find_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _list_entries(folder: Path, files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    return {str(file.relative_to(folder)): entry for file, entry in zip(files, compute_checksums(files), strict=True)}


def build_manifest(product: Path, kind: str, record: Mapping[str, Any], name: str, without: Collection[str] = ()) -> dict[str, Any]:
    """The manifest of a finished product, called `name` if it is a single file, leaving out the folders in `without`."""
    if product.is_dir():
        names = {str(file.relative_to(product)): file for file in _find_files(product)}
        included = [file for name, file in names.items() if name != MANIFEST and Path(name).parts[0] not in without]
        files = _list_entries(product, included)
    else:
        files = {name: compute_checksums([product])[0]}
    versions = {name: version for name, version in find_versions().items() if name in ("python", *sys.modules)}
    return {"kind": kind, "format": FORMAT, **record, "files": files, "versions": versions}


def find_versions() -> dict[str, str]:
    """The versions of Python and of the packages on which numbers depend, also of those that are not imported yet."""
    versions = {"python": platform.python_version()}
    for name in RECORDED_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = str(getattr(sys.modules.get(name), "__version__", None) or metadata.version(name))
    return versions


def read_lines(path: Path) -> list[str]:
    """Read the lines of a product file such as `ids.txt`."""
    if not path.is_file():
        raise ArtifactError(f"{path}: the file is missing from its artifact")
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise ArtifactError(f"{path}: damaged: lines that are not UTF-8; run the stage that made it again with --force") from None


def compute_sha256(path: Path) -> str:
    """sha256 of one file; of a file of several blocks, `HEX-BLOCKS`: that of the checksums of its blocks, and their number."""
    return _hash_files([path])[0]


def compute_checksums(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Size and checksum (`compute_sha256`) of each file."""
    return [{"bytes": file.stat().st_size, "sha256": digest} for file, digest in zip(files, _hash_files(files), strict=True)]


def first_mismatch(files: Mapping[Path, Mapping[str, Any]]) -> Path | None:
    """The first file whose content does not match its checksum; sizes are taken to match."""
    digests = zip(files.items(), _hash_files(list(files)), strict=True)
    return next((file for (file, entry), digest in digests if digest != entry["sha256"]), None)


def _hash_files(files: Sequence[Path]) -> list[str]:
    with ThreadPoolExecutor(min(MAX_HASH_THREADS, os.cpu_count() or 1), thread_name_prefix="checksums") as pool:
        begins = [range(0, file.stat().st_size, HASH_BLOCK_BYTES) or range(1) for file in files]
        blocks = [[pool.submit(_hash_block, file, first) for first in own] for file, own in zip(files, begins, strict=True)]
        digests = [[block.result() for block in own] for own in blocks]
    return [own[0] if len(own) == 1 else f"{hashlib.sha256(''.join(own).encode()).hexdigest()}-{len(own)}" for own in digests]


def _hash_block(path: Path, first: int) -> str:
    with open(path, "rb") as file:
        file.seek(first)
        return hashlib.sha256(file.read(HASH_BLOCK_BYTES)).hexdigest()


def checkpoint_digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The digest of a checkpoint, and of a calibrated one also that of the checkpoint whose scores it scales."""
    uncalibrated = manifest["counts"].get("uncalibrated")
    return {"digest": digest_files(manifest["files"])} | ({"uncalibrated": uncalibrated} if uncalibrated else {})


def find_checkpoint(path: Path, recorded: Mapping[str, str], model: Path | None) -> Path:
    """The checkpoint that the artifact at `path` was made with: at `model` or the recorded path; ArtifactError if its digest differs.

    A `model` may also differ from it in the calibration of its scores alone, which no document depends on.
    """
    folder = model or Path(os.path.realpath(path / recorded["path"]))
    if not folder.is_dir():
        raise ArtifactError(f"{path}: the checkpoint it was made with is not at {folder}; say where it is with --model")
    digests = checkpoint_digests(verify_artifact(folder, "checkpoint"))
    key = "digest" if model is None else "uncalibrated"
    if digests.get(key, digests["digest"]) != recorded.get(key, recorded["digest"]):
        repair = "name that one with --model, or run moeir encode with this one and moeir index again"
        raise ArtifactError(f"{folder}: not the checkpoint {path} was made with; {repair}")
    return folder
