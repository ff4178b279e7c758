"""A slow and obvious simulator, which the compiled loop must equal: one object a request, one event a step, lists.

At one moment steps and transfers end, then requests arrive, then instances that are between steps start their next one.
"""

import math

from step_scheduler import StepScheduler
from step_state import Engine, Request


class StepSimulator(StepScheduler):
    """Simulates a fleet; `moments` ends up as the list of all times at which something happened."""

    def moments_to_come(self) -> list[float]:
        times = [e.end_s for e in self.engines if e.end_s is not None]
        times += [time for time, _ in self.transfers] + [time for time, _, _ in self.to_come]
        if times and self.fleet.migration_period_s < math.inf:
            times += [self.tick_s, *(e.copied_s for e in self.engines if e.migrant and e.copied_s > self.now)]
        return times

    def operate(self) -> None:
        """What is done to instances at this moment; `operated_simulator` does it."""

    def run(self) -> None:
        while times := self.moments_to_come():
            self.now = min(times)
            self.moments.append(self.now)
            self.end_all()
            while self.to_come and min(self.to_come)[0] <= self.now:
                first = min(self.to_come)
                self.to_come.remove(first)
                self.come(self.requests[first[2]])
            self.migrate()
            self.operate()
            self.schedule_all()

    def end_all(self) -> None:
        due = sorted(
            (e for e in self.engines if e.end_s is not None and e.end_s <= self.now), key=lambda e: (e.end_s, e.id)
        )
        for engine in due:
            self.end_step(engine)
        for time, r in sorted(self.transfers, key=lambda item: (item[0], item[1].id)):
            if time <= self.now:
                self.transfers.remove((time, r))
                self.end_transfer(r)

    def finish(self, e: Engine, r: Request) -> None:
        self.let_go(e, r, r.blocks, r.shared, r.input + r.output - 1)
        self.release(e, r)
        r.shared = []
        r.state, r.finished_s = "complete", self.now
        e.outstanding.remove(r)
        self.answer(r)

    def end_step(self, e: Engine) -> None:
        e.end_s = None
        if e.decoding:
            if e.drafts is not None:
                e.free += e.drafts
            for r in list(e.batch):
                r.generated += 1
                r.token_s.append(self.now)
                if e.drafts is not None:
                    self.accept(e, r)
            e.drafts = None
            for r in sorted((r for r in e.batch if r.generated == r.output), key=lambda r: r.id):
                e.batch.remove(r)
                self.finish(e, r)
        for r, _ in e.step:
            if r.done == r.input + r.generated:
                self.end_prefill(e, r)
        e.step = []
        self.move(e)

    def end_prefill(self, e: Engine, r: Request) -> None:
        self.publish(e, r)
        self.keep(r)
        r.generated += 1
        last = r.generated == r.output
        handed = e.role == "prefill" and not last
        if r.prefilled_s < 0:
            r.prefilled_s = self.now
        if r.first_s < 0 and (not handed or self.fleet.first_token_from == "prefill"):
            r.first_s = self.now
        if r.first_s >= 0:
            r.token_s.append(self.now)
        if last:
            self.finish(e, r)
        elif handed:
            r.state, r.source, r.shared, r.blocks = "handed", (r.blocks, r.shared), [], 0
            self.hand_over(r)
        else:
            r.state = "decoding"
            e.batch.append(r)

    def end_transfer(self, r: Request) -> None:
        assert r.entry is not None
        assert r.home is not None
        self.let_go(r.entry, r, *r.source, r.input + r.generated - 1)
        self.release(r.entry, r)
        r.entry.outstanding.remove(r)
        if r.first_s < 0:
            r.first_s = self.now
            r.token_s.append(self.now)
        r.state = "ready"
        r.home.arrived.append(r)

    def migrate(self) -> None:
        for e in self.engines:
            if e.end_s is None:
                self.move(e)
        if self.tick_s > self.now:
            return
        while self.tick_s <= self.now:
            self.tick_s += self.fleet.migration_period_s
        able = [e for e in self.engines if e.role != "prefill"]
        able = [e for e in able if e.life in ("open", "draining")]
        if not able:
            return
        source = min(able, key=lambda e: (self.relief(e), e.id))
        goals = [e for e in able if e.life == "open" and e.rules.model == source.rules.model]
        if not goals:
            return
        goal = min(goals, key=lambda e: (-self.freeness(e), e.id))
        crowded = self.relief(source) < self.fleet.crowded_below
        if source is goal or not crowded or not self.freeness(goal) > self.fleet.spare_above or source.migrant:
            return
        if not source.batch or self.running(goal) >= goal.rules.most_sequences:
            return
        r = min(source.batch, key=lambda r: (r.input + r.generated, r.id))
        tokens = r.input + r.generated - 1
        blocks = self.allocated(goal, r, tokens)
        if blocks > self.room(goal) - self.watermark(goal) or not self.acquire(goal, r):
            return
        self.take(goal, blocks)
        goal.coming += 1
        source.migrant, source.goal, source.goal_blocks, source.migrant_preempted = r, goal, blocks, r.preempted
        source.copied_s = self.transferred_s(source, goal, tokens)

    def move(self, e: Engine) -> None:
        r, goal = e.migrant, e.goal
        if r is None or goal is None or e.copied_s > self.now:
            return
        e.migrant = None
        tokens = r.input + r.generated - 1
        more = self.allocated(goal, r, tokens) - e.goal_blocks
        if r not in e.batch or r.preempted != e.migrant_preempted or more > self.room(goal):
            goal.free += e.goal_blocks
            goal.coming -= 1
            self.release(goal, r)
            return
        self.take(goal, more)
        e.batch.remove(r)
        self.let_go(e, r, r.blocks, r.shared, tokens)
        self.release(e, r)
        r.shared, r.blocks, r.home, r.due_s = [], e.goal_blocks + more, goal, -1.0
        e.outstanding.remove(r)
        goal.outstanding.append(r)
        goal.arrived.append(r)
        e.moved += 1
