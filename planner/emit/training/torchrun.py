"""Emits training for any program under `torchrun`: ranks in the order of the plan, and the device mesh they form."""

import json

from planner.emit.shell import reference
from planner.emit.training.job import LaunchJob, training_target
from planner.emit.training.torch_launch import launch_script

NEEDS = {"TRAIN": "the program that trains, which is given --plan-mesh"}


def mesh(job: LaunchJob) -> dict[str, object]:
    """What torch.distributed.device_mesh.init_device_mesh takes, and what the program must do on it."""
    decision, shape = job.decision, job.shape
    degrees = {"pp": shape.pp, "dp": shape.dp, "cp": shape.cp, "tp": shape.tp}
    smaller = [stage.model_dump(mode="json") for stage in decision.planned_batches]
    return {
        "plan": job.header[0],
        "mesh_dim_names": list(job.order),
        "mesh_shape": [degrees[name] for name in job.order],
        "expert_parallel": {"ep": shape.ep, "moe_tp": shape.moe_tp},
        "model": job.model.name,
        "task": job.options.task,
        **({"lora_rank": job.options.lora_rank} if job.options.task == "lora" else {}),
        "global_batch": job.options.global_batch,
        "micro_batch": decision.micro_batch,
        "num_micro_batches": decision.num_micro_batches,
        "sequence_tokens": job.options.sequence_tokens,
        "precision": decision.precision,
        "zero_stage": decision.zero_stage,
        "zero_shards": job.zero_shards,
        "sequence_parallel": decision.sequence_parallel,
        "context_parallel": decision.context_parallel,
        "schedule": decision.schedule,
        "stages": [
            {
                "rank": _rank(job, stage),
                "num_layers": run.num_layers,
                "parts": list(run.parts),
                "recompute": run.recompute.model_dump(mode="json"),
            }
            for stage, run in enumerate(job.stages)
        ],
        **({"planned_batches": smaller} if smaller else {}),
    }


def _rank(job: LaunchJob, stage: int) -> int:
    """The pipeline rank of a stage: round after round, or there and back for schedules in the shape of a V."""
    chunk, place = divmod(stage, job.shape.pp)
    back = job.decision.schedule in ("zb_v", "dualpipev") and chunk % 2 == 1
    return job.shape.pp - 1 - place if back else place


def _files(job: LaunchJob) -> dict[str, str]:
    script = launch_script(job, (reference("TRAIN"),), (("--plan-mesh", ("mesh.json",)),), (), NEEDS)
    return {"launch.sh": script, "mesh.json": json.dumps(mesh(job), indent=1) + "\n"}


TARGETS = (training_target("torchrun", "a script that starts any program, and the plan's mesh as JSON", _files),)
