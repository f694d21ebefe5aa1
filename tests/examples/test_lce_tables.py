"""The benchmarks of LCE's tables on small data run on the toy texts, and a second run does no work."""

from pathlib import Path

from moeir.records import qrels, runs, texts
from tests.conftest import run_moeir
from tests.examples.shell import CommandServer, parse_tables, run_script

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "lce_tables.sh"
SMALL = {"SEEDS": "1", "STEPS": "1", "GROUP_SIZES": "2 4", "DEPTH": "6", "QUERY_LENGTH": "12", "DOCUMENT_LENGTH": "24"}


def read_queries(toy: Path) -> list[texts.Text]:
    return [text for name in ("train-queries.jsonl", "test-queries.tsv") for text in texts.read_texts(toy / name)]


def test_the_tables_are_made_once(toy: Path, shallow_model: Path, bm25_index: Path, server: CommandServer, tmp_path: Path) -> None:
    texts.write_texts(read_queries(toy), tmp_path / "queries.jsonl")
    for part, name in (("train", "train-queries.jsonl"), ("test", "test-queries.tsv")):
        run_path = tmp_path / "runs" / f"bm25.{part}.trec"
        run_moeir("search", "--index", bm25_index, "--queries", toy / name, "--depth", 6, "--output", run_path)
        runs.write_run(runs.read_run(run_path), tmp_path / "runs" / f"again.{part}.trec", tag="again")
    sources = (toy / "corpus.jsonl", tmp_path / "queries.jsonl", toy / "train.qrels", toy / "test-qrels.tsv")
    words = (*sources, tmp_path / "runs", tmp_path / "work", shallow_model, "bm25", "again")
    before = len(server.calls()) if server.journal.exists() else 0
    results = [run_script(SCRIPT, *words, **SMALL, MOEIR=server.client) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr + results[1].stderr
    assert results[0].stdout == results[1].stdout
    printed = [line for line in results[0].stdout.splitlines() if not line.startswith(("the ", "lce "))]
    models = [f"{retriever}-{arm}-1" for retriever in ("bm25", "again") for arm in ("bce", "bce7", "lce")]
    assert [rows for _, rows in parse_tables("\n".join(printed))] == [
        *(["bm25", *models], ["bm25-bce-1", "bm25-lce-1"], ["bm25-bce7-1", "bm25-lce-1"]),
        *(["again", *models], ["again-bce-1", "again-lce-1"], ["again-bce7-1", "again-lce-1"]),
        ["group-2-1", "group-4-1"],
    ]
    trainings = [call for call in server.calls()[before:] if call[0] == "finetune" and call[-1].startswith("ckpt/bm25-")]
    flags = [dict(zip(call[1::2], call[2::2], strict=True)) for call in trainings[:3]]
    assert [(one["--objective"], one["--batch-size"], one["--negatives"]) for one in flags] == [
        ("bce", "4", "1"),
        ("bce:positive_weight=7", "1", "7"),
        ("lce", "1", "7"),
    ]
    calls = [call for call in server.calls()[before:] if call[0] != "evaluate"]
    assert results[1].stderr.count("already made") == len(calls) // 2


def test_the_tables_of_several_collections(
    toy: Path, shallow_model: Path, came_checkpoint: Path, server: CommandServer, tmp_path: Path
) -> None:
    for name, test_split in (("scifact", "test"), ("squad", "dev"), ("medquad", "dev")):
        beir = tmp_path / "data" / name
        (beir / "qrels").mkdir(parents=True)
        texts.write_texts(texts.read_texts(toy / "corpus.jsonl"), beir / "corpus.jsonl.gz")
        texts.write_texts(read_queries(toy), beir / "queries.jsonl.gz")
        qrels.write_qrels(qrels.read_qrels(toy / "train.qrels"), beir / "qrels" / "train.tsv.gz")
        qrels.write_qrels(qrels.read_qrels(toy / "test-qrels.tsv"), beir / "qrels" / f"{test_split}.tsv.gz")
    variables = SMALL | {"MOEIR": server.client, "PAIRS": 8, "START_STEPS": 1, "DENSE_LENGTH": 24, "START_BAND": "first=2,last=6"}
    words = (tmp_path / "data", tmp_path / "work", shallow_model, came_checkpoint)

    def called(row: str, sets: str) -> str:
        completed = run_script(SCRIPT.with_name("lce_beir.sh"), *words, **variables, ROW=row, SETS=sets)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    assert called("prepare", "scifact squad medquad") == ""
    called("train", "squad")
    printed = called("tables", "squad").splitlines()
    assert [line.split(":")[0] for line in printed if line.startswith("## ")] == ["## squad", "## together"]
    rows = [line.split("|")[1].strip() for line in printed if line.startswith("| ")]
    assert rows == ["trained on", "(as it was)", "bm25", "dense", "came", "tested on", "bm25", "dense", "came"]
    cells = [cell.strip() for line in printed[6:9] for cell in line.split("|")[2:-1]]
    assert len(cells) == 45 and all(0 <= float(cell) <= 1 or cell == "nan" for cell in cells)
