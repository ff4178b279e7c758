"""Forms of serving instances, and those of the runs that costs rest on.

A form says how an instance is split, and not into how many parts: costs reach from sizes that were measured to others,
but what no run has, such as the bubbles of pipeline stages, they have from first principles alone. A calibration file
states the forms of its runs by function: `benchmarks/serving.py --write` reads them off the rows of its fit, and
`planner calibrate` adds those of one's own, prefill apart included.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, TypeAlias

from planner.costs.rates.run_beliefs import mapping
from planner.documents.read import Document
from planner.errors import PlannerError

STAGES = "pipeline stages"
ATTENTION = "attention both tensor and data parallel"
EXPERTS = "experts both tensor and expert parallel"
PARTS = (STAGES, ATTENTION, EXPERTS)
PLAIN = "plain"
FUNCTIONS = ("colocated", "prefill", "decode")
_JOIN = " and "
Form: TypeAlias = frozenset[str]
"""Of PARTS those that an instance has."""
Forms: TypeAlias = Mapping[str, frozenset[Form]]
"""By function."""
ALL_FORMS = frozenset(frozenset(parts) for size in range(len(PARTS) + 1) for parts in combinations(PARTS, size))


def form_of(tp: int, pp: int, dp: int, moe_tp: int, ep: int) -> Form:
    """The form of an instance of these degrees."""
    split = (pp > 1, tp > 1 and dp > 1, moe_tp > 1 and ep > 1)
    return frozenset(part for part, has in zip(PARTS, split, strict=True) if has)


def text_of_form(form: Form) -> str:
    """Such as `plain`, or `pipeline stages and experts both tensor and expert parallel`."""
    return _JOIN.join(part for part in PARTS if part in form) or PLAIN


def with_form(function: str, form: Form) -> str:
    """Such as `prefill with pipeline stages`, or `plain prefill`."""
    return f"{function} with {text_of_form(form)}" if form else f"plain {function}"


def with_any(forms: Forms, functions: Iterable[str]) -> Forms:
    """The same with instances of these functions in any form."""
    return {**forms, **dict.fromkeys(functions, ALL_FORMS)}


def functions_in_any(forms: Forms) -> tuple[str, ...]:
    """The functions whose instances may have any form."""
    return tuple(function for function in FUNCTIONS if forms.get(function) == ALL_FORMS)


def forms_document(measured: Iterable[tuple[str, Form]]) -> dict[str, list[str]]:
    """Section `forms` of a calibration file, of functions and forms of its runs."""
    pairs = set(measured)
    return {
        function: sorted(text_of_form(form) for own, form in pairs if own == function)
        for function in FUNCTIONS
        if any(own == function for own, _ in pairs)
    }


def pairs_of(forms: Forms) -> Iterator[tuple[str, Form]]:
    """Every function with each of its forms."""
    return ((function, form) for function, own in forms.items() for form in own)


def forms_of(values: object, document: Document) -> Forms:
    """Section `forms`; none where the file has no such section."""
    known: dict[str, set[Form]] = {}
    for function, texts in mapping(values, document, ("forms",)).items():
        forms = [_form(text) for text in texts] if isinstance(texts, list) else [None]
        if function not in FUNCTIONS or None in forms:
            raise PlannerError(
                f"`{function}: {texts}` says no forms of runs",
                where=document.where(("forms", str(function))),
                hint=f"give a list for each of {', '.join(FUNCTIONS)}, each entry `{PLAIN}` or some of "
                f"{', '.join(PARTS)}, joined by `{_JOIN.strip()}`",
            )
        known[str(function)] = {form for form in forms if form is not None}
    return {function: frozenset(forms) for function, forms in known.items()}


def _form(text: Any) -> Form | None:  # noqa: ANN401 - whatever a file has
    """The form that a text says; None where it says none."""
    by_text = {text_of_form(form): form for form in ALL_FORMS}
    return by_text.get(text) if isinstance(text, str) else None
