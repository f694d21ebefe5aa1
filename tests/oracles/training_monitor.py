"""Slow, obvious training alarms: each step's window is recomputed."""


def find_alarms(steps, window):
    """(step, fact) of each alarm: `wins` above 0.95, or `usage` below 0.01 of an equal share; a fact has one alarm."""
    alarm_list, alarmed = [], set()
    for end in range(1, len(steps) + 1):
        for name in steps[0]:
            values = [step[name] for step in steps[max(0, end - window) : end]]
            mean = round(sum(values) / len(values), 6)
            if name.startswith("wins."):
                bad = mean > 0.95
            elif name.startswith("usage."):
                router = name.rsplit(".", 1)[0]
                relative = round(mean * sum(other.rsplit(".", 1)[0] == router for other in steps[0]), 6)
                bad = relative < 0.01
            else:
                continue
            if bad and len(values) == window and name not in alarmed:
                alarmed.add(name)
                alarm_list.append((end, name))
    return alarm_list


def average_blocks(values, most):
    """(last step from 1, mean) of equal blocks, the last maybe shorter; the block length doubles until there are fewer than `most`."""
    length = 1
    while len(values) // length >= most:
        length *= 2
    parts = [(first, values[first : first + length]) for first in range(0, len(values), length)]
    return [(first + len(part), sum(part) / len(part)) for first, part in parts]
