"""Peak memory of torch's tensors while a function runs, beyond those allocated before."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(function: Callable[[], object]) -> int:
    """Peak bytes of host memory, from the profiler's allocation events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    allocated = highest = 0
    records = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(records, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        highest = max(highest, allocated)
    return highest
