"""Small generated samples in the layouts of ../shared/data, for benchmarks that have no measured data at hand.

A sample shows that a benchmark runs and says nothing about accuracy: where the layout has measured times, they are the
planner's own price (or a stated formula) times a drawn factor of each group and noise of each row, all drawn from
`SEED`. No figure of a measured table, of a published instance or of a trace is in here, and there are no scorers.
"""

from importlib import import_module
from pathlib import Path

WRITERS = {  # file below the data folder: module and function that make its text or bytes
    "serving/measured.csv": "serving:measured",
    "serving/measured_more.csv": "serving:measured_more",
    "serving/step3_cost_cases.csv": "serving:token_costs",
    "training/measured.csv": "training:measured",
    "training/measured_more.csv": "training:measured_more",
    "training/measured_single_node.csv": "training:single_node",
    "training/memory.csv": "training:peaks",
    "rl/measured.csv": "rl:measured",
    "rl/rl_async_pairs.csv": "rl:pairs",
    "rl/flexfusion_instances.csv": "rl:fused",
    "rl/p1_7b_32h800_sync.json": "rl:p1",
    "rl/p3_32b_64h800_async_longtail.json": "rl:p3",
    "rl/p5_7b_h800_h20_time.json": "rl:p5",
    "rl/optimum.json": "rl:optimum",
    "traces/mooncake_fast25_conversation.jsonl.gz": "traces:conversations",
    "placement/bert13b_8gpu_32m.json": "clusters:models_text",
    "placement/place_models_sample.arrivals_us.csv.gz": "clusters:arrivals",
    "placement/hbd_mc_2880gpu.json": "cases:waste",
    "imports/index.json": "imports:index",
}
FOLDERS = {"cases": "cases", "imports": "imports"}  # folders: modules whose `files()` makes their files by name


def known(name: str) -> bool:
    """Whether a sample of the file or folder `name` below the data folder can be made."""
    return name in FOLDERS or any(each == name or each.startswith(f"{name}/") for each in WRITERS)


def contents(name: str) -> dict[str, bytes]:
    """The files of a sample by their names below the data folder: of one file, or of all of a folder."""
    files = {each: _made(maker) for each, maker in WRITERS.items() if each == name or each.startswith(f"{name}/")}
    if name in FOLDERS:
        made: dict[str, bytes] = import_module(f"samples.{FOLDERS[name]}").files()
        files |= {f"{name}/{file}": content for file, content in made.items()}
    return files


def write(name: str, folder: Path) -> None:
    """Writes the sample of `name` below `folder`."""
    from planner.documents.files import write_bytes_atomic

    for file, content in contents(name).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(folder / file, content)


def _made(maker: str) -> bytes:
    module, function = maker.split(":")
    content: bytes | str = getattr(import_module(f"samples.{module}"), function)()
    return content.encode() if isinstance(content, str) else content
