"""The verifier of certificates: plans as solved are verified, and whatever is altered in a certificate is refused."""

import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_problems import small
from static_level import solve

from planner import verify
from planner.check import check_plan
from planner.cli.main import main
from planner.experts.layout import spread_problems
from planner.experts.ranks import make_ranks
from planner.kinds.experts.proof import bound_records
from planner.kinds.registry import find_kind
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.solvers.layouts.spread import SpreadProblem, time_bound
from planner.verify import MISSING, NOTHING, REFUSED, STATED, VERIFIED, Model, checksum, judge, tree_bound

Plan = dict[str, Any]
FILE = Path(verify.__file__)
ALTERATIONS = 150  # of each plan, drawn

TRAIN: Plan = {
    "schema": "planner.problem/1",
    "kind": "train",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
    "objective": {"minimize": "step_time"},
    "options": {"global_batch": 32, "sequence_tokens": 4096, "search": {"pp": [1, 2], "tp": [2, 4, 8], "vpp": [1, 2]}},
}
RL: Plan = {
    "schema": "planner.problem/1",
    "kind": "rl",
    "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 2}]},
    "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 800, "cv": 0.5}}],
    "objective": {"minimize": "iteration_time"},
    "options": {"algorithm": "grpo", "prompts": 32, "samples_per_prompt": 4, "generation_tp": [1, 2]},
}
PERIODS = [{"iterations": 50, "output_scale": scale} for scale in (0.5, 2)]
HORIZON = {"periods": PERIODS, "generation_change": "60s", "training_change": "300s"}


@cache
def text_of(kind: str) -> str:
    """A small problem of a kind as solved."""
    if kind == "serve":
        return plan_json(solve(small()))
    if kind == "train per GPU":
        return plan_json(solve({**TRAIN, "objective": {"maximize": "tokens_per_s_per_gpu"}}))
    if kind == "rl over time":
        options = {**RL["options"], "max_staleness": 0, "horizon": HORIZON}
        return plan_json(solve({**RL, "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1}]}, "options": options}))
    return plan_json(solve({"train": TRAIN, "rl": RL}[kind]))


@pytest.fixture(scope="module", params=["serve", "train", "train per GPU", "rl", "rl over time"])
def text(request: pytest.FixtureRequest) -> str:
    """The text of a plan of every kind that is solved in a moment."""
    return text_of(request.param)


def experts_plan(seed: int = 0) -> Plan:
    """Layers under loads of which some are too heavy for a rank: laid out by nobody, with bounds that are proven."""
    loads = np.random.default_rng(seed).gamma(0.15, size=(6, 8)) + 1e-3
    ranks = make_ranks(4, 2 if seed % 2 else 3)
    bounds = np.array(
        [
            time_bound(SpreadProblem(load_E, ranks.slots_R.astype(np.int64), ranks.speed_R)) * 4.0 / load_E.sum()
            for load_E in loads
        ]
    )
    reached = [float(bound) * 1.01 for bound in bounds]
    value, bound = sum(reached) / 6, float(bounds.mean())
    certificate = {
        "claim": f"{'no layout'} of these slots is below the bound",
        "status": "feasible",
        "stop_reason": "finished",
        "objective": {"metric": "imbalance", "sense": "minimize", "value": value},
        "bound": bound,
        "gap": (value - bound) / value,
        "tolerance": 1e-6,
        "axes": {"layers": [6]},
        "candidates": 6,
        "pruned": {},
        "proof": {
            "method": "slots_and_mean",
            "bound_by_layer": bounds.tolist(),
            "imbalance_by_layer": reached,
            "bounds_above_1": bound_records(spread_problems(loads, ranks), bounds),
        },
    }
    certificate["proof"]["checksum"] = checksum(certificate)  # type: ignore[index]  # the dictionary above
    roles = [{"replicas": 1, "function": "experts", "parallelism": {"ep": 4}}]
    decision = {"slots_per_rank": [ranks.num_slots // 4], "roles": roles, "num_layers": 6, "num_experts": 8}
    return {"kind": "experts", "predictions": [], "decision": decision, "certificate": certificate}


def simulated_plan() -> Plan:
    """A serving plan by simulation, as far as its certificate goes."""
    certificate = {
        "claim": "no simulation of a placement has a better goodput_per_gpu than the bound",
        "status": "feasible",
        "objective": {"metric": "goodput_per_gpu", "sense": "maximize", "value": 2.0},
        "bound": 2.5,
        "gap": 0.25,
        "tolerance": 1e-6,
        "pruned": {"placements that the optimistic model excludes": 7},
        "proof": {
            "method": "optimistic_simulation",
            "seed": 3,
            "groups": [
                {"end": "excluded", "placements": 7, "bound": 1.9},
                {"end": "simulated", "placements": 2, "bound": 2.5},
            ],
        },
    }
    certificate["proof"]["checksum"] = checksum(certificate)  # type: ignore[index]  # the dictionary above
    return {"kind": "serve", "seed": 3, "predictions": [], "certificate": certificate}


def verdicts(plan: Plan) -> set[str]:
    return {line.verdict for line in judge(plan)}


def test_the_verifier_is_one_short_file_of_the_standard_library() -> None:
    source = FILE.read_text()
    assert len(source.splitlines()) < 500
    tree = ast.walk(ast.parse(source))
    imported = {name.name for node in tree if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_a_plan_as_solved_is_verified(text: str) -> None:
    assert verdicts(json.loads(text)) == {VERIFIED, STATED}


@pytest.mark.parametrize("seed", range(4))
def test_layouts_and_simulated_placements_are_verified(seed: int) -> None:
    assert verdicts(experts_plan(seed)) == {VERIFIED, STATED}
    assert verdicts(simulated_plan()) == {VERIFIED, STATED}


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    entries: Any = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, below in entries:
        yield (*path, key)
        yield from places(below, (*path, key))


def altered(plan: Plan, path: tuple[Any, ...]) -> Plan | None:
    """The plan with another number, flag or word at a place of its certificate, or a list cut short."""
    plan = {**plan, "certificate": copy.deepcopy(plan["certificate"])}
    *above, last = path
    part = plan["certificate"]
    for key in above:
        part = part[key]
    match part[last]:
        case bool():
            part[last] = not part[last]
        case int():
            part[last] += 1
        case float():
            part[last] = part[last] * 1.25 + 0.0625
        case str():
            part[last] += " "
        case list() if part[last]:
            part[last] = part[last][:-1]
        case _:
            return None
    return plan


def refused_at_every_place(plan: Plan, number: int) -> None:
    paths = list(places(plan["certificate"]))
    for path in random.Random(1).sample(paths, min(number, len(paths))):
        forged = altered(plan, path)
        assert forged is None or REFUSED in verdicts(forged), path


def test_whatever_is_altered_in_a_certificate_is_refused(text: str) -> None:
    refused_at_every_place(json.loads(text), ALTERATIONS)


def test_whatever_is_altered_in_other_certificates_is_refused() -> None:
    refused_at_every_place(experts_plan(), 1000)
    refused_at_every_place(simulated_plan(), 1000)


def scale(*path: Any, by: float = 0.999) -> Callable[[Plan], None]:  # noqa: ANN401 - JSON
    """A number at a place times something."""

    def change(certificate: Plan) -> None:
        *above, last = path
        part = certificate
        for key in above:
            part = part[key]
        part[last] = part[last] + round(by) if isinstance(part[last], int) else part[last] * by

    change.__name__ = ".".join(map(str, path))
    return change


def claim_optimal(certificate: Plan) -> None:
    """Ten times nearer to the bound than it is."""
    certificate["gap"] /= 10
    certificate["status"] = "optimal"


def reach_the_bound(certificate: Plan) -> None:
    certificate["objective"]["value"] = certificate["bound"] = certificate["bound"] * 1.01
    certificate["gap"] = 0.0


def drop_a_group(certificate: Plan) -> None:
    certificate["proof"]["groups"].pop(0)


def state_a_group_twice(certificate: Plan) -> None:
    certificate["proof"]["groups"].append(certificate["proof"]["groups"][0])


def move_a_candidate(certificate: Plan) -> None:
    """From one group to another, so that their sum stays."""
    groups = certificate["proof"]["groups"]
    key = "plans" if "plans" in groups[0] else "candidates"
    ends = {group["end"]: group for group in groups}
    first, second, *_ = ends.values()
    first[key], second[key] = first[key] - 1, second[key] + 1
    if "priced" in first:
        first["priced"], second["priced"] = first["priced"] + 1, max(second["priced"] - 1, 0)


def lower_the_least_floor(certificate: Plan) -> None:
    min(certificate["proof"]["groups"], key=lambda group: group.get("least", 1e99))["least"] *= 0.99


def cut_the_tree(certificate: Plan) -> None:
    """The subtree below a split is forgotten, and what it proves with it."""
    nodes = certificate["proof"]["tree"]["nodes"]
    node = next((node for node in nodes if "split" in node), None)
    if node is None:
        nodes[0] = {"empty": nodes[0]["duals"]}
    else:
        node["children"][1] = node["children"][0]


def forget_the_duals(certificate: Plan) -> None:
    for node in certificate["proof"]["tree"]["nodes"]:
        if "duals" in node:
            node["duals"] = []


def add_a_type(certificate: Plan) -> None:
    shapes = certificate["proof"]["mix"]["shapes"]
    shapes.append({**shapes[0], "name": "other", "rate_per_s": [4 * rate for rate in shapes[0]["rate_per_s"]]})


def forget_a_cheap_state(certificate: Plan) -> None:
    certificate["proof"]["periods"][0]["left"] += 1
    certificate["proof"]["periods"][0]["least_left"] = 1.0


COMMON = [scale("bound", by=1.001), scale("bound"), scale("gap", by=2.0), scale("objective", "value"), reach_the_bound]
FORGED: dict[str, list[Callable[[Plan], None]]] = {
    "serve": [cut_the_tree, forget_the_duals, add_a_type, scale("candidates"), scale("proof", "objective_unit")],
    "train": [drop_a_group, state_a_group_twice, move_a_candidate, lower_the_least_floor, scale("proof", "evaluated")],
    "rl": [
        drop_a_group,
        state_a_group_twice,
        move_a_candidate,
        lower_the_least_floor,
        scale("proof", "priced_exactly"),
    ],
    "rl over time": [forget_a_cheap_state, scale("proof", "periods", 0, "open", 0, 3, by=0.5)],
}


@pytest.fixture(scope="module")
def solved() -> dict[str, Plan]:
    return {kind: json.loads(text_of(kind)) for kind in FORGED}


@pytest.mark.parametrize(("kind", "forge"), [(kind, forge) for kind in FORGED for forge in (*COMMON, *FORGED[kind])])
def test_a_forged_certificate_is_refused_even_with_a_checksum_of_its_own(
    solved: dict[str, Plan], kind: str, forge: Callable[[Plan], None]
) -> None:
    plan = copy.deepcopy(solved[kind])
    forge(plan["certificate"])
    plan["certificate"]["proof"]["checksum"] = checksum(plan["certificate"])
    refused = {line.rule for line in judge(plan) if line.verdict == REFUSED}
    assert refused or plan == solved[kind]
    assert "certificate.checksum" not in refused


@pytest.mark.parametrize("forge", [claim_optimal, scale("proof", "bound_by_layer", 0, by=1.002), scale("candidates")])
def test_forged_layouts_are_refused(forge: Callable[[Plan], None]) -> None:
    plan = experts_plan(1)
    forge(plan["certificate"])
    plan["certificate"]["proof"]["checksum"] = checksum(plan["certificate"])
    assert REFUSED in verdicts(plan)


@given(st.integers(0, 10**6), st.floats(1.001, 1.5))
@settings(max_examples=25)
def test_bounds_of_layers_follow_from_what_is_stated_and_greater_ones_do_not(seed: int, factor: float) -> None:
    plan = experts_plan(seed)
    assert REFUSED not in verdicts(plan)
    proof = plan["certificate"]["proof"]
    layer = max(range(6), key=proof["bound_by_layer"].__getitem__)
    proof["bound_by_layer"][layer] *= factor
    proof["imbalance_by_layer"][layer] *= factor
    lines = [line for line in judge(plan) if f"layer {layer}:" in line.what]
    assert [line.verdict for line in lines] == [REFUSED]


def test_old_plans_and_unknown_proofs_are_told_apart(solved: dict[str, Plan]) -> None:
    plan = copy.deepcopy(solved["train"])
    del plan["certificate"]["proof"]["groups"]
    del plan["certificate"]["proof"]["checksum"]
    assert {MISSING} <= verdicts(plan) <= {MISSING, VERIFIED}
    plan["certificate"]["proof"]["method"] = "oracle"
    assert REFUSED in verdicts(plan)
    stated = json.loads((Path(__file__).parent / "plans" / "train.json").read_text())
    assert verdicts(stated) == {VERIFIED, NOTHING}
    stated["certificate"]["bound"] = 6.3
    assert REFUSED in verdicts(stated)


def test_the_verifier_runs_alone(tmp_path: Path, solved: dict[str, Plan]) -> None:
    plan = solved["serve"]
    runs = {}
    for name, part in {"right": plan, "forged": altered(plan, ("bound",)), "old": {"certificate": None}}.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(part))
        runs[name] = subprocess.run(
            [sys.executable, "-I", "-S", FILE, path], capture_output=True, text=True, check=False
        )
    assert [run.returncode for run in runs.values()] == [0, 1, 1]
    assert len(runs["right"].stdout.splitlines()) == len(judge(plan))
    assert "REFUSED" in runs["forged"].stdout


def test_the_check_tells_every_claim_at_the_level_of_proofs(solved: dict[str, Plan]) -> None:
    plan = Envelope.model_validate(solved["train"])
    decision = find_kind("train").decision.model_validate(plan.decision)
    findings = [f for f in check_plan(plan, decision, proof=True) if f.where == "certificate"]
    assert {finding.rule for finding in findings} >= {"certificate.checksum", "certificate.candidates"}
    assert all(finding.ok for finding in findings)


def test_the_command_checks_at_the_level_of_proofs(
    tmp_path: Path, solved: dict[str, Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    for plan, code in ((solved["rl"], 0), (altered(solved["rl"], ("candidates",)), 1)):
        path.write_text(json.dumps(plan))
        assert main(["check", str(path), "--level", "proof", "--json"]) == code
        findings = {row["rule"]: row["ok"] for row in json.loads(capsys.readouterr().out)["findings"]}
        assert findings["certificate.checksum"] is (code == 0)


# max 3x + 2y, x integer, with 2x + y <= 7 and x + 3y <= 9: 3 x 3 + 2 x 1 = 11 at (3, 1)
SMALL_MODEL = Model(
    columns={"x": (0, 10, True), "y": (0, 10, False)},
    rows=[("a", {"x": 2, "y": 1}, None, 7), ("b", {"x": 1, "y": 3}, None, 9)],
    objective={"x": 3, "y": 2},
    maximising=True,
)
DUALS = [[0, 1.4], [1, 0.2]]  # of the relaxation, 11.6 at (2.4, 2.2)
SPLIT = {"split": [0, 2], "children": [1, 2]}


def test_a_leaf_bounds_the_objective_for_any_duals() -> None:
    assert tree_bound(SMALL_MODEL, [{"duals": DUALS}]) == pytest.approx(11.6)
    for duals in ([], [[0, 1.0]], [[0, 1.5], [1, 0.5]], [[0, 1.4], [1, -3.0]], [[1, 7.0]]):
        bound = tree_bound(SMALL_MODEL, [{"duals": duals}])
        assert bound is not None
        assert bound >= 11.6


def test_leaves_below_a_split_prove_more() -> None:
    below, above = {"duals": [[1, 2 / 3]]}, {"duals": [[0, 2.0]]}
    bound = tree_bound(SMALL_MODEL, [SPLIT, below, above])
    assert bound == pytest.approx(11.0)  # x <= 2: 2 x 7/3 + 6 = 10.67; x >= 3: y <= 1
    assert tree_bound(SMALL_MODEL, [SPLIT, below, {"duals": DUALS}]) > bound


def test_a_box_is_empty_only_where_its_duals_say_so() -> None:
    beyond = {"split": [0, 3], "children": [1, 2]}
    assert tree_bound(SMALL_MODEL, [beyond, {"duals": DUALS}, {"empty": [[0, 1.0]]}]) == pytest.approx(11.6)
    claimed = tree_bound(SMALL_MODEL, [SPLIT, {"duals": DUALS}, {"empty": [[0, 1.0]]}])
    assert claimed == 50  # nothing is known of the second box, in which 3 x 10 + 2 x 10 fits
    assert (
        tree_bound(SMALL_MODEL._replace(columns={"x": (4, 10, True), "y": (0, 1, False)}), [{"empty": [[0, 1]]}])
        is None
    )


def test_the_bound_of_whole_objectives_is_whole() -> None:
    least = Model({"n": (0, 9, True)}, [("need", {"n": 2}, 7, None)], {"n": 4}, False)
    assert tree_bound(least, [{"duals": [[0, -2.0]]}]) == 16  # 4 n >= 14, and a multiple of 4


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([SPLIT, {"duals": DUALS}], "out of range"),
        ([{"split": [0, 2], "children": [1, 1]}, {"duals": DUALS}], "two parents"),
        ([{"duals": DUALS}, {"duals": DUALS}], "hangs on nothing"),
        ([{"split": [1, 2], "children": [1, 2]}, {"duals": DUALS}, {"duals": DUALS}], "no split of an integer"),
        ([{"split": [0, 2], "children": [0, 1]}, {"duals": DUALS}], "no split of an integer"),
    ],
)
def test_what_is_no_tree_proves_nothing(nodes: list[Any], what: str) -> None:
    with pytest.raises((ValueError, IndexError), match=what):
        tree_bound(SMALL_MODEL, nodes)
