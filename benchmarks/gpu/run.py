"""`make gpu OUT=DIR`: profiles the GPU of this machine, checks the profile, and leaves a few flat files in DIR.

Needs Python 3.11 or later with torch, numpy, scipy and pyarrow; no network, and nothing else of what planner depends
on. Cut short, the same command goes on where it stopped. `planner profiles adopt DIR` files the result.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the checkout need not be installed

from planner.errors import PlannerError  # noqa: E402 - found through the line above
from planner.hardware.profiling.bundle import pack  # noqa: E402
from planner.hardware.profiling.collectives import collective_families, num_devices  # noqa: E402
from planner.hardware.profiling.device import describe, open_device  # noqa: E402
from planner.hardware.profiling.measure import measure  # noqa: E402
from planner.hardware.profiling.shapes import Family, families_from_json  # noqa: E402
from planner.hardware.profiling.verify import summary, verify  # noqa: E402

SHAPES = Path(__file__).parent / "shapes.json"
VERIFIED, UNFINISHED = "verified.json", ".unfinished"
VERIFY_SHARE = 0.15  # of the budget


def main(argv: list[str]) -> int:
    """0 when the result is whole, 2 with a message when it is not."""
    parser = argparse.ArgumentParser(description="Profile the GPU of this machine.")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the result is to lie")
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help="for measuring, all in all")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--accelerator", metavar="NAME", help="its name in the catalog, where its driver's is unknown")
    parser.add_argument(
        "--shapes", default=str(SHAPES), metavar="FILE", help="a list of shapes as prepare.py writes it"
    )
    given = parser.parse_args(argv)
    try:
        run(Path(given.out), given.budget, given.device, given.accelerator, json.loads(Path(given.shapes).read_text()))
    except PlannerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(out: Path, budget_s: float, device: str, accelerator: str | None, shapes: dict[str, Any]) -> None:
    """Profile, verify, pack; raises PlannerError."""
    started_s = time.monotonic()
    facts = describe(open_device(device))
    families = [*families_from_json(shapes["families"]), *collective_families(num_devices(device))]
    name = accelerator or _name(facts.name, shapes["accelerators"])
    folder = out / UNFINISHED
    report = measure(
        families,
        folder,
        accelerator=name,
        device=device,
        budget_s=budget_s * (1.0 - VERIFY_SHARE),
        version=time.strftime("%Y.%m.%d", time.gmtime()),
        resume=folder.is_dir(),
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    verified = _verify(families, folder, device, budget_s * VERIFY_SHARE)
    (out / VERIFIED).write_text(json.dumps(verified) + "\n", encoding="utf-8")
    facts_of_run = {
        "finished": True,
        "accelerator": name,
        "budget_s": budget_s,
        "took_s": time.monotonic() - started_s,
        "points": report.points,
        "families": report.families,
        "left_out": len(report.left_out),
    }
    pack(folder, out, facts=facts_of_run)
    shutil.rmtree(folder)
    print(f"{name}: {report.points} points of {report.families} families in {report.took_s:.0f} s")
    for kind, errors in verified["kinds"].items():
        between = errors.get("between")
        if between:
            print(f"  {kind:18} {between['points']:4} points between: median error {between['median']:.1%}")


def _verify(families: list[Family], folder: Path, device: str, budget_s: float) -> dict[str, Any]:
    return dict(summary(verify(families, folder, device=device, budget_s=budget_s)))


def _name(driver_name: str, aliases: dict[str, str]) -> str:
    """The catalog's name of a device; raises PlannerError for an unknown one."""
    folded = "".join(character for character in driver_name.lower() if character.isalnum())
    for spelling in (folded, folded.removeprefix("nvidia")):
        if spelling in aliases:
            return aliases[spelling]
    raise PlannerError(f"no accelerator is known as `{driver_name}`", hint="name it with `--accelerator`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
