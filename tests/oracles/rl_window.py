"""Samples handed out continuously, by brute force: one decode step of one replica at a time, from the definition."""

from planner.rl.curves import DecodeCurve


def windowed(
    lengths: list[tuple[int, int]], group: int, window: int, replicas: int, curve: DecodeCurve
) -> tuple[list[float], list[float]]:
    """When each (prompt, output) starts and is done; `window` groups of `group` in a row are under way at a time."""
    groups = [list(range(first, min(first + group, len(lengths)))) for first in range(0, len(lengths), group)]
    line: list[list[int]] = [[] for _ in range(replicas)]
    running: list[dict[int, int]] = [{} for _ in range(replicas)]  # tokens made so far
    clock = [0.0] * replicas
    started: dict[int, float] = {}
    done: dict[int, float] = {}

    def hand_out() -> None:
        for sample in groups.pop(0) if groups else ():
            fewest = min(range(replicas), key=lambda place: len(line[place]) + len(running[place]))
            line[fewest].append(sample)

    def admit(place: int) -> None:
        prompts = 0
        while line[place] and len(running[place]) < curve.max_running:
            need = sum(lengths[line[place][0]])
            if running[place] and sum(sum(lengths[other]) for other in running[place]) + need > curve.kv_tokens:
                break
            sample = line[place].pop(0)
            running[place][sample], started[sample] = 0, clock[place]
            prompts += lengths[sample][0]
        clock[place] += prompts / curve.prefill_tokens_per_s

    def step_end(place: int) -> float:
        tokens = sum(lengths[sample][0] + made for sample, made in running[place].items())
        return clock[place] + curve.step_s + curve.sequence_s * len(running[place]) + curve.token_s * tokens

    whole = list(groups)
    for _ in range(window):
        hand_out()
    for place in range(replicas):
        admit(place)
    while len(done) < len(lengths):
        now, ends = min((step_end(place), place) for place in range(replicas) if running[place])
        clock[ends] = now
        for sample in running[ends]:
            running[ends][sample] += 1
        finished = [sample for sample, made in running[ends].items() if made == lengths[sample][1]]
        for sample in finished:
            del running[ends][sample]
            done[sample] = now
        for members in [whole[place] for place in sorted({sample // group for sample in finished})]:
            if all(sample in done for sample in members):
                hand_out()
        admit(ends)
        for place in range(replicas):
            if place != ends and line[place] and (not running[place] or clock[place] >= now):
                clock[place] = max(clock[place], now)  # idle, or still prefilling
                admit(place)
    order = range(len(lengths))
    return [started[sample] for sample in order], [done[sample] for sample in order]
