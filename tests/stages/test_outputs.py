"""What a command may replace: what moeir made. Files of others stay, whatever their names, and no output is inside a source."""

import errno
import os
import shutil
from itertools import product
from pathlib import Path

import pytest

RUNS = {"one": "1 Q0 d1 1 2.0 x\n1 Q0 d2 2 1.0 x\n", "two": "1 Q0 d2 1 5.0 x\n1 Q0 d3 2 4.0 x\n"}
FUSE = "fuse --run one.trec --run two.trec --method rrf --output"
SEARCH = "search --index idx --queries queries.tsv"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, bm25_index, toy):
    """A working folder with two runs, an index and queries."""
    monkeypatch.chdir(tmp_path)
    for name, text in RUNS.items():
        Path(f"{name}.trec").write_text(text, encoding="utf-8")
    shutil.copytree(bm25_index, "idx")
    shutil.copy(toy / "test-queries.tsv", "queries.tsv")


def read_all():
    """The files of the working folder, and None for what is no file."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@pytest.fixture
def refuse_untouched(refuse):
    """`refuse` where the command may change no file."""

    def refuse_command(words, command):
        before = read_all()
        refuse(2, words, command)
        assert read_all() == before

    return refuse_command


def write_user_files(folder):
    (folder / "note.txt").write_text("mine", encoding="utf-8")
    (folder / ".hidden").write_text("mine", encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("note.txt")


def test_a_missing_side_output_is_made_again_and_the_main_one_is_not_touched(run):
    command = f"{SEARCH} --explain why.jsonl --output runs"
    run(command)
    explanations = Path("why.jsonl").read_bytes()
    run(f"{FUSE} runs/fused.trec")
    write_user_files(Path("runs"))
    before, inode = read_all(), Path("runs").stat().st_ino
    Path("why.jsonl").unlink()
    assert "runs: was already made, and stays; made why.jsonl" in run(command).stderr
    assert Path("runs").stat().st_ino == inode and Path("why.jsonl").read_bytes() == explanations
    assert before | {"why.jsonl.manifest.json": None} == read_all() | {"why.jsonl.manifest.json": None}


@pytest.mark.parametrize("output", ["runs", "run.trec"])
def test_a_missing_main_output_is_made_again_and_the_side_one_is_not_touched(run, output):
    command = f"{SEARCH} --explain why.jsonl --output {output}"
    run(command)
    before, inode = read_all(), Path("why.jsonl").stat().st_ino
    shutil.rmtree(output) if Path(output).is_dir() else Path(output).unlink()
    run(command)
    assert Path("why.jsonl").stat().st_ino == inode and read_all().keys() == before.keys()
    run(f"{command} --force")
    assert Path("why.jsonl").stat().st_ino != inode


@pytest.mark.parametrize("output", ["--output run.trec", ""])
def test_a_side_output_is_made_again_where_it_is_missing_and_replaces_what_is_its_own_alone(run, refuse, output):
    command = f"{SEARCH} --explain why.jsonl"
    run(f"{command} {output}")
    before = Path("why.jsonl").read_bytes()
    assert ("already made" in run(f"{command} {output}").stderr) == bool(output)
    Path("why.jsonl").unlink()
    run(f"{command} {output}")
    assert Path("why.jsonl").read_bytes() == before
    refuse(2, "why.jsonl: exists, made with other settings or sources (depth", f"{command} --depth 1 --output other.trec")
    assert Path("why.jsonl").read_bytes() == before and not Path("other.trec").exists()
    run(f"{command} --depth 1 --output other.trec --force")
    assert Path("why.jsonl").read_bytes() != before
    Path("why.jsonl.manifest.json").unlink()
    refuse(2, "why.jsonl: exists and was not made by moeir; move it away or choose another --explain", f"{command} --depth 1")


def test_a_side_output_never_replaces_what_another_stage_made(run, refuse_untouched):
    run(f"{FUSE} why.jsonl")
    words = "why.jsonl: exists, made by moeir fuse; --force replaces it"
    refuse_untouched(words, f"{SEARCH} --explain why.jsonl --output run.trec")


def test_force_refuses_a_folder_that_holds_what_its_manifest_does_not_list(run, refuse_untouched):
    bm25 = "index --corpus queries.tsv --engine bm25 --output new --force"
    run(bm25)
    write_user_files(Path("new"))
    Path("new/bm25/note").write_text("mine", encoding="utf-8")
    for name, others in ((".hidden", " (and 4 more)"), ("bm25/note", " (and 3 more)"), ("empty", " (and 2 more)"),
                         ("link", " (and 1 more)"), ("note.txt", "")):  # fmt: skip
        path = Path("new", name)
        words = f"{path}{others}: is no file of the product new, or was edited; move it away or choose another --output"
        refuse_untouched(words, bm25)
        path.rmdir() if name == "empty" else path.unlink()
    run(bm25)


def test_a_manifest_of_another_program_makes_no_product(refuse_untouched):
    Path("runs").mkdir()
    Path("runs/manifest.json").write_text('{"name": "my app", "files": ["a"]}', encoding="utf-8")
    refuse_untouched("runs: exists and was not made by moeir", f"{SEARCH} --output runs --force")


def test_force_replaces_a_damaged_product_and_one_that_was_edited(run, refuse):
    for output, file in (("run.trec", Path("run.trec")), ("runs", Path("runs/bm25.trec"))):
        run(f"{SEARCH} --output {output}")
        content = file.read_bytes()
        file.write_text("1 Q0 d1 1 2.0 x\n", encoding="utf-8")
        refuse(2, "error: ", f"{SEARCH} --output {output}")
        run(f"{SEARCH} --output {output} --force")
        assert file.read_bytes() == content


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_of_the_user_with_the_name_of_a_helper_is_never_touched(run, moeir, exists):
    for helper, is_folder in product(map(Path, ("r.trec.manifest.json", ".r.trec.partial")), (True, False)):
        for file in Path().glob("r.trec*"):
            file.unlink()
        if exists:
            run(f"{FUSE} r.trec")
        helper.unlink(missing_ok=True)
        if is_folder:
            helper.mkdir()
        (helper / "mine" if is_folder else helper).write_text('{"name": "mine"}', encoding="utf-8")
        before = read_all()
        refused = moeir(*FUSE.split(), "r.trec", "--force")
        assert refused.code in (1, 2) and str(helper) in refused.stderr and len(refused.messages) == 1, refused
        assert read_all() == before
        shutil.rmtree(helper) if is_folder else helper.unlink()


@pytest.mark.parametrize("name", [".why.jsonl.partial", "why.jsonl.manifest.json"])
def test_a_helper_of_a_side_output_is_ours_only_if_its_content_says_so(name, refuse_untouched):
    Path(name).write_text("mine", encoding="utf-8")
    refuse_untouched("was not made by moeir", f"{SEARCH} --explain why.jsonl --output runs --force")


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


def test_an_output_is_never_inside_a_source_or_around_one(run, refuse_untouched, encodings, index, came_checkpoint):
    for name, path in {"came": came_checkpoint, "enc": encodings, "dense": index}.items():
        shutil.copytree(path, name)
    Path("enc-link").symlink_to("enc")
    run(f"{SEARCH} --output runs")
    for command, words in NESTED.items():
        refuse_untouched(words, f"{command} --force")


def test_a_name_that_leaves_no_room_for_helpers_is_refused_before_the_work(run, refuse):
    for size in (250, 238):
        name = "ä" * ((size - 5) // 2) + "b" * ((size - 5) % 2) + ".trec"
        refuse(2, f"a name of {size} bytes; expected at most 237", f"{FUSE} {name}")
    run(f"{FUSE} {'ä' * 116}.trec")
    run(f"{FUSE} {'ä' * 116}.trec --depth 1 --force")


@pytest.mark.parametrize("number, source, blamed", [(errno.ENOSPC, "one.trec", ".dense.partial/"), (errno.ENOENT, "gone", "gone: ")])
def test_an_error_of_a_copy_names_the_path_that_is_full_or_missing(refuse, monkeypatch, tiny_model, number, source, blamed):
    replace = os.replace

    def fail(path, target):
        if Path(target).name == "settings.yaml":
            raise OSError(number, os.strerror(number), source, None, str(target))
        replace(path, target)

    monkeypatch.setattr(os, "replace", fail)
    result = refuse(1, f"error: {blamed}", f"init --model {tiny_model} --arch dense --output dense")
    assert result.stderr.endswith(f": {os.strerror(number)}\n")


def test_nothing_is_written_below_a_file_or_a_link_that_leads_nowhere(refuse):
    Path("link").symlink_to("nowhere")
    for folder in ("one.trec", "link"):
        words = f"error: {folder}: is no folder, so nothing can be written below it"
        refuse(2, words, f"{SEARCH} --output {folder}/out/run.trec")
    assert Path("one.trec").read_text() == RUNS["one"] and not Path("nowhere").exists()


def test_a_card_that_its_owner_edited_damages_no_checkpoint_and_is_never_replaced(run, refuse, came_checkpoint, toy, tiny_model):
    shutil.copytree(came_checkpoint, "came")
    Path("came/README.md").write_text("mine", encoding="utf-8")
    run(f"encode --model came --corpus {toy}/corpus.jsonl --output enc")
    words = "came/README.md: is no file of the product came, or was edited"
    refuse(2, words, f"init --model {tiny_model} --arch dense --output came --force")
    assert Path("came/README.md").read_text(encoding="utf-8") == "mine"
