"""Groups of formats that convert into one another without loss, and one full example."""

from moeir.records.examples import Example, Provenance
from moeir.records.texts import Text

EXAMPLES = ("examples", "tevatron", "dpr", "flagembedding", "triplets")
TEXTS = ("texts", "tsv", "tevatron-texts")
QRELS = ("qrels", "beir-qrels")
RUNS = ("run", "msmarco-run", "tevatron-run")
COLLECTIONS = ("beir", "msmarco")
FULL_EXAMPLE = Example(
    "q1",
    ("owl", "cat"),
    ("bat",),
    ((Provenance("bm25", 3, 1.5),),),
    Text("q1", "who hunts mice", answers=("an owl",)),
    (Text("owl", "An owl hunts.", "Owl"), Text("cat", "A cat waits.", "Cat"), Text("bat", "A bat flies.", "Bat")),
    (2.0, 1.5),
    (0.25,),
)
