"""The slow simulator of engines that form a step while the one before it runs, with a queue of the steps in flight.

An engine has at most two steps in flight: one that runs and one that is formed. It forms steps as long as fewer are in
flight, takes none that would be empty, and then waits for the end of the oldest: nobody who arrives meanwhile is seen
before. A step that is formed starts when the one before it ends. Its tokens count as generated from then on: what has
its last token in a step in flight is in none that follows, and keeps its place and its blocks until that step ends.
Who is preempted while in flight still gets the token of that step. At one moment steps end, then requests arrive, then
steps are formed. (vLLM 0.33.0: `step_with_batch_queue` in v1/engine/core.py, line 708, two batches;
`_update_after_schedule` in v1/core/sched/async_scheduler.py; `schedule`, line 800, and `_preempt_request`, line 1799,
in v1/core/sched/scheduler.py.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from step_simulator import StepSimulator
from step_state import Engine, Request

from planner.simulate.fleet.instances import Fleet
from planner.simulate.requests.stream import Requests


@dataclass
class Part:
    """What an engine does in a step in flight."""

    end_s: float
    decoded: list[Request]
    prompts: list[Request]  # whose last chunk is in it
    last: list[Request] = field(default_factory=list)  # requests whose last token here it makes
    gone: list[Request] = field(default_factory=list)  # of those, preempted while in flight
    begun: bool = False


class AheadSimulator(StepSimulator):
    """Simulates a fleet whose engines form steps ahead."""

    def __init__(self, fleet: Fleet, requests: Requests, draw: Callable[[int, int, int], float]) -> None:
        super().__init__(fleet, requests, draw)
        self.flights: dict[int, list[Part]] = {e.id: [] for e in self.engines}

    def flight(self, e: Engine) -> list[Part]:
        return self.flights[e.id]

    def start_s(self, e: Engine) -> float:
        return max([self.now, *(part.end_s for part in self.flight(e))])

    def started(self) -> list[Engine]:
        """Those who were idle, and have formed one step at this moment."""
        return [e for e in self.engines if self.flight(e) and not self.flight(e)[0].begun]

    def moments_to_come(self) -> list[float]:
        return [*super().moments_to_come(), *(self.now for _ in self.started())]

    def end_all(self) -> None:
        """Who was idle forms the next step when all have formed theirs, before any time has passed."""
        for e in self.started():
            self.begin(self.flight(e)[0])
            e.end_s = None
        super().end_all()

    def schedule_group(self, group: list[Engine]) -> None:
        leader = group[0]
        if leader.end_s is not None or len(self.flight(leader)) == 2:
            return  # it waits for the end of the oldest
        super().schedule_group(group)
        ends = [e.end_s for e in group if e.end_s is not None]
        for e in group:
            if ends:
                self.put_in_flight(e, ends[0])
            e.end_s = self.flight(e)[0].end_s if self.flight(e) else None

    def put_in_flight(self, e: Engine, end_s: float) -> None:
        """The step that was formed last; its tokens count."""
        decoded = list(e.batch) if e.end_s is not None and e.decoding else []
        part = Part(end_s, decoded, [r for r, _ in e.step if r.done == r.input + r.generated])
        for r in sorted(decoded, key=lambda r: r.id):
            r.generated += 1
            if r.generated == r.output:
                e.batch.remove(r)
                part.last.append(r)
        for r in part.prompts:
            r.generated += 1
            if r.generated == r.output or e.role == "prefill":
                part.last.append(r)
            else:
                r.state = "decoding"
                e.batch.append(r)
        e.step, e.decoding = [], False
        part.begun = bool(self.flight(e))
        self.flight(e).append(part)

    def begin(self, part: Part) -> None:
        part.begun = True
        for r in part.prompts:
            self.keep(r)

    def end_step(self, e: Engine) -> None:
        part, e.end_s = self.flight(e).pop(0), None
        for following in self.flight(e):
            self.begin(following)
        for r in part.decoded:
            r.token_s.append(self.now)
        for r in part.prompts:
            if r.prefilled_s < 0:
                r.prefilled_s = self.now
            handed = e.role == "prefill" and r.generated < r.output
            if r.first_s < 0 and (not handed or self.fleet.first_token_from == "prefill"):
                r.first_s = self.now
            if r.first_s >= 0:
                r.token_s.append(self.now)
        for r in part.last:
            if r.generated < r.output:
                r.state, r.source, r.shared, r.blocks = "handed", (r.blocks, r.shared), [], 0
                self.hand_over(r)
            elif r in part.gone:
                self.complete(e, r)
            else:
                self.finish(e, r)

    def complete(self, e: Engine, r: Request) -> None:
        r.state, r.finished_s = "complete", self.now
        e.outstanding.remove(r)
        self.answer(r)

    def in_last_step(self, e: Engine) -> list[Request]:
        """Requests that have their places although no further step here has them."""
        return [r for part in self.flight(e) for r in part.last if r not in part.gone]

    def num_decoding(self, e: Engine) -> int:
        """Sequences that decode when the step that runs has ended."""
        formed = self.flight(e)[1:]
        begun = sum(r not in part.last for part in formed for r in part.prompts)
        return len(e.batch) - begun + sum(r in part.last for part in formed for r in part.decoded)

    def running(self, e: Engine) -> int:
        return super().running(e) + len(self.in_last_step(e))

    def preempt(self, e: Engine) -> None:
        answered = [r for r in self.in_last_step(e) if r.generated == r.output]
        r = max([*e.batch, *answered, *([e.partial] if e.partial else [])], key=lambda r: (r.key, r.id))
        if r not in answered:
            super().preempt(e)
            return
        r.preempted += 1
        self.give_up(e, r, r.input + r.output - 1)
        next(part for part in self.flight(e) if r in part.last).gone.append(r)

    def starts_over(self, e: Engine) -> bool:
        return not self.flight(e)

    def give_up(self, e: Engine, r: Request, tokens: int) -> None:
        """A block is named when all of its tokens are known to have been computed."""
        super().give_up(e, r, tokens - sum(r in part.decoded for part in self.flight(e)))
