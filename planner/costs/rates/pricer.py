"""Entry point for kernel times: an operator goes in, seconds come out, from measured tables or the roofline.

`make_pricer` chooses for one model on one pool: kernel tables where the user has them, the roofline otherwise.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from planner.arrays import Floats
from planner.costs.operators.kernels import Operator
from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.choice import TableChooser
from planner.costs.rates.evidence import KernelTime
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.spread import group_of_runs
from planner.engines.settings import triton_experts, whole_tiles
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.profiles.embedded import embedded_profiles
from planner.hardware.profiles.installed import installed_tables, unasked_profiles
from planner.hardware.profiles.store import ProfileStore
from planner.models.architecture import Architecture, LatentAttention

PROFILES_VARIABLE = "PLANNER_PROFILES"
NO_TABLES = "none"


class Pricer(Protocol):
    """A source of kernel times."""

    @property
    def name(self) -> str:
        """What to cite."""

    @property
    def multiprocessors(self) -> int:
        """Of the accelerator; 0 where unknown."""

    @property
    def slowdown(self) -> float:
        """Of whole steps, beyond what their operators take; 1 but where own runs tell of another."""

    def slowdown_of(self, shards: Shards) -> Floats | float:
        """The same of instances [N], by the runs that are most like them where a search prices layouts."""

    def of_role(self, function: str) -> "Pricer":
        """That of instances of a function (colocated, prefill, decode): runs of one mode tell less of the other."""

    def triton_layers(self, arch: Architecture) -> float:
        """Layers of a model whose experts Triton's kernels run."""

    def price(self, op: Operator) -> KernelTime:
        """Seconds [N] of one run of `op`."""


def profile_paths(given: Sequence[str]) -> tuple[str, ...]:
    """The paths given, then those of the environment variable PLANNER_PROFILES; without any, what the package holds.

    NO_TABLES in place of paths stands for none at all. Raises PlannerError where it stands beside others.
    """
    environment = [path for path in os.environ.get(PROFILES_VARIABLE, "").split(os.pathsep) if path]
    asked = given or environment
    if NO_TABLES not in asked:
        named = dict.fromkeys([*given, *(path for path in environment if path != NO_TABLES)])
        return tuple(named) or embedded_profiles()
    if others := [path for path in asked if path != NO_TABLES]:
        raise PlannerError(
            f"kernel tables `{others[0]}` beside `{NO_TABLES}`, which stands for no tables at all",
            where="--profiles or PLANNER_PROFILES",
            hint=f"give either the paths of tables or `{NO_TABLES}`",
        )
    return ()


def serving_tables(given: Sequence[str]) -> tuple[str, ...]:
    """What prices serving: `profile_paths`, and where nothing was named the tables of the machine too."""
    if given or os.environ.get(PROFILES_VARIABLE):
        return profile_paths(given)
    return unasked_profiles()


@cache
def open_store(paths: tuple[str, ...]) -> ProfileStore | None:
    """The tables under `paths`; None without paths. Raises PlannerError for a path that holds none.

    Tables of the machine that cannot be read are left out and named, since nobody asked for them.
    """
    return ProfileStore.open([Path(path) for path in paths], lenient=paths == unasked_profiles()) if paths else None


def make_pricer(
    pool: Pool,
    arch: Architecture,
    *,
    engine: str,
    version: str | None,
    calibration: Calibration,
    store: ProfileStore | None,
    bare: bool = False,
    tiles: float | None = None,
    triton: bool | None = None,
    near: NearRuns | None = None,
    alike: bool = False,
) -> Pricer:
    """Kernel tables of this pool's accelerator and of the engine when the store has them, else the roofline.

    `bare` prices kernels that run without the engine, which then makes their starts no longer. `tiles` and `triton`
    stand for what the release does unasked (`whole_tiles` and `triton_experts` of `planner.engines.settings`). `near`:
    own runs of the group, of which a layout takes most from those most like it; those at any load unless given, and
    none where steps of a group are `alike`.
    """
    accelerator, known = pool.node.accelerator, calibration.efficiencies
    own = calibration.engine(engine, version)
    started = known if bare else known.with_starts(own, overlap=accelerator.overlaps_starts)
    group = group_of_runs(arch, accelerator.name, engine)
    slowdown = 1.0 if bare else calibration.slowdown(group)
    if near is None and not (bare or alike) and group in calibration.runs and calibration.runs[group].seen:
        near = NearRuns(calibration.runs[group])
    whole = whole_tiles(engine, version) if tiles is None else tiles
    simulated = triton_experts(engine, version) if triton is None else triton
    roofline = Roofline(accelerator, pool.topology(), started, slowdown, whole, simulated, near)
    if store is None or accelerator.name not in store.accelerators():
        return roofline
    chooser = TableChooser(store, accelerator.name, engine, version)
    if store is open_store(embedded_profiles()):
        chooser.notes.add(
            f"no kernel tables were given: those measured on {accelerator.name} that come with planner serve"
        )
    elif store is open_store(unasked_profiles()) and (installed := installed_tables()):
        chooser.notes.add(f"no kernel tables were given: those of {installed.name}, which is installed, serve")
    return Profiled(roofline, chooser, calibration.tables, skew=expert_skew(arch))


def expert_skew(arch: Architecture) -> str:
    """Expert-load distribution of the MoE tables that suits a model: 1.01 was fitted to DeepSeek-R1, 1.2 to Qwen3-235B.

    Models of DeepSeek's family (latent attention, sigmoid routing with a balancing bias) take the former.
    """
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in arch.layers)
    return "power_law_1.01" if latent else "power_law_1.2"
