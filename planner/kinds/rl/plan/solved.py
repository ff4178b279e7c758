"""A searched RL problem with the plan that was found, and what a decision reads off both."""

from dataclasses import dataclass
from typing import Literal

from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.training import Trainer
from planner.kinds.rl.decision import FusedScoring, FusedTraining, LateRollout, ServedScoring
from planner.kinds.rl.drawn import trained_tokens
from planner.kinds.rl.formulate import FormulatedRl
from planner.kinds.rl.setting import RlSetting
from planner.kinds.rl.simulated_parts import fused_scoring, late_rollout, served_scoring
from planner.plan.schema import Engine
from planner.rl.agentic import AgenticPlan
from planner.rl.curves import Service
from planner.rl.plan import RlEvaluation, RlPlan, TrainingChoice
from planner.rl.services import scorers


@dataclass(frozen=True, slots=True)
class Solved:
    """A searched problem with the plan that was found."""

    setting: RlSetting
    formulated: FormulatedRl
    plan: RlPlan
    evaluation: RlEvaluation
    fused_training: FusedTraining | None = None
    agents: AgenticPlan | None = None

    @property
    def tokens(self) -> float:
        """Output tokens that a mean iteration trains on."""
        return trained_tokens(self.formulated.problem.batches, self.setting.options)

    @property
    def fused(self) -> FusedScoring | None:
        """Scoring beside the last samples, where the plan has it."""
        return fused_scoring(self.formulated.problem, self.plan)

    @property
    def late(self) -> LateRollout | None:
        """Other replicas late in the rollout, where the plan has them."""
        return late_rollout(self.formulated.problem, self.plan)

    @property
    def served(self) -> ServedScoring | None:
        """What servers make of the rollouts, where the plan has some."""
        return served_scoring(self.formulated.problem, self.plan)

    @property
    def generated_s(self) -> float:
        """When the last sample of a mean iteration is generated."""
        return self.evaluation.generation_s if self.fused is None else self.fused.generated_s

    @property
    def training(self) -> TrainingChoice:
        assert self.plan.training is not None
        return self.plan.training

    @property
    def trainer(self) -> Trainer:
        return self.formulated.trainers[self.training.option]

    @property
    def modelled_training(self) -> bool:
        """Whether training is priced by the cost model, and not by a curve that was measured."""
        return self.plan.training is not None and self.trainer.config is not None

    @property
    def actor_key(self) -> str | None:
        """Of the problem's models; None where it names none."""
        return self.setting.keys.get("actor")

    def engine(self, name: str, version: str | None = None) -> Engine | None:
        """The engine of a role; None where costs are stated, whatever they were measured on."""
        return None if self.setting.bare else Engine(name=name, version=version)

    @property
    def rollout_names(self) -> tuple[str, ...]:
        """Names of the generating roles, in the order of the plan's groups."""
        if self.agents is not None:
            return ("rollout", *(f"rollout-{place}" for place in range(2, len(self.plan.groups) + 1)))
        return ("rollout",) if len(self.plan.groups) == 1 else ("rollout", "rollout-tail")

    @property
    def takes_turns(self) -> bool:
        """Whether some GPUs both generate and train."""
        return self.arrangement != "disaggregated"

    @property
    def arrangement(self) -> Literal["colocated", "disaggregated", "hybrid"]:
        """As the GPUs say: a hybrid mode whose groups lie in other pools shares none."""
        generating: dict[str, int] = {}
        for group in self.plan.groups:
            generating[group.option.pool] = generating.get(group.option.pool, 0) + group.gpus
        if self.plan.training is None:
            return "disaggregated"
        trained = {self.training.option.pool: self.training.gpus}
        if self.plan.mode.placement == "disaggregated" or not set(generating) & set(trained):
            return "disaggregated"
        return "colocated" if generating == trained else "hybrid"

    @property
    def engines(self) -> tuple[Service, ...]:
        """Those of models that score on GPUs of their own."""
        return tuple(service for service in scorers(self.plan.services) if service.gpus)

    @property
    def asynchronous(self) -> bool:
        return self.plan.mode.sync in ("k_step_async", "one_step_async")

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.setting.pools if pool.name == name)
