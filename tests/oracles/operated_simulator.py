"""The slow simulator with instances that start, drain, fail and change role, and with an autoscaler."""

import math
from collections.abc import Callable

from step_simulator import StepSimulator
from step_state import Engine, Request

from planner.simulate.fleet.instances import Fleet
from planner.simulate.requests.stream import Requests


class OperatedSimulator(StepSimulator):
    """Simulates a fleet with all that is done to it."""

    def __init__(self, fleet: Fleet, requests: Requests, draw: Callable[[int, int, int], float]) -> None:
        super().__init__(fleet, requests, draw)
        self.kept: list[Request] = []
        self.changes = sorted(fleet.changes, key=lambda change: change.time_s)
        self.look_s = fleet.control.period_s if fleet.control else math.inf
        self.looked = False

    def moments_to_come(self) -> list[float]:
        times = super().moments_to_come()
        if times or self.kept:
            times += [change.time_s for change in self.changes[:1]]
            times += [e.opens_s for e in self.engines if e.opens_s < math.inf]
            if self.fleet.control and (times or not self.looked):
                self.looked = not times
                times.append(self.look_s)
        return times

    def group(self, e: Engine) -> list[Engine]:
        return [member for member in self.engines if member.leader == e.leader]

    def operate(self) -> None:
        while self.changes and self.changes[0].time_s <= self.now:
            change = self.changes.pop(0)
            for e in self.group(self.engines[change.instance]):
                self.change(e, change.action)
        for r in self.requests:
            if r.state == "lost":
                self.arrive(r)
        if self.look_s <= self.now and self.fleet.control:
            while self.look_s <= self.now:
                self.look_s += self.fleet.control.period_s
            for model in sorted({e.rules.model for e in self.engines}):
                self.flip(model)
                self.scale(model, False)
                self.scale(model, True)
        self.settle()
        kept, self.kept = sorted(self.kept, key=lambda r: (r.key, r.id)), []
        for r in kept:
            if r.state == "handed":
                self.pass_on(r)
            else:
                self.arrive(r)

    def hold_back(self, r: Request) -> None:
        if r.state != "handed":
            r.state, r.home = "waiting", None
        r.key = self.now
        self.kept.append(r)

    # --- changes
    def change(self, e: Engine, action: str) -> None:
        if action == "start" and e.life == "off":
            self.start(e, self.now)
        elif action == "start" and e.life == "draining":
            e.life = "open"
        elif action == "fail" and e.life != "off":
            self.fail(e)
        elif action in ("drain", "to-prefill", "to-decode") and e.life == "open":
            e.life, e.next_role = "draining", {"to-prefill": "prefill", "to-decode": "decode"}.get(action, "")

    def start(self, e: Engine, opens_s: float) -> None:
        e.life, e.up_since_s, e.opens_s = "starting", self.now, opens_s

    def switch_off(self, e: Engine) -> None:
        e.life, e.opens_s = "off", math.inf
        e.up_s += self.now - e.up_since_s

    def settle(self) -> None:
        for e in self.engines:
            if e.life == "starting" and e.opens_s <= self.now:
                e.life, e.opens_s = "open", math.inf
        for e in self.engines:
            group = self.group(e)
            if e is group[0] and all(m.life == "draining" and not m.outstanding and not m.coming for m in group):
                for member in group:
                    if member.next_role:
                        member.role, member.life = member.next_role, "open"
                    else:
                        self.switch_off(member)

    def fail(self, e: Engine) -> None:
        if e.end_s is not None:
            e.busy_s -= e.end_s - self.now
            e.steps -= 1
            e.end_s = None
        for r in self.requests:
            if r.state in ("handed", "moving") and e in (r.home, r.entry):
                self.lose_cache_between(e, r)
            elif r.state in ("waiting", "prefilling", "ready", "decoding", "swapped") and r.home is e:
                self.lose(r)
        for other in self.engines:
            if other.migrant and other is e and other.goal:
                other.goal.free += other.goal_blocks
                other.goal.coming -= 1
                self.release(other.goal, other.migrant)
            if other.migrant and e in (other, other.goal):
                other.migrant = None
        e.queue, e.batch, e.step, e.arrived, e.outstanding, e.using, e.lru = [], [], [], [], [], [], []
        e.cache, e.chains, e.adapters, e.partial, e.drafts = {}, {}, {}, None, None
        e.coming, e.penalty_s = 0, 0.0
        size = self.fleet.block_tokens
        e.free, e.host_free = e.rules.kv_tokens // size, e.rules.host_kv_tokens // size
        e.sent_s = e.received_s = self.now
        self.switch_off(e)

    def lose(self, r: Request) -> None:
        r.state, r.home, r.due_s = "lost", None, -1.0
        r.shared, r.blocks = [], 0
        r.preempted += 1

    def lose_cache_between(self, e: Engine, r: Request) -> None:
        """A prefilled request whose source or goal has failed."""
        source, home = r.entry, r.home
        assert source is not None
        assert home is not None
        self.transfers = [(time, other) for time, other in self.transfers if other is not r]
        if source is not e:
            self.let_go(source, r, *r.source, r.input + r.generated - 1)
            self.release(source, r)
            source.outstanding.remove(r)
        elif home is not source:
            home.outstanding.remove(r)
            if r.state == "moving":
                home.free += r.blocks
                home.coming -= 1
                self.release(home, r)
            else:
                home.queue.remove(r)
        held_back = home is source
        self.lose(r)
        if held_back:
            r.state = "waiting"

    # --- autoscaling
    def side(self, model: int, decoding: bool) -> list[Engine]:
        """Leaders of the groups of one side."""
        return [
            e for e in self.engines if e.leader == e.id and e.rules.model == model and (e.role == "decode") == decoding
        ]

    def busy_with(self, e: Engine) -> int:
        return sum(len(member.outstanding) for member in self.group(e))

    def scale(self, model: int, decoding: bool) -> None:
        control, side = self.fleet.control, self.side(model, decoding)
        assert control is not None
        up = [e for e in side if e.life in ("starting", "open")]
        opened = [e for e in side if e.life == "open"]
        requests = sum(self.busy_with(e) for e in opened)
        off = [e for e in side if e.life == "off"]
        if len(up) < control.least or (up and requests > control.crowded_above * len(up)):
            if off:
                for member in self.group(off[0]):
                    self.start(member, self.now + control.start_s)
        elif len(opened) == len(up) > control.least and requests < control.idle_below * len(opened):
            for member in self.group(min(opened, key=lambda e: (self.busy_with(e), -e.id))):
                member.life, member.next_role = "draining", ""

    def flip(self, model: int) -> None:
        control = self.fleet.control
        assert control is not None
        prefill, decode = ([e for e in self.side(model, side) if e.life == "open"] for side in (False, True))
        if any(e.life == "draining" for e in self.engines) or not prefill or not decode:
            return
        waiting = [sum(len(m.queue) for e in side for m in self.group(e)) / len(side) for side in (prefill, decode)]
        if waiting[0] == waiting[1] or max(waiting) <= control.flip_above:
            return
        giving, role = (decode, "prefill") if waiting[0] > waiting[1] else (prefill, "decode")
        if len(giving) > 1:
            for member in self.group(min(giving, key=lambda e: (self.busy_with(e), -e.id))):
                member.life, member.next_role = "draining", role
