"""Critics that train on GPUs of their own, beside the actor: OpenRLHF's `--critic.num_nodes` without `colocate_all`.

Of each number of GPUs of a pool the kind of replica that trains a mean minibatch soonest stands for all others.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.costs.training.rates import rates_on
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.shapes import Lengths
from planner.kinds.rl.curves.training import Trainer, alone
from planner.kinds.rl.drawn import samples
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture
from planner.rl.curves import NEVER_FITS, Learner
from planner.rl.plan import TrainingChoice
from planner.rl.training import TrainingTable, minibatch_s
from planner.rl.trajectories import SampleBatch


def learners(setting: RlSetting, lengths: Lengths, batches: Sequence[SampleBatch]) -> dict[Learner, Trainer]:
    """Every critic that may have GPUs of its own, with how it trains; none where the problem asks for none."""
    critic = setting.trained("critic")
    if critic is None or "own" not in setting.options.critic_gpus:
        return {}
    return dict(pair for pool in setting.pools for pair in _on(setting, critic, pool, lengths, batches))


def _on(
    setting: RlSetting, critic: Architecture, pool: Pool, lengths: Lengths, batches: Sequence[SampleBatch]
) -> Iterator[tuple[Learner, Trainer]]:
    """The soonest of each number of GPUs, which leaves one to the actor at least."""
    rates = rates_on(pool, setting.actor, setting.resolved.problem.costs.calibration, setting.store)
    limit = samples(setting.options) // setting.options.minibatches
    choices = [
        (TrainingChoice(trainer.option, dp), trainer)
        for trainer in alone(critic, setting, pool, lengths, rates)
        if trainer.option.min_dp < NEVER_FITS
        for dp in range(trainer.option.min_dp, min(limit, (pool.num_gpus - 1) // trainer.option.gpus) + 1)
        if not setting.options.equal_shares or limit % (dp * trainer.option.ranks) == 0
    ]
    if not choices:
        return
    tokens = float(np.mean(np.concatenate([batch.tokens_N for batch in batches]))) * limit
    table = TrainingTable.of(tuple(choice for choice, _ in choices), [pool.name])
    seconds_T = minibatch_s(table, np.array([[tokens]]))[:, 0, 0]
    soonest: dict[int, int] = {}
    for place in np.argsort(seconds_T, kind="stable").tolist():
        soonest.setdefault(choices[place][0].gpus, place)
    for _, place in sorted(soonest.items()):
        choice, trainer = choices[place]
        yield Learner(choice.option, choice.dp), trainer
