"""What a command may replace: what moeir made. Files of others stay, whatever their names, and no output is inside a source."""

import errno
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
RUNS = {"one": "1 Q0 d1 1 2.0 x\n1 Q0 d2 2 1.0 x\n", "two": "1 Q0 d2 1 5.0 x\n1 Q0 d3 2 4.0 x\n"}
FUSE = ("fuse", "--run", "one.trec", "--run", "two.trec", "--method", "rrf")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bm25_index: Path, toy: Path) -> Path:
    """A working folder with two runs, an index and queries."""
    monkeypatch.chdir(tmp_path)
    for name, text in RUNS.items():
        Path(f"{name}.trec").write_text(text, encoding="utf-8")
    shutil.copytree(bm25_index, "idx")
    shutil.copy(toy / "test-queries.tsv", "queries.tsv")
    return tmp_path


def search(moeir: Moeir, *more: object) -> CommandResult:
    return moeir("search", "--index", "idx", "--queries", "queries.tsv", *more)


def read_all() -> dict[str, bytes | None]:
    """The files of the working folder, and None for what is no file."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def write_user_files(folder: Path) -> None:
    (folder / "note.txt").write_text("mine", encoding="utf-8")
    (folder / ".hidden").write_text("mine", encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("note.txt")


def test_a_missing_side_output_is_made_again_and_the_main_one_is_not_touched(moeir: Moeir) -> None:
    command = ("--explain", "why.jsonl", "--output", "runs")
    assert search(moeir, *command).code == 0
    explanations = Path("why.jsonl").read_bytes()
    assert moeir(*FUSE, "--output", "runs/fused.trec").code == 0
    write_user_files(Path("runs"))
    before, inode = read_all(), Path("runs").stat().st_ino
    Path("why.jsonl").unlink()
    result = search(moeir, *command)
    assert result.code == 0 and "runs: was already made, and stays; made why.jsonl" in result.stderr
    assert Path("runs").stat().st_ino == inode and Path("why.jsonl").read_bytes() == explanations
    assert read_all().keys() == before.keys()
    assert {name: content for name, content in read_all().items() if "why" not in name} == {
        k: v for k, v in before.items() if "why" not in k
    }


@pytest.mark.parametrize("output", ["runs", "run.trec"])
def test_a_missing_main_output_is_made_again_and_the_side_one_is_not_touched(moeir: Moeir, output: str) -> None:
    command = ("--explain", "why.jsonl", "--output", output)
    assert search(moeir, *command).code == 0
    before, inode = read_all(), Path("why.jsonl").stat().st_ino
    shutil.rmtree(output) if Path(output).is_dir() else Path(output).unlink()
    assert search(moeir, *command).code == 0
    assert Path("why.jsonl").stat().st_ino == inode and read_all().keys() == before.keys()
    assert search(moeir, *command, "--force").code == 0
    assert Path("why.jsonl").stat().st_ino != inode


def test_force_refuses_a_folder_that_holds_what_its_manifest_does_not_list(moeir: Moeir) -> None:
    bm25 = ("index", "--corpus", "queries.tsv", "--engine", "bm25", "--output", "new", "--force")
    assert moeir(*bm25).code == 0
    write_user_files(Path("new"))
    (Path("new") / "bm25/note").write_text("mine", encoding="utf-8")
    for name, others in ((".hidden", " (and 4 more)"), ("bm25/note", " (and 3 more)"), ("empty", " (and 2 more)"),
                         ("link", " (and 1 more)"), ("note.txt", "")):  # fmt: skip
        path, before = Path("new", name), read_all()
        refused = moeir(*bm25)
        words = f"{path}{others}: is no file of the product new, or was edited; move it away or choose another --output"
        assert refused.code == 2 and words in refused.stderr
        assert read_all() == before
        path.rmdir() if name == "empty" else path.unlink()
    assert moeir(*bm25).code == 0


def test_a_manifest_of_another_program_makes_no_product(moeir: Moeir) -> None:
    Path("runs").mkdir()
    Path("runs/manifest.json").write_text('{"name": "my app", "files": ["a"]}', encoding="utf-8")
    before = read_all()
    refused = search(moeir, "--output", "runs", "--force")
    assert refused.code == 2 and "runs: exists and was not made by moeir" in refused.stderr and read_all() == before


def test_force_replaces_a_damaged_product_and_one_that_was_edited(moeir: Moeir) -> None:
    assert search(moeir, "--output", "run.trec").code == 0 and search(moeir, "--output", "runs").code == 0
    before = read_all()
    for file in (Path("run.trec"), Path("runs/bm25.trec")):
        file.write_text("1 Q0 d1 1 2.0 x\n", encoding="utf-8")
        assert search(moeir, "--output", file.parts[0]).code == 2, "not without --force"
        assert search(moeir, "--output", file.parts[0], "--force").code == 0
    assert {name: content for name, content in read_all().items() if "manifest" not in name} == {
        name: content for name, content in before.items() if "manifest" not in name
    }


HELPERS = ["r.trec.manifest.json", ".r.trec.partial"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_of_the_user_with_the_name_of_a_helper_is_never_touched(moeir: Moeir, exists: bool) -> None:
    for helper, is_folder in product(map(Path, HELPERS), (True, False)):
        for made in Path().glob("r.trec*"):
            made.unlink()
        if exists:
            assert moeir(*FUSE, "--output", "r.trec").code == 0
        helper.unlink(missing_ok=True)
        if is_folder:
            helper.mkdir()
        (helper / "mine" if is_folder else helper).write_text('{"name": "mine"}', encoding="utf-8")
        before = read_all()
        refused = moeir(*FUSE, "--output", "r.trec", "--force")
        assert refused.code in (1, 2) and str(helper) in refused.stderr and len(refused.messages) == 1, refused
        assert read_all() == before
        shutil.rmtree(helper) if is_folder else helper.unlink()


def test_a_helper_of_a_side_output_is_ours_only_if_its_content_says_so(moeir: Moeir) -> None:
    for name in (".why.jsonl.partial", "why.jsonl.manifest.json"):
        Path(name).write_text("mine", encoding="utf-8")
        before = read_all()
        refused = search(moeir, "--explain", "why.jsonl", "--output", "runs", "--force")
        assert refused.code == 2 and f"{name}: " in refused.stderr and "was not made by moeir" in refused.stderr
        assert read_all() == before
        Path(name).unlink()


NESTED = {
    "index --encodings enc --output enc/idx": "--output enc/idx: is inside the folder that --encodings reads, enc",
    "index --encodings enc --output enc-link/idx": "is inside the folder that --encodings reads, enc",
    "search --index idx --query owl --output idx/r.trec": "is inside the folder that --index reads, idx",
    "search --index idx --query owl --output runs --explain idx/why.jsonl": "--explain idx/why.jsonl: is inside the folder that",
    "search --index idx --query owl --output runs --explain idx": "--explain idx: expected a file to write",
    "search --index idx --query owl --output runs --explain ./runs/why.jsonl": "--explain runs/why.jsonl: --output writes there",
    "search --index dense --query owl --output came": "would replace what --index reads",
    "fuse --run runs/bm25.trec --run one.trec --output runs": "--output runs: would replace what --run reads",
    "fuse --run one.trec --run two.trec --output one.trec.manifest.json": "is the name of a manifest",
    "finetune --model came --train one.trec --output out --cache out/tokens": "is inside the folder that --output replaces",
}


def test_an_output_is_never_inside_a_source_or_around_one(moeir: Moeir, encodings: Path, index: Path, came_checkpoint: Path) -> None:
    shutil.copytree(came_checkpoint, "came")
    shutil.copytree(encodings, "enc")
    shutil.copytree(index, "dense")
    Path("enc-link").symlink_to("enc")
    assert search(moeir, "--output", "runs").code == 0
    before = read_all()
    for command, words in NESTED.items():
        refused = moeir(*command.split(), "--force")
        assert refused.code == 2 and words in refused.stderr, refused
        assert read_all() == before


def test_a_name_that_leaves_no_room_for_helpers_is_refused_before_the_work(moeir: Moeir) -> None:
    for size, code in ((250, 2), (238, 2), (237, 0)):
        result = moeir(*FUSE, "--output", "ä" * ((size - 5) // 2) + "b" * ((size - 5) % 2) + ".trec")
        assert result.code == code
        assert (f"a name of {size} bytes; expected at most 237" in result.stderr) == bool(code)
    again = moeir(*FUSE, "--depth", 1, "--output", "ä" * 116 + ".trec", "--force")
    assert again.code == 0


@pytest.mark.parametrize("number, source, blamed", [(errno.ENOSPC, "one.trec", ".dense.partial/"), (errno.ENOENT, "gone", "gone: ")])
def test_an_error_of_a_copy_names_the_path_that_is_full_or_missing(
    moeir: Moeir, monkeypatch: pytest.MonkeyPatch, tiny_model: Path, number: int, source: str, blamed: str
) -> None:
    replace = os.replace

    def fail(path: Path, target: Path) -> None:
        if Path(target).name == "settings.yaml":
            raise OSError(number, os.strerror(number), source, None, str(target))
        replace(path, target)

    monkeypatch.setattr(os, "replace", fail)
    result = moeir("init", "--model", tiny_model, "--arch", "dense", "--output", "dense")
    assert result.code == 1 and f"error: {blamed}" in result.stderr and result.stderr.endswith(f": {os.strerror(number)}\n")


def test_nothing_is_written_below_a_file_or_a_link_that_leads_nowhere(moeir: Moeir) -> None:
    Path("link").symlink_to("nowhere")
    for folder in ("one.trec", "link"):
        result = search(moeir, "--output", f"{folder}/out/run.trec")
        assert result.code == 2 and result.stderr.startswith(f"error: {folder}: is no folder, so nothing can be written below it")
    assert Path("one.trec").read_text() == RUNS["one"] and not Path("nowhere").exists()


def test_a_card_that_its_owner_edited_damages_no_checkpoint_and_is_never_replaced(
    moeir: Moeir, came_checkpoint: Path, toy: Path, tiny_model: Path
) -> None:
    shutil.copytree(came_checkpoint, "came")
    Path("came/README.md").write_text("mine", encoding="utf-8")
    assert moeir("encode", "--model", "came", "--corpus", toy / "corpus.jsonl", "--output", "enc").code == 0
    result = moeir("init", "--model", tiny_model, "--arch", "dense", "--output", "came", "--force")
    assert result.code == 2 and "came/README.md: is no file of the product came, or was edited" in result.stderr
    assert Path("came/README.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("output", [("--output", "run.trec"), ()])
def test_a_side_output_is_made_again_where_it_is_missing_and_replaces_what_is_its_own_alone(moeir: Moeir, output: tuple[str, ...]) -> None:
    explain = ("--explain", "why.jsonl")
    assert search(moeir, *explain, *output).code == 0
    before = Path("why.jsonl").read_bytes()
    again = search(moeir, *explain, *output)
    assert again.code == 0 and ("already made" in again.stderr) == bool(output)
    Path("why.jsonl").unlink()
    assert search(moeir, *explain, *output).code == 0 and Path("why.jsonl").read_bytes() == before
    refused = search(moeir, *explain, "--depth", 1, "--output", "other.trec")
    assert refused.code == 2 and "why.jsonl: exists, made with other settings or sources (depth" in refused.stderr
    assert Path("why.jsonl").read_bytes() == before and not Path("other.trec").exists()
    assert search(moeir, *explain, "--depth", 1, "--output", "other.trec", "--force").code == 0
    assert Path("why.jsonl").read_bytes() != before
    Path("why.jsonl.manifest.json").unlink()
    refused = search(moeir, *explain, "--depth", 1)
    words = "why.jsonl: exists and was not made by moeir; move it away or choose another --explain"
    assert refused.code == 2 and words in refused.stderr


def test_a_side_output_never_replaces_what_another_stage_made(moeir: Moeir) -> None:
    assert moeir(*FUSE, "--output", "why.jsonl").code == 0
    before = read_all()
    refused = search(moeir, "--explain", "why.jsonl", "--output", "run.trec")
    assert refused.code == 2 and "why.jsonl: exists, made by moeir fuse; --force replaces it" in refused.stderr
    assert read_all() == before
