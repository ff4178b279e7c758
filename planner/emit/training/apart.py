"""Networks on GPUs of their own, for Megatron-Bridge and MindSpeed-MM: degrees and ranks of each module.

Megatron-Bridge 0.5 (megatron/bridge/models/megatron_mimo/megatron_mimo_config.py): a parallelism a module with the rank
that it begins at, the language model under the key `language`, and towers without a pipeline. MindSpeed-MM with
`--dist-train`: `dist_config` lists the modules in the order in which samples pass them, with the ranks of each.
"""

import json

from planner.emit.documents import commented
from planner.emit.refusals import refuse
from planner.emit.shell import reference
from planner.emit.training.job import LaunchJob, training_target
from planner.emit.training.megatron_model import Fields
from planner.emit.training.torch_launch import launch_script
from planner.kinds.train.unlike import ModuleRun

KEYS = {"vision tower": "vision", "audio tower": "audio"}
NEEDS = {
    "PROGRAM": "a program that gives PARALLELISM of module_parallelism.py, and the specs of your modules, to"
    " MegatronMIMOProvider, and hands overrides.yaml and it to pretrain_megatron_mimo"
}
_PARALLELISM = """from megatron.bridge.models.megatron_mimo.megatron_mimo_config import (
    MegatronMIMOParallelismConfig,
    ModuleParallelismConfig,
)

PARALLELISM = MegatronMIMOParallelismConfig(
    module_parallelisms={{
{modules}
    }},
)
"""


def bridge_files(job: LaunchJob, overrides: str) -> dict[str, str]:
    """The files of a plan whose towers have GPUs of their own; `overrides` as for other plans."""
    _require_mimo(job)
    rows = [("language", _language(job))]
    rows += [(KEYS[module.name], _degrees(module)) for module in job.decision.modules]
    text = "\n".join(f"        {name!r}: ModuleParallelismConfig({_arguments(fields)})," for name, fields in rows)
    return {
        "launch.sh": launch_script(job, (reference("PROGRAM"),), (), (), NEEDS),
        "module_parallelism.py": commented(job.header) + _PARALLELISM.format(modules=text),
        "overrides.yaml": overrides,
    }


def _require_mimo(job: LaunchJob) -> None:
    """Raises PlannerError for what MegatronMIMO does not lay out."""
    if job.shape.vpp > 1:
        raise refuse(
            "MegatronMIMO interleaves no stages", "schedule", "write `search: {schedule: 1f1b}` into the options"
        )


def _language(job: LaunchJob) -> Fields:
    shape = job.shape
    return {
        "tensor_model_parallel_size": shape.tp,
        "pipeline_model_parallel_size": shape.pp,
        "context_parallel_size": shape.cp,
        "expert_model_parallel_size": shape.ep,
        "expert_tensor_parallel_size": shape.moe_tp,
        "data_parallel_size": shape.dp,
        "rank_offset": 0,
    }


def _degrees(module: ModuleRun) -> Fields:
    return {
        "tensor_model_parallel_size": module.tp,
        "pipeline_model_parallel_size": 1,
        "data_parallel_size": module.dp,
        "rank_offset": module.first_rank,
    }


def _arguments(fields: Fields) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _mindspeed(job: LaunchJob) -> dict[str, str]:
    """`dist_config` of a plan with one vision tower in front of the language model, each on ranks of its own."""
    modules = job.decision.modules
    if [(module.name, module.place) for module in modules] != [("vision tower", "apart")]:
        raise refuse(
            "MindSpeed-MM shares ranks out between a vision tower and a language model, each on its own",
            "modules",
            "write `search: {modules: apart}` for a model with a vision tower alone",
        )
    (tower,), shape = modules, job.shape
    language = shape.tp * shape.cp * shape.pp * shape.dp
    frozen = job.options.frozen
    rows = [
        _dist_row("vit", 0, tower.tp * tower.dp, (tower.tp, 1, 1), {"encoder", "projector"} <= set(frozen)),
        _dist_row("gpt", 1, language, (shape.tp, shape.pp, shape.cp), False),
    ]
    rows[1]["main_dp"] = True
    document = json.dumps({"dist_config": {"model_config": rows}}, indent=2)
    return {"dist_config.json": document + "\n", "arguments.txt": "--dist-train\n"}


def _dist_row(name: str, index: int, ranks: int, degrees: tuple[int, int, int], forward_only: bool) -> Fields:
    tp, pp, cp = degrees
    return {
        "name": name,
        "model_index": index,
        "world_size": ranks,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "forward_only": forward_only,
        "main_dp": False,
    }


TARGETS = (
    training_target("mindspeed-mm", "the `dist_config` of MindSpeed-MM for a tower apart", _mindspeed, towers=True),
)
