"""Files of token caches: texts come in chunks of bounded size, and what an interrupted writer has left is dropped."""

import numpy as np

from moeir.backbones import token_files
from moeir.backbones.token_files import TokenFileWriter, chunk_texts
from moeir.records.texts import Text


def test_a_chunk_ends_at_its_texts_or_at_its_characters(monkeypatch):
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 3)
    monkeypatch.setattr(token_files, "MAX_CHUNK_CHARACTERS", 10)
    texts = [Text(str(row), "a" * size) for row, size in enumerate((1, 1, 1, 1, 9, 20, 1, 1))]
    chunks = list(chunk_texts(texts))
    assert list(map(len, chunks)) == [3, 2, 1, 2] and [text for chunk in chunks for text in chunk] == texts


def test_an_interrupted_writer_begins_again(tmp_path):
    dtypes = {"ids": np.uint16, "starts": np.int64}
    TokenFileWriter(tmp_path, dtypes).append(ids=[9] * 7)  # incomplete
    files = TokenFileWriter(tmp_path, dtypes)
    for block in ([1, 2], [3]):
        files.append(ids=block, starts=[files.rows("ids")])
    files.close()
    assert [np.load(tmp_path / f"{name}.npy").tolist() for name in dtypes] == [[1, 2, 3], [0, 2]]
