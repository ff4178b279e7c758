"""Routers and queues of the slow simulator: where a request goes, and its place there."""

import math
from collections.abc import Callable

from step_memory import StepMemory
from step_prices import by_rank_tokens, mixed_s
from step_state import Engine, Request

from planner.simulate.loop.fields import IMBALANCE


class StepRouting(StepMemory):
    """Who goes where."""

    def route(self, r: Request, decoding: bool) -> Engine | None:
        open_to = [
            e for e in self.engines if (e.role == "decode") == decoding and e.life == "open" and self.serves(e, r)
        ]
        policy = self.fleet.decode_routing if decoding else self.fleet.routing
        if not open_to:
            return None
        if policy == "round-robin":
            turn = decoding, r.last if decoding else r.model
            self.turn[turn] += 1
            return open_to[(self.turn[turn] - 1) % len(open_to)]
        if policy == "power-of-two":
            first, second = (open_to[int(self.draw(n, r.id, 2 if decoding else 0) * len(open_to))] for n in (0, 1))
            return second if len(second.outstanding) < len(first.outstanding) else first
        loads = [len(e.outstanding) for e in open_to]
        if policy == "cache-aware" and max(loads) - min(loads) > IMBALANCE:
            policy = "least-loaded"
        costs: dict[str, Callable[[Engine], float]] = {
            "least-loaded": lambda e: len(e.outstanding),
            "length-aware": lambda e: sum(q.input + q.predicted for q in e.outstanding),
            "freeness": lambda e: -self.freeness(e),
            "cache-aware": lambda e: -len(self.hits(e, r)),
        }
        return min(open_to, key=lambda e: (costs[policy](e), len(e.outstanding), e.id))

    def serves(self, e: Engine, r: Request) -> bool:
        return e.rules.model == (r.last if e.role == "decode" else r.model)

    def relief(self, e: Engine) -> float:
        return -math.inf if e.life == "draining" else self.freeness(e)

    def freeness(self, e: Engine) -> float:
        asked = sum(self.blocks(q.input + q.generated) for q in e.queue)
        return (self.room(e) - asked) / max(self.num_decoding(e) + e.coming + len(e.queue), 1)

    def num_decoding(self, e: Engine) -> int:
        return len(e.batch)

    def come(self, r: Request) -> None:
        """What clients send waits for the front end that is free first, of engines that take it."""
        if r.state == "handed":
            self.pass_on(r)
            return
        open_to = [e for e in self.engines if e.role != "decode" and e.life == "open" and self.serves(e, r)]
        beside_s = self.fleet.frontend_token_s * r.input
        own_s = self.fleet.frontend_s + (0.0 if self.fleet.tokenises_together else beside_s)
        beside_s = beside_s if self.fleet.tokenises_together else 0.0
        if r.state != "to come" or own_s + beside_s == 0.0 or not open_to:
            self.arrive(r)
            return
        e = min(map(self.front, open_to), key=lambda e: (e.front_free_s, e.id))
        e.front_free_s = max(e.front_free_s, self.now) + own_s
        e.front_ready_s = max(e.front_free_s + beside_s, e.front_ready_s)
        r.state = "tokenised"
        self.to_come.append((e.front_ready_s, 1, r.id))

    def front(self, e: Engine) -> Engine:
        if self.fleet.elastic:
            return self.engines[0]
        return e if self.fleet.tokenises_together else self.engines[e.leader]

    def arrive(self, r: Request) -> None:
        e = r.home
        if r.state != "fetching" or e is None or e.life != "open" or e.role == "decode":
            e = self.route(r, False)
        if e is None:
            self.hold_back(r)
            return
        fits = [
            other
            for other in self.engines
            if self.blocks(r.input + (r.generated if other.role == "prefill" else r.output))
            <= other.rules.kv_tokens // self.fleet.block_tokens
            and self.serves(other, r)
        ]
        if r.refused or e not in fits or (e.role == "prefill" and all(other.role == "prefill" for other in fits)):
            r.state = "rejected"
            self.answer(r)
            return
        if self.memory and r.fetched is None:
            done_s = self.fetch(e, r)
            if done_s > self.now:
                r.state, r.home = "fetching", e
                self.to_come.append((done_s, 1, r.id))
                return
        r.state, r.entry = "waiting", e
        self.join(e, r)

    def hold_back(self, r: Request) -> None:
        raise AssertionError("without changes an instance is always open")

    def hand_over(self, r: Request) -> None:
        r.home = r.entry
        if self.fleet.handover_s:
            self.to_come.append((self.now + self.fleet.handover_s, 1, r.id))
        else:
            self.pass_on(r)

    def pass_on(self, r: Request) -> None:
        e = self.route(r, True)
        if e is None:
            self.hold_back(r)
        else:
            self.join(e, r)

    def join(self, e: Engine, r: Request) -> None:
        keys = {"fcfs": self.now, "priority": float(r.priority), "shortest-predicted": float(r.predicted)}
        r.key, r.home = keys[self.fleet.queueing] if self.fleet.queueing != "feedback" else self.level(e, r), e
        e.outstanding.append(r)
        e.queue.append(r)

    def level(self, e: Engine, r: Request) -> float:
        grid, level, quantum_s = e.rules.grid, 0.0, self.fleet.quantum_s
        prefill_s = mixed_s(grid, (0.0, float(grid.contexts[0]), float(r.input), (r.input + 1) / 2))
        members = sum(other.leader == e.leader for other in self.engines)
        prefill_s += by_rank_tokens(grid, grid.joint_s.tolist(), r.input / members)
        while r.state != "handed" and quantum_s < prefill_s:
            level, quantum_s = level + 1.0, 2.0 * quantum_s
        r.left_s = quantum_s
        return level

    def answer(self, r: Request) -> None:
        after = int(self.load.successor[r.id])
        if after < 0 and self.load.clients and self.next_client < len(self.requests):
            after = self.next_client
            self.next_client += 1
        if after >= 0:
            self.requests[after].arrival_s = self.now + float(self.load.think_s[after])
            self.to_come.append((self.requests[after].arrival_s + self.fleet.request_overhead_s, 1, after))
