"""How near training costs are to measured runs, every group of runs predicted by a fit that has not seen it.

Fits the rates of planner/costs/training with one group (model and system) left out after another. Prints errors of step
times by source and kind, beside the best constant of each GPU; coverage of the 80 % intervals; what choosing the plan
of the least predicted step costs, beside the rule "least TP, then least PP, then largest micro-batch"; and errors of
memory, which is computed and not fitted.

    python benchmarks/training.py ../shared/data/training           # the tables
    python benchmarks/training.py ../shared/data/training --write   # and the calibration of all runs into the package
    python benchmarks/training.py ../shared/data/training --tables ../shared/data/kernel-profiles   # the rates alone
        # with products as kernel tables of others hold them, counted in full: what such tables are worth
"""

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
from inputs import first_path, required
from numpy.typing import NDArray
from sealed_groups import DATA, TRAINING, group_of, rows_of, status_of
from sealed_serving import weighted
from training_fit import Fit, Sensitivity, prior, sensitivity
from training_runs import (
    REPEATED_WEIGHT,
    LeftOut,
    MeasuredRun,
    Runs,
    Skipped,
    Spread,
    distances_to_others,
    fitted,
    leave_out,
    read_runs,
    simulated_s,
    spread_of_errors,
)

from planner.arrays import Bools, Floats
from planner.calibrate.history import text_of
from planner.costs.rates.calibration import SHIPPED, TrainingSection, load_calibration
from planner.costs.training import measured_layouts
from planner.costs.training.config import TrainingConfig
from planner.costs.training.memory import allocated_bytes, memory
from planner.costs.training.parameters import total_parameters
from planner.costs.training.products import measured_products
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.shapes import NONE, written
from planner.costs.training.step import step_time
from planner.documents.files import digest, write_text_atomic
from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.estimate.training_rows import completed, config_of_row
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore
from planner.models.parameters import parameter_counts

MORE = "measured_more.csv"
RECIPES = Path(__file__).parent.parent / "planner" / "alternatives" / "recipes" / "training.csv"
MANY, MULTI = "measured.csv", "vTrain MICRO24 multi-node measurements"
SINGLE = "measured_single_node.csv"
CALIBRATION, SHAPES = Path("planner/costs/rates/calibration.yaml"), Path("planner/costs/training/measured_shapes.csv")
LAYOUTS = Path("planner/costs/training/measured_layouts.csv")
GIB = 2.0**30
RECIPE_PRICE = 0.15


def main() -> int:
    """Print the tables; with --write, write the calibration."""
    folder = first_path()
    runs, single = read_tables(folder)
    if "--tables" in sys.argv[2:]:
        _print_tables(runs, ~single, Path(sys.argv[sys.argv.index("--tables") + 1]))
        return 0
    everything = np.ones(len(runs.runs), dtype=np.bool_)
    fit, rates = fitted(runs, everything)
    runs = replace(runs, replay=runs.replay.corrected(fit.rates))
    near = sensitivity(runs.replay, fit)
    left_out = leave_out(runs, near, runs.groups)
    _print_steps(runs, rates, left_out, ~single)
    _print_sources(runs, near, ~single)
    _print_shapes(runs, near, single)
    _print_recipes(runs, near)
    spread = _print_coverage(runs, left_out, ~single)
    _print_choices(runs, left_out, single)
    _print_memory(folder)
    _print_refused(runs)
    _print_shipped(runs, rates, ~single)
    if "--write" in sys.argv[2:]:
        _write(runs, fit, rates, spread)
    return 0


def read_tables(folder: Path) -> tuple[Runs, Bools]:
    """All runs that can be priced, and which of them are of the table of single nodes."""
    runs: list[MeasuredRun] = []
    single: list[bool] = []
    for name, weight in ((MANY, 1.0), (MORE, 1.0), (SINGLE, REPEATED_WEIGHT)):
        read = list(read_runs(str(folder / name), weight))
        for skipped in (run for run in read if isinstance(run, Skipped)):
            print(f"left out: {skipped.id}, {skipped.reason}")
        kept = [run for run in read if isinstance(run, MeasuredRun) and (name != MORE or _open(run.row))]
        runs += kept
        single += [name == SINGLE] * len(kept)
    return Runs.of(runs), np.array(single)


def _open(row: Mapping[str, str]) -> bool:
    """Whether a newer run may be fitted to; MegaScale's ladder and its table are priced by what others show."""
    return status_of(group_of(row, TRAINING)) == "open" and "MegaScale" not in row["source"]


def _print_steps(runs: Runs, rates: Rates, left_out: LeftOut, main_table: Bools) -> None:
    error = np.abs(left_out.step_s / runs.measured - 1.0)
    formulas = np.abs(left_out.formulas_s / runs.measured - 1.0)
    constant = np.abs(constants(runs, main_table) / runs.measured - 1.0)
    seen = np.abs(simulated_s(runs, rates, main_table | ~main_table) / runs.measured - 1.0)
    print(
        "\nstep time, groups left out          runs    mean  median   groups alike  formulas alone"
        "   one constant a GPU    fitted to"
    )
    for name, member in _parts(runs, main_table):
        if member.any():
            print(
                f"{name:34s} {member.sum():5d}  {error[member].mean():6.1%}  {np.median(error[member]):6.1%}"
                f"   {_alike(error, runs, member)}  {formulas[member].mean():6.1%} {np.median(formulas[member]):6.1%}"
                f"     {constant[member].mean():6.1%} {np.median(constant[member]):6.1%}"
                f"      {seen[member].mean():6.1%} {np.median(seen[member]):6.1%}"
            )


def _alike(error: Floats, runs: Runs, member: Bools) -> str:
    """Mean and median with every group of the same weight."""
    return " {:6.1%} {:6.1%}".format(*weighted(list(_by_label(error, runs.groups, member))))


def _parts(runs: Runs, main_table: Bools) -> Iterator[tuple[str, Bools]]:
    """Named parts of the table."""

    def those(test: Callable[[Mapping[str, str]], bool]) -> Bools:
        return np.asarray(main_table & np.array([test(run.row) for run in runs.runs]), dtype=np.bool_)

    def where(column: str, value: str) -> Bools:
        return those(lambda row: row[column] == value)

    yield "all runs", main_table
    newer = {row["id"] for row in rows_of(required(DATA / "training" / MORE))}
    older = np.array([run.id not in newer for run in runs.runs])
    yield "of measured.csv", main_table & older
    yield "open groups of measured_more.csv", main_table & ~older
    yield "GPT of vTrain and SC'21", those(lambda row: row["source"] == MULTI or "SC'21" in row["source"])
    yield "mixtures of experts", those(lambda row: row["arch"].startswith("moe"))
    yield "hybrid models", those(lambda row: row["arch"].startswith("hybrid"))
    yield "LoRA and SFT", those(lambda row: row["task"] != "pretrain")
    for source in sorted({run.row["source"] for run in runs.runs}):
        yield source[:34], where("source", source)
    for gpu in sorted({run.row["gpu"] for run in runs.runs}):
        yield gpu[:34], where("gpu", gpu)
    yield "single nodes (vTrain)", ~main_table


def constants(runs: Runs, main_table: Bools) -> Floats:
    """Steps [N] by 6 operations a parameter and token at the median rate of the GPU's other groups."""
    flop = np.array([plain_flop(run.config) for run in runs.runs])
    rate = flop / runs.measured
    gpus = np.array([run.row["gpu"] for run in runs.runs])
    rate_of_gpu = np.empty(len(rate))
    for index, (gpu, group) in enumerate(zip(gpus, runs.groups, strict=True)):
        others = (gpus == gpu) & (runs.groups != group) & main_table
        rate_of_gpu[index] = np.median(rate[others if others.any() else main_table & (runs.groups != group)])
    return np.asarray(flop / rate_of_gpu)


def plain_flop(config: TrainingConfig) -> float:
    """6 operations a parameter and token, of a step on one GPU."""
    counts = parameter_counts(config.arch)
    active = float(counts.active) if counts.experts else total_parameters(config.arch)
    return 6.0 * active * config.global_batch * config.sequence_tokens / config.num_gpus


def _print_sources(runs: Runs, near: Sensitivity, main_table: Bools) -> None:
    """Whole sources left out, by formulas alone: nothing of the code, or of its shapes, is left in the fit."""
    sources = np.array([run.row["source"] for run in runs.runs])
    step_s = leave_out(runs, near, np.where(main_table, sources, "single nodes"), shapes=False).formulas_s
    error, lora = np.abs(step_s / runs.measured - 1.0), np.array([run.row["task"] == "lora" for run in runs.runs])
    print("\nwhole sources left out              runs    mean  median")
    for source in sorted(set(sources[main_table].tolist())):
        member = main_table & (sources == source)
        print(f"{source[:34]:34s} {member.sum():5d}  {error[member].mean():6.1%}  {np.median(error[member]):6.1%}")
    for name, member in (("all", main_table), ("LoRA", main_table & lora)):
        mean, middle = weighted(list(_by_label(error, sources, member)))
        print(f"{name + ', sources alike':34s} {member.sum():5d}  {mean:6.1%}  {middle:6.1%}")
        mean, middle = float(error[member].mean()), float(np.median(error[member]))
        print(f"{name + ', runs alike':34s} {member.sum():5d}  {mean:6.1%}  {middle:6.1%}")


def _print_shapes(runs: Runs, near: Sensitivity, single: Bools) -> None:
    """Widths of models left out, whatever their number of layers, code and machine; formulas alone."""
    widths = np.array([f"{run.config.arch.hidden_size}" for run in runs.runs])
    step_s = leave_out(runs, near, widths, shapes=False).formulas_s
    error = np.abs(step_s / runs.measured - 1.0)
    print("\nwidths of models left out           runs    mean  median   groups alike")
    for name, member in (("all", ~single), ("single nodes", single)):
        print(
            f"{name:34s} {member.sum():5d}  {error[member].mean():6.1%}  {np.median(error[member]):6.1%}"
            f"   {_alike(error, runs, member)}"
        )
    regrets = np.array(_regrets(runs, step_s, single))
    print(
        f"{'choice on single nodes':34s} {len(regrets):5d}  {regrets.mean():6.2%}  p90 {np.quantile(regrets, 0.9):6.2%}"
    )


def _by_label(values: Floats, labels: NDArray[np.str_], member: Bools) -> Iterator[list[float]]:
    for label in sorted(set(labels[member].tolist())):
        yield values[member & (labels == label)].tolist()


def _print_recipes(runs: Runs, near: Sensitivity) -> None:
    """The ten public recipes, each with its family of models under its training code left out of the fit."""
    print("\nrecipes, family x era left out          measured   priced     off")
    place = {run.id: index for index, run in enumerate(runs.runs)}
    codes = np.array([run.config.framework.name for run in runs.runs])
    families = np.array([family_of(run.row["model"]) for run in runs.runs])
    offs = []
    for recipe in rows_of(RECIPES):
        if (at := place.get(recipe["id"])) is None:
            continue  # of a generated table
        out = (codes == codes[at]) & (families == families[at])
        step_s = leave_out(runs, near, np.where(out, "out", ""), shapes=False, only="out").formulas_s[at]
        offs.append(step_s / runs.measured[at] - 1.0)
        name = f"{runs.runs[at].row['model']}, {recipe['num_gpus']} {recipe['gpu']}"
        print(f"{name[:36]:36s} {runs.measured[at]:9.2f} s {step_s:7.2f} s {offs[-1]:+7.1%}")
    beyond = sum(abs(off) > RECIPE_PRICE for off in offs)
    print(f"mean {np.mean(np.abs(offs)):.1%}; {beyond} of {len(offs)} beyond {RECIPE_PRICE:.0%}" if offs else "none")


def family_of(model: str) -> str:
    """The first word of a model's name, digits behind it left away: `llama` of llama3.1-405b."""
    return re.split(r"[-_ ]", model.rpartition("/")[2].lower())[0].rstrip("0123456789.")


def _print_coverage(runs: Runs, left_out: LeftOut, main_table: Bools) -> Spread:
    """Intervals of every group from the errors of the others; returns those of all."""
    errors, away = left_out.errors(runs.measured), distances_to_others(runs)
    inside, width = np.empty(len(errors)), np.empty(len(errors))
    for group in sorted(set(runs.groups.tolist())):
        out, kept = runs.groups == group, main_table & (runs.groups != group)
        if not main_table[out].any():
            kept = ~main_table & (runs.groups != group)
        spread = spread_of_errors(errors[kept], left_out.classes[kept], runs.groups[kept], away[kept])
        for index in np.flatnonzero(out):
            low, high = spread.ends(str(left_out.classes[index]), float(away[index]))
            inside[index], width[index] = low <= errors[index] <= high, np.exp(high) - np.exp(low)
    print("\n80 % intervals                 runs alike   groups alike   mean width")
    near = away <= np.median(away[main_table])
    for name, member in (
        ("all runs", main_table),
        ("the nearer half", main_table & near),
        ("the farther half", main_table & ~near),
        ("single nodes", ~main_table),
    ):
        held = weighted(list(_by_label(inside, runs.groups, member)))[0]
        print(f"{name:28s} {inside[member].mean():10.1%} {held:14.1%} {width[member].mean():12.1%}")
    kept = main_table
    whole = spread_of_errors(errors[kept], left_out.classes[kept], runs.groups[kept], away[kept])
    print(f"they widen by {whole.by_distance:g} of themselves a unit of distance")
    return whole


def _print_choices(runs: Runs, left_out: LeftOut, single: Bools) -> None:
    multi = np.array([run.row["source"] == MULTI for run in runs.runs]) & ~single
    print("\nchoice of a plan                  workloads     mean     p90   formulas alone   the rule")
    for name, member in (("single nodes", single), ("vTrain, several nodes", multi)):
        if not member.any():
            continue  # of a generated table
        columns = [
            np.array(_regrets(runs, predicted, member)) for predicted in (left_out.step_s, left_out.formulas_s, None)
        ]
        cells = "  ".join(f"{c.mean():7.2%} {np.quantile(c, 0.9):7.2%}" for c in columns)
        print(f"{name:34s} {len(columns[0]):8d}  {cells}")


def _regrets(runs: Runs, predicted: Floats | None, member: Bools) -> list[float]:
    """How much slower the chosen plan of each workload is than its best; without predictions, the rule chooses."""
    workloads: dict[tuple[str, ...], dict[tuple[int, int, int, int], list[tuple[float, float]]]] = {}
    for index in np.flatnonzero(member):
        row, config = runs.runs[index].row, runs.runs[index].config
        workload = tuple(row[name] for name in ("model", "layers", "seq", "gpu", "num_gpus", "gbs"))
        plan = (config.tp, config.pp, -config.micro_batch, config.dp)
        price = 0.0 if predicted is None else float(predicted[index])
        workloads.setdefault(workload, {}).setdefault(plan, []).append((float(runs.measured[index]), price))
    regrets = []
    for plans in workloads.values():
        if len(plans) >= 3:
            measured = {plan: float(np.mean([m for m, _ in repeats])) for plan, repeats in plans.items()}
            price_of = {plan: float(np.mean([p for _, p in repeats])) for plan, repeats in plans.items()}
            chosen = min(plans) if predicted is None else min(plans, key=lambda plan: price_of[plan])
            regrets.append(measured[chosen] / min(measured.values()) - 1.0)
    return regrets


def _print_memory(folder: Path) -> None:
    """Peaks in GiB, as the allocator counts them."""
    with open(folder / MANY, newline="", encoding="utf-8") as file:
        known = {row["id"]: row for row in csv.DictReader(file)}
    errors: dict[str, list[float]] = {}
    with open(folder / "memory.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["unit"] == "GiB" and row["quantity"].startswith(("peak reported", "max_allocated")):
                error = _memory_error(known.get(row["id"].removeprefix("mem")) or row, float(row["value_gib"]))
                errors.setdefault(row["source"], []).append(error)
    together = np.abs([error for of_source in errors.values() for error in of_source])
    print(f"\npeak memory, {len(together)} runs: median error {np.median(together):.1%}, mean {together.mean():.1%}")
    for source, of_source in errors.items():
        low, middle, high = min(of_source), float(np.median(np.abs(of_source))), max(of_source)
        print(f"  {source[:34]:34s} {len(of_source):4d}  median {middle:.1%}, from {low:+.1%} to {high:+.1%}")


def _memory_error(row: Mapping[str, str], measured_gib: float) -> float:
    try:
        config = completed(config_of_row(row))
    except PlannerError:
        return 1.0
    return allocated_bytes(config) / GIB / measured_gib - 1.0


def _print_tables(runs: Runs, main_table: Bools, folder: Path) -> None:
    """The shipped rates without factors of shapes, alone and with products from imported tables, by GPU and format."""
    known = replace(default_rates(), shapes=NONE, _found={})
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    stores: dict[str, ProfileStore] = {}
    for index in np.flatnonzero(main_table):
        config, measured = runs.runs[index].config, float(runs.measured[index])
        name = config.machine.node.accelerator.name
        if (folder / name).is_dir():
            store = stores.setdefault(name, ProfileStore.open([folder / name]))
            steps = step_time(config, known).step_s / measured - 1.0, _tabled_s(config, known, store) / measured - 1.0
            for key in ((name, "all"), (name, "bf16" if config.precision == "bf16" else "narrower")):
                rows.setdefault(key, []).append(steps)
    print(f"\n{'products':20} {'runs':>5}  {'rates: mean, median, bias':>30}  {'tables: mean, median, bias':>30}")
    for (name, formats), errors in sorted(rows.items()):
        columns = np.array(errors).T
        cells = [f"{np.abs(e).mean():9.1%} {np.median(np.abs(e)):9.1%} {e.mean():+9.1%}" for e in columns]
        print(f"{name + ' ' + formats:20} {len(errors):5d}  {cells[0]:>30}  {cells[1]:>30}")


def _tabled_s(config: TrainingConfig, known: Rates, store: ProfileStore) -> float:
    pool = Pool(config.machine.node.name, config.machine.node, num_nodes=1)
    products = measured_products(pool, config.arch, load_calibration(), store)
    assert products is not None
    return step_time(config, replace(known, products=replace(products, imported_weight=1.0), _found={})).step_s


def _print_refused(runs: Runs) -> None:
    """Runs that happened, and that the memory model would not let happen."""
    shares = np.array([memory(run.config).total_R.max() / run.config.machine.memory_bytes for run in runs.runs])
    over = shares > 1.0
    print(
        f"\nruns over their device's memory: {over.sum()} of {len(shares)}; by more than 3 %: {(shares > 1.03).sum()}"
    )
    for share, run in sorted(((s, r) for s, r in zip(shares, runs.runs, strict=True)), key=lambda f: -f[0])[:8]:
        if share > 1.0:
            row = run.row
            print(
                f"  {run.id} {row['model']} {row['gpu']} micro-batch {row['mbs']} of {row['seq']}: {share - 1.0:+.1%}"
            )


def _print_shipped(runs: Runs, rates: Rates, main_table: Bools) -> None:
    """How far steps by the shipped rates are from those by this fit, which `--write` would ship."""
    apart = np.abs(simulated_s(runs, default_rates(), main_table) / simulated_s(runs, rates, main_table) - 1.0)
    print(f"\nshipped rates and this fit: {np.median(apart):.2%} apart in the median, {apart.max():.1%} at most")


def _write(runs: Runs, fit: Fit, rates: Rates, spread: Spread) -> None:
    """Section `training` of the shipped calibration from all runs, with the intervals of those left out."""
    section = TrainingSection(
        rates={name: float(f"{value:.4g}") for name, value in sorted(rates.values.items())},
        errors={name: float(f"{error:.2g}") for name, error in zip(prior().names, fit.errors, strict=True)},
        spread={name: (round(low, 4), round(high, 4)) for name, (low, high) in spread.of_class.items()},
        spread_by_distance=spread.by_distance,
        shapes=SHIPPED,
        source=f"fitted to {len(runs.runs)} measured training runs by benchmarks/training.py --write",
        date=date.today().isoformat(),
        data=digest({"runs": [[run.id, run.step_s] for run in runs.runs]}),
    )
    shipped = load_document(CALIBRATION).data
    write_text_atomic(CALIBRATION, text_of({**shipped, "training": section.document()}))
    write_text_atomic(SHAPES, "\n".join(written(rates.shapes)) + "\n")
    layouts = measured_layouts.written(measured_layouts.layout_of(run.config) for run in runs.runs)
    write_text_atomic(LAYOUTS, "\n".join(layouts) + "\n")
    print(f"\nwrote {CALIBRATION}, {SHAPES} and {LAYOUTS}")


if __name__ == "__main__":
    raise SystemExit(main())
