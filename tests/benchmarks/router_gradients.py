"""Estimators of a router's gradient against the exact gradient of the expected loss, and what they cost in a training.

    python router_gradients.py [--cases 60 --samples 4096]
    python router_gradients.py --model FOLDER [--rounds 9 --texts 16 --tokens 64]

A case has one state, random experts e_i = LayerNorm(h + f_i(h)), gate logits l, and the loss -log softmax over eight random documents.
Exact is d/dl of Σ_i softmax(l)_i loss(e_i). Of each estimator, over many Gumbel samples: the mean of its samples against the exact gradient
(cosine, share of right signs, relative error: its bias) and single samples (cosine, relative error: its variance too). With --model:
training steps per processor second with the weights of a folder, in turns.
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rounds import make_parser, time_rounds
from torch import Tensor

from moeir.architectures.initialize import build_checkpoint
from moeir.training import objectives
from moeir.training.losses import EncodedBatch

HIDDEN, INNER, DOCUMENTS = 16, 32, 8
SPREADS = (0.1, 0.3, 1.0)  # how far the experts are apart: their weights are those of one layer plus noise of this relative size


class Case:
    """Experts' updates [I, H] of one state [H], logits [I] of the gate, and the loss of an output."""

    def __init__(self, seed: int, experts: int, spread: float) -> None:
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        self.state, up, down = draw(HIDDEN), draw(INNER, HIDDEN), draw(HIDDEN, INNER)
        inner = [F.gelu((up + spread * draw(INNER, HIDDEN)) / HIDDEN**0.5 @ self.state) for _ in range(experts)]
        self.updates = torch.stack([(down + spread * draw(HIDDEN, INNER)) / INNER**0.5 @ one for one in inner])
        self.logits, self.documents = draw(experts), 0.5 * draw(DOCUMENTS, HIDDEN)

    def norm(self, updates: Tensor) -> Tensor:
        return F.layer_norm(self.state + updates, (HIDDEN,))

    def loss(self, outputs: Tensor) -> Tensor:
        return -(outputs @ self.documents.T).log_softmax(-1)[..., 0]

    def exact(self) -> Tensor:
        logits = self.logits.clone().requires_grad_()
        return torch.autograd.grad(logits.softmax(-1) @ self.loss(self.norm(self.updates)), logits)[0]


def moving(values: Tensor) -> Tensor:
    """Zeros with the gradient of `values`."""
    return values - values.detach()


def sampled_gradients(estimator: str, case: Case, samples: int) -> Tensor:
    """[samples, I] gradients of the logits."""
    torch.manual_seed(7)
    logits = case.logits.expand(samples, -1).clone().requires_grad_()
    noise = -(-torch.rand_like(logits).clamp(1e-9, 1 - 1e-7).log()).log()
    relaxed, probabilities = (logits + noise).softmax(-1), logits.softmax(-1)
    chosen, other = relaxed.topk(2).indices.unbind(1)
    outputs, update = case.norm(case.updates), case.updates[chosen]
    output, rows = outputs[chosen], torch.arange(samples)
    probability, logit = probabilities[rows, chosen][:, None], logits[rows, chosen][:, None]
    rest, constants = 1 - probability.detach(), probabilities.detach()
    remaining = relaxed.detach().scatter(1, chosen[:, None], 0.0)
    drawn = torch.multinomial(remaining, 1)
    pair_weight = moving(relaxed.gather(1, drawn)) * remaining.sum(1, keepdim=True) / remaining.gather(1, drawn)
    all_pairs = (constants * moving(logits - logit))[:, :, None] * (outputs - output[:, None])
    weighted: dict[str, Callable[[], Tensor]] = {
        "switch": lambda: case.norm(update * (1 + moving(relaxed[rows, chosen][:, None]))),
        "full": lambda: output + moving(relaxed) @ outputs,
        "full, before the normalisation": lambda: case.norm(update + moving(relaxed) @ case.updates),
        "straight-through, softmax": lambda: output + moving(probabilities) @ outputs,
        "reinmax": lambda: output + 0.5 * all_pairs.sum(1),
        "pair": lambda: output + 0.5 * rest * moving(logits[rows, other][:, None] - logit) * (outputs[other] - output),
        "pair, of full": lambda: output + pair_weight * (outputs[drawn[:, 0]] - output),
        "sparsemixer, first order": lambda: case.norm(update * (1 + moving(probability.log()))),
        "sparsemixer": lambda: case.norm(update * (torch.where(torch.rand(samples, 1) > 0.75, 1.0, 1 / 3) + moving(probability.log()))),
        "reinforce": lambda: torch.empty(0),
    }  # fmt: skip
    losses = case.loss(output) * probability[:, 0].log() if estimator == "reinforce" else case.loss(weighted[estimator]())
    return torch.autograd.grad(losses.sum(), logits)[0]


ESTIMATORS = {  # estimator -> experts that run, of I
    "switch": "1", "sparsemixer, first order": "1", "sparsemixer": "1, a third of it at times", "reinforce": "1", "pair": "2",
    "pair, of full": "2", "full": "I", "full, before the normalisation": "I", "straight-through, softmax": "I", "reinmax": "I",
}  # fmt: skip


def print_quality(cases: int, samples: int) -> None:
    """The table of estimators, for two and for four experts."""
    for experts in (2, 4):
        print(f"\n{cases} cases, {experts} experts, {samples} samples each; errors are medians relative to the exact gradient\n")
        print("| estimator | experts run | cosine of the mean | right signs | error of the mean | cosine of a sample | error of a sample |")
        print("|---|---|---|---|---|---|---|")
        for estimator, cost in ESTIMATORS.items():
            rows = []
            for seed in range(cases):
                case = Case(seed, experts, SPREADS[seed % len(SPREADS)])
                exact, gradients = case.exact(), sampled_gradients(estimator, case, samples)
                mean, norm = gradients.mean(0), exact.norm()
                cosines = F.cosine_similarity(mean, exact, dim=0), F.cosine_similarity(gradients, exact[None]).mean()
                sample_error = (gradients - exact).square().sum(1).mean().sqrt() / norm
                rows.append(
                    [cosines[0], (mean.sign() == exact.sign()).float().mean(), (mean - exact).norm() / norm, cosines[1], sample_error]
                )
            columns = [list(map(float, column)) for column in zip(*rows, strict=True)]
            values = [function(column) for function, column in zip((MEAN, MEAN, MEDIAN, MEAN, MEDIAN), columns, strict=True)]
            print(f"| {estimator} | {cost} | " + " | ".join(f"{value:.3f}" for value in values) + " |")


MEAN, MEDIAN = statistics.fmean, statistics.median


def print_cost(model: Path, rounds: int, texts: int, tokens: int) -> None:
    """Training steps per processor second, in turns; the first round warms up."""
    torch.set_num_threads(1)
    specs = ["taser:routing=shared", *(f"taser:routing={routing},experts={experts},gradient={gradient}" for routing in ("sequence", "token")
             for experts in (2, 4) for gradient in ("switch", "pair", "full"))]  # fmt: skip
    trainings = {spec: build_checkpoint(model, spec, {"query_length": tokens // 2, "document_length": tokens}) for spec in specs}
    optimisers = {spec: torch.optim.AdamW(one.architecture.train().parameters(), lr=1e-5, fused=True) for spec, one in trainings.items()}
    words = [" ".join(f"word{number * tokens + place}" for place in range(tokens)) for number in range(texts)]
    sides = [trainings[specs[0]].tokenize(words, side) for side in ("query", "document")]

    def train(spec: str) -> None:
        queries, documents = (trainings[spec].architecture(side) for side in sides)
        batch = EncodedBatch(queries, documents, torch.zeros(texts, texts, dtype=torch.bool), 0, 1)
        objectives.contrastive(batch).loss.backward()
        optimisers[spec].step()
        optimisers[spec].zero_grad()

    timings, _ = time_rounds({spec: partial(train, spec) for spec in specs}, rounds)
    seconds = {spec: [one[spec].processor for one in timings] for spec in specs}
    print(f"\n{texts} queries of {tokens // 2} and {texts} documents of {tokens} tokens, float32, one thread, {rounds} rounds\n")
    print("| architecture | steps per second | time against `routing=shared` (quartiles) |\n|---|---|---|")
    for spec in specs:
        ratios = [one / plain for one, plain in zip(seconds[spec], seconds[specs[0]], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| `{spec}` | {1 / MEDIAN(seconds[spec]):.3f} | {middle:.2f} ({low:.2f} to {high:.2f}) |")


def main() -> None:
    """Print the tables."""
    parser = make_parser(__doc__, cases=60, samples=4096, rounds=9, texts=16, tokens=64)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    if arguments.model is None:
        print_quality(arguments.cases, arguments.samples)
    else:
        print_cost(arguments.model, arguments.rounds, arguments.texts, arguments.tokens)


if __name__ == "__main__":
    main()
