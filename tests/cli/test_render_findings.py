"""The text of a check: what holds, what fails with its hint, and what could not be judged."""

from planner.cli.render.findings import render_findings
from planner.plan.findings import Finding, unverifiable


def test_what_could_not_be_judged_is_told_and_not_counted() -> None:
    text = render_findings(
        [
            Finding("memory.parts", True, "fits"),
            Finding("slo.ttft", False, "too late", "workloads.chat", "relax it"),
            Finding("digest.models", True, "not judged: unknown model", "digests.models.chat", skipped=True),
            unverifiable("restated.plan", "`loads.npz` is not at hand", "inputs.options.loads", "name its folder"),
        ]
    )
    assert text.splitlines() == [
        "ok    1 of 2 rules (1 not judged, 1 unverifiable)",
        "FAIL  slo.ttft  workloads.chat: too late",
        "      hint: relax it",
        "note  digest.models  digests.models.chat: not judged: unknown model",
        "unverifiable restated.plan  inputs.options.loads: `loads.npz` is not at hand",
        "      hint: name its folder",
    ]
