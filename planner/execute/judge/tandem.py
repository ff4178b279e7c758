"""What a plan takes for each stage of a pipelined serving role: an equal part of the whole pass of a micro-batch.

So do steady state (`planner.kinds.serve.steady.steps.pipelines`) and simulator (`planner.simulate.loop.groups`) have
it, with the hand-overs between stages in that part. Stages that run are predicted each by its own layers and ends:
together with the hand-overs these are the whole pass, unless layers do not divide evenly, when the plan takes the
fullest stage for all. Both are of kernels alone, without the engine around them.
"""

from dataclasses import replace

import numpy as np

from planner.costs.operators.forward import forward
from planner.costs.operators.working_format import in_working_format
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import fullest_stage, price_operators
from planner.execute.judge.predict import as_executed, rank_arch, rank_shards, step_work
from planner.execute.judge.verdict import Measured
from planner.execute.shards.cases import DECODE, MIXED, PREFILL, Cut, StepCase
from planner.execute.shards.spec import RoleSpec


def stage_of_plan_s(role: RoleSpec, case: StepCase, measured: Measured, pricer: Pricer, cut: Cut) -> float | None:
    """Seconds of a micro-batch in each stage in the formats that ran; None for steps that pass no stages so."""
    shape = role.parallelism
    if shape.pp == 1 or shape.vpp > 1 or shape.cp > 1 or case.kind not in (PREFILL, DECODE, MIXED):
        return None
    whole = cut.of_rank(replace(role.rank(0), stages=role.stages))
    arch = rank_arch(as_executed(role.arch, measured.plain), whole)
    shards = replace(rank_shards(whole), pp=np.array([float(shape.pp)]))
    operators = in_working_format(forward(arch, shards, step_work(case, whole)), measured.working)
    pass_s = price_operators(list(operators), pricer, 1).device_s * fullest_stage(arch, shards)
    return float(pass_s[0]) / shape.pp
