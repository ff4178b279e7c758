"""Emits pools that encode images, prefill and decode as servers of vLLM or SGLang, and what routes to them.

Without an encode pool prefill servers encode: both engines then serve the model with prefill and decode apart.

vLLM    names are those of vllm-project/vllm@05c72d0cf9:docs/features/disagg_encoder.md, and of the 1E1P1D example
        that it names: an encoder cache connector over a shared folder, NIXL for
        caches of prompts, and the example's proxy, which sends every image of a request on its own.
SGLang  names are those of sgl-project/sglang@260d2e2e24:docs/advanced_features/epd_disaggregation.md.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.emit.documents import commented, plan_title
from planner.emit.registry import EmitTarget
from planner.emit.workflows.node_gpus import gpus_of_roles
from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.plan.placement import GPU_SHARE
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import recorded_options, recorded_problem

USED = 0.9  # of the memory of a GPU, by all servers on it
FIRST_PORT, PROXY_PORT, SIDE_PORT, BOOTSTRAP_PORT = 30000, 8000, 5600, 8998
HOST = "http://127.0.0.1"
_VLLM_ROUTER = (
    *("vllm-router", "--host", "0.0.0.0", "--port", str(PROXY_PORT)),
    *("--policy", "round_robin", "--vllm-pd-disaggregation"),
)


@dataclass(frozen=True, slots=True)
class _Server:
    """A replica: its role, the GPUs it sees, and its number among all servers."""

    role: Role
    gpus: tuple[int, ...]
    number: int

    @property
    def port(self) -> int:
        return FIRST_PORT + self.number

    @property
    def memory_share(self) -> str:
        """Of a GPU that it stands on beside others; empty where it has GPUs alone."""
        share = self.role.limits.get(GPU_SHARE)
        return "" if share is None else f"{float(share) * USED:.4g}"

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"


def _servers(envelope: Envelope, decision: Decision, engine: str) -> tuple[str, list[_Server]]:
    """The model and its servers; raises PlannerError for other plans, engines and ways to encode."""
    assert isinstance(decision, WorkflowDecision)
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, WorkflowOptions)
    if problem is None or options is None or options.images is None:
        hint = "emit for `vllm-omni` (speech), or `kserve-graph`, `argo`, `ray-serve-graph` (graphs)"
        raise PlannerError("the plan has no pools of stages for images", where="inputs.options", hint=hint)
    named, model = problem.engine.name, next(iter(problem.models.values())).name
    if model is None:
        hint = "give the model its `name`"
        raise PlannerError("servers are launched by the name of their model", where="inputs.models", hint=hint)
    if named != engine:
        known = " or ".join(f"`{target.name}`" for target in TARGETS if target.name.startswith(named))
        hint = f"emit for {known}" if known else "solve with `engine: {name: vllm}` or `{name: sglang}`"
        raise PlannerError(f"the plan is for {named}, not for {engine}", where="decision.roles", hint=hint)
    if decision.split_images is False:
        what = "images of a request stay together, and servers of these engines take each on its own"
        raise PlannerError(what, where="decision.split_images", hint="solve with `options.images.split_images: true`")
    places = gpus_of_roles(problem, decision, "these scripts number")
    servers: list[_Server] = []
    for role in decision.roles:
        size = role.parallelism.tp
        for replica in range(role.replicas):
            gpus = tuple(places[role.name][replica * size : (replica + 1) * size])
            servers.append(_Server(role, gpus, len(servers)))
    return model, servers


def _of(servers: Sequence[_Server], function: str) -> list[_Server]:
    return [server for server in servers if server.role.function == function]


def _vllm(model: str, servers: Sequence[_Server]) -> Iterator[str]:
    encoders = _of(servers, "encode")
    for server in servers:
        function, slots = server.role.function, server.role.limits.get("slots")
        words = ["vllm", "serve", model, "--port", str(server.port), "--enable-request-id-headers"]
        words += ["--tensor-parallel-size", str(len(server.gpus))] if len(server.gpus) > 1 else []
        words += ["--max-num-seqs", str(slots)] if slots else []
        words += ["--gpu-memory-utilization", server.memory_share] if server.memory_share else []
        words += ["--no-enable-prefix-caching"] if function == "encode" else []
        cache = {"encode": "ec_producer", "prefill": "ec_consumer"}.get(function) if encoders else None
        if cache is not None:
            words += ["--ec-transfer-config", "@EC:" + cache]
        if function != "encode":
            role = "kv_producer" if function == "prefill" else "kv_consumer"
            words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})]
        # ports beside the server's own, one for each rank of it
        side = "" if function == "encode" else f"VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE_PORT + 16 * server.number}"
        yield _started(server, side, words)
    if not encoders:
        yield shlex.join([*_VLLM_ROUTER, *_routed(servers)])
        return
    urls = {function: ",".join(each.url for each in _of(servers, function)) for function in ("encode", "prefill")}
    words = ["python", "disagg_epd_proxy.py", "--host", "0.0.0.0", "--port", str(PROXY_PORT)]
    words += ["--encode-servers-urls", urls["encode"], "--prefill-servers-urls", urls["prefill"]]
    yield shlex.join([*words, "--decode-servers-urls", ",".join(each.url for each in _of(servers, "decode"))])


def _routed(servers: Sequence[_Server]) -> Iterator[str]:
    """Flags of vllm-router for what it sends prompts to, and where replies are decoded."""
    for function in ("prefill", "decode"):
        for server in _of(servers, function):
            yield from (f"--{function}", server.url)


def _sglang(model: str, servers: Sequence[_Server]) -> Iterator[str]:
    backend = ["--encoder-transfer-backend", "zmq_to_scheduler"]
    encoders = [each.url for each in _of(servers, "encode")]
    for server in servers:
        function, slots = server.role.function, server.role.limits.get("slots")
        words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--port", str(server.port)]
        words += ["--tp-size", str(len(server.gpus))] if len(server.gpus) > 1 else []
        words += ["--max-running-requests", str(slots)] if slots else []
        words += ["--mem-fraction-static", server.memory_share] if server.memory_share else []
        if function == "encode":
            words += ["--encoder-only", *backend]
        else:
            words += ["--disaggregation-mode", function]
        if function == "prefill":
            words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT + server.number)]
            words += ["--language-only", "--encoder-urls", *encoders, *backend] if encoders else []
        yield _started(server, "", words)
    words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation", "--port", str(PROXY_PORT)]
    for server in _of(servers, "prefill"):
        words += ["--prefill", server.url, str(BOOTSTRAP_PORT + server.number)]
    for server in _of(servers, "decode"):
        words += ["--decode", server.url]
    yield shlex.join(words)


def _started(server: _Server, variables: str, words: Sequence[str]) -> str:
    """A line that starts a server beside others; what `_ec` gives is expanded by the shell."""
    seen = f"CUDA_VISIBLE_DEVICES={','.join(map(str, server.gpus))}"
    text = " ".join(f'"$(ec {word[4:]})"' if word.startswith("@EC:") else shlex.quote(word) for word in words)
    return " ".join(part for part in (seen, variables, text, "&") if part)


EC_FOLDER = """: "${EC_FOLDER:=/dev/shm/ec_cache}"  # features of images, which encoders write and prefill reads
mkdir -p "$EC_FOLDER"
ec() {
  printf '{"ec_connector": "ECExampleConnector", "ec_role": "%s", ' "$1"
  printf '"ec_connector_extra_config": {"shared_storage_path": "%s"}}' "$EC_FOLDER"
}
"""
ENDS = "trap 'kill $(jobs -p)' EXIT\n"


def _target(
    engine: str, lines: Callable[[str, Sequence[_Server]], Iterator[str]], before: str, notes: tuple[str, str]
) -> EmitTarget:
    """`serve.sh` of an engine; `before` and the first of the notes are of plans with an encode pool."""

    def emitted(envelope: Envelope, decision: Decision) -> dict[str, str]:
        model, servers = _servers(envelope, decision, engine)
        encodes = bool(_of(servers, "encode"))
        head = commented((plan_title(envelope), "No engine has run this script.", notes[0 if encodes else 1]))
        body = "\n".join(lines(model, servers))
        return {"serve.sh": f"#!/bin/bash\n{head}set -euo pipefail\n{ENDS}{before if encodes else ''}{body}\n"}

    return EmitTarget(
        f"{engine}-epd", f"servers of {engine} that encode images, prefill and decode", ("workflow",), emitted
    )


TARGETS = (
    _target(
        "vllm",
        _vllm,
        EC_FOLDER,
        (
            "disagg_epd_proxy.py is of vLLM's example of disaggregated encoders; put it here.",
            "Prefill servers encode images too. The router is the package vllm-router.",
        ),
    ),
    _target(
        "sglang",
        _sglang,
        "",
        (
            "The router is the package sglang-router.",
            "Prefill servers encode images too. The router is the package sglang-router.",
        ),
    ),
)
