"""Samples handed out continuously, by brute force: one decode step of one replica at a time, from the definition."""

from planner.rl.curves import DecodeCurve


class Replica:
    """Its clock, the samples in line, and tokens made so far of those that run."""

    def __init__(self, curve: DecodeCurve, lengths: list[tuple[int, int]]) -> None:
        self._curve, self._lengths = curve, lengths
        self.clock, self.line, self.running = 0.0, list[int](), dict[int, int]()
        self.started = dict[int, float]()

    @property
    def load(self) -> int:
        return len(self.line) + len(self.running)

    @property
    def step_end(self) -> float:
        tokens = sum(self._lengths[sample][0] + made for sample, made in self.running.items())
        curve = self._curve
        return self.clock + curve.step_s + curve.sequence_s * len(self.running) + curve.token_s * tokens

    def admit(self) -> None:
        """Takes in those in line, with room for all that they will hold."""
        prompts = 0
        while self.line and len(self.running) < self._curve.max_running:
            held = sum(sum(self._lengths[other]) for other in self.running)
            if self.running and held + sum(self._lengths[self.line[0]]) > self._curve.kv_tokens:
                break
            sample = self.line.pop(0)
            self.running[sample], self.started[sample] = 0, self.clock
            prompts += self._lengths[sample][0]
        self.clock += prompts / self._curve.prefill_tokens_per_s

    def step(self) -> list[int]:
        """One decode step; those that are done leave."""
        self.clock = self.step_end
        self.running = {sample: made + 1 for sample, made in self.running.items()}
        finished = [sample for sample, made in self.running.items() if made == self._lengths[sample][1]]
        for sample in finished:
            del self.running[sample]
        return finished


def windowed(
    lengths: list[tuple[int, int]], group: int, window: int, replicas: int, curve: DecodeCurve
) -> tuple[list[float], list[float]]:
    """When each (prompt, output) starts and is done; `window` groups of `group` in a row are under way at a time."""
    groups = [range(first, min(first + group, len(lengths))) for first in range(0, len(lengths), group)]
    waiting, all_of_them = list(groups), [Replica(curve, lengths) for _ in range(replicas)]
    done: dict[int, float] = {}

    def hand_out(count: int) -> None:
        for members in waiting[:count]:
            for sample in members:
                min(all_of_them, key=lambda replica: replica.load).line.append(sample)
        del waiting[:count]

    hand_out(window)
    for replica in all_of_them:
        replica.admit()
    while len(done) < len(lengths):
        ends = min((replica for replica in all_of_them if replica.running), key=lambda replica: replica.step_end)
        finished = ends.step()
        done |= dict.fromkeys(finished, ends.clock)
        now, touched = ends.clock, sorted({sample // group for sample in finished})
        hand_out(sum(all(sample in done for sample in groups[place]) for place in touched))
        ends.admit()
        for replica in all_of_them:
            if replica is not ends and replica.line and (not replica.running or replica.clock >= now):
                replica.clock = max(replica.clock, now)  # idle, or still prefilling
                replica.admit()
    started = {sample: time for replica in all_of_them for sample, time in replica.started.items()}
    return [started[sample] for sample in range(len(lengths))], [done[sample] for sample in range(len(lengths))]
