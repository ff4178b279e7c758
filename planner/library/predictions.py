"""Predictions of a plan, read by name."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, overload

from planner.errors import PlannerError, did_you_mean

if TYPE_CHECKING:
    from planner.plan.schema import Prediction

UNITS = ("_s", "_bytes", "_per_s", "_usd", "_usd_per_hour")  # ends of names that may be left out


class Predictions(Sequence["Prediction"]):
    """All predictions of a plan in order; `predictions["ttft"]` has the values of a metric by statistic, in SI units.

    A metric goes by its name in the plan, or by that without its unit. Where several workloads or roles have it,
    `predictions.of("chat")["ttft"]` says whose.
    """

    def __init__(self, rows: "Sequence[Prediction]") -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> "Iterator[Prediction]":
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> "Prediction": ...
    @overload
    def __getitem__(self, key: slice) -> "Sequence[Prediction]": ...
    @overload
    def __getitem__(self, key: str) -> Mapping[str, float]: ...
    def __getitem__(self, key: int | slice | str) -> "Prediction | Sequence[Prediction] | Mapping[str, float]":
        return self._values(key) if isinstance(key, str) else self._rows[key]

    def __repr__(self) -> str:
        rows = (
            f"{row.metric}{f' of {row.of}' if row.of else ''} {row.statistic} {row.value:.4g}" for row in self._rows
        )
        return f"<Predictions: {', '.join(rows)}>"

    def _repr_html_(self) -> str:
        rows = [(row.metric, row.of or "plan", row.statistic, f"{row.value:.4g}") for row in self._rows]
        return html_table(("predicted", "of", "statistic", "value"), rows)

    def of(self, name: str) -> "Predictions":
        """Those of one workload or role; raises PlannerError for a name that none is of."""
        names = sorted({row.of for row in self._rows})
        if name not in names:
            otherwise = f"predictions are of {', '.join(f'`{each}`' for each in names)}"
            raise PlannerError(f"nothing is predicted of `{name}`", hint=did_you_mean(name, names, otherwise=otherwise))
        return Predictions([row for row in self._rows if row.of == name])

    def _values(self, metric: str) -> Mapping[str, float]:
        rows = [row for row in self._rows if metric in _names(row.metric)]
        if not rows:
            known = sorted({row.metric for row in self._rows})
            otherwise = f"it predicts {', '.join(known)}" if known else "it predicts nothing"
            raise PlannerError(
                f"the plan does not predict `{metric}`", hint=did_you_mean(metric, known, otherwise=otherwise)
            )
        owners = sorted({row.of for row in rows})
        if len(owners) > 1:
            raise PlannerError(
                f"`{metric}` is predicted of {', '.join(f'`{name}`' for name in owners)}",
                hint=f'say whose: `predictions.of("{owners[0]}")["{metric}"]`',
            )
        return {row.statistic: row.value for row in rows}


def _names(metric: str) -> tuple[str, ...]:
    """A metric's name, and that without its unit."""
    return (metric, *(metric.removesuffix(unit) for unit in UNITS if metric.endswith(unit)))


def html_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for notebooks; what stands in it is escaped."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
