"""`make gpu OUT=DIR`: profiles the GPU of this machine, checks that, executes plans, and leaves a few flat files.

Needs Python 3.11 or later with torch, numpy, scipy and pyarrow; no network, and nothing else of what planner depends
on. Cut short, the same command goes on where it stopped. `planner profiles adopt DIR` files the result.
"""

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the checkout need not be installed
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # nor for ranks

from execute_examples import EACH_S, Examples, execute_examples, executed_all  # noqa: E402 - found through the line above
from families import families_from_json  # noqa: E402

from planner.documents.files import write_text_atomic  # noqa: E402
from planner.documents.read import PARSED_VARIABLE  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.execute.shards.cases import Cut, parse_cut  # noqa: E402
from planner.hardware.profiling.bundle import pack  # noqa: E402
from planner.hardware.profiling.collectives import collective_families, num_devices  # noqa: E402
from planner.hardware.profiling.device import describe, open_device  # noqa: E402
from planner.hardware.profiling.measure import measure  # noqa: E402
from planner.hardware.profiling.verify import summary, verify  # noqa: E402
from planner.hardware.profiling.writer import CARD  # noqa: E402

HERE = Path(__file__).resolve().parent
VERIFIED, EXECUTED, UNFINISHED = "verified.json", "executed.json", ".unfinished"
VERIFY_SHARE = 0.15  # of the budget


@dataclass(frozen=True, slots=True)
class Request:
    """What to do, as the command line says it; seconds of measuring, of executing, and for each role."""

    out: Path
    inputs: Path
    device: str
    accelerator: str | None
    budget_s: float
    execute_s: float
    each_s: float
    cut: Cut


def main(argv: list[str]) -> int:
    """0 when the result is whole, 1 when plans were left unexecuted, 2 with a message when there is no result."""
    parser = argparse.ArgumentParser(description="Profile the GPU of this machine, and execute plans on it.")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the result is to lie")
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help="for measuring, all in all")
    parser.add_argument("--execute", type=float, default=240.0, metavar="SECONDS", help="for executing plans; 0: none")
    parser.add_argument(
        "--each", type=float, default=EACH_S, metavar="SECONDS", help="for executing one role of a plan"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--accelerator", metavar="NAME", help="its name in the catalog, where its driver's is unknown")
    parser.add_argument("--cut", metavar="BOUNDS", help="smaller steps of the plans, such as layers=1,batch=2")
    parser.add_argument("--inputs", default=str(HERE), metavar="DIR", help="shapes and plans as prepare.py writes them")
    given = parser.parse_args(argv)
    try:
        out, inputs = Path(given.out), Path(given.inputs)
        cut = parse_cut(given.cut)
        seconds = (given.budget, given.execute, given.each)
        whole = run(Request(out, inputs, given.device, given.accelerator, *seconds, cut))
    except PlannerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if whole else 1


def run(request: Request) -> bool:
    """Profile, verify, execute, pack; whether nothing is left to do. Raises PlannerError."""
    started_s = time.monotonic()
    shapes = json.loads((request.inputs / "shapes.json").read_text(encoding="utf-8"))
    if (request.inputs / "catalog.json").is_file():
        os.environ.setdefault(PARSED_VARIABLE, str((request.inputs / "catalog.json").resolve()))
    facts = describe(open_device(request.device))
    name = request.accelerator or _name(facts.name, shapes["accelerators"])
    folder = request.out / UNFINISHED
    if not (folder / VERIFIED).is_file():
        _profile(request, shapes, name, folder)
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    executed = _execute(request, shapes, name, folder)
    shutil.copyfile(folder / VERIFIED, request.out / VERIFIED)
    write_text_atomic(request.out / EXECUTED, json.dumps(executed) + "\n")
    finished = request.execute_s <= 0 or executed_all(executed)
    facts_of_run = {
        "finished": finished,
        "accelerator": name,
        "budget_s": request.budget_s,
        "took_s": time.monotonic() - started_s,
        "points": card["points"],
        "families": card["families"],
        "left_out": len(card["left_out"]),
        "executed": executed["summary"],
        "unexecuted": executed["unexecuted"],
    }
    pack(folder, request.out, facts=facts_of_run)
    if finished:
        shutil.rmtree(folder)
    _print(name, card, json.loads((request.out / VERIFIED).read_text(encoding="utf-8")), executed)
    return finished


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _profile(request: Request, shapes: dict[str, Any], name: str, folder: Path) -> None:
    """Measures, then measures other points against that; the second file says that both are done."""
    families = [*families_from_json(shapes["families"]), *collective_families(num_devices(request.device))]
    measure(
        families,
        folder,
        accelerator=name,
        device=request.device,
        budget_s=request.budget_s * (1.0 - VERIFY_SHARE),
        version=time.strftime("%Y.%m.%d", time.gmtime()),
        resume=folder.is_dir(),
        tell=_tell,
    )
    verified = verify(families, folder, device=request.device, budget_s=request.budget_s * VERIFY_SHARE)
    write_text_atomic(folder / VERIFIED, json.dumps(summary(verified)) + "\n")
    if request.device == "cuda":
        import torch

        torch.cuda.empty_cache()  # the ranks of plans need the memory


def _execute(request: Request, shapes: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """The example plans cut to this device, priced from the profile in `folder`."""
    examples = Examples(request.inputs / "plans", shapes.get("executed", {}))
    return execute_examples(
        examples, folder, folder / EXECUTED, device=request.device, accelerator=name,
        budget_s=request.execute_s, each_s=request.each_s, cut=request.cut, tell=_tell,
    )  # fmt: skip


def _print(name: str, card: dict[str, Any], verified: dict[str, Any], outcome: dict[str, Any]) -> None:
    executed = outcome["summary"]
    print(f"{name}: {card['points']} points of {card['families']} families in {card['took_s']:.0f} s")
    for kind, errors in verified["kinds"].items():
        between = errors.get("between")
        if between:
            print(f"  {kind:18} {between['points']:4} points between: median error {between['median']:.1%}")
    if executed["claimed"]:
        told = f"median error {executed['median_error']:.1%}, worst {executed['worst_error']:.1%}"
        print(f"  {executed['claimed']} executed steps: {told}")
    if executed["worst_memory_error"] is not None:
        print(f"  their memory: worst error {executed['worst_memory_error']:.1%}")
    told = outcome["unexecuted"]
    print(f"  executed {executed['roles'] - len(told)} of {executed['roles']} roles of plans{':' if told else ''}")
    for role, why in told.items():
        print(f"    not {role}: {why}")
    if outcome["unfinished"]:
        print("  run the same command again to go on, or with `--execute 0` to leave the rest out")


def _name(driver_name: str, aliases: dict[str, str]) -> str:
    """The catalog's name of a device; raises PlannerError for an unknown one."""
    folded = "".join(character for character in driver_name.lower() if character.isalnum())
    for spelling in (folded, folded.removeprefix("nvidia")):
        if spelling in aliases:
            return aliases[spelling]
    raise PlannerError(f"no accelerator is known as `{driver_name}`", hint="name it with `--accelerator`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
