"""More kinds of bad input, those that only training meets: rates, sets of examples, penalties, teachers, development sets."""

from tests.bad_input import ALONE, GOOD, TRAIN, Bad, example, file

DEVELOPMENT = " --dev-queries queries.tsv --dev-qrels test.qrels"
INLINE = '{"query_id": "t1", "query": "?", "positive_passages": [{"docid": "a", "text": "b"}], "negative_passages": []}'
SCORED = GOOD.replace("}", ', "positive_scores": [1.5], "negative_scores": [0.5]}')
TWO = TRAIN + "good.jsonl --train good.jsonl"

TRAINING = [
    Bad("a rate for every set", None, TRAIN + "good.jsonl --sampling-rate 1 --sampling-rate 2", 2,
        "expected one for each --train, 1; found 2"),
    Bad("a set never walked", None, TRAIN + "good.jsonl --sampling-rate 0", 2, "--sampling-rate 0: expected 0.001 to 1000"),
    Bad("a set walked once in an age", None, TRAIN + "good.jsonl --sampling-rate 1e-9", 2, "--sampling-rate 1e-09: expected 0.001 to"),
    Bad("a set walked for ever", None, TRAIN + "good.jsonl --sampling-rate inf", 2, "--sampling-rate: expected a number, found 'inf'"),
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
    Bad("development in a stream that is read", None, (TRAIN + "good.jsonl" + DEVELOPMENT).replace("corpus.jsonl", "-"), 2,
        "--corpus -: the development queries are searched in it too"),
    Bad("development on other queries", file("test.qrels", "zz 0 owl 1\n"), TRAIN + "good.jsonl" + DEVELOPMENT, 3,
        "none of its queries is"),
    Bad("an unknown measure to be best at", None, TRAIN + "good.jsonl --dev-measure nDGC@10" + DEVELOPMENT, 2, "did you mean nDCG"),
    Bad("a collection too many", None, TWO + " --sampling-rate 1 --sampling-rate 1" + " --corpus corpus.jsonl" * 2, 2,
        "--corpus: expected one"),
    Bad("distillation from nothing", example(SCORED), TRAIN + "bad.jsonl --objective kl --negatives 0", 2,
        "needs negatives to compare with"),
    Bad("an unknown sign", None, TRAIN + "good.jsonl --objective contrastive:entropy_sign=x", 2,
        "entropy_sign=x: expected working or printed"),
    Bad("more negatives than can be drawn", None, TRAIN + "good.jsonl --negatives 99999999999", 2, "expected at most 10000"),
    Bad("a penalty that rewards", None, TRAIN + "good.jsonl --objective contrastive:flops_query=-1", 2, "flops_query=-1: expected 0"),
    Bad("an endless penalty", None, TRAIN + "good.jsonl --objective contrastive:entropy=inf", 2, "expected a number, found 'inf'"),
    Bad("a plain loss that is taken off", example(SCORED), TRAIN + "bad.jsonl --objective kl:contrastive=-1", 2,
        "contrastive=-1: expected 0 or more"),
    Bad("options that mean nothing, before texts are read", file("corpus.jsonl", "{"),
        TRAIN + "good.jsonl --objective competitive:ties=x", 2, "ties=x: expected one of average"),
    Bad("a teacher beyond all numbers", example(SCORED.replace("1.5", "1e30").replace("0.5", "-1e30")),
        TRAIN + "bad.jsonl --objective margin-mse", 1, "step 1: the loss is inf; nothing is learned yet: look at"),
    Bad("a learning rate beyond all numbers", None, TRAIN + "good.jsonl --learning-rate 1e300", 1, "weights are no numbers any more"),
    Bad("a score that is none", example(SCORED.replace("1.5", '"x"')), TRAIN + "bad.jsonl", 3,
        "bad.jsonl:1: positive_scores: expected finite"),
]  # fmt: skip
