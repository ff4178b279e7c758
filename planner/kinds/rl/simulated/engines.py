"""The rollouts of a plan on engines as they are simulated for serving, beside the curve that the search prices with.

The search decodes by a fitted step, holds decoding up for prompts, reserves whole lengths and hands samples out from
one queue. Here the same samples run on the same replicas by steps of the cost model, by batch and context;
prompts are prefilled in chunks beside decoding, those that the samples of a prompt share once a replica; KV blocks are
taken as samples grow, and who is preempted is computed again; drafts are right by chance; a turn goes on after its tool
where its cache is. Every sample is sent off at the start, to the replica with the least to do.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.serving.speculation import drafter_of
from planner.kinds.rl.curves.generation import PREFILL_TOKENS, generating_model
from planner.kinds.rl.setting import RlSetting
from planner.plan.schema import Role
from planner.rl.curves import GenerationOption
from planner.rl.generation import group_queues, queue_order
from planner.rl.in_flight import chain_of
from planner.rl.partial import Iteration, partial_iterations
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.services import as_generated, scored_s
from planner.rl.trajectories import Trajectories
from planner.simulate.fleet.instances import BLOCK_TOKENS, Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.plans.engines import engines_of
from planner.simulate.plans.setting import FleetSetting, Policies
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

MOST_BLOCKS = 400_000  # of all prompts of a batch together: larger blocks beyond
MOST_RUNS, AGREED = 8, 0.005  # of samples that flow, and how near two runs are that agree


def simulated_finish_s(setting: RlSetting, problem: RlProblem, plan: RlPlan, roles: list[Role]) -> Iterator[Floats]:
    """When each sample of each batch is done [N], seconds; `roles` are those of the plan's groups, in their order."""
    per_prompt = setting.options.samples_per_prompt
    for batch in problem.batches:
        if len(plan.groups) == 1:
            queues: tuple[Ints, ...] = (queue_order(batch, problem.dispatch),)
        else:
            queues = group_queues(batch, problem.dispatch, plan.tail_fraction)
        done_s_N = np.zeros(batch.size)
        for group, role, queue_Q in zip(plan.groups, roles, queues, strict=True):
            done_s_N[queue_Q] = _finish_s(setting, batch.trajectories, queue_Q, per_prompt, group, role)
        yield done_s_N


def simulated_iterations(setting: RlSetting, problem: RlProblem, plan: RlPlan, role: Role) -> list[Iteration]:
    """Iterations that carry samples over, as engines take them.

    What each starts, and how much of it is left, is as on the curve: the contexts of what is carried over are prompts.
    """
    group = plan.groups[0]
    retimed = []
    for iteration in partial_iterations(problem, group, plan.services):
        queue_Q = np.arange(iteration.started.size)
        generated_s_N = _finish_s(setting, iteration.started, queue_Q, 1, group, role)
        retimed.append(iteration.retimed(generated_s_N, as_generated(plan.services)))
    return retimed


def simulated_period_s(setting: RlSetting, problem: RlProblem, plan: RlPlan, role: Role) -> float:
    """Seconds from the end of one batch to that of the next where samples flow.

    Prompts are handed out when others are done, and scored by those that they are sent to, which is known once they
    are: they are sent off when the curve has them start, and again when the run before had others done, until both
    agree.
    """
    chain = chain_of(problem, plan.groups[0], plan.mode.staleness, plan.services)
    prompt_G = np.arange(0, len(chain.output_Q), problem.samples_per_prompt)
    arrival_s_G, period_s = np.maximum.accumulate(np.minimum.reduceat(chain.flown.started_s_Q, prompt_G)), 0.0
    of_Q = np.arange(len(chain.output_Q)) // problem.samples_per_prompt
    for _ in range(MOST_RUNS):
        stream = Requests.open_stream(arrival_s_G[of_Q], chain.prompt_Q, chain.output_Q)
        result = simulate(Fleet(tuple(_instances(setting, stream, plan.groups[0], role))), stream)
        done_s_Q = scored_s(plan.services, result.finished_s, chain.prompt_Q + chain.output_Q)
        before_s, period_s = period_s, chain.period_s(done_s_Q)
        done_s_G = np.sort(np.maximum.reduceat(done_s_Q, prompt_G))
        arrival_s_G = np.concatenate([np.zeros(chain.window), done_s_G])[: len(prompt_G)]
        if abs(period_s - before_s) <= AGREED * period_s:
            break
    return period_s


def _finish_s(
    setting: RlSetting, turns: Trajectories, queue_Q: Ints, per_prompt: int, group: GenerationGroup, role: Role
) -> Floats:
    """When each sample of the queue is done [Q]; `per_prompt` of them in a row have one prompt."""
    if not len(queue_Q):
        return np.zeros(0)
    stream, last_Q, block_tokens = _requests(turns, queue_Q, per_prompt)
    routing = "least-loaded" if len(turns.output_T) == turns.size else "cache-aware"
    fleet = Fleet(
        tuple(_instances(setting, stream, group, role)),
        routing=routing,
        block_tokens=block_tokens,
        prefix_caching=len(stream.prefix_tokens) > 0,
    )
    return np.asarray(simulate(fleet, stream).finished_s[last_Q])


def _instances(setting: RlSetting, stream: Requests, group: GenerationGroup, role: Role) -> list[Instance]:
    """The replicas: as serving has them, or with a curve that was measured."""
    if role.memory is None:
        return [_measured(group.option, int(stream.input_tokens.max()))] * group.replicas
    problem, spec = setting.resolved.problem, setting.options.speculation
    where = setting.resolved.where(("options", "speculation"))
    fleet = FleetSetting(
        problem=problem,
        arch=generating_model(setting, group.option.label or None),
        pools={pool.name: pool for pool in setting.pools},
        calibration=setting.calibration,
        profiles=tuple(problem.costs.profiles),
        requests=stream,
        policies=Policies(),
        drafter=drafter_of(spec, setting.actor, setting.resolved.models, where),
    )
    return engines_of(role.model_copy(update={"function": "colocated"}), fleet)


def _measured(option: GenerationOption, longest_prompt: int) -> Instance:
    """A replica whose steps are its curve's, with prompts beside them."""
    curve = option.curve
    grid = StepGrid.affine(
        curve.step_s,
        sequence_s=curve.sequence_s,
        context_s=curve.token_s,
        token_s=1.0 / curve.prefill_tokens_per_s,
        most_sequences=curve.max_running,
    )
    budget = max(PREFILL_TOKENS, longest_prompt)
    return Instance(grid, curve.kv_tokens, token_budget=budget, most_sequences=curve.max_running)


def _requests(turns: Trajectories, queue_Q: Ints, per_prompt: int) -> tuple[Requests, Ints, int]:
    """A request for each turn, the request of the last turn of each sample of the queue [Q], and tokens of a block.

    Turns after the first are sent once the tool of the one before has answered. Prompts that are equal, of the samples
    of a prompt, and what a sample has said and read so far, are the same blocks.
    """
    count_Q = turns.first_N[queue_Q + 1] - turns.first_N[queue_Q]
    ahead_N = _contexts(turns)
    later = [
        (place, turn) for place, sample in enumerate(queue_Q.tolist())
        for turn in range(int(turns.first_N[sample]) + 1, int(turns.first_N[sample + 1]))
    ]  # fmt: skip
    turn_R = np.concatenate([turns.first_N[queue_Q], np.array([turn for _, turn in later], np.int64)])
    sample_R = np.concatenate([queue_Q, queue_Q[[place for place, _ in later]]]) if later else queue_Q
    stream = Requests.open_stream(np.zeros(len(turn_R)), ahead_N[turn_R], turns.output_T[turn_R])
    row_of = {int(turn): row for row, turn in enumerate(turn_R.tolist())}
    ends = turns.first_N[sample_R + 1] - 1
    successor = np.array([row_of[t + 1] if t < e else -1 for t, e in zip(turn_R.tolist(), ends.tolist(), strict=True)])
    think_s = np.where(turn_R > turns.first_N[sample_R], turns.tool_s_T[np.maximum(turn_R - 1, 0)], 0.0)
    stream = replace(stream, successor=successor, think_s=think_s, num_open=len(queue_Q))
    last_Q = np.array([row_of[int(turns.first_N[sample + 1]) - 1] for sample in queue_Q.tolist()])
    block_tokens = BLOCK_TOKENS
    while int((stream.input_tokens // block_tokens).sum()) > MOST_BLOCKS:
        block_tokens *= 2
    if count_Q.max() == 1 and per_prompt == 1:
        return stream, last_Q, block_tokens  # nothing is shared
    names = [_blocks(s, s // per_prompt, int(turns.prompt_N[s]), tokens, block_tokens)
             for s, tokens in zip(sample_R.tolist(), stream.input_tokens.tolist(), strict=True)]  # fmt: skip
    return stream.with_prefixes(names, block_tokens=block_tokens), last_Q, block_tokens


def _contexts(turns: Trajectories) -> Ints:
    """Tokens that a turn begins with [T]: the prompt, what was said before, and what tools returned."""
    grown_T = turns.output_T + turns.observation_T
    before_T = np.cumsum(grown_T) - grown_T
    of_T = np.repeat(np.arange(turns.size), np.diff(turns.first_N))
    return np.asarray(turns.prompt_N[of_T] + before_T - before_T[turns.first_N[:-1]][of_T])


def _blocks(sample: int, prompt: int, prompt_tokens: int, tokens: int, size: int) -> list[tuple[int, int, int]]:
    """Names of the full blocks that a request begins with: those within its prompt, then the sample's own."""
    whole = prompt_tokens // size
    return [(0, prompt, block) if block < whole else (1, sample, block) for block in range(tokens // size)]
