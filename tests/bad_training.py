"""More kinds of bad input, those that only training meets: rates, sets of examples, teachers, development sets."""

from tests.bad_input import ALONE, GOOD, TRAIN, Bad, example, file

DEVELOPMENT = " --dev-queries queries.tsv --dev-qrels test.qrels"
INLINE = '{"query_id": "t1", "query": "?", "positive_passages": [{"docid": "a", "text": "b"}], "negative_passages": []}'
SCORED = GOOD.replace("}", ', "positive_scores": [1.5], "negative_scores": [0.5]}')
TWO = TRAIN + "good.jsonl --train good.jsonl"

TRAINING = [
    Bad("a rate for every set", None, TRAIN + "good.jsonl --sampling-rate 1 --sampling-rate 2", 2,
        "expected one for each --train, 1; found 2"),
    Bad("a set never walked", None, TRAIN + "good.jsonl --sampling-rate 0", 2, "--sampling-rate 0.0: expected more than 0"),
    Bad("no teacher", None, TRAIN + "good.jsonl --objective kl", 3, "good.jsonl: query t1 has no positive_scores and negative_scores"),
    Bad("unknown schedule", None, TRAIN + "good.jsonl --schedule cosine", 2, "--schedule cosine: expected linear or constant"),
    Bad("layers that learn faster below", None, TRAIN + "good.jsonl --layer-decay 1.5", 2, "--layer-decay 1.5: expected more than 0"),
    Bad("a group without a rate", None, TRAIN + "good.jsonl --group-rate heads", 2, "--group-rate heads: expected PATTERN=RATE"),
    Bad("a group of nothing", None, TRAIN + "good.jsonl --group-rate encodr=1", 2,
        "no parameter has that in its name; the nearest names are"),
    Bad("development without judgements", None, TRAIN + "good.jsonl --dev-queries queries.tsv", 2,
        "--dev-queries and --dev-qrels go together"),
    Bad("patience without development", None, TRAIN + "good.jsonl --patience 2", 2, "--patience: needs --dev-queries and --dev-qrels"),
    Bad("weights to keep", None, TRAIN + "good.jsonl --keep first", 2, "--keep first: expected best or last"),
    Bad("development without a corpus", file("bad.jsonl", INLINE + "\n"), ALONE + DEVELOPMENT, 2, "--dev-queries: needs --dev-corpus"),
    Bad("development on other queries", file("test.qrels", "zz 0 owl 1\n"), TRAIN + "good.jsonl" + DEVELOPMENT, 3,
        "none of its queries is"),
    Bad("an unknown measure to be best at", None, TRAIN + "good.jsonl --dev-measure nDGC@10" + DEVELOPMENT, 2, "did you mean nDCG"),
    Bad("a collection too many", None, TWO + " --sampling-rate 1 --sampling-rate 1" + " --corpus corpus.jsonl" * 2, 2,
        "--corpus: expected one"),
    Bad("distillation from nothing", example(SCORED), TRAIN + "bad.jsonl --objective kl --negatives 0", 2,
        "needs negatives to compare with"),
    Bad("an unknown sign", None, TRAIN + "good.jsonl --objective contrastive:entropy_sign=x", 2,
        "entropy_sign=x: expected working or printed"),
    Bad("a score that is none", example(SCORED.replace("1.5", '"x"')), TRAIN + "bad.jsonl", 3,
        "bad.jsonl:1: positive_scores: expected finite"),
]  # fmt: skip
