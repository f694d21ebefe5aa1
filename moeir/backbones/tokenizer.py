"""Tokenization with the tokenizer files of a checkpoint."""

import hashlib
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.implementations import BertWordPieceTokenizer

from moeir.artifacts import manifests
from moeir.backbones.json_fields import CheckedFields, read_json_object, read_sentence_settings
from moeir.backbones.packed_pairs import PairTemplate
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import ArtifactError, MoeirError

ADDED_TOKENS = "added_tokens.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt", ADDED_TOKENS),
)
CHAT_TEMPLATE = "chat_template.jinja"  # kept beside them; the tokens of a text do not depend on it
TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MASK_TOKENS, UNKNOWN_TOKENS = ("[MASK]", "<mask>"), ("[UNK]", "<unk>")
MARKERS = {"query": ("[Q] ", "[unused0]"), "document": ("[D] ", "[unused1]")}  # of PyLate, and of ColBERT
WORDPIECE_PREFIX, BYTE_LEVEL_SPACE = "##", "Ġ"
PREFIX_CHARACTERS = 2048  # of a long text, and PREFIX_CHARACTERS_PER_TOKEN more for each token that is read
PREFIX_CHARACTERS_PER_TOKEN = 32
APPLIED_SETTINGS = {  # of tokenizer_config.json, which transformers puts over those of tokenizer.json: the part and its attribute
    "do_lower_case": (normalizers.BertNormalizer, "lowercase"),
    "strip_accents": (normalizers.BertNormalizer, "strip_accents"),
    "tokenize_chinese_chars": (normalizers.BertNormalizer, "handle_chinese_chars"),
    "add_prefix_space": (pre_tokenizers.ByteLevel, "add_prefix_space"),
}
GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # which read tokenizer.json alone
PROBE = "An owl, 42 mice! \u00e9\u732b\u0e01\U0001f989\ufffd"


class TextTokenizer:
    """The tokenizer of a folder; encodes texts with the special tokens of the family. `vocabulary_size` is its highest id plus 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = ((name, folder / name) for name in (*TOKENIZER_FILES, CHAT_TEMPLATE))
        self._files = {name: path.read_bytes() for name, path in paths if path.exists()}  # the folder may be another one later
        self._config = read_tokenizer_config(folder)
        self._lower_cases = _lower_cases_before(_read_config_files(folder), folder)
        self._tokenizer, vocabulary = load_tokenizer(folder)
        self._space_symbol = _find_space_symbol(self._tokenizer, folder)
        self.vocabulary_size = max(vocabulary.values()) + 1
        self.special_tokens = self._find_special_tokens(vocabulary)
        self._empty_text = self._tokenizer.encode("").ids or [self._find_filler(vocabulary)]
        if set(vocabulary.values()) <= set(self.special_ids):
            raise ArtifactError(f"{folder}: its tokenizer has special tokens only; expected tokens of texts")

    def _find_special_tokens(self, vocabulary: Mapping[str, int]) -> SpecialTokens:
        """Special tokens as named in the files, else by the family's default names."""
        probe = self._tokenizer.encode(PROBE)
        own = [position for position, text in enumerate(probe.sequence_ids) if text is not None] or [len(probe.ids) // 2]
        leading, trailing = own[0], len(probe.ids) - 1 - own[-1]
        return SpecialTokens(
            beginning=probe.ids[0] if leading else None,
            separator=probe.ids[-1] if trailing else None,
            mask=self._find_token((self._name_token("mask_token"), *MASK_TOKENS)),
            query_marker=self._find_token(MARKERS["query"]),
            document_marker=self._find_token(MARKERS["document"]),
            punctuation=self._punctuation_ids(vocabulary),
            punctuation_marks=tuple(vocabulary[mark] for mark in string.punctuation if mark in vocabulary),
            leading=leading,
            trailing=trailing,
            unknown=self._find_token((self._name_token("unk_token"), *UNKNOWN_TOKENS)),
        )

    def _name_token(self, name: str) -> str:
        """The token of a name such as mask_token in the files, empty if they have none."""
        token = self._config.get(name)
        return str((token.get("content") if isinstance(token, dict) else token) or "")

    def _find_token(self, names: Sequence[str]) -> int | None:
        return next((number for name in names if (number := self._tokenizer.token_to_id(name)) is not None), None)

    def _find_filler(self, vocabulary: Mapping[str, int]) -> int:
        """The token of an empty text to which a tokenizer adds none, so that each text has a token."""
        names = [self._name_token(name) for name in ("eos_token", "pad_token", "unk_token")]
        return next((vocabulary[name] for name in names if name in vocabulary), min(vocabulary.values()))

    def _punctuation_ids(self, vocabulary: Mapping[str, int]) -> tuple[int, ...]:
        """Ids of tokens that consist of punctuation, with or without a space before it."""
        bare_tokens = ((token.removeprefix(self._space_symbol), number) for token, number in vocabulary.items())
        return tuple(sorted(number for token, number in bare_tokens if token and set(token) <= set(string.punctuation)))

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Token ids of each text, with or without special tokens, not truncated."""
        with refuse_failures(self.folder, "encode a text"):
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids or (self._empty_text if special else []) for encoding in encodings]

    def encode_template(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts in which special tokens may be written, as in a template; none are added."""
        with refuse_failures(self.folder, "encode a template"):
            return [encoding.ids for encoding in self._template_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    @cached_property
    def _template_tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = False
        return tokenizer

    @property
    def chat_template(self) -> tuple[str | None, dict[str, str]]:
        """The template of conversations that came with the weights, of several the default one, and the special tokens that it may name."""
        if CHAT_TEMPLATE in self._files:
            template: Any = self._files[CHAT_TEMPLATE].decode(errors="replace")
        elif isinstance(template := self._config.get("chat_template"), list):
            template = next((one.get("template") for one in template if isinstance(one, dict) and one.get("name") == "default"), None)
        return template, {name: token for name in TEMPLATE_TOKENS if (token := self._name_token(name))}

    def find_word(self, word: str) -> int | None:
        """The token that is written so, or that alone encodes a text; None if there is none."""
        ids = [number] if (number := self._find_token([word])) is not None else self.encode([word], special=False)[0]
        return ids[0] if len(ids) == 1 else None

    def encode_first(self, texts: Sequence[str], max_tokens: int, *, special: bool = True) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text whose first `max_tokens`, or all if there are fewer, are those of `encode`, and the number of its tokens.

        Of a long text only a prefix is encoded, of more than twice as many tokens, since a tokenizer looks a few words ahead: more than
        `max_tokens` of its ids are returned, and its number of tokens is an estimate.
        """
        size = PREFIX_CHARACTERS + PREFIX_CHARACTERS_PER_TOKEN * max_tokens
        all_ids = self.encode([_cut_at_space(text, size) if len(text) > 2 * size else text for text in texts], special=special)
        sizes = [len(ids) for ids in all_ids]
        for row, text in enumerate(texts):
            prefix = size if len(text) > 2 * size else len(text)
            while len(all_ids[row]) <= 2 * max_tokens and prefix < len(text):  # a word or white space longer than the prefix
                prefix *= 4
                [all_ids[row]] = self.encode([_cut_at_space(text, prefix)], special=special)
            sizes[row] = max(len(all_ids[row]), round(len(all_ids[row]) * len(text) / max(1, min(prefix, len(text)))))
        return all_ids, sizes

    def pair_template(self) -> PairTemplate:
        """The special tokens around the two texts of a pair."""
        encoding = self._tokenizer.encode("a", "a")
        sequence_ids, parts = encoding.sequence_ids, [0]
        for owner, before in zip(sequence_ids, [None, *sequence_ids], strict=False):
            parts.append(parts[-1] + (owner != before))
        tokens = list(zip(encoding.ids, encoding.type_ids, parts[1:], strict=True))
        pieces = [[(number, kind) for number, kind, part in tokens if part == one] for one in range(5)]
        if parts[-1] != 4 or sequence_ids[0] is not None or any(len({kind for _, kind in piece}) != 1 for piece in pieces):
            reason = "its tokenizer adds no special tokens around both texts of a pair"
            raise ArtifactError(f"{self.folder}: {reason}; expected an encoder's tokenizer")
        before, _, between, _, after = (tuple(number for number, _ in piece) for piece in pieces)
        return PairTemplate(before, between, after, tuple(piece[0][1] for piece in pieces))  # type: ignore[arg-type]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Token ids of each text without special tokens, and the character offset at which each token starts."""
        with refuse_failures(self.folder, "encode a text"):
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, [begin for begin, _ in encoding.offsets]) for encoding in encodings]

    def vocabulary_pieces(self) -> Iterator[tuple[int, str, str]]:
        """Every non-special token: its id, its text, and its relation to the previous token.

        `joined`: continues the same word; `apart`: starts another; `close`: no white space between, the characters decide.
        """
        special = set(self.special_ids)
        for token, number in self._tokenizer.get_vocab().items():
            letters = token.removeprefix(self._space_symbol or WORDPIECE_PREFIX)
            if number in special:
                continue
            if not self._space_symbol:
                yield number, letters, "apart" if letters == token else "joined"
            else:
                text = decoders.ByteLevel().decode([letters]) if self._space_symbol == BYTE_LEVEL_SPACE else letters
                yield number, text, "close" if letters == token else "apart"

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of all special tokens, markers included."""
        added = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        own = self.special_tokens
        named = {own.beginning, own.separator, own.mask, own.query_marker, own.document_marker, *self.encode([""])[0]}
        return tuple(sorted(added | named - {None}))

    def id_to_token(self, number: int) -> str:
        """The token with this id, empty if there is none."""
        return str(self._tokenizer.id_to_token(number) or "")

    def whole_word(self, number: int) -> str:
        """The word that a token consists of or starts, without the space before it; empty for any other token."""
        token = self.id_to_token(number)
        word = token.removeprefix(self._space_symbol)
        return word if word.isalpha() and (word != token or not self._space_symbol) else ""

    @property
    def id_dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest unsigned dtype that holds every id."""
        return np.uint16 if self.vocabulary_size <= 2**16 else np.uint32

    @property
    def digest(self) -> str:
        """Digest of what the tokens of a text depend on: the tokenizer files, and the version of the library that reads them."""
        files = {name: content for name, content in self._files.items() if name != CHAT_TEMPLATE}
        entries = {name: {"sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()}
        entries |= {"do_lower_case": {"sha256": "true"}} if self._lower_cases else {}
        return manifests.digest_files({**entries, "tokenizers": {"sha256": tokenizers.__version__}})

    def copy_files(self, folder: Path, max_length: int | None = None, tokenizer_class: str | None = None) -> None:
        """Write the tokenizer files, as they were read, to a folder; `max_length` where other libraries look for the length of a
        cross-encoder, `tokenizer_class` where they look for the class in a folder without config.json, if the files do not name it."""
        for name, content in self._files.items():
            (folder / name).write_bytes(content)
        settings = {"model_max_length": max_length, "tokenizer_class": self._config.get("tokenizer_class") or tokenizer_class}
        settings = {key: value for key, value in settings.items() if value is not None and value != self._config.get(key)}
        if self._lower_cases or settings:
            config = self._config | settings
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if not (folder / "tokenizer.json").exists():
            self._tokenizer.save(str(folder / "tokenizer.json"))


def _cut_at_space(text: str, size: int) -> str:
    """The words that end within the first `size` characters; half a word if it is longer than half of them, as without spaces."""
    words = text[:size].rsplit(maxsplit=1) if size < len(text) else []
    return words[0] if len(words) == 2 and 2 * len(words[0]) >= size else text[:size]


def load_tokenizer(folder: Path) -> tuple[Tokenizer, dict[str, int]]:
    """Load the tokenizer of a folder and the ids of its tokens: without padding or truncation; special tokens written in a text are
    encoded as text."""
    config = read_tokenizer_config(folder)
    if config.get("truncation_side", "right") != "right":
        side = config["truncation_side"]
        raise ArtifactError(f"{folder}/tokenizer_config.json: truncation_side is {side!r}; moeir cuts long texts at their end, 'right'")
    with refuse_failures(folder, "be opened"):
        tokenizer = _read_tokenizer_files(folder)
    _apply_settings(tokenizer, config, folder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # "[MASK]" in a passage is text
    if isinstance(tokenizer.model, models.BPE) and tokenizer.model.dropout:
        raise ArtifactError(f"{folder}: its tokenizer encodes a text otherwise each time, with a dropout; expected none")
    with refuse_failures(folder, "encode a text"):
        tokenizer.encode_batch_fast(["", PROBE])
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if not vocabulary:
            raise ArtifactError(f"{folder}: its tokenizer has an empty vocabulary")
    _split_special_tokens(tokenizer)
    return tokenizer, vocabulary


@contextmanager
def refuse_failures(folder: Path, action: str) -> Iterator[None]:
    """ArtifactError for what the tokenizers library raises: bare Exceptions for a broken file or text, and panics, which are none."""
    try:
        yield
    except (MoeirError, OSError, MemoryError):
        raise
    except BaseException as problem:
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise ArtifactError(f"{folder}: its tokenizer cannot {action}: {reason}") from None


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The settings of a folder's tokenizer, with the `do_lower_case` of sentence-transformers, which leaves accents as they are."""
    config = _read_config_files(folder)
    if _lower_cases_before(config, folder):
        config |= {"do_lower_case": True, "strip_accents": bool(config.get("strip_accents"))}
    return config


def _lower_cases_before(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether sentence-transformers lower-cases texts before a tokenizer that does not."""
    return bool(read_sentence_settings(folder).get("do_lower_case")) and config.get("do_lower_case") is False


def _apply_settings(tokenizer: Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Put the settings of `config` over those of tokenizer.json, as transformers does."""
    if config.get("tokenizer_class") not in GENERIC_TOKENIZERS:
        for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
            for name, (kind, attribute) in APPLIED_SETTINGS.items():
                if isinstance(part, kind) and config.get(name) is not None:
                    setattr(part, attribute, config[name])
    normalizer = "" if tokenizer.normalizer is None else tokenizer.normalizer.__getstate__().decode().lower()
    if read_sentence_settings(folder).get("do_lower_case") and not ('"lowercase":true' in normalizer or '"type":"lowercase"' in normalizer):
        reason = "do_lower_case is true, and the tokenizer does not lower-case"
        raise ArtifactError(f"{folder}: {reason}; moeir keeps that for BERT's tokenizer with do_lower_case in tokenizer_config.json")


def _read_config_files(folder: Path) -> dict[str, Any]:
    """The merged tokenizer_config.json and special_tokens_map.json of a folder."""
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            config |= CheckedFields(read_json_object(folder / name), folder / name)
    return config


def _find_space_symbol(tokenizer: Tokenizer, folder: Path) -> str:
    """The symbol for a space before a word: Ġ (byte level), ▁ (SentencePiece) or nothing (WordPiece)."""
    text = "b a"
    with refuse_failures(folder, "split a text"):
        if tokenizer.normalizer is not None:  # which may write the symbol, too
            text = tokenizer.normalizer.normalize_str(text)
        words = [(text, None)] if tokenizer.pre_tokenizer is None else tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return str(words[-1][0]).removesuffix("a").rpartition("b")[2].strip() if words else ""


def _split_special_tokens(tokenizer: Tokenizer) -> None:
    """Keep Unigram models from matching special tokens in a text, where they are ordinary vocabulary: insert a space into them."""
    if not isinstance(tokenizer.model, models.Unigram):
        return
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    apart = [normalizers.Replace(token, f"{token[0]} {token[1:]}") for token in special if len(token) > 1]
    tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, *apart] if tokenizer.normalizer is not None else apart)


def _read_tokenizer_files(folder: Path) -> Tokenizer:
    """Read tokenizer.json, or BERT's WordPiece from vocab.txt."""
    if (folder / "tokenizer.json").exists():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    advice = f"transformers writes it from other files: AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    if (folder / "vocab.txt").exists():
        tokenizer: Tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))._tokenizer
        added = read_json_object(folder / ADDED_TOKENS) if (folder / ADDED_TOKENS).exists() else {}
        if token := next((token for token, number in added.items() if tokenizer.token_to_id(token) != number), None):
            raise ArtifactError(f"{folder / ADDED_TOKENS}: adds {token!r} to vocab.txt, expected a tokenizer.json with both; {advice}")
        return tokenizer
    raise ArtifactError(f"{folder}: no tokenizer.json or vocab.txt, expected the tokenizer of the weights; {advice}")
