"""Tiny tokenizers of decoders with chat templates: bytes in pairs, as GPT-2's and Qwen's split texts, and as SentencePiece has them."""

import json
from itertools import product
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ("yes", "no", "the owl", "hunting at night", "What is it?", "mice.", "<Query>: ", "\n<Document>: ", "user\n", "assistant\n")
WORDS += ("?\n\n", "!\n")
ROLES = """<|im_start|>system
Judge the Document: "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Find an answer.") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
BEGUN = "{{ bos_token }}" + CHATML


def write_chat_tokenizer(folder: Path, kind: str, template: str | None = ROLES, *, in_config: bool = False) -> int:
    """A tokenizer of the kind gpt2, qwen, gemma or llama, and a template in its file or in tokenizer_config.json: V."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind in ("gpt2", "qwen"):
        tokenizer = Tokenizer(models.BPE())
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        split = [] if kind == "gpt2" else [pre_tokenizers.Split(Regex(QWEN), "isolated")]
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([*split, whole]), decoders.ByteLevel()
        if kind == "qwen":
            tokenizer.normalizer = normalizers.NFC()
    else:  # a space is ▁; Llama 2 puts one before each text
        tokenizer = Tokenizer(models.BPE(byte_fallback=True))
        prepend = [normalizers.Prepend("▁")] if kind == "llama" else []
        tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
        words = [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Punctuation()]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)  # while it learns its pairs
        alphabet = ["▁", *map(chr, range(33, 127)), "\n", *(f"<0x{number:02X}>" for number in range(256))]
    texts = [first + second for first, second in product(WORDS, WORDS)]
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=700, initial_alphabet=[], special_tokens=[*special, *alphabet], show_progress=False)
    )
    own = json.loads(tokenizer.to_str())
    own["pre_tokenizer"] = own["pre_tokenizer"] if kind in ("gpt2", "qwen") else None
    own["added_tokens"] = [token for token in own["added_tokens"] if token["content"] in SPECIAL]
    (folder / "tokenizer.json").write_text(json.dumps(own))
    names = {"bos_token": "<|im_start|>", "eos_token": "<|end|>", "pad_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None and in_config:
        names["chat_template"] = template
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return max(own["model"]["vocab"].values()) + 1
