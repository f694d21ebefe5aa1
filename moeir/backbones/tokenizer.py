"""Text to token ids by the checkpoint's own tokenizer files."""

import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from moeir.backbones.tokens import Signs
from moeir.errors import ArtifactError

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")


class TextReader:
    """A tokenizer with its folder; texts become ids with the special tokens of the family around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = _opened(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a passage is text
        self.signs = self._signs()

    def _signs(self) -> Signs:
        """Special tokens as the files name them; BERT's names if they do not."""
        said: dict[str, object] = {}
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (self.folder / name).exists():
                said |= json.loads((self.folder / name).read_text(encoding="utf-8"))
        empty = self._tokenizer.encode("").ids
        if len(empty) < 2:
            raise ArtifactError(f"{self.folder}: its tokenizer adds no special tokens; expected an encoder's tokenizer")
        symbols = (self._tokenizer.token_to_id(symbol) for symbol in string.punctuation)
        return Signs(
            beginning=empty[0],
            separator=empty[-1],
            mask=self._id(said.get("mask_token", "[MASK]")),
            query_marker=self._id("[unused0]"),
            document_marker=self._id("[unused1]"),
            punctuation=tuple(sorted(number for number in symbols if number is not None)),
        )

    def _id(self, token: object) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(str(content))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, nothing cut."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def token(self, number: int) -> str:
        """The token an id stands for."""
        return str(self._tokenizer.id_to_token(number))

    @property
    def vocabulary(self) -> int:
        """V, with added tokens."""
        return int(self._tokenizer.get_vocab_size())

    def copy_to(self, folder: Path) -> None:
        """Put the tokenizer files beside the weights."""
        for name in FILES:
            if (self.folder / name).exists() and self.folder != folder:
                shutil.copyfile(self.folder / name, folder / name)
        if not (folder / "tokenizer.json").exists():
            self._tokenizer.save(str(folder / "tokenizer.json"))


def _opened(folder: Path) -> Tokenizer:
    """tokenizer.json, or BERT's word pieces from vocab.txt."""
    try:
        if (folder / "tokenizer.json").exists():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.txt").exists():
            said = folder / "tokenizer_config.json"
            lowercase = json.loads(said.read_text(encoding="utf-8")).get("do_lower_case", True) if said.exists() else True
            return BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase)._tokenizer
    except Exception as problem:  # noqa: BLE001 - the tokenizers library raises bare Exception for a broken file
        raise ArtifactError(f"{folder}: its tokenizer cannot be opened: {str(problem).splitlines()[0]}") from None
    raise ArtifactError(f"{folder}: no tokenizer.json or vocab.txt; expected the tokenizer beside the weights")
