"""Promises of the command line for every stage: fast help, one line per error, only data on stdout."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

import moeir as package
from moeir import cli, settings
from moeir.errors import ArtifactError, DataError, MoeirError, UsageError
from moeir.stages import stage_class

HEAVY = [
    *("torch", "transformers", "faiss", "datasets", "numba", "numpy", "scipy", "ir_measures"),
    *("tokenizers", "safetensors", "huggingface_hub", "llvmlite", "pandas", "ftfy"),
]
WITHOUT = """
import sys
from moeir import cli
for arguments in {commands!r}:
    sys.argv = ["moeir", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, (arguments, loaded)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, toy):
    """A working folder with two runs, a corpus and judgements."""
    for name in ("corpus.jsonl", "test-queries.tsv", "test-qrels.tsv"):
        shutil.copy(toy / name, tmp_path)
    (tmp_path / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (tmp_path / "two.trec").write_text("q1 Q0 cat 1 9 t\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FUSE = ("fuse", "--method", "came-sum", "--run-depth", "2", "--run", "one.trec", "--run", "two.trec")


def test_no_help_and_no_list_of_variants_loads_a_heavy_module(moeir_outside):
    commands = [["--help"], ["--version"], *([stage, "--help"] for stage in cli.STAGES), ["variants"]]
    result = moeir_outside(program=WITHOUT.format(commands=commands, heavy=HEAVY))
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.count("Usage: moeir") == len(cli.STAGES) + 1


def test_commands_that_read_runs_or_search_words_do_not_load_torch(moeir_outside, folder):
    runs, judged = ["--run", "one.trec", "--run", "two.trec"], ["--qrels", "test-qrels.tsv"]
    commands = [
        ["evaluate", *runs, *judged, "--output", "table.tsv"],
        [*FUSE, "--output", "fused.trec"],
        ["mine-negatives", *runs, *judged, "--output", "mined.jsonl"],
        ["analyze", "overlap", *runs, "--output", "overlap.tsv"],
        ["calibrate", *runs, *judged, "--output", "weights.json"],
        ["report", "--training", "metrics.jsonl"],
        ["index", "--corpus", "corpus.jsonl", "--engine", "bm25", "--output", "idx"],
        ["search", "--index", "idx", "--queries", "test-queries.tsv", "--output", "run.trec"],
    ]
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    result = moeir_outside(program=WITHOUT.format(commands=commands, heavy=["torch", "numba", "transformers"]))
    assert result.code == 0, result.stderr


@pytest.mark.parametrize("value, expected", [(None, "1"), ("0", "0")])
def test_torch_is_asked_for_large_pages_unless_the_user_decides(value, expected, monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", {**os.environ, **({} if value is None else {"THP_MEM_ALLOC_ENABLE": value})})
    monkeypatch.setattr(sys, "argv", ["moeir", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == expected


def test_the_version_is_data_and_help_that_nobody_asked_for_is_none(moeir):
    assert moeir("--version") == (0, f"moeir {package.__version__}\n", "")
    for arguments in ((), ("fuse",), ("init",)):
        result = moeir(*arguments)
        assert (result.code, result.stdout) == (2, "") and result.stderr.startswith("Usage: moeir")


@pytest.mark.parametrize("page", ["root", *cli.STAGES])
def test_help_pages_are_as_reviewed(page, moeir, check_golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = moeir(*([] if page == "root" else [page]), "--help")
    assert (result.code, result.stderr) == (0, "")
    check_golden(f"help/{page}.txt", result.stdout)


def test_limits_of_settings_are_as_reviewed(check_golden):
    limits = [
        f"{stage} {setting.flag}: {words} {limit}\n"
        for stage in cli.STAGES
        for setting in settings.list_settings(stage_class(stage))
        for name, (words, _) in settings.LIMITS.items()
        if (limit := getattr(setting, name)) is not None
    ]
    check_golden("limits.txt", "".join(limits))


PROBLEMS = [
    (MoeirError("a"), 1, "error: a"),
    (UsageError("a\nb"), 2, "error: a b"),
    (DataError("a:1: b"), 3, "error: a:1: b"),
    (ArtifactError("a"), 4, "error: a"),
    (OSError(), 1, "error: OSError"),
    (OSError(28, "No space left on device"), 1, "error: No space left on device"),
    (PermissionError(13, "Permission denied", "place"), 1, "error: place: Permission denied"),
    (MemoryError(), 1, "error: out of memory; lower the batch size or shard the work, or raise the limit of this shell (ulimit -v)"),
    (KeyboardInterrupt(), 130, "stopped; the same command continues, or starts over"),
]


@pytest.mark.parametrize(("problem", "code", "line"), PROBLEMS)
def test_a_problem_is_one_line_and_its_exit_code(problem, code, line, folder, moeir, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("moeir.records.runs.write_run", fail)
    assert moeir(*FUSE) == (code, "", line + "\n")


def test_a_traceback_is_shown_on_request(folder, moeir_outside):
    result = moeir_outside("fuse", "--run", "absent", "--run", "two.trec", MOEIR_TRACEBACK="1")
    assert result.code == 1 and "Traceback" in result.stderr and "DataError: absent: no such file" in result.stderr


def test_a_closed_pipe_ends_quietly(folder):
    (folder / "big.trec").write_text("".join(f"q{number} Q0 owl 1 1.0 t\n" for number in range(30_000)))
    command = f"{sys.executable} -m moeir fuse --method rrf --run big.trec --run two.trec | head -1; echo ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[1] == "141" and process.stderr == ""


def test_ctrl_c_ends_with_130(folder):
    os.mkfifo(folder / "slow.trec")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of a background job would inherit that it is ignored
    child = subprocess.Popen([sys.executable, "-m", "moeir", *FUSE[:-1], "slow.trec"], stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    writer = open(folder / "slow.trec", "wb", buffering=0)  # noqa: SIM115 - returns when the child opens the other end
    writer.write(b"q1 Q0 owl 1 1.0 t\n")
    while int.from_bytes(fcntl.ioctl(writer, termios.FIONREAD, bytes(4)), sys.byteorder):
        time.sleep(0.01)  # until the line has been read and the child waits for more
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=120)
    writer.close()
    assert (child.returncode, stderr) == (130, "stopped; the same command continues, or starts over\n")


def test_stdout_holds_data_only(folder, moeir):
    assert moeir(*FUSE) == (0, "q1 Q0 cat 1 10 moeir.fused\nq1 Q0 owl 2 2 moeir.fused\n", "")
    result = moeir("evaluate", "--run", "one.trec", "--qrels", "test-qrels.tsv", "--form", "jsonl")
    assert [json.loads(line)["measure"] for line in result.stdout.splitlines()] == ["nDCG@10", "RR@10", "R@100"]
    assert result.stderr == "one: 1 of 6 judged queries, 5 without hits, 0 not judged; 50.0 % of the top 10 unjudged\n"


def test_a_finished_stage_says_so_and_is_made_again_by_force(folder, moeir):
    messages = (0, "", "made out.trec: 1 query, 2 hits\nnext: moeir evaluate --run out.trec --qrels QRELS\n")
    assert moeir(*FUSE, "--output", "out.trec") == messages
    stat = (folder / "out.trec").stat()
    result = moeir(*FUSE, "--output", "out.trec")
    assert result == (0, "", "out.trec: already made with these settings and sources; --force makes it again\n")
    assert (folder / "out.trec").stat()[:4] == stat[:4] and (folder / "out.trec").stat().st_mtime_ns == stat.st_mtime_ns
    assert moeir(*FUSE, "--output", "out.trec", "--force") == messages
    assert (folder / "out.trec").stat().st_mtime_ns > stat.st_mtime_ns
    assert moeir(*FUSE, "--output", "out.trec", "--method", "rrf").code == 2
    assert moeir(*FUSE, "--output", "out.trec", "--method", "rrf", "--force").code == 0
    assert "0.0325" in (folder / "out.trec").read_text()


def test_how_to_run_does_not_make_another_product(bm25_index, folder, moeir):
    command = ("search", "--index", bm25_index, "--queries", "test-queries.tsv", "--output", "out")
    assert moeir(*command).code == 0
    assert "already made" in moeir(*command, "--device", "cpu", "--batch-size", 2, "--threads", 1).stderr
    assert moeir(*command, "--depth", 5).code == 2


DRY = {
    "init": "--model tiny --arch came:shared_layers=2",
    "generate-queries": "--model tiny --corpus corpus.jsonl",
    "pretrain": "--model tiny --corpus corpus.jsonl --objective mlm --document-length 32",
    "finetune": "--model tiny --arch dense --train train.jsonl --corpus corpus.jsonl --queries test-queries.tsv --steps 3",
    "mine-negatives": "--run one.trec --qrels test-qrels.tsv",
    "encode": "--model came --corpus corpus.jsonl",
    "index": "--encodings enc",
    "search": "--index idx --queries test-queries.tsv",
    "export": "--to qdrant --encodings enc",
    "calibrate": "--index idx --queries test-queries.tsv --qrels test-qrels.tsv",
    "fuse": "--run one.trec --run two.trec",
    "rerank": "--model came --run one.trec --corpus corpus.jsonl --queries test-queries.tsv",
    "evaluate": "--run one.trec --qrels test-qrels.tsv",
    "analyze": "--run one.trec --run two.trec",
    "report": "--training trained",
    "serve": "--index idx --corpus corpus.jsonl",
    "convert": "--input test-qrels.tsv --to qrels",
    "check": "--corpus corpus.jsonl --qrels test-qrels.tsv --run one.trec",
    "push": "--input came --repo anna/came",
    "pull": "--repo anna/came",
    "info": "came",
    "variants": "",
}


@pytest.mark.parametrize("stage", cli.STAGES)
def test_a_dry_run_says_what_it_would_do_and_does_nothing(stage, folder, moeir, tiny_model, came_checkpoint, encodings, index):
    for name, path in {"tiny": tiny_model, "came": came_checkpoint, "enc": encodings, "idx": index}.items():
        (folder / name).symlink_to(path)
    (folder / "train.jsonl").write_text('{"query_id": "q1", "positive_ids": ["owl"], "negative_ids": ["cat"]}\n')
    (folder / "trained").mkdir()
    (folder / "trained" / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    before = sorted(folder.rglob("*"))
    output = ("--output", "out") if any(setting.role == "product" for setting in settings.list_settings(cli.stage_class(stage))) else ()
    result = moeir(stage, *DRY[stage].split(), *output, "--dry-run")
    assert result.code == 0 and "error" not in result.stderr, result.stderr
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert words.count("read") == DRY[stage].count("--run") + sum(DRY[stage].count(flag + " ") for flag in SOURCES)
    assert words.count("write") == len(output) // 2
    assert ("spend" in words) == (stage in ("generate-queries", "finetune", "rerank"))
    assert sorted(folder.rglob("*")) == before


SOURCES = ("--model", "--corpus", "--queries", "--train", "--qrels", "--encodings", "--index", "--training", "--input")


@pytest.mark.parametrize("command, answer", [
    ("train", "error: moeir has no command 'train'; did you mean 'finetune'? (see moeir finetune --help)"),
    ("finetune --lr 1e-5", "moeir finetune: No such option: --lr; did you mean --learning-rate? (see moeir finetune --help)"),
    ("encode --per_device_eval_batch_size 8",
     "moeir encode: No such option: --per-device-eval-batch-size; did you mean --max-tokens? (see moeir encode --help)"),
    ("finetune --train_group_size 8", "moeir finetune: No such option: --train-group-size; did you mean --negatives? "
     "it does not count the positive: a group of 8 is --negatives 7 (see moeir finetune --help)"),
    ("finetune --pooling mean", "moeir finetune: No such option: --pooling; did you mean --arch? "
     "it is an option of the architecture: dense:pooling=mean,normalise=true (see moeir finetune --help)"),
    ("finetune --resume_from_checkpoint x", "moeir finetune: No such option: --resume-from-checkpoint; "
     "the same command continues an unfinished output by itself (see moeir finetune --help)"),
    ("evaluate --fp16", "moeir evaluate: No such option: --fp16 (see moeir evaluate --help)"),
    ("search --index", "moeir search: Option '--index' requires an argument. (see moeir search --help)"),
    ("fuse --mehtod rrf", "moeir fuse: No such option: --mehtod (Possible options: --method) (see moeir fuse --help)"),
])  # fmt: skip
def test_words_of_other_tools_lead_to_ours(command, answer, moeir):
    assert moeir(*command.split()) == (2, "", answer + "\n")


def test_a_word_of_another_tool_is_none_of_ours_and_leads_to_one_that_is():
    assert not set(cli.COMMANDS_ELSEWHERE) & set(cli.STAGES) and set(cli.COMMANDS_ELSEWHERE.values()) <= set(cli.STAGES)
    all_settings = [setting for stage in cli.STAGES for setting in settings.list_settings(cli.stage_class(stage))]
    flags = {"--force", *(name for setting in all_settings for name in (setting.flag, *setting.aliases))}
    assert {flag for flags_here in cli.FLAGS_ELSEWHERE.values() for flag in flags_here} <= flags


def test_a_flag_may_be_written_with_underscores_as_in_other_tools(folder, moeir):
    flags = ("--model_name_or_path", "m", "--train", "t", "--output", "o", "--num_train_epochs=3", "--sampling_rate", "1", "2")
    shown = moeir("finetune", *flags, "--show")
    assert shown.code == 0 and "epochs: 3\n" in shown.stdout and "model: m\n" in shown.stdout and "sampling-rate:\n- 1" in shown.stdout
    runs = ("--run", "one.trec", "two.trec", "--qrels", "q", "--output", "o", "--show")
    assert moeir("mine_negatives", *runs) == moeir("mine-negatives", *runs) and moeir("mine_negatives", *runs).code == 0


def test_a_flag_that_can_be_repeated_takes_several_values(folder, moeir):
    fused = moeir(*FUSE)
    assert moeir("fuse", "--run", "one.trec", "two.trec", *FUSE[1:5]) == fused
    assert moeir("fuse", *FUSE[1:5], "--runs=one.trec", "two.trec") == fused
    assert moeir("fuse", *FUSE[1:5], "--run", "one.trec", "-", stdin="q1 Q0 cat 1 9 t\n") == fused
    analysis = moeir("analyze", "overlap", "--run", "one.trec", "two.trec")
    assert analysis.code == 0 and moeir("analyze", "--run", "one.trec", "two.trec", "overlap") == analysis, "the name of one is no value"
    assert moeir("analyze", "--run", "one.trec", "two.trec", "--", "overlap") == analysis
    command = ("evaluate", "-m", "RR@10", "R@5", "--form", "tsv", "--qrels", "test-qrels.tsv", "--run", "one.trec", "two.trec")
    assert [line.split("\t")[:2] for line in moeir(*command).stdout.splitlines()[:2]] == [["one", "RR@10"], ["one", "R@5"]]


def test_a_second_file_for_a_flag_that_takes_one_is_warned_of_and_other_flags_may_be_overridden(folder, moeir):
    command = ("evaluate", "--run", "one.trec", "--qrels", "test-qrels.tsv", "--form", "tsv")
    once = moeir(*command)
    twice = moeir(*command[:3], "--qrels=nowhere.tsv", *command[3:], "--form", "json", "--form", "tsv")
    assert once.code == 0 and twice.stdout == once.stdout and "given" not in once.stderr and "--form" not in twice.stderr
    assert "--qrels: given 2 times and takes one file: the last one is read" in twice.stderr


def test_no_file_has_the_number_of_a_closed_standard_stream(tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        "from moeir import cli\n"
        "def main():\n"
        "    product = open('product', 'wb')\n"
        "    for number in (1, 2): os.write(number, b'noise of a library')\n"
        "    sys.exit(product.fileno() < 3)\n"
        "cli.main = main\n"
        "from moeir.__main__ import run_command_line\n"
        "run_command_line()\n"
    )
    command = f"{shlex.quote(sys.executable)} program.py 0<&- 1>&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "product").read_bytes() == b""
