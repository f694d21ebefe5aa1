"""A training watched the slow way: the window of every step is cut out anew."""


def alarms(steps, window):
    """(step, fact) of each alarm: `wins` above 0.95, or `usage` below 0.01 of an equal part, until 0.90 or 0.02 are met again."""
    alarm_list, active = [], set()
    for end in range(1, len(steps) + 1):
        for name in steps[0]:
            values = [step[name] for step in steps[max(0, end - window) : end]]
            mean = round(sum(values) / len(values), 6)
            if name.startswith("wins."):
                bad, good = mean > 0.95, mean <= 0.90
            elif name.startswith("usage."):
                router = name.rsplit(".", 1)[0]
                relative = round(mean * sum(other.rsplit(".", 1)[0] == router for other in steps[0]), 6)
                bad, good = relative < 0.01, relative >= 0.02
            else:
                continue
            if good:
                active.discard(name)
            elif bad and len(values) == window and name not in active:
                active.add(name)
                alarm_list.append((end, name))
    return alarm_list


def stretches(values, most):
    """Means of equal stretches (the last may be shorter), as long as makes fewer than `most`, each with its last step from 1."""
    length = 1
    while len(values) // length >= most:
        length *= 2
    parts = [(first, values[first : first + length]) for first in range(0, len(values), length)]
    return [(first + len(part), sum(part) / len(part)) for first, part in parts]
