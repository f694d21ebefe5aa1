"""Seeded two-layer T5 weights with a vocabulary of the toy corpus; their queries differ in length, and some are empty."""

import json
import re
import string
from pathlib import Path

WIDTH = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
SPECIAL = ("<pad>", "</s>", "<unk>")


def write_tiny_t5(folder: Path, corpus: Path, family: str = "t5") -> Path:
    """Write config.json, model.safetensors and tokenizer.json; as in released T5s the model has more rows than there are tokens."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    classes = {"t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
             "mt5": (transformers.MT5Config, transformers.MT5ForConditionalGeneration)}  # fmt: skip
    config, model = classes[family]
    transformers.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        t5 = model(config(vocab_size=_write_tokenizer(folder, corpus) + 12, decoder_start_token_id=0, **WIDTH))
        t5.shared.weight.data[:, 0] = 2.0
        t5.lm_head.weight.data[1, 0] = 14.0  # ends a query now and then
        t5.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path, corpus: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    content = " ".join(json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines())
    words = sorted({word for word in re.findall("[a-z]+", content.lower()) if len(word) > 1})
    pieces = [*((piece, 0.0) for piece in SPECIAL), *((sign, -9.0) for sign in ("▁", *string.ascii_lowercase, *".,?:2<>/"))]
    pieces += [(f"▁{word}", -3.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(pieces)
