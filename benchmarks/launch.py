"""Emitted commands under the engines' own connectors, schedulers and parallel configurations, without GPUs.

`python benchmarks/launch.py` plans every serving example and seeded problems for vLLM and SGLang, emits their launch
scripts and those of plans written by hand, and puts every command, and every pair of prefill and decode commands behind
one router, to our own rules and then to the installed engine (`launch_checks/`; environments under VALIDATORS_HOME, as
`../shared/validators/setup.sh` makes them). Engines that are not installed are skipped. `--freeze` writes what they
said to `data/launch.json`, by digests of the commands, so that machines without engines can tell whether what is
emitted today is what they accepted.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FROZEN = ROOT / "benchmarks" / "data" / "launch.json"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
MODELS = ROOT.parent / "shared" / "validators" / "models"
ENGINES = ("vllm", "sglang")
SEEDED = 40
MARKS = {"vllm": ("vllm", "serve"), "sglang": ("python3", "-m", "sglang.launch_server")}
ROUTERS = {"vllm": "vllm-router", "sglang": "sglang_router.launch_router"}
CONFIGS = {"meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B"}
"""Models whose configuration is at hand under the name of another checkpoint of it."""
SEEDED_MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b")


@dataclass(frozen=True)
class EmittedPlan:
    """The commands of a plan by title, those that hand caches over to each other, and the GPUs of each."""

    name: str
    commands: dict[str, dict[str, Any]]
    pairs: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Of all that the engines see."""
        text = json.dumps([self.commands, sorted(self.pairs)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def problems(engine: str) -> Iterator[tuple[str, dict[str, Any] | Path]]:
    """Examples by their file, and seeded problems as edits of the oracle's small one."""
    for path in sorted((ROOT / "examples").glob("serve-*.yaml")):
        if "\nkind: serve\n" in path.read_text(encoding="utf-8"):
            yield path.stem, path
    sys.path.insert(0, str(ROOT / "tests" / "oracles"))
    from serve_problems import random_edits

    for seed in range(SEEDED):
        draw = random.Random(f"launch/{seed}")
        model = draw.choice(SEEDED_MODELS)
        yield (
            f"seed-{seed}",
            random_edits(seed)
            | {
                "engine": {"name": engine},
                "models.llama.name": model,
                "models.llama.weights": "mxfp4" if "gpt-oss" in model else draw.choice(("fp8", "bf16")),
                "models.llama.kv_cache": draw.choice(("fp8", "bf16")),
                "options.pp": draw.choice(([1], [1, 2], [1, 2, 4])),
                "options.tp": draw.choice(([1, 2], [1, 2, 4])),
            },
        )


def envelope_of(problem: dict[str, Any] | Path, engine: str) -> Any:  # noqa: ANN401 - an Envelope
    """The plan of a problem; raises PlannerError where there is none."""
    from planner.api import solve
    from planner.load.problems import load_problem
    from planner.progress import Limits

    if isinstance(problem, Path):
        overrides = () if engine == "vllm" else (f"engine.name={engine}",)
        return solve(load_problem(problem, overrides=overrides), Limits(), level="static")
    from serve_problems import small

    return solve(small(problem), Limits(), level="static")


def emitted(name: str, envelope: Any, engine: str) -> EmittedPlan:  # noqa: ANN401
    """What the launch scripts of a plan start; raises PlannerError where emit refuses it."""
    from planner.emit.registry import emit
    from planner.kinds.serve.options import ServeDecision
    from planner.problem.recorded import INPUTS, recorded_problem
    from planner.problem.resolve import resolve_pool

    decision = ServeDecision.model_validate(envelope.decision)
    problem = recorded_problem(envelope.inputs)
    assert problem is not None
    gpus = {spec.label: resolve_pool(spec, index, INPUTS).node for index, spec in enumerate(problem.cluster.pools)}
    files = emit(envelope, decision, engine)
    pool_of = {role.name: role.pool for role in decision.roles}
    commands: dict[str, dict[str, Any]] = {}
    place: dict[str, str] = {}
    for file, text in sorted(files.items()):
        if not file.startswith("launch-node-"):
            continue
        node = re.findall(r"\d+", file)[0]
        for title, words in blocks(text):
            if tuple(word for word in words if "=" not in word)[: len(MARKS[engine])] != MARKS[engine]:
                continue
            start = next(i for i, word in enumerate(words) if word == MARKS[engine][0])
            argv, given = words[start + len(MARKS[engine]) :], dict(word.split("=", 1) for word in words[:start])
            node_type = gpus[pool_of[title.split("/")[0]]]
            gpu = node_type.accelerator
            commands[title] = {
                "argv": argv,
                "settings": given,
                "gpu": {
                    "name": gpu.display_name,
                    "capability": [int(part) for part in gpu.compute_capability.split(".")],
                    "memory_bytes": int(gpu.memory_bytes),
                    "count": node_type.num_gpus,
                },
            }
            if "--port" in argv and "--headless" not in argv:
                place.setdefault(f"{node}:{argv[argv.index('--port') + 1]}", title)
    return EmittedPlan(name, commands, tuple(routed(files.get("launch-router.sh", ""), place, engine)))


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and words of every command of a script, addresses of nodes as numbers."""
    for title, body in re.findall(r"^# (\S+[^\n]*)\n((?:[^\n]*\\\n)*[^\n]* &)$", text, re.MULTILINE):
        known = re.sub(r'"\$\{NODE_(\d+)\}"', lambda match: f"10.0.0.{int(match[1]) + 1}", body)
        yield title, shlex.split(known.replace("\\\n", " ").removesuffix("&"))


def routed(script: str, place: Mapping[str, str], engine: str) -> Iterator[tuple[str, str]]:
    """Pairs of prefill and decode commands behind each router, one for each two roles."""
    for _, words in blocks(script):
        sides: dict[str, dict[str, str]] = {"--prefill": {}, "--decode": {}}
        for flag, value in itertools.pairwise(words):
            match = re.match(r"http://10\.0\.0\.(\d+):(\d+)$", value)
            if flag in sides and match is not None:
                title = place[f"{int(match[1]) - 1:02d}:{match[2]}"]
                sides[flag].setdefault(title.split("/")[0], title)
        yield from ((p, d) for p in sides["--prefill"].values() for d in sides["--decode"].values())


def our_refusal(plan: EmittedPlan, engine: str) -> str | None:
    """The first pair that our rules forbid, whatever emitted it; None where they allow all."""
    from planner.engines.handover import CacheTraits, Side, broken_rule
    from planner.engines.load import release_of
    from planner.models.library import find_model

    for pair in plan.pairs:
        told = [Told.of(plan.commands[title]["argv"], engine) for title in pair]
        sent, received = (Side(side.tp, side.pp) for side in told)
        traits = CacheTraits.of(find_model(told[0].model))
        for connector in release_of(engine, None).connectors:
            if connector.name == told[0].connector:
                rule = broken_rule(connector, sent, received, traits)
                if rule is not None:
                    return f"{pair[0]} to {pair[1]} by {connector.name}: {rule.why}"
        roles = {"vllm": ["kv_producer", "kv_consumer"], "sglang": ["prefill", "decode"]}[engine]
        if told[0].connector != told[1].connector or [side.role for side in told] != roles:
            return f"{pair[0]} to {pair[1]}: {told[0].connector} as {[side.role for side in told]}"
    return None


@dataclass(frozen=True)
class Told:
    """What a command says of its model, its cut, and its hand-over."""

    model: str
    tp: int
    pp: int
    connector: str
    role: str

    @classmethod
    def of(cls, argv: Sequence[str], engine: str) -> "Told":
        def flag(name: str, default: str = "1") -> str:
            return argv[argv.index(name) + 1] if name in argv else default

        if engine == "vllm":
            moved = handed_over(json.loads(flag("--kv-transfer-config", "{}")))
            cut = int(flag("--tensor-parallel-size")), int(flag("--pipeline-parallel-size"))
            return cls(argv[0], *cut, moved.get("kv_connector", ""), moved.get("kv_role", ""))
        tp = int(flag("--tp-size")) // int(flag("--attn-dp-size"))
        backend, mode = flag("--disaggregation-transfer-backend", ""), flag("--disaggregation-mode", "")
        return cls(flag("--model-path", ""), tp, int(flag("--pp-size")), backend, mode)


def handed_over(transfer: dict[str, Any]) -> dict[str, Any]:
    """The connector between prefill and decode, which comes first where prefixes are kept beside the engine."""
    beside = transfer.get("kv_connector_extra_config", {}).get("connectors")
    return dict(beside[0]) if beside else transfer


def engine_verdicts(engine: str, plans: Sequence[EmittedPlan]) -> tuple[str, dict[str, dict[str, str]]] | None:
    """The installed engine's version, and what it says to each plan; None where it is not installed."""
    python = HOME / engine / "bin" / "python"
    if not python.is_file():
        return None
    commands: dict[str, dict[str, Any]] = {}
    pairs: dict[str, tuple[str, str]] = {}
    keys: dict[str, dict[str, str]] = {plan.name: {} for plan in plans}
    for plan in plans:
        own = {title: _key(commands, command) for title, command in plan.commands.items()}
        keys[plan.name] |= own
        for sent, received in plan.pairs:
            key = f"{own[sent]}-{own[received]}"
            pairs[key] = own[sent], own[received]
            keys[plan.name][f"{sent} to {received}"] = key
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"models": str(MODELS), "commands": commands, "pairs": pairs}))
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": folder,
        }
        script = ROOT / "benchmarks" / "launch_checks" / f"{engine}_engine.py"
        ran = subprocess.run(
            [python, script, job], capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **quiet}
        )
    answers = re.findall(r'^\{"version".*$', ran.stdout, re.MULTILINE)
    if not answers:
        raise SystemExit(f"{engine} did not answer:\n{ran.stderr[-3000:]}")
    answer = json.loads(answers[-1])
    said = answer["verdicts"]
    return answer["version"], {
        name: {title: said[key] for title, key in titles.items()} for name, titles in keys.items()
    }


def _key(commands: dict[str, dict[str, Any]], command: dict[str, Any]) -> str:
    """A name for what an engine reads of a command: ports and addresses of nodes do not count."""
    argv = list(command["argv"])
    for flag in ("--port", "--dist-init-addr", "--disaggregation-bootstrap-port", "--master-addr", "--master-port"):
        if flag in argv:
            argv[argv.index(flag) + 1] = {"--dist-init-addr": "127.0.0.1:20000"}.get(flag, "20000")
    for name, known in CONFIGS.items():
        argv = [known if word == name else word for word in argv]
    settings = {name: value for name, value in command["settings"].items() if not name.endswith(("_HOST", "_PORT"))}
    settings = {name: value for name, value in settings.items() if name not in ("CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP")}
    plain = {**command, "argv": argv, "settings": settings}
    key = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
    commands[key] = plain
    return key


def case_plans(engine: str) -> Iterator[EmittedPlan]:
    """Plans written by hand, whose scripts `tests/golden/emit` holds."""
    sys.path.insert(0, str(ROOT / "tests" / "emit"))
    from emit_plans import BY_TARGET

    for name, case in BY_TARGET[engine].items():
        yield emitted(f"case-{name}", case.build()[0], engine)


def plans_of(engine: str, only: str = "") -> Iterator[tuple[str, EmittedPlan | str]]:
    """Every emitted plan, or why there is none."""
    from planner.errors import Infeasible, PlannerError

    yield from ((plan.name, plan) for plan in case_plans(engine) if only in plan.name)
    for name, problem in problems(engine):
        if only not in name:
            continue
        try:
            yield name, emitted(name, envelope_of(problem, engine), engine)
        except (Infeasible, PlannerError) as error:
            yield name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freeze", action="store_true", help="write what the engines said")
    parser.add_argument("--only", default="", help="plans whose name holds this")
    parser.add_argument("--engine", choices=ENGINES, help="one of them alone")
    options = parser.parse_args(argv)
    frozen: dict[str, Any] = json.loads(FROZEN.read_text()) if FROZEN.is_file() else {}
    bad = 0
    for engine in (options.engine,) if options.engine else ENGINES:
        made = dict(plans_of(engine, options.only))
        plans = [plan for plan in made.values() if isinstance(plan, EmittedPlan)]
        none = {name: why for name, why in made.items() if isinstance(why, str)}
        ours = {plan.name: why for plan in plans if (why := our_refusal(plan, engine)) is not None}
        judged = engine_verdicts(engine, [plan for plan in plans if plan.name not in ours])
        bad += _report(engine, plans, none, ours, judged, frozen.get(engine, {}))
        if options.freeze and judged is not None:
            version, verdicts = judged
            known = frozen.setdefault(engine, {"version": version, "plans": {}, "none": {}})
            known["version"] = version
            known["none"] |= none
            known["plans"] |= {
                plan.name: {
                    "digest": plan.digest,
                    "commands": len(plan.commands),
                    "pairs": len(plan.pairs),
                    "refused": _refused(verdicts[plan.name]),
                }
                for plan in plans
                if plan.name in verdicts
            }
    if options.freeze:
        FROZEN.write_text(json.dumps(frozen, indent=1, sort_keys=True) + "\n")
    return 1 if bad else 0


def _refused(verdicts: Mapping[str, str]) -> dict[str, str]:
    return {title: said for title, said in sorted(verdicts.items()) if not said.startswith("ok")}


def _report(
    engine: str,
    plans: Sequence[EmittedPlan],
    none: Mapping[str, str],
    ours: Mapping[str, str],
    judged: tuple[str, dict[str, dict[str, str]]] | None,
    frozen: Mapping[str, Any],
) -> int:
    """Prints what was said; the number of plans that our rules or the engine refuse, or that differ from the frozen."""
    for name, why in none.items():
        print(f"{engine} {name}: no scripts: {why}")
    for name, why in ours.items():
        print(f"{engine} {name}: REFUSED by our rules: {why}")
    pairs = sum(len(plan.pairs) for plan in plans)
    what = f"{len(plans)} plans, {sum(len(plan.commands) for plan in plans)} commands, {pairs} hand-overs"
    if judged is None:
        known = frozen.get("plans", {})
        changed = [plan.name for plan in plans if known.get(plan.name, {}).get("digest") != plan.digest]
        print(f"{engine} is not installed in {HOME / engine}: {what}; not as it accepted them: {changed or 'none'}")
        return len(ours) + len(changed)
    version, verdicts = judged
    wrong = {name: refused for name, said in verdicts.items() if (refused := _refused(said))}
    for name, refused in wrong.items():
        for title, said in refused.items():
            print(f"{engine} {name}: REFUSED {title}: {said}")
    print(f"{engine} {version}: {what}; {len(plans) - len(wrong) - len(ours)} plans accepted")
    return len(ours) + len(wrong)


if __name__ == "__main__":
    sys.exit(main())
