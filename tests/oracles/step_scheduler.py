"""Steps of the slow simulator: admission, chunks, preemption, drafts, and the seconds of a step."""

import math

from step_prices import by_rank_tokens, decode_s, mixed_s
from step_routing import StepRouting
from step_state import Engine, Request

from planner.simulate.fleet.step_grid import StepGrid


class StepScheduler(StepRouting):
    """What is in a step."""

    def schedule_all(self) -> None:
        for leader in sorted({e.leader for e in self.engines}):
            self.schedule_group([e for e in self.engines if e.leader == leader])

    def schedule_group(self, group: list[Engine]) -> None:
        if any(e.end_s is not None for e in group):
            return
        start_s = self.start_s(group[0])
        for e in group:
            self.schedule(e)
        ends = [e.end_s for e in group if e.end_s is not None]
        if not ends:
            return
        last_s, skew = max(ends), self.fleet.skew
        running = [e for e in group if e.end_s is not None]
        tokens = sum(self.new_tokens(e) for e in running) / len(group)
        grids = [(self.grid_of(e), float(self.new_tokens(e))) for e in running if e.step]
        least_s = max([by_rank_tokens(grid, grid.least_s.tolist(), own) for grid, own in grids], default=0.0)
        leading = self.grid_of(group[0])
        last_s = max(last_s + by_rank_tokens(leading, leading.joint_s.tolist(), tokens), start_s + least_s)
        if skew:
            last_s = start_s + (last_s - start_s) * skew[group[0].turns % len(skew)]
            group[0].turns += 1
        for e in group:
            if e.end_s is not None:
                e.end_s = last_s
                e.busy_s += last_s - start_s

    def start_s(self, e: Engine) -> float:
        """When a step that is formed now starts."""
        return self.now

    def new_tokens(self, e: Engine) -> int:
        drafts = 0 if e.drafts is None or e.rules.speculation is None else e.rules.speculation.draft_tokens
        return sum(count for _, count in e.step) + (len(e.batch) * (1 + drafts) if e.decoding else 0)

    def grid_of(self, e: Engine) -> StepGrid:
        if e.rules.speculation is not None and e.drafts is not None and e.decoding:
            return e.rules.speculation.grid
        return e.rules.grid

    def demote(self, e: Engine) -> None:
        for r in e.batch:
            if r.due_s < 0:
                r.due_s = self.now + r.left_s
            elif self.now >= r.due_s:
                r.key += 1.0
                r.due_s = self.now + self.fleet.quantum_s * 2.0**r.key

    def make_way(self, e: Engine) -> None:
        while e.queue and (e.batch or e.partial):
            first = min(e.queue, key=lambda r: (r.key, r.id))
            last = max([*e.batch, *([e.partial] if e.partial else [])], key=lambda r: (r.key, r.id))
            tokens = first.input + first.generated
            needed = self.allocated(e, first, tokens)
            if first.state == "waiting":
                needed -= sum(self.size(block) for block in self.hits(e, first) if e.cache[block] > 0)
            blocked = self.running(e) >= e.rules.most_sequences or needed > self.room(e) - self.margin(e)
            if first.key >= last.key or not blocked:
                return
            self.preempt(e)

    def transferred_s(self, source: Engine, goal: Engine, tokens: int) -> float:
        pools = (source.rules.pool, goal.rules.pool)
        of_pools = [link for link in self.fleet.pool_links if (link.source, link.goal) == pools]
        shared = of_pools[-1].tokens_per_s if of_pools else math.inf
        begins_s = max(self.now, source.sent_s)
        source.sent_s = begins_s + tokens / source.rules.link_tokens_per_s
        self.link_free_s[pools] = max(begins_s, self.link_free_s.get(pools, 0.0)) + tokens / shared
        goal.received_s = max(begins_s, goal.received_s) + tokens / goal.rules.link_tokens_per_s
        latency = of_pools[-1].latency_s if of_pools else 0.0
        done_s = max(source.sent_s, self.link_free_s[pools], goal.received_s)
        return done_s + (max(source.rules.link_latency_s, goal.rules.link_latency_s) + latency)

    def preempt(self, e: Engine) -> None:
        r = max([*e.batch, *([e.partial] if e.partial else [])], key=lambda r: (r.key, r.id))
        r.preempted += 1
        swapped, tokens = False, r.input + r.generated - 1
        if r is e.partial:
            e.partial, tokens = None, r.done
        else:
            e.batch.remove(r)
            if r.due_s >= 0:
                r.left_s = max(r.due_s - self.now, 0.0)
            r.due_s = -1.0
            blocks = self.blocks(r.input + r.generated - 1)
            swapped = e.rules.preemption == "swap" and e.host_free >= blocks
            if swapped:
                e.host_free -= blocks
                e.penalty_s += blocks / (e.rules.swap_tokens_per_s / self.fleet.block_tokens)
        self.give_up(e, r, tokens)
        r.state = "swapped" if swapped else "waiting"
        e.queue.append(r)

    def make_room(self, e: Engine) -> bool:
        preempted = False
        while e.batch and len(self.growing(e)) > self.room(e):
            self.preempt(e)
            preempted = True
        return preempted

    def add_chunk(self, e: Engine, r: Request, tokens: int) -> None:
        e.step.append((r, tokens))
        r.done += tokens
        self.hold(e, r)
        self.name(e, r)
        e.partial = r if r.done < r.input + r.generated else None

    def go_on(self, e: Engine, budget: int) -> bool:
        """The next chunk of the prompt under way; whether any was preempted for it."""
        preempted = False
        while e.partial is not None and budget > 0:
            r, growing = e.partial, len(self.growing(e)) if e.rules.policy == "mixed" else 0
            tokens = min(r.input + r.generated - r.done, budget)
            if self.missing(e, r, r.done + tokens) <= self.room(e) - growing:
                self.add_chunk(e, r, tokens)
                break
            self.preempt(e)
            preempted = True
        return preempted

    def encode(self, e: Engine, r: Request, new: float) -> None:
        encoded = 0.0 if self.load.encoded is None else float(self.load.encoded[r.id])
        workload = 0 if self.load.workload is None else int(self.load.workload[r.id])
        if encoded and workload < len(e.rules.encode_s):
            base_s, token_s = e.rules.encode_s[workload]
            e.penalty_s += new * (base_s + token_s * encoded)

    def admit_one(self, e: Engine, r: Request, left: int, margin: int) -> bool:
        room, tokens = self.room(e) - margin, r.input + r.generated
        if r.state == "waiting":
            if left <= 0 or e.partial is not None:
                return False
            hits = self.hits(e, r)
            own = self.own(e, r, hits)
            while own and self.size_all(hits) > r.chain:
                hits.pop()
            cached = (self.size_all(hits) + own) * self.fleet.block_tokens
            if r.fetched is not None and len(hits) >= r.fetched[0]:
                cached = max(cached, r.fetched[1])
            cached = min(cached, self.most_cached(r))
            if self.load.hit_tokens is not None and e.role != "decode":
                cached = max(cached, int(self.load.hit_tokens[r.id]))
            cached = min(cached, tokens - 1)
            chunk = tokens - cached
            if chunk > left:
                chunk = left if e.rules.chunked else 0 if e.step else chunk
            needed = self.allocated(e, r, tokens) - sum(self.size(block) for block in hits if e.cache[block] > 0)
            if chunk == 0 or needed > room or not self.acquire(e, r):
                return False
            e.queue.remove(r)
            for block in hits:
                self.share(e, block)
            r.shared, r.blocks = hits, self.drop_chain(e, r) if own else 0
            r.state, r.done = "prefilling", cached
            self.hold(e, r)
            r.fetched = None if r.fetched is None else (r.fetched[0], 0)
            if r.started_s < 0:
                r.started_s, r.cached = self.now, cached
            self.encode(e, r, 1.0 - cached / tokens)
            self.add_chunk(e, r, chunk)
            return True
        if self.allocated(e, r, tokens) > room or not self.acquire(e, r):
            return False
        e.queue.remove(r)
        r.blocks = self.allocated(e, r, tokens - 1)
        self.take(e, r.blocks)
        if r.state == "handed":
            assert r.entry is not None
            self.transfers.append((self.transferred_s(r.entry, e, tokens - 1), r))
            r.state = "moving"
            e.coming += 1
        else:
            e.host_free += self.blocks(tokens - 1)
            e.penalty_s += self.blocks(tokens - 1) / (e.rules.swap_tokens_per_s / self.fleet.block_tokens)
            r.state = "decoding"
            e.batch.append(r)
        return True

    def fill(self, e: Engine, budget: int) -> None:
        self.go_on(e, budget)
        self.admit(e, budget)

    def admit(self, e: Engine, budget: int) -> None:
        while e.queue and self.running(e) < e.rules.most_sequences:
            r = min(e.queue, key=lambda r: (r.key, r.id))
            if not self.admit_one(e, r, budget - sum(tokens for _, tokens in e.step), self.margin(e)):
                return

    def schedule(self, e: Engine) -> None:
        for r in e.arrived:
            r.state = "decoding"
            e.batch.append(r)
        e.coming -= len(e.arrived)
        e.arrived = []
        if self.fleet.queueing == "feedback":
            self.demote(e)
            self.make_way(e)
        if e.rules.policy == "mixed":
            preempted = self.make_room(e)
            preempted |= self.go_on(e, e.rules.token_budget - len(e.batch))
            if not preempted or (not (e.batch or e.step) and self.starts_over(e)):
                self.admit(e, e.rules.token_budget - len(e.batch))
        else:
            self.fill(e, e.rules.token_budget)
            if not e.step and self.make_room(e) and not e.batch:
                self.fill(e, e.rules.token_budget)
        e.decoding = bool(e.batch) and (e.rules.policy == "mixed" or not e.step)
        if not e.decoding and not e.step:
            return
        if e.decoding:
            for r in self.growing(e):
                r.blocks += 1
                self.take(e, 1)
            self.propose(e)
        seconds = self.step_s(e)
        e.end_s = self.start_s(e) + seconds + e.penalty_s
        e.steps += 1
        e.penalty_s = 0.0

    def starts_over(self, e: Engine) -> bool:
        """Whether a step that preemption left empty is formed once more."""
        return True

    def propose(self, e: Engine) -> None:
        if e.rules.speculation is None or e.rules.speculation.draft_tokens == 0:
            return
        blocks = 0
        for r in e.batch:
            drafts = min(e.rules.speculation.draft_tokens, r.output - r.generated - 1)
            blocks += self.allocated(e, r, r.input + r.generated + drafts) - self.allocated(e, r, r.input + r.generated)
        if blocks <= self.room(e):
            self.take(e, blocks)
            e.drafts = blocks

    def accept(self, e: Engine, r: Request) -> None:
        assert e.rules.speculation is not None
        before, blocks = r.generated, self.allocated(e, r, r.input + r.generated - 1)
        most = min(e.rules.speculation.draft_tokens, r.output - r.generated)
        while r.generated < before + most:
            if self.draw(2 + r.generated, r.id, 1) >= e.rules.speculation.acceptance:
                break
            r.generated += 1
        more = self.allocated(e, r, r.input + r.generated - 1) - blocks
        r.blocks += more
        self.take(e, more)
        e.accepted += r.generated - before

    def step_s(self, e: Engine) -> float:
        batch = e.batch if e.decoding else []
        context = sum(r.input + r.generated for r in batch)
        grid = self.grid_of(e)
        if not e.step:
            return decode_s(grid, len(batch), context / len(batch))
        tokens = sum(count for _, count in e.step)
        pairs = 0.0
        for r, count in e.step:
            pairs += count * (r.done - count + (count + 1) / 2)
        mean = context / len(batch) if batch else float(grid.contexts[0])
        return mixed_s(grid, (float(len(batch)), mean, float(tokens), pairs / tokens))
