def test_all(index, bm25_index, moeir, toy, tiny_model):
    said = moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 3)
    print(said)
    import json
    print(len((tiny_model/"vocab.txt").read_text().splitlines()))
    said = moeir("evaluate", "--qrels", toy/"test-qrels.tsv", "--run", "-", stdin=said.stdout)
    print(said)
    print(moeir("init", "--mdel", 3))
