"""The benchmark of LCE's tables on small data, lce_beir.sh with lce_tables.sh, runs on the toy texts, and a second run does no work."""

from pathlib import Path

from moeir.records import qrels, texts
from tests.examples.shell import CommandServer, flags_of, run_script

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "lce_beir.sh"
SMALL = {"SEEDS": 1, "STEPS": 1, "DEPTH": 6, "QUERY_LENGTH": 12, "DOCUMENT_LENGTH": 24, "PAIRS": 8}
SMALL |= {"START_STEPS": 1, "DENSE_LENGTH": 24, "START_BAND": "first=2,last=6"}


def test_the_tables_of_several_collections(
    toy: Path, shallow_model: Path, came_checkpoint: Path, server: CommandServer, tmp_path: Path
) -> None:
    for name, test_split in (("scifact", "test"), ("squad", "dev"), ("medquad", "dev")):
        beir = tmp_path / "data" / name
        (beir / "qrels").mkdir(parents=True)
        texts.write_texts(texts.read_texts(toy / "corpus.jsonl"), beir / "corpus.jsonl.gz")
        queries = [text for name in ("train-queries.jsonl", "test-queries.tsv") for text in texts.read_texts(toy / name)]
        texts.write_texts(queries, beir / "queries.jsonl.gz")
        qrels.write_qrels(qrels.read_qrels(toy / "train.qrels"), beir / "qrels" / "train.tsv.gz")
        qrels.write_qrels(qrels.read_qrels(toy / "test-qrels.tsv"), beir / "qrels" / f"{test_split}.tsv.gz")
    words = (tmp_path / "data", tmp_path / "work", shallow_model, came_checkpoint)

    def called(row: str, sets: str) -> str:
        completed = run_script(SCRIPT, *words, **SMALL, MOEIR=server.client, ROW=row, SETS=sets)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    assert called("prepare", "scifact squad medquad") == ""
    before = len(server.calls())
    called("train", "squad")
    trainings = [call for call in server.calls()[before:] if call[0] == "finetune"]
    flags = [flags_of(call) for call in trainings if call[-1].startswith("ckpt/bm25-")]
    assert [(one["--objective"], one["--batch-size"], one["--negatives"]) for one in flags] == [
        ("bce", "4", "1"),
        ("bce:positive_weight=7", "1", "7"),
        ("lce", "1", "7"),
    ]
    printed = called("tables", "squad").splitlines()
    assert [line.split(":")[0] for line in printed if line.startswith("## ")] == ["## squad", "## together"]
    rows = [line.split("|")[1].strip() for line in printed if line.startswith("| ")]
    assert rows == ["trained on", "(as it was)", "bm25", "dense", "came", "tested on", "bm25", "dense", "came"]
    cells = [cell.strip() for line in printed[6:9] for cell in line.split("|")[2:-1]]
    assert len(cells) == 45 and all(0 <= float(cell) <= 1 or cell == "nan" for cell in cells)
