"""Cost of routed experts: forward and backward of a model with experts against the same model without, in alternating steps.

    python expert_cost.py [--hidden 768 --layers 12 --texts 16 --tokens 128 --rounds 9 --dtype float32 --device cpu --threads 1]

Random weights of BERT's shape; each round times every model once, in turns, on the same batch; the ratio of each round is taken against
`taser:routing=shared` of the same round. Prints the median ratio with its quartiles.
"""

import statistics
from functools import partial

import torch
from rounds import make_parser, time_rounds

from moeir import variants
from moeir.backbones.device import DTYPES, autocast
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens

PLAIN = "taser:routing=shared"
SPECS = (PLAIN, "taser", "taser:routing=sequence", "taser:routing=token", "taser:experts=4", "taser:routing=sequence,experts=4",
         "taser:routing=token,experts=4", "mote:similarity=dense", "taser:routing=token,experts=4,gradient=full")  # fmt: skip


def build_model(spec: str, shape: EncoderConfig, device: str) -> torch.nn.Module:
    """A seeded model in training mode; routers have random weights, so that they differ."""
    torch.manual_seed(1)
    model = variants.bind_variant("architectures", spec)(Encoder(shape), SpecialTokens(101, 102, 103, 1, 2, ())).to(device).train()
    for name, parameter in model.named_parameters():
        if "router" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def run_step(model: torch.nn.Module, batches: list[PackedTokens], dtype: torch.dtype, device: str) -> None:
    """One forward and backward of queries and documents."""
    with autocast(dtype, device):
        vectors = [model(batch)["global"].vectors for batch in batches]
    sum(part.square().sum() for part in vectors).backward()
    if device != "cpu":
        torch.cuda.synchronize()
    model.zero_grad()


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__, hidden=768, layers=12, texts=16, tokens=128, rounds=9, threads=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = EncoderConfig(
        vocabulary=30522,
        hidden=arguments.hidden,
        layers=arguments.layers,
        heads=arguments.hidden // 64 or 1,
        intermediate_size=4 * arguments.hidden,
    )
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1000, 30000, (length,), generator=generator).tolist() for length in [arguments.tokens] * arguments.texts]
    short = [text[: arguments.tokens // 4] for text in texts]
    batches = [
        PackedTokens.from_lists(short, "query").to(arguments.device),
        PackedTokens.from_lists(texts, "document").to(arguments.device),
    ]
    models = {spec: build_model(spec, shape, arguments.device) for spec in SPECS}
    steps = {spec: partial(run_step, model, batches, DTYPES[arguments.dtype], arguments.device) for spec, model in models.items()}
    timings, _ = time_rounds(steps, arguments.rounds)
    clock = "processor" if arguments.device == "cpu" else "clock"  # processor seconds, as the machine may be shared
    times = {spec: [getattr(one[spec], clock) for one in timings] for spec in SPECS}
    sizes = f"{arguments.texts} texts of {arguments.tokens // 4} and of {arguments.tokens} tokens"
    sizes += f", {arguments.layers} layers of {arguments.hidden}"
    setup = f"{arguments.dtype}, {arguments.device}, {arguments.threads} threads, {arguments.rounds} rounds"
    print(f"{sizes}, {setup}; seconds of {PLAIN}: {statistics.median(times[PLAIN]):.3f}")
    for spec in SPECS[1:]:
        ratios = [duration / plain for duration, plain in zip(times[spec], times[PLAIN], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{spec:45s} {middle:.3f}  ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
