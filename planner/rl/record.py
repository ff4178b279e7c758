"""Cost curves as JSON inside the proof of a plan, from which bounds are derived again."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any, TypeVar

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.rl.curves import Critic, Curves, DecodeCurve, GenerationOption, Learner, Scoring, Service, TrainingOption

_HINT = "solve again: the proof is damaged"
T = TypeVar("T")


def curves_record(curves: Curves) -> dict[str, JsonValue]:
    """Tables with the names of their columns."""
    return {
        "decoding": _table(DecodeCurve, [option.curve for option in curves.generation]),
        "generation": _table(GenerationOption, curves.generation, without="curve"),
        "training": _table(TrainingOption, curves.training),
        "weight_sync_s": [[*pair, seconds] for pair, seconds in curves.weight_sync_s.items()],
        "switch_s": curves.switch_s,
        "move_s": curves.move_s,
        "move_token_s": curves.move_token_s,
        "scoring_pools": [pool for pool, rows in curves.scoring.items() for _ in rows],
        "scoring": _table(Scoring, [each for rows in curves.scoring.values() for each in rows]),
        "critic_options": [curves.training.index(option) for option in curves.critics],
        "critics": _table(Critic, [*curves.critics.values()]),
        "services": _table(Service, curves.services),
        **(_learners_record(curves.learners) if curves.learners else {}),
    }


def read_curves_record(record: Mapping[str, JsonValue]) -> Curves:
    """The curves in `record`; raises PlannerError for anything that `curves_record` does not write."""
    decoding = [DecodeCurve(**row) for row in _rows(record, "decoding", DecodeCurve)]
    replicas = _rows(record, "generation", GenerationOption, without="curve")
    if len(decoding) != len(replicas):
        raise PlannerError(f"{len(decoding)} decode curves for {len(replicas)} replicas", hint=_HINT)
    sync = record.get("weight_sync_s")
    if not isinstance(sync, list) or not all(isinstance(row, list) and len(row) == 3 for row in sync):
        raise PlannerError("`weight_sync_s` is no list of triples", hint=_HINT)
    training = tuple(TrainingOption(**row) for row in _rows(record, "training", TrainingOption))
    return Curves(
        tuple(GenerationOption(curve=curve, **row) for curve, row in zip(decoding, replicas, strict=True)),
        training,
        {(str(row[0]), str(row[1])): _seconds(row[2]) for row in sync if isinstance(row, list)},
        _seconds(record.get("switch_s")),
        _scoring(record),
        _critics(record, training),
        _seconds(record.get("move_s")),
        _seconds(record.get("move_token_s")),
        tuple(Service(**row) for row in _rows(record, "services", Service)),
        _learners(record) if "learners" in record else (),
    )


def _learners_record(learners: Sequence[Learner]) -> dict[str, JsonValue]:
    return {
        "learners": _table(TrainingOption, [learner.option for learner in learners]),
        "learner_dp": [learner.dp for learner in learners],
    }


def _learners(record: Mapping[str, JsonValue]) -> tuple[Learner, ...]:
    replicas, rows = record.get("learner_dp"), _rows(record, "learners", TrainingOption)
    if not isinstance(replicas, list) or len(replicas) != len(rows):
        raise PlannerError("`learner_dp` does not count the replicas of `learners`", hint=_HINT)
    counts = [count for count in replicas if isinstance(count, int) and not isinstance(count, bool) and count > 0]
    if len(counts) != len(rows):
        raise PlannerError("found no number of replicas where `learner_dp` has one", hint=_HINT)
    return tuple(Learner(TrainingOption(**row), count) for row, count in zip(rows, counts, strict=True))


def _critics(record: Mapping[str, JsonValue], training: tuple[TrainingOption, ...]) -> dict[TrainingOption, Critic]:
    places, rows = record.get("critic_options"), _rows(record, "critics", Critic)
    if not isinstance(places, list) or len(places) != len(rows):
        raise PlannerError("`critic_options` does not name the trainings of `critics`", hint=_HINT)
    critics = {}
    for place, row in zip(places, rows, strict=True):
        if not isinstance(place, int) or not 0 <= place < len(training) or not row["pp"] or not row["gpus"]:
            raise PlannerError(f"found {place!r} where a critic names its training", hint=_HINT)
        critics[training[place]] = Critic(**row)
    return critics


def _scoring(record: Mapping[str, JsonValue]) -> dict[str, tuple[Scoring, ...]]:
    pools, rows = record.get("scoring_pools"), _rows(record, "scoring", Scoring)
    if not isinstance(pools, list) or len(pools) != len(rows):
        raise PlannerError("`scoring_pools` does not name the pools of `scoring`", hint=_HINT)
    named = [(str(pool), Scoring(**row)) for pool, row in zip(pools, rows, strict=True)]
    return {pool: tuple(each for other, each in named if other == pool) for pool, _ in named}


def _table(kind: type[T], rows: Sequence[T], without: str = "") -> JsonValue:
    names = [column.name for column in fields(kind) if column.name != without]  # type: ignore[arg-type]  # dataclasses all
    return {"columns": [*names], "rows": [[getattr(row, name) for name in names] for row in rows]}


def _rows(record: Mapping[str, JsonValue], key: str, kind: type[Any], without: str = "") -> list[dict[str, Any]]:
    """Rows by column; every value is of the type that its field has, numbers are finite and not negative."""
    table = record.get(key)
    columns = table.get("columns") if isinstance(table, dict) else None
    rows = table.get("rows") if isinstance(table, dict) else None
    known = {column.name: column.type for column in fields(kind) if column.name != without}
    if not isinstance(columns, list) or not isinstance(rows, list) or set(map(str, columns)) != set(known):
        raise PlannerError(f"`{key}` is no table of {', '.join(known)}", hint=_HINT)
    typed = []
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns):
            raise PlannerError(f"a row of `{key}` has not {len(columns)} entries", hint=_HINT)
        typed.append({str(name): _typed(value, known[str(name)]) for name, value in zip(columns, row, strict=True)})
    return typed


def _typed(value: JsonValue, kind: Any) -> str | bool | int | float:  # noqa: ANN401 - the type of a field
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if kind is float:
        return _seconds(value)
    raise PlannerError(f"found {value!r} where a curve has a {kind.__name__}", hint=_HINT)


def _seconds(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise PlannerError(f"found {value!r} where a curve has a number", hint=_HINT)
    return float(value)
