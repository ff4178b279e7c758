"""Splits of GPUs over language models and towers against every split of a hundred seeded small training jobs.

The oracle (`tests/oracles/train_splits.py`) tries every plan of the language model with every share of the rest, by the
definition. Beside the search stands the best trivial answer: as many GPUs for the tower as its share of the work,
rounded to a power of two, and the best plan of the language model on the rest.

    python benchmarks/module_splits.py [--quick]
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))

from train_problems import every_plan, job
from train_splits import least_and_result, random_split_problem

from planner.kinds.train.split.sides import apart_of, joined, sides_of
from planner.solvers.modalities.split import Share


def proportional_s(seed: int) -> float:
    """Seconds of the best plan whose tower has GPUs by its share of the work; infinite where none fits."""
    own, best = apart_of(job(random_split_problem(seed))), float("inf")
    for plan in every_plan(own):
        sides = sides_of(plan.choice.table)
        work_s = float(plan.pass_R3.sum()) * plan.choice.table.shape.tp / plan.choice.table.shape.micro_batch
        wanted = own.num_gpus * sides.work_s / (sides.work_s + work_s)
        gpus = 1 << max(round(wanted).bit_length() - 1, 0)
        made = joined(plan, sides, (Share(1, gpus),)) if gpus + plan.choice.num_gpus <= own.num_gpus else None
        best = min(best, made.step_s if made is not None else best)
    return best


def main() -> int:
    """Prints how many agree, and how far the trivial answer is; 1 where one does not agree."""
    parser = argparse.ArgumentParser(description="splits of training jobs against every split")
    parser.add_argument("--quick", action="store_true", help="twelve jobs instead of a hundred")
    number = 12 if parser.parse_args().quick else 100
    started, wrong, fitting, ratios = time.process_time(), [], 0, []
    for seed in range(number):
        least, result = least_and_result(seed)
        if least == float("inf"):
            wrong += [seed] * (result.value is not None)
            continue
        fitting += 1
        agree = result.value is not None and abs(result.value - least) <= 1e-9 * least
        wrong += [seed] * (not agree or abs(result.bound - least) > 1e-6 * least)
        ratios.append(proportional_s(seed) / least)
    reached = [ratio for ratio in ratios if ratio < float("inf")]
    print(f"{number} jobs, {fitting} fit; {len(wrong)} differ from the best of every split {wrong or ''}")
    print(
        f"towers by their share of the work: {len(reached)} fit, {sum(reached) / len(reached):.3f} times the best on"
        f" average, {max(reached):.3f} at most, {sum(ratio < 1.0 + 1e-9 for ratio in reached)} as good"
    )
    print(f"{time.process_time() - started:.0f} CPU-s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
