"""Cost of routed experts: forward and backward of a model with experts against the same model without, in alternating steps.

    python expert_cost.py [--hidden 768 --layers 12 --texts 16 --tokens 128 --rounds 9 --threads 1]

Random weights of BERT's shape; each round times every model once, in turns, on the same batch; the ratio of each round is taken against
`taser:routing=shared` of the same round. Prints the median ratio with its quartiles.
"""

import statistics
from functools import partial

import torch
from rounds import make_parser, time_rounds

from moeir import variants
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens

PLAIN = "taser:routing=shared"
SPECS = (PLAIN, "taser", "taser:routing=sequence", "taser:routing=token", "taser:experts=4", "taser:routing=sequence,experts=4",
         "taser:routing=token,experts=4", "mote:similarity=dense", "taser:routing=token,experts=4,gradient=full")  # fmt: skip


def build_model(spec: str, shape: EncoderConfig) -> torch.nn.Module:
    """A seeded model in training mode; routers have random weights, so that they differ."""
    torch.manual_seed(1)
    model = variants.bind_variant("architectures", spec)(Encoder(shape), SpecialTokens(101, 102, 103, 1, 2, ())).train()
    for name, parameter in model.named_parameters():
        if "router" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def run_step(model: torch.nn.Module, batches: list[PackedTokens]) -> None:
    """One forward and backward of queries and documents."""
    sum(model(batch)["global"].vectors.square().sum() for batch in batches).backward()
    model.zero_grad()


def main() -> None:
    """Print the table."""
    arguments = make_parser(__doc__, hidden=768, layers=12, texts=16, tokens=128, rounds=9, threads=1).parse_args()
    torch.set_num_threads(arguments.threads)
    width = arguments.hidden
    shape = EncoderConfig(vocabulary=30522, hidden=width, layers=arguments.layers, heads=width // 64 or 1, intermediate_size=4 * width)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1000, 30000, (length,), generator=generator).tolist() for length in [arguments.tokens] * arguments.texts]
    short = [text[: arguments.tokens // 4] for text in texts]
    batches = [PackedTokens.from_lists(short, "query"), PackedTokens.from_lists(texts, "document")]
    timings, _ = time_rounds({spec: partial(run_step, build_model(spec, shape), batches) for spec in SPECS}, arguments.rounds)
    times = {spec: [one[spec].processor for one in timings] for spec in SPECS}  # as the machine may be shared
    sizes = f"{arguments.texts} texts of {arguments.tokens // 4} and of {arguments.tokens} tokens"
    sizes += f", {arguments.layers} layers of {arguments.hidden}"
    setup = f"float32, cpu, {arguments.threads} threads, {arguments.rounds} rounds"
    print(f"{sizes}, {setup}; seconds of {PLAIN}: {statistics.median(times[PLAIN]):.3f}")
    for spec in SPECS[1:]:
        ratios = [duration / plain for duration, plain in zip(times[spec], times[PLAIN], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{spec:45s} {middle:.3f}  ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
