"""The most memory that torch's tensors take at once while something runs, beyond those that were there before."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak(function: Callable[[], object]) -> int:
    """In bytes, of the processor's memory, from the allocator's own record."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    allocated = highest = 0
    records = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(records, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        highest = max(highest, allocated)
    return highest
