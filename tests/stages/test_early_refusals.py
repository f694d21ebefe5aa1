"""What config.json and the flags show to be wrong is refused before texts are read or a head is fitted, by a dry run too."""

import pytest

from tests.conftest import write_tiny_bert

REFUSED = [  # a stage of six layers without a vocabulary head, its flags, and words of the error
    ("init", "--arch came", "came:shared_layers=10: the encoder has 6 layers; expected 0 to 6, as in --arch came:shared_layers=5"),
    ("finetune", "--arch mote:layers=9", "layers=9: expected numbers of layers, 1 to 6"),
    ("finetune", "--arch taser:every=6", "every=6: no layer of 6 would have experts"),
    ("finetune", "--arch dense --document-length 99", "--document-length 99: expected 3 to 64"),
    ("finetune", "--arch cross-encoder --query-length 64", "leaves no room for a document"),
    ("finetune", "--arch dense --temperature 0.1", "--temperature 0.1: no expert of dense has a normalised vector"),
    ("finetune", "--arch dense --group-rate towers=1", "--group-rate towers: matches no parameter name"),
    ("finetune", "--arch dense --objective lce --negatives 0", "--negatives 0"),
    ("finetune", "", "plain weights; name an architecture: --arch"),
    ("pretrain", "--arch came:shared_layers=9", "came:shared_layers=9: the encoder has 6 layers"),
    ("pretrain", "--objective cotmay", "did you mean"),
    ("pretrain", "--objective mote", "--queries: missing; moeir generate-queries writes them (--objective mote)"),
    ("pretrain", "--queries corpus.jsonl", "--queries: given, but the objective uses none (--objective mlm)"),
    ("pretrain", "--document-length 65", "--document-length 65: expected 3 to 64"),
]
COMMANDS = {
    "init": "--corpus corpus.jsonl",
    "finetune": "--train train.jsonl --corpus corpus.jsonl --queries queries.jsonl",
    "pretrain": "--corpus corpus.jsonl --objective mlm --document-length 32",
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Six layers without a vocabulary head."""
    return write_tiny_bert(tmp_path_factory.mktemp("weights") / "six", head=False, layers=6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, of texts that no stage can read."""
    for name in ("corpus.jsonl", "queries.jsonl", "train.jsonl"):
        (tmp_path / name).write_text("{\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_refused(moeir, stage, model, flags, words):
    for dry in ((), ("--dry-run",)) if stage != "init" else ((),):
        result = moeir(stage, "--model", model, *COMMANDS[stage].split(), *flags.split(), "--output", "output", *dry)
        assert result.code in (2, 4) and words in result.stderr, (dry, result)
        assert len(result.stderr.splitlines()) == 1, result.stderr


@pytest.mark.parametrize(("stage", "flags", "words"), REFUSED)
def test_what_does_not_fit_the_weights_is_refused_before_texts_are_read(stage, flags, words, moeir, folder, weights):
    assert_refused(moeir, stage, weights, flags, words)
    assert not (folder / "output").exists()


@pytest.mark.parametrize(("old", "new", "words"), [
    ("came:shared_layers=2,local_dim=8", "came:shared_layers=3", "its weights are not those of came"),
    ("colbert:dim=8", "colbert:dim=16", "has shape [8, 32]"),
    ("mote", "dense", "a mote checkpoint cannot become dense"),
])  # fmt: skip
def test_options_that_a_checkpoint_has_no_weights_for_are_refused_before_texts_are_read(
    old, new, words, run, moeir, folder, tiny_model_with_head
):
    run(f"init --model {tiny_model_with_head} --arch {old} --output start")
    assert_refused(moeir, "finetune", "start", f"--arch {new}", words)


def test_a_dry_run_of_what_fits_says_so_and_fits_no_head(run, room, weights):
    sources = "--train by-id.jsonl --corpus toy/corpus.jsonl --queries toy/train-queries.jsonl"
    result = run(f"finetune --model {weights} --arch came:shared_layers=4 {sources} --output out --dry-run")
    assert "head" not in result.stderr
    assert "spend  1 step of 1 query: 1.00 epochs of 1 query, 8 documents" in result.stdout


@pytest.fixture
def room(work_folder):
    """Examples, two runs, a folder of the user and a file that is no fusion."""
    (work_folder / "by-id.jsonl").write_text('{"query_id": "t1", "positive_ids": ["cat"], "negative_ids": ["owl"]}\n')
    (work_folder / "a.trec").write_text("q1 Q0 owl 1 2.0 a\nq1 Q0 cat 2 1.0 a\n")
    (work_folder / "b.trec").write_text("q1 Q0 gone 1 2.0 b\n")
    (work_folder / "other").mkdir()
    (work_folder / "other" / "mine.txt").write_text("mine")
    (work_folder / "learned.json").write_text("{}")
    return work_folder


REFUSALS = {
    "finetune --model came --train by-id.jsonl --queries toy/train-queries.jsonl --output x": "by-id.jsonl",
    "finetune --model came --train by-id.jsonl --queries toy/train-queries.jsonl --corpus toy/corpus.jsonl --output other": "other: exists",
    "rerank --model came --run b.trec --queries toy/test-queries.tsv --corpus toy/corpus.jsonl --output x.trec": "gone",
    "encode --model came --corpus toy/corpus.jsonl --output a.trec/x": "a.trec",
    "encode --model came --corpus toy/corpus.jsonl --shard 0/9 --output x": "expected at most 1 shards",
    "index --encodings enc --engine lexical=maxsim --output x": "takes multivector representations",
    "index --encodings enc --engine maxsim --output x": "name its expert",
    "index --encodings enc --engine global=flat global=scan --output x": "--engine global=flat: its expert has another --engine",
    "search --index idx --queries toy/test-queries.tsv --expert none --output x": "none",
    "calibrate --index bm25 --queries toy/test-queries.tsv --qrels toy/test-qrels.tsv --output x": "has no checkpoint",
    "evaluate --run a.trec --qrels toy/test-qrels.tsv --output b.trec": "b.trec: exists and was not made by moeir",
    "fuse --run a.trec --run b.trec --learned learned.json --output x.trec": "learned.json",
    "convert --input a.trec --to beir --output x": "which becomes",
    "export --to none --encodings enc --output x": "none",
}


@pytest.fixture
def refuse_both(room, moeir):
    """`refuse_both(words, command)`: a dry run and the run are refused alike."""

    def refuse_dry_and_real(words, command):
        dry, real = moeir(*command.split(), "--dry-run"), moeir(*command.split())
        assert words in dry.stderr and dry.code != 0
        assert (dry.code, dry.messages[-1]) == (real.code, real.messages[-1])

    return refuse_dry_and_real


@pytest.mark.parametrize("command", REFUSALS)
def test_a_dry_run_refuses_in_the_words_of_the_run(command, refuse_both):
    refuse_both(REFUSALS[command], command)


def test_a_dry_run_refuses_outputs_that_may_not_be_replaced_and_takes_force(room, run, refuse_both):
    command = "fuse --run a.trec --run b.trec --output fused.trec"
    run(command)
    assert "note   fused.trec is up to date" in run(f"{command} --dry-run").stdout
    refuse_both("--force replaces it", f"{command} --depth 1")
    assert "note   fused.trec exists, and is replaced" in run(f"{command} --depth 1 --dry-run --force").stdout
    (room / ".fused.trec.partial").write_text("another's")
    refuse_both("was not made by moeir", f"{command} --depth 1 --force")


def test_a_dry_run_refuses_an_output_that_a_process_is_writing(room, refuse_both):
    import fcntl

    (room / ".fused.trec.partial").mkdir()
    with open(room / ".fused.trec.partial/fused.trec.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refuse_both("another process is writing it", "fuse --run a.trec --run b.trec --output fused.trec")


def test_a_dry_run_passes_shards_that_are_made_already(room, run, refuse_both, monkeypatch):
    monkeypatch.setattr("moeir.stages.encode.CHUNK", 6)
    command = "encode --model came --corpus toy/corpus.jsonl --output shards"
    run(f"{command} --shard 0/2")
    run(f"{command} --shard 1/2 --dry-run")
    refuse_both("holds shards, such as 0-of-2", command)
