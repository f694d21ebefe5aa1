"""Pairs of queries and documents, as a cross-encoder reads them."""

import numpy as np

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.packed_pairs import PackedPairs, RaggedIds


def make_all_pairs(checkpoint: RetrievalModel, queries: list[str], documents: list[str]) -> PackedPairs:
    """Every query with every document."""
    ragged = [RaggedIds.from_lists(checkpoint.token_ids(texts, side)[0]) for texts, side in ((queries, "query"), (documents, "document"))]
    query, document = np.indices((len(queries), len(documents))).reshape(2, -1)
    return checkpoint.pair_tokenizer.make_pairs(*ragged, query, document)
