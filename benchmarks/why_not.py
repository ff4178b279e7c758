"""`planner explain --why-not` on random shapes, beside a judge that knows the models' numbers.

    python benchmarks/why_not.py [--quick] [--seed 0] [--shapes 100] [--verbose]

Half of the shapes are of serving, half of training; many cannot be. An answer is right that names a rule which the
values break (heads, layers, experts, GPUs, batch, sequence, the engine's ways of handing over), or, where none does,
limits without which there is a plan, or memory where an enumeration finds candidates and none that fits; or the loss
against the best plan of the same problem with the values in its options (`tests/oracles/named_shapes.py`). The trivial
answer beside: sizes are possible where they are powers of two that together are no more than the GPUs; it counts as
right where it says so of what is priced, and where it does not of what is too many devices.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))

from named_shapes import by_one_rule, draw_named, rules_broken, wrong
from ranked_plans import resolved

from planner.alternatives.why_not import why_not
from planner.api import solve
from planner.kinds.registry import find_kind
from planner.plan.schema import Envelope


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="ten shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    given = parser.parse_args()
    count = 10 if given.quick else given.shapes
    plans: dict[str, Envelope] = {}
    right = priced = trivial = 0
    asked_s = 0.0
    for seed in range(given.seed, given.seed + count):
        named = draw_named(seed)
        key = json.dumps(named.problem)
        plan = plans.get(key) or solve(resolved(named.problem), level="static")
        plans[key] = plan
        decision = find_kind(plan.kind).decision.model_validate(plan.decision)
        started = time.process_time()
        (fact,) = why_not(plan, decision, named.text)
        asked_s += time.process_time() - started
        reason = wrong(named, plan, fact)
        right += not reason
        possible = "no plan" not in fact.what
        priced += possible
        trivial += by_one_rule(named) if possible else rules_broken(named) == {"devices"} and not by_one_rule(named)
        if reason or given.verbose:
            model = next(iter(named.problem["models"].values()))["name"]
            print(f"  {seed} {plan.kind} {model} {named.text}: {fact.what}{f' [WRONG: {reason}]' if reason else ''}")
    print(
        f"{right} of {count} answers name the true rule or loss ({priced} priced, {count - priced} forbidden); "
        f"the one-line rule {trivial}; {asked_s / count:.2f} CPU-s an answer"
    )


if __name__ == "__main__":
    main()
