"""Memory of the slow simulator: blocks, shared prefixes and what stays cached, adapters, places of running requests."""

from step_state import Engine, Request, StepState


class StepMemory(StepState):
    """Who holds which blocks."""

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.fleet.block_tokens)

    def allocated(self, e: Engine, r: Request, tokens: int) -> int:
        whole = e.rules.reserves and e.role != "prefill"
        return self.blocks(r.input + r.output) if whole else self.blocks(tokens)

    def size(self, block: int) -> int:
        """Full blocks alone are cached."""
        return int(self.load.prefix_tokens[block]) // self.fleet.block_tokens

    def kept_blocks(self, e: Engine, entry: "int | Request") -> int:
        return e.chains[entry.id] if isinstance(entry, Request) else self.size(entry)

    def room(self, e: Engine) -> int:
        return e.free + sum(self.kept_blocks(e, entry) for entry in e.lru)

    def take(self, e: Engine, blocks: int) -> None:
        while e.free < blocks:
            oldest = e.lru[0]
            gone = self.kept_blocks(e, oldest)
            if isinstance(oldest, Request) and gone > blocks - e.free:
                gone = blocks - e.free
                e.chains[oldest.id] -= gone
            elif isinstance(oldest, Request):
                self.drop_chain(e, oldest)
            else:
                e.lru.pop(0)
                del e.cache[oldest]
            e.free += gone
        e.free -= blocks
        e.peak = max(e.peak, e.rules.kv_tokens // self.fleet.block_tokens - self.room(e))

    def drop_chain(self, e: Engine, r: Request) -> int:
        if r.id not in e.chains:
            return 0
        e.lru.remove(r)
        return e.chains.pop(r.id)

    def most_cached(self, r: Request) -> int:
        """The block of the last token is computed."""
        return (r.input + r.generated - 1) // self.fleet.block_tokens * self.fleet.block_tokens

    def hits(self, e: Engine, r: Request) -> list[int]:
        blocks: list[int] = []
        for block in r.prefix:
            if block not in e.cache or self.size_all(blocks) * self.fleet.block_tokens >= self.most_cached(r):
                break
            blocks.append(block)
        return blocks

    def size_all(self, blocks: list[int]) -> int:
        return sum(self.size(block) for block in blocks)

    def share(self, e: Engine, block: int) -> None:
        if e.cache.setdefault(block, 0) == 0 and block in e.lru:
            e.lru.remove(block)
        e.cache[block] += 1

    def let_go(self, e: Engine, r: Request, blocks: int, shared: list[int], tokens: int, keeps: bool = True) -> None:
        """Blocks behind the shared ones that are full stay cached as the chain of the request."""
        e.free += blocks
        full = tokens // self.fleet.block_tokens - self.size_all(shared)
        if self.caches and keeps and full > 0:
            e.free += self.drop_chain(e, r) - full
            e.chains[r.id], r.chain = full, self.size_all(shared)
            e.lru.append(r)
        for block in reversed(shared):
            e.cache[block] -= 1
            if e.cache[block] == 0:
                e.lru.append(block)

    def names_at_once(self, e: Engine) -> bool:
        """vLLM: others find a block as soon as it is scheduled, and a preempted request its own."""
        return e.rules.policy == "mixed" and not e.rules.reserves

    def name(self, e: Engine, r: Request) -> None:
        """Of what is scheduled; a second copy stays the request's own."""
        if not self.names_at_once(e):
            return
        for block in r.prefix[len(r.shared) :]:
            end = self.size_all([*r.shared, block]) * self.fleet.block_tokens
            if end > r.done or block in e.cache:
                return
            self.share(e, block)
            r.shared.append(block)
            r.blocks -= self.size(block)

    def publish(self, e: Engine, r: Request) -> None:
        """Of what is computed; a second copy is given back."""
        if self.names_at_once(e):
            return
        for block in r.prefix[len(r.shared) :]:
            if block in e.cache:
                e.free += self.size(block)
            self.share(e, block)
            r.shared.append(block)
            r.blocks -= self.size(block)

    def tokens_of(self, blocks: list[int]) -> int:
        return self.size_all(blocks) * self.fleet.block_tokens

    def fetch(self, e: Engine, r: Request) -> float:
        """When what tiers have behind what the engine has is there."""
        hits = self.hits(e, r)
        given: list[list[int]] = [[] for _ in self.memory]
        for block in r.prefix[len(hits) :]:
            holders = [number for number, held in enumerate(self.memory) if block in held]
            if not holders:
                break
            given[holders[0]].append(block)
        done_s = self.now
        for number, tier in enumerate(self.fleet.tiers):
            tokens = self.tokens_of(given[number])
            if tokens:
                start_s = max(self.now, self.tier_free_s[number])
                self.tier_free_s[number] = start_s + tokens / tier.tokens_per_s
                done_s = max(done_s, self.tier_free_s[number], start_s + tokens / tier.request_tokens_per_s)
        r.fetched = len(hits), self.tokens_of(hits) + sum(map(self.tokens_of, given))
        return done_s

    def keep(self, r: Request) -> None:
        if not self.memory:
            return
        for held in self.memory:
            held[:] = [block for block in held if block not in r.prefix]
        for block in reversed(r.prefix):
            self.uses[block] += 1
            self.enter(0, block)
        for number, tier in enumerate(self.fleet.tiers):
            while self.size_all(self.memory[number]) > tier.kv_tokens // self.fleet.block_tokens:
                gone = self.victim(number)
                self.memory[number].remove(gone)
                if number + 1 < len(self.memory):
                    self.enter(number + 1, gone)

    def enter(self, number: int, block: int) -> None:
        self.memory[number].append(block)
        if self.fleet.eviction == "pgdsf":
            self.worth[block] = self.clock[number] + self.uses[block] * self.seconds(block)
        else:
            to_come = (r.id for r in self.requests if block in r.prefix and r.fetched is None and r.state != "rejected")
            self.worth[block] = -float(min(to_come, default=len(self.requests)))

    def before(self, block: int) -> list[int]:
        """The blocks before it in any prompt."""
        prompt = next(r.prefix for r in self.requests if block in r.prefix)
        return prompt[: prompt.index(block)]

    def seconds(self, block: int) -> float:
        """To compute a KV block of it."""
        grid = next(e.rules.grid for e in self.engines if e.rules.role != "decode")
        tokens = int(self.load.prefix_tokens[block])
        start = sum(int(self.load.prefix_tokens[other]) for other in self.before(block))
        return grid.prefill_s(tokens, start + (tokens + 1) / 2.0) / max(self.size(block), 1)

    def victim(self, number: int) -> int:
        """What a tier evicts."""
        held = self.memory[number]
        if self.fleet.eviction == "lru":
            return held[0]
        leaves = [block for block in held if not any(block in self.before(other)[-1:] for other in held)]
        gone = min(leaves, key=lambda block: (self.worth[block], -len(self.before(block)), block))
        self.clock[number] = self.worth[gone]
        return gone

    def growing(self, e: Engine) -> list[Request]:
        if e.rules.reserves and e.role != "prefill":
            return []
        return [r for r in e.batch if (r.input + r.generated - 1) % self.fleet.block_tokens == 0]

    def acquire(self, e: Engine, r: Request) -> bool:
        if r.adapter < 0:
            return True
        if r.adapter not in e.adapters:
            if len(e.adapters) == e.rules.adapter_slots:
                idle = [a for a in e.adapters if all(user.adapter != a for user in e.using)]
                if not idle:
                    return False
                del e.adapters[min(idle, key=lambda a: (e.adapters[a], a))]
            e.loads += 1
            e.penalty_s += e.rules.adapter_load_s
        e.adapters[r.adapter] = len(self.moments)
        e.using.append(r)
        return True

    def release(self, e: Engine, r: Request) -> None:
        if r.adapter >= 0:
            e.using.remove(r)

    def running(self, e: Engine) -> int:
        waiting = e.partial is not None and not e.step
        return len(e.batch) + e.coming + len(e.step) + waiting

    def give_up(self, e: Engine, r: Request, tokens: int) -> None:
        self.let_go(e, r, r.blocks, r.shared, tokens, self.names_at_once(e))
        self.release(e, r)
        r.shared, r.blocks = [], 0

    def hold(self, e: Engine, r: Request) -> None:
        """Takes the blocks of what has been scheduled."""
        more = self.missing(e, r, r.done)
        r.blocks += more
        self.take(e, more)

    def missing(self, e: Engine, r: Request, tokens: int) -> int:
        """Blocks that a prompt lacks for so many tokens; shared ones may hold more than are used."""
        return max(self.allocated(e, r, tokens) - self.size_all(r.shared) - r.blocks, 0)

    def own(self, e: Engine, r: Request, hits: list[int]) -> int:
        """Blocks of its own chain that reach farther than the prefix blocks it finds."""
        left, reached = e.chains.get(r.id, 0), self.size_all(hits)
        return left if r.chain <= reached < r.chain + left else 0

    def margin(self, e: Engine) -> int:
        margin = len(self.growing(e)) if e.rules.policy == "mixed" else 0
        if self.running(e) > 0:
            margin += self.watermark(e)
        return margin

    def watermark(self, e: Engine) -> int:
        return int(e.rules.watermark * (e.rules.kv_tokens // self.fleet.block_tokens))
