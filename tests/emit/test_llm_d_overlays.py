"""Overlays of llm-d, built by Kustomize: every object that another names is there, and pods run what the plan says."""

from pathlib import Path
from typing import Any

import pytest
from cluster_read import READERS
from emit_plans import CASES, DEEPSEEK, Case, RolePlan
from llm_d_base import PROGRAM, kustomized
from test_cluster_targets import files_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs kubectl, which has Kustomize built in")
WIDE = CASES["disaggregated-wide"]
NARROW = CASES["disaggregated-2p1d"]
WHOLE = Case((RolePlan(degrees={"dp": 16, "ep": 16}),), {"default": {"name": DEEPSEEK}}, 2)


def templates(each: dict[str, Any]) -> list[dict[str, Any]]:
    if each["kind"] == "Deployment":
        return [each["spec"]["template"]]
    parts = each["spec"]["leaderWorkerTemplate"]
    return [parts["leaderTemplate"], parts["workerTemplate"]]


@pytest.mark.parametrize("case", [WIDE, NARROW, WHOLE, CASES["dense-tp4"]])
def test_what_pods_name_is_there_under_its_prefixed_name(case: Case, tmp_path: Path) -> None:
    documents = kustomized(files_of(case, "llm-d", gpus="claims", model_cache="models"), tmp_path)
    named = {(each["kind"], each["metadata"]["name"]) for each in documents}
    servers = [each for each in documents if each["kind"] in ("Deployment", "LeaderWorkerSet")]
    assert {each["metadata"]["name"] for each in servers} == (
        {"plan-decode", "plan-prefill"} if len(case.roles) == 2 else {"plan-decode"}
    )
    for each in servers:
        for template in templates(each):
            spec = template["spec"]
            assert all(
                ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in named
                for claim in spec["resourceClaims"]
            )
            assert ("ServiceAccount", spec.get("serviceAccountName", "plan-sa")) in named
            images = {body["image"] for body in (*spec["containers"], *spec.get("initContainers", ()))}
            assert images <= {"example/engine:1", "example/router:1"}


@pytest.mark.parametrize("case", [WIDE, WHOLE])
def test_routers_find_first_pods_alone(case: Case, tmp_path: Path) -> None:
    files = files_of(case, "llm-d")
    assert "llm-d.ai/guide: plan" in files["router-values.yaml"]
    for each in kustomized(files, tmp_path):
        if each["kind"] == "LeaderWorkerSet":
            leader, worker = (template["metadata"]["labels"] for template in templates(each))
            assert leader["llm-d.ai/guide"] == "plan"
            assert leader["llm-d.ai/role"] == each["metadata"]["labels"]["llm-d.ai/role"]
            if each["spec"]["leaderWorkerTemplate"]["size"] > 1:
                assert "llm-d.ai/guide" not in worker


def test_the_proxy_stands_before_decode_alone(tmp_path: Path) -> None:
    for each in kustomized(files_of(WIDE, "llm-d"), tmp_path):
        if each["kind"] == "LeaderWorkerSet":
            decodes = each["metadata"]["name"] == "plan-decode"
            leader = templates(each)[0]["spec"]
            assert ("initContainers" in leader) == decodes
            (body,) = leader["containers"]
            port = body["args"][body["args"].index("--port") + 1]
            assert port == ("8200" if decodes else "8000")
            assert body["ports"] == [{"name": "http", "containerPort": int(port)}]


def test_our_merge_of_an_overlay_is_that_of_kustomize(tmp_path: Path) -> None:
    files = files_of(WIDE, "llm-d")
    roles = READERS["llm-d"](files)
    built = {
        f"plan-{each['metadata']['labels']['llm-d.ai/role']}": each
        for each in kustomized(files, tmp_path)
        if each["kind"] == "LeaderWorkerSet"
    }
    for name, role in roles.items():
        (body,) = templates(built[name])[0]["spec"]["containers"]
        assert len([*body["command"], *body["args"]]) == len(role.pods[0].argv)
        assert built[name]["spec"]["replicas"] == role.replicas
        assert built[name]["spec"]["leaderWorkerTemplate"]["size"] == len(role.pods)
