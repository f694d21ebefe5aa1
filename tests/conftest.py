"""Fixtures for all tests: toy texts, seeded tiny weights, and the command line, in this process or in a subprocess."""

import functools
import gc
import importlib.metadata
import io
import os
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.hub_server import StandIn

# No deadlines and few examples, always the same: neither a busy machine nor luck may fail a test; --hypothesis-profile=explore for others
hypothesis_settings = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("explore", hypothesis_settings)
hypothesis.settings.register_profile("few", hypothesis_settings, derandomize=True, max_examples=25, database=None)
hypothesis.settings.load_profile("few")
importlib.metadata.version = functools.cache(importlib.metadata.version)  # every manifest has versions, and reading one takes a millisecond
os.fsync = lambda descriptor: None  # no test pulls the plug, and each call takes milliseconds; kills count the calls all the same
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
gc.disable()  # until all is imported: modules make a million objects and hardly any garbage, for which a quarter of the time would go

TOY = Path(__file__).parent / "toy"
DEVICE = Path(__file__).parent / "device"
SPECIAL_TOKENS = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


class CommandResult(NamedTuple):
    """The exit code of a command, and its output on both streams."""

    code: int
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[str]:
        """The lines on stderr but for those of every run: what was made, the next command, and the dtype, which the processor decides."""
        return [line for line in self.stderr.splitlines() if not line.startswith(("dtype: ", "made ", "next: "))]


class InMemoryStream(io.TextIOWrapper):
    """A standard stream held in memory; it can still be read after it is closed or detached."""

    def __init__(self, content: str = "") -> None:
        self.content = io.BytesIO(content.encode())
        super().__init__(self.content, encoding="utf-8", newline="\n", write_through=True)

    def text(self) -> str:
        return self.content.getvalue().decode()


@functools.cache
def keep_commands() -> None:
    """typer builds a command anew for each call, which takes longer than many a command does."""
    from moeir import cli

    build_app = functools.cache(cli.build_app)
    cli.build_app = lambda stages=cli.STAGES: build_app(tuple(stages))
    cli.typer.main.get_command = functools.cache(cli.typer.main.get_command)


def run_in_process(*arguments: object, stdin: str = "") -> CommandResult:
    """`moeir ARGUMENTS` in this process."""
    from moeir import cli, console

    keep_commands()

    streams = {"stdin": InMemoryStream(stdin), "stdout": InMemoryStream(), "stderr": InMemoryStream()}
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        console.configure_logging()
        code = cli._exit_code([str(argument) for argument in arguments])
    console.configure_logging()
    return CommandResult(code, streams["stdout"].text(), streams["stderr"].text())


def run_moeir(*arguments: object, stdin: str = "") -> CommandResult:
    """`moeir ARGUMENTS` in this process, which must succeed."""
    result = run_in_process(*arguments, stdin=stdin)
    assert result.code == 0, result.stderr
    return result


def run_in_subprocess(*arguments: object, stdin: str = "", program: str | None = None, **environment: str) -> CommandResult:
    """`moeir ARGUMENTS` in a subprocess; `program` is Python code to run instead, with ARGUMENTS as sys.argv."""
    start = ["-c", program] if program else ["-m", "moeir"]
    completed = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        input=stdin.encode(),
        capture_output=True,
        env=os.environ | environment,
        timeout=600,
        check=False,
    )
    return CommandResult(completed.returncode, completed.stdout.decode(), completed.stderr.decode())


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the files of expected output; look at their differences before a commit."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing them")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`tests/device` sets up its device before torch is imported: run it alone with `pytest tests/device`."""
    requested = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return True if collection_path == DEVICE and not any(DEVICE in (path, *path.parents) for path in requested) else None


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and only among what tests make."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Seed torch, so that a test does not depend on earlier ones."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        # without a device manual_seed would only note who called it, in a millisecond, for each kind that there might be
        seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
        seed(0)


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`check_golden(name, text)` compares a text with the file tests/golden/NAME."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; --update-golden rewrites it"

    return check


@pytest.fixture(scope="session")
def moeir() -> Callable[..., CommandResult]:
    """`moeir(*arguments, stdin="")` -> (code, stdout, stderr), in this process."""
    return run_in_process


@pytest.fixture(scope="session")
def moeir_outside() -> Callable[..., CommandResult]:
    """The same in a subprocess, for tests that need a fresh process."""
    return run_in_subprocess


@pytest.fixture(scope="session")
def toy() -> Path:
    """corpus.jsonl, train-queries.jsonl, train.qrels (TREC), test-queries.tsv, test-qrels.tsv (BEIR); to be read, never written."""
    return TOY


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seeded layers of 32 as transformers lays BERT out, without an MLM head."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "tiny", head=False)


@pytest.fixture(scope="session")
def tiny_model_with_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an MLM head."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "tiny-with-head", head=True)


@pytest.fixture(scope="session")
def tiny_model_without_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an MLM head and no dropout: several processes then train the same weights as one."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "tiny-without-dropout", head=True, **rates)


@pytest.fixture(scope="session")
def t5_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded T5 of two layers as transformers lays it out."""
    from tests.tiny_t5 import write_tiny_t5

    return write_tiny_t5(tmp_path_factory.mktemp("weights") / "t5", TOY / "corpus.jsonl")


@pytest.fixture(scope="session")
def tiny_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with a chat template for rerankers."""
    import torch
    import transformers

    from tests.backbones.test_transformers_encoder import GROUPED
    from tests.backbones.tiny_chats import ROLES, write_chat_tokenizer

    folder = tmp_path_factory.mktemp("weights") / "qwen3"
    size = write_chat_tokenizer(folder, "qwen", ROLES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = transformers.Qwen3Config(**(GROUPED | {"vocab_size": size, "max_position_embeddings": 512, "tie_word_embeddings": True}))
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def came_checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_model_with_head: Path) -> Path:
    """CAME of two shared and two private layers, not trained."""
    output = tmp_path_factory.mktemp("built") / "came"
    arch = "came:shared_layers=2,local_dim=16,normalise=true"
    return _build(output, "init", "--model", tiny_model_with_head, "--arch", arch, "--query-length", 16, "--document-length", 32)


@pytest.fixture(scope="session")
def encodings(came_checkpoint: Path, toy: Path) -> Path:
    """The toy corpus in all three representations."""
    output = came_checkpoint.with_name("encodings")
    return _build(output, "encode", "--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32")


@pytest.fixture(scope="session")
def index(encodings: Path) -> Path:
    """The exact index of each expert."""
    return _build(encodings.with_name("index"), "index", "--encodings", encodings)


@pytest.fixture(scope="session")
def bm25_index(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """BM25 over the toy corpus."""
    output = tmp_path_factory.mktemp("built") / "bm25"
    return _build(output, "index", "--corpus", toy / "corpus.jsonl", "--engine", "bm25")


@pytest.fixture(scope="session")
def stage_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the programmes of faults write the inputs of their stages, each once."""
    folder = tmp_path_factory.mktemp("stages") / "inputs"
    folder.mkdir()
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> "Iterator[StandIn]":
    """A stand-in for the Hugging Face Hub, which huggingface_hub asks in this test."""
    from tests.hub_server import connect, serve

    with serve() as state:
        connect(monkeypatch, state.address)
        yield state


def _build(output: Path, *arguments: object) -> Path:
    run_moeir(*arguments, "--output", output)
    return output


def write_tiny_bert(folder: Path, *, head: bool, layers: int = 4, **overrides: object) -> Path:
    """Write config.json with `overrides`, model.safetensors, tokenizer.json and vocab.txt; the same bytes everywhere."""
    import torch

    from moeir.backbones.encoder import Encoder
    from moeir.backbones.families import bert, weights_io

    folder.mkdir(parents=True)
    config = BERT_CONFIG | {"vocab_size": _write_tokenizer(folder), "num_hidden_layers": layers} | overrides
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        encoder = Encoder(bert.parse_config(config), vocabulary_head=head)
    weights_io.write_model(folder, config, encoder.state_dict(), hf_compatible=True)
    return folder


def _write_tokenizer(folder: Path) -> int:
    """Write a tokenizer with the word pieces of the toy texts; returns V."""
    from tokenizers.implementations import BertWordPieceTokenizer

    names = ("corpus.jsonl", "train-queries.jsonl", "test-queries.tsv")
    texts = " ".join((TOY / name).read_text(encoding="utf-8").lower() for name in names)
    words = {word for word in re.findall("[a-z]+", texts) if len(word) > 1}
    pieces = [*SPECIAL_TOKENS, *",.?!-':", *string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), *sorted(words)]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(pieces)
