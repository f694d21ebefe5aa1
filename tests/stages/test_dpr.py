"""A DPR file end to end: as training examples, queries and answers, with the same query ids."""

import json

CONTEXTS = {"owl": "An owl hunts mice.", "bat": "A bat finds moths.", "bee": "A bee dances in the hive.", "ant": "An ant follows a trail."}


def context(name):
    return {"title": name, "text": CONTEXTS[name], "score": 1.0, "passage_id": name}


def test_a_file_of_dpr_trains_searches_and_evaluates(tmp_path, monkeypatch, moeir, tiny_model):
    monkeypatch.chdir(tmp_path)
    questions = {"who hunts mice": ("owl", "mice"), "who dances in the hive": ("bee", "HIVE"), "who follows a trail": ("ant", "trail")}
    others = {"negative_ctxs": [], "hard_negative_ctxs": [context("bat")]}
    entries = [
        {"question": text, "answers": [answer], "positive_ctxs": [context(name)], **others} for text, (name, answer) in questions.items()
    ]
    (tmp_path / "nq.json").write_text(json.dumps(entries, indent=4))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CONTEXTS.items()))
    training = ("--steps", 1, "--batch-size", 2, "--negatives", 1, "--query-length", 8, "--document-length", 16)
    for command in (
        ("finetune", "--model", tiny_model, "--arch", "dense", "--train", "nq.json", *training, "--output", "ckpt"),
        ("index", "--corpus", "corpus.jsonl", "--engine", "bm25", "--output", "bm25"),
        ("search", "--index", "bm25", "--queries", "nq.json", "--output", "bm25.trec"),
    ):
        result = moeir(*command)
        assert result.code == 0, result.stderr
    judgement_flags = ("--answers", "nq.json", "--corpus", "corpus.jsonl")
    result = moeir("evaluate", *judgement_flags, "--run", "bm25.trec", "-m", "Success@1", "--form", "tsv", "-q")
    assert result.stdout.splitlines() == [f"Success@1\t{query}\t1.000000" for query in ("0", "1", "2", "all")]
