"""The prompt blocks of a trace: its own `hash_ids`, else those of the conversations that its rows belong to."""

from collections.abc import Hashable

from planner.errors import PlannerError
from planner.simulate.requests.traces import Trace
from planner.solvers.caches.block_requests import BlockRequests


def block_requests(trace: Trace, block_tokens: int | None = None) -> BlockRequests:
    """Requests with blocks; raises PlannerError for traces that name neither blocks nor conversations, or no times.

    The prompt of a later turn goes on from those before it, by whole blocks. `block_tokens` is for these alone.
    """
    if not trace.timed:
        raise PlannerError("has no arrival times", where=trace.place, hint="give a trace that says when requests come")
    if trace.blocks:
        if block_tokens not in (None, trace.block_tokens):
            what = f"names blocks of {trace.block_tokens} tokens"
            raise PlannerError(what, where=trace.place, hint="leave `--block-tokens` or `cache.block_tokens` out")
        if not any(trace.blocks):
            what = "`hash_ids` names no block of any prompt"
            raise PlannerError(what, where=trace.place, hint=f"name every {trace.block_tokens} tokens of each prompt")
        return BlockRequests.of(trace.arrival_s, trace.blocks)
    if not trace.conversations:
        if trace.partly is not None:
            column, line = trace.partly
            what = f"has no `{column}`, as other rows have"
            raise PlannerError(what, where=f"{trace.place}:{line}", hint="give it in every row, or leave such rows out")
        raise PlannerError(
            "says nothing of what prompts share: it has neither `hash_ids` nor `conversation_id`",
            where=trace.place,
            hint="give a trace in Mooncake's form, or name the conversation of every row in a column `conversation_id`",
        )
    size = trace.block_tokens if block_tokens is None else block_tokens
    rows = zip(trace.conversations, trace.input_tokens.tolist(), strict=True)
    blocks: list[tuple[Hashable, ...]] = [tuple((name, i) for i in range(tokens // size)) for name, tokens in rows]
    if not any(blocks):
        what = f"no prompt fills a block of {size} tokens"
        raise PlannerError(what, where=trace.place, hint="make them smaller: `--block-tokens`, `cache.block_tokens`")
    return BlockRequests.of(trace.arrival_s, blocks)
