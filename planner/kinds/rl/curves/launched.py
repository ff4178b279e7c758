"""Replicas that the launcher of an RL problem starts: what others there are is left out of the space."""

from planner.engines.rl_launchers import RlLauncher
from planner.kinds.rl.curves.generation import GeneratorCurve
from planner.kinds.rl.curves.training import Helper, Trainer


def launches_generator(launcher: RlLauncher | None, curve: GeneratorCurve, engine: str) -> bool:
    """Whether replicas of this kind are started with an engine; all are where no launcher is named."""
    option = curve.option
    if launcher is None:
        return True
    return (launcher.stages or option.pp == 1) and (option.ep == 1 or engine not in launcher.whole_experts)


def launches_trainer(launcher: RlLauncher | None, trainer: Trainer, longest: int, *, apart: bool) -> bool:
    """Whether training of this kind is started for samples of up to `longest` tokens.

    `apart`: it may have GPUs of its own, where some launchers keep models that score on the devices.
    """
    if launcher is None:
        return True
    option = trainer.option
    if option.micro_tokens // trainer.inner_dp < longest or (option.pp > 1 and not launcher.stages):
        return False
    return all(_beside(launcher, trainer, helper, apart=apart) for helper in trainer.helpers)


def _beside(launcher: RlLauncher, trainer: Trainer, helper: Helper, *, apart: bool) -> bool:
    """Whether a model is started so beside the actor."""
    config = trainer.config
    assert config is not None
    if helper.part in launcher.cut_apart:
        if helper.part == "reward" and helper.pp > 1:
            return False  # its engines have no pipeline stages
    elif (helper.tp, helper.pp, helper.cp) != (config.tp, config.pp, config.cp):
        return False
    if helper.offloaded and apart and not launcher.moves_scorers:
        return False
    if helper.part != "critic" or not launcher.one_flag:
        return True
    ends, own = ((layers[:1], layers[-1:]) for layers in (config.layers_of_stage, helper.layers_of_stage))
    even = len(set(config.layers_of_stage)) == 1 and len(set(helper.layers_of_stage)) == 1
    return helper.recompute == config.recompute.granularity and (even or ends == own)
