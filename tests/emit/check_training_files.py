"""Run by the Python of an environment that holds a launcher: emitted files under the launcher's own classes.

Called with a target and a folder of cases; prints one line a case, `ok NAME` or `BAD NAME: what`.
"""

import ast
import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any


def _flags(script: str) -> list[str]:
    """What the program is called with."""
    words = shlex.split(script.split("exec torchrun", 1)[1].replace("\\\n", " "))
    start = next(index for index, word in enumerate(words) if word.endswith(".py") or word == "torchtitan.train")
    return [word for word in words[start + 1 :] if word != "$@"]


def _fields(flags: list[str]) -> dict[str, Any]:
    """Flags of Megatron-LM as fields of the configuration classes, those that name one."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    known = {name: field.type for name, field in MLATransformerConfig.__dataclass_fields__.items()}
    renamed = {"num-experts": "num_moe_experts", "fp8-format": "fp8", "swiglu": "gated_linear_unit"}
    fields: dict[str, Any] = {}
    for index, flag in enumerate(flags):
        if not flag.startswith("--"):
            continue
        values = []
        for word in flags[index + 1 :]:
            if word.startswith("--"):
                break
            values.append(word)
        name = renamed.get(flag[2:], flag[2:].replace("-", "_"))
        if name in known:
            fields[name] = _value(name, values)
    return fields


def _value(name: str, values: list[str]) -> Any:  # noqa: ANN401 - any type of field
    if not values:
        return True
    if name == "recompute_modules":
        return values
    if name == "moe_layer_freq":
        runs = re.findall(r"\[(\d)\]\*(\d+)", values[0])
        return [int(kind) for kind, count in runs for _ in range(int(count))]
    return int(values[0]) if values[0].isdigit() else values[0]


def megatron_core(folder: Path) -> None:
    """Configuration classes of megatron-core, which check degrees, recomputation and layouts."""
    import megatron.core.utils
    import torch
    from packaging.version import Version

    if megatron.core.utils.get_te_version() is None:  # Transformer Engine needs a GPU to be built
        megatron.core.utils.get_te_version = lambda: Version("99")
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    flags = _flags((folder / "launch.sh").read_text())
    fields = _fields(flags)
    fields |= {"bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
    fields["add_bias_linear"] = "--disable-bias-linear" not in flags
    latent = fields.get("multi_latent_attention", False)
    config = (MLATransformerConfig if latent else TransformerConfig)(**fields)
    layout = fields.get("pipeline_model_parallel_layout")
    if layout is not None:
        read = PipelineParallelLayerLayout(layout, config.pipeline_model_parallel_size)
        read.validate_layer_layout(config.num_layers, config.mtp_num_layers)


def deepspeed(folder: Path) -> None:
    """DeepSpeed's own reader, told the number of data-parallel ranks."""
    from deepspeed.runtime.config import DeepSpeedConfig

    data = json.loads((folder / "ds_config.json").read_text())

    class Ranks:
        """What DeepSpeed asks of model parallelism."""

        def get_data_parallel_world_size(self) -> int:
            each = data["train_micro_batch_size_per_gpu"] * data["gradient_accumulation_steps"]
            return int(data["train_batch_size"]) // int(each)

    from deepspeed import comm

    comm.get_rank = lambda: 0
    read = DeepSpeedConfig(data, mpu=Ranks())
    assert read.zero_config.stage == data["zero_optimization"]["stage"]
    assert set(data["zero_optimization"]) <= set(type(read.zero_config).model_fields), (
        "unknown key of zero_optimization"
    )


def torchtitan(folder: Path) -> None:
    """The configuration module under torchtitan's own loader and checks."""
    from torchtitan.config import ConfigManager

    sys.path.insert(0, str(folder))
    sys.modules.pop("plan", None)
    importlib.invalidate_caches()
    ConfigManager().parse_args(_flags((folder / "launch.sh").read_text()))
    sys.path.remove(str(folder))


def megatron_bridge(folder: Path) -> None:
    """Every override is a field of its section, and the program imports what there is; its own import needs a GPU."""
    import megatron.core
    import yaml
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    package = Path(megatron.core.__file__).parents[1]
    classes = _classes(package / "bridge" / "training" / "config.py")
    known = {
        "model": set(TransformerConfig.__dataclass_fields__) | {"seq_length"},
        "train": classes["TrainingConfig"],
        "dataset": {"seq_length"},
        "ddp": set(DistributedDataParallelConfig.__dataclass_fields__) | classes["DistributedDataParallelConfig"],
        "optimizer": set(OptimizerConfig.__dataclass_fields__),
        "dist": classes["DistributedInitConfig"],
        "checkpoint": classes["CheckpointConfig"],
    }
    for section, fields in yaml.safe_load((folder / "overrides.yaml").read_text()).items():
        unknown = set(fields) - known[section]
        assert not unknown, f"{section} has no {sorted(unknown)}"
    of_call = {"LoRA": ("peft/lora.py",), "FinetuningDatasetConfig": ("training/config.py",)}
    for call in ast.walk(ast.parse((folder / "train.py").read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in of_call:
            fields = _classes(package.joinpath("bridge", *of_call[call.func.id]))[call.func.id]
            unknown = {str(keyword.arg) for keyword in call.keywords} - fields
            assert not unknown, f"{call.func.id} has no {sorted(unknown)}"
    for module, name in re.findall(
        r"^from (megatron\.\S+) import (\w+)$", (folder / "train.py").read_text(), re.MULTILINE
    ):
        path = package.joinpath(*module.split(".")[1:])
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        assert re.search(rf"\b{name}\b", text), f"{module} has no {name}"


def _classes(path: Path) -> dict[str, set[str]]:
    """The annotated fields of every class of a file."""
    tree = ast.parse(path.read_text())
    return {
        node.name: {str(ast.unparse(field.target)) for field in node.body if isinstance(field, ast.AnnAssign)}
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


CHECKS = {
    "megatron-core": megatron_core,
    "megatron-bridge": megatron_bridge,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
}


def main() -> None:
    for folder in sorted(Path(sys.argv[2]).iterdir()):
        try:
            CHECKS[sys.argv[1]](folder)
        except Exception as error:  # noqa: BLE001 - whatever the launcher raises is its verdict
            print(f"BAD {folder.name}: {type(error).__name__}: {error}")
        else:
            print(f"ok {folder.name}")


if __name__ == "__main__":
    main()
