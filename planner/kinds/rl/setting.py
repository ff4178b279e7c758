"""A resolved RL problem with its roles named: actor, critic, reference and reward models, and their pools."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import open_store, profile_paths
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.refusals.asked import refusals
from planner.models.architecture import Architecture
from planner.problem.resolve import Resolved

if TYPE_CHECKING:
    from planner.hardware.profiles.store import ProfileStore

PARTS = ("actor", "critic", "reference", "reward", "teacher")


@dataclass(frozen=True, slots=True)
class RlSetting:
    """Everything the solve reads; `keys` names the model of each part that there is."""

    resolved: Resolved
    options: RlOptions
    keys: dict[str, str]
    calibration: Calibration
    store: "ProfileStore | None"

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.resolved.pools

    def model(self, part: str) -> Architecture | None:
        """The architecture of a part; None where the algorithm runs without it."""
        return self.resolved.models[self.keys[part]] if part in self.keys else None

    def trained(self, part: str) -> Architecture | None:
        """The same as it trains or scores beside training, without heads for further tokens, which nothing trains.

        `mtp_num_layers: 0` in NeMo-RL (examples/configs/grpo_math_1B.yaml), `mtp.enable: false` in verl 0.9
        (verl/trainer/config/model/hf_model.yaml); slime trains them with `--enable-mtp-training` alone.
        """
        model = self.model(part)
        return model.without_mtp() if model is not None and model.mtp_layers else model

    @property
    def bare(self) -> bool:
        """Whether no model is named, and every cost and length is stated."""
        return not self.keys

    @property
    def actor(self) -> Architecture:
        return self.resolved.models[self.keys["actor"]]


def read_setting(resolved: Resolved) -> RlSetting:
    """The setting of a problem; raises PlannerError for parts without a model, and for several workloads or none."""
    problem = resolved.problem
    options = RlOptions.model_validate(problem.options)
    for applies, path, what, hint in refusals(resolved, options):
        if applies:
            raise PlannerError(what, where=resolved.where(path), hint=hint)
    if not problem.models:
        return RlSetting(resolved, options, {}, load_calibration("default"), None)
    keys = _keys(resolved, options)
    _require_actor(resolved, keys["actor"])
    for key in sorted(set(keys.values())):
        resolved.require_priceable(key, trained=True)
    calibration = load_calibration(problem.costs.calibration)
    store = open_store(profile_paths(problem.costs.profiles))
    return RlSetting(resolved, options, keys, calibration, store)


def _require_actor(resolved: Resolved, actor: str) -> None:
    """Refuses a workload of another model than the one that generates."""
    named = resolved.workloads[0].spec.model
    if named not in (None, actor):
        raise PlannerError(
            f"the workload is of `{named}`, and `{actor}` generates",
            where=resolved.where(("workloads", 0, "model")),
            hint=f"write `model: {actor}`, or `actor: {named}` in `options`",
        )


def _keys(resolved: Resolved, options: RlOptions) -> dict[str, str]:
    """The model of each part; an actor there always is, a critic where the algorithm has one."""
    models, where = resolved.problem.models, resolved.where
    named = {part: getattr(options, part) for part in PARTS}
    if named["actor"] is None:
        known = [key for key in ("actor", "policy") if key in models]
        if not known and len(models) > 1:
            raise PlannerError(
                "no model is said to be the actor",
                where=where(("models",)),
                hint="call it `actor`, or name it: `actor: ...`",
            )
        named["actor"] = known[0] if known else next(iter(models))
    if options.algorithm in CRITIC_FREE:
        if named["critic"] is not None:
            raise PlannerError(
                f"`{options.algorithm}` has no critic",
                where=where(("options", "critic")),
                hint="leave `critic` out, or use `ppo`",
            )
    elif named["critic"] is None:
        if "critic" not in models:
            raise PlannerError(
                f"`{options.algorithm}` trains a critic, and no model is called `critic`",
                where=where(("models",)),
                hint="add `critic:`, or use `grpo`",
            )
        named["critic"] = "critic"
    for part, key in named.items():
        if key is not None and key not in models:
            known_keys = ", ".join(f"`{name}`" for name in models)
            raise PlannerError(
                f"no model is called `{key}`", where=where(("options", part)), hint=f"use one of {known_keys}"
            )
    return {part: key for part, key in named.items() if key is not None}
