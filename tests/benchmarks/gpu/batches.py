"""Part 4: the largest batches that fit on the card, plain, with --recompute, with --gradient-cache, and their costs."""

import contextlib
import statistics
from collections.abc import Iterator

from tests.benchmarks.gpu import stages, texts
from tests.benchmarks.gpu.results import Context, Table, log
from tests.benchmarks.gpu.steps import NO_ATTENTION_DROPOUT, Plan

STEPS = 3
TOY_CARD_BYTES = 150_000  # a tensor larger than that is refused


def find_largest_batches(context: Context) -> None:
    """Double the queries of a batch from 128 on until the card is out of memory, or there are 4,096."""
    batches, tokens = ([8, 16], 256) if context.toy else ([128 << power for power in range(6)], 32_768)
    sizes = texts.sizes_of(context)
    examples = texts.write_examples(context.folder / "examples", sizes, count=batches[-1])
    plan = Plan(context, sizes, texts.write_weights(context.folder / "weights", sizes), examples, STEPS, 1)
    cached = ("--gradient-cache", tokens)
    ways = [(), NO_ATTENTION_DROPOUT, ("--recompute",), cached, ("--recompute", *cached)]
    columns = ["architecture", "flags", "queries", "documents", "tokens a step", "seconds a step", "tokens/s", "peak memory, GiB"]
    table = context.table("Batches, doubled until there is no room:", *columns, "outcome")
    summary = context.table("The largest of them:", "architecture", "flags", "queries", "the next", "tokens/s", "peak memory, GiB")
    with scarce_memory(context):
        for architecture in ("dense",) if context.toy else ("dense", "came"):
            for flags in ways[:1] + ways[-1:] if context.toy else ways:
                with context.attempt(f"{architecture} {flags}"):
                    climb(plan, architecture, flags, batches, table, summary)
    context.piece.notes += [
        f"bfloat16, dropout 0.1 unless said; {STEPS} steps each, the first not counted. 8 documents a query, shared as negatives.",
        "A batch is not tried where its time, twice that of the one before, does not fit into the minutes.",
    ]


def climb(plan: Plan, architecture: str, flags: tuple[object, ...], batches: list[int], table: Table, summary: Table) -> None:
    """A line for each batch size, and one for the largest."""
    words, took = " ".join(map(str, flags)), 10.0
    largest, following = None, "not tried"
    for batch in batches:
        if plan.context.seconds_left() < 2.2 * took + 10:
            break
        log(f"{architecture} {words}: {batch} queries")
        before = plan.context.seconds_left()
        queries, documents = (lengths.sum() / len(plan.examples.queries) for lengths in plan.examples.lengths(len(plan.examples.queries)))
        tokens = float(queries + documents) * batch
        try:
            with stages.StepTimes() as times:
                plan.train(architecture, batch, *flags)
        except stages.OutOfMemory:
            table.add(architecture, words, batch, 8 * batch, tokens, "", "", "", "out of memory")
            following = "out of memory"
            break
        seconds, memory = statistics.median(times.seconds(1)), stages.gib(times.peak_bytes)
        table.add(architecture, words, batch, 8 * batch, tokens, seconds, tokens / seconds, memory, "fits")
        largest, took = (batch, tokens / seconds, memory), before - plan.context.seconds_left()
        plan.context.save()
        following = "not tried"
    if largest is not None:
        summary.add(architecture, words, largest[0], following if largest[0] < batches[-1] else "", *largest[1:])


@contextlib.contextmanager
def scarce_memory(context: Context) -> Iterator[None]:
    """A pretended card with so little memory that the toy batches exceed it."""
    if not context.pretend:
        yield
        return
    from tests.device.fake_cuda import active_machine

    card = active_machine().cards[0]
    before, card.free_bytes = card.free_bytes, TOY_CARD_BYTES
    try:
        yield
    finally:
        card.free_bytes = before
