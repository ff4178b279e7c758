"""`planner rl predict`: step time of asynchronous (off-policy) RL from one measured colocated step."""

from typing import Annotated

import typer

from planner.cli.options import Json
from planner.cli.output import write_data, write_json
from planner.cli.render.columns import table


def predict(
    step: Annotated[str, typer.Argument(metavar="STEP", help="YAML or JSON of a measured step; `-` is stdin.")],
    staleness: Annotated[
        float, typer.Option("--staleness", metavar="X", min=0, max=8, help="Of fully asynchronous training, in steps.")
    ] = 0.5,
    as_json: Json = False,
) -> int:
    """Predict what asynchronous training would take on the GPUs of a measured colocated step, split by split.

    The file says `gpus`, `parameters`, and of the step `step_s`, `generation_s`, `training_s` and `logprob_s`; with
    `gpus_per_node` (8) and the trainer's `calls` (1) a step where they differ.

    Examples:

      planner rl predict step.yaml

      planner rl predict step.yaml --staleness 0.3
    """
    from planner.documents.read import load_document
    from planner.rl.measured_step import ERROR, Asynchrony, Measurement, is_worth

    measured = Measurement.read(load_document(step))
    modes: tuple[tuple[Asynchrony, float], ...] = (("one_step", 1.0), ("fully", staleness))
    entries = [entry for asynchrony, ahead in modes for entry in measured.splits(asynchrony, ahead)]
    colocated_s = measured.times.step_s
    rows = [
        {
            "asynchrony": split.asynchrony,
            "staleness": split.staleness,
            "generation_gpus": split.generation_gpus,
            "training_gpus": split.training_gpus,
            "step_s": step_s,
            "speed_up": colocated_s / step_s,
            "worth_it": is_worth(colocated_s, step_s),
        }
        for split, step_s in sorted(entries, key=lambda entry: entry[1])
    ]
    if as_json:
        write_json({"schema": "planner.rl_prediction/1", "colocated_step_s": colocated_s, "splits": rows})
        return 0
    shown = [
        (
            "one step ahead" if row["asynchrony"] == "one_step" else f"fully, staleness {row['staleness']:g}",
            f"{row['generation_gpus']} : {row['training_gpus']}",
            f"{row['step_s']:.4g} s",
            f"{row['speed_up']:.2f} x",
            "" if row["worth_it"] else f"stay colocated: no gain beyond the error of {ERROR:.1%}",
        )
        for row in rows
    ]
    write_data(
        f"  colocated, measured: {colocated_s:.4g} s\n\n" + table(("mode", "split", "step", "speed-up", ""), shown)
    )
    return 0
