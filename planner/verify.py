"""Judges the certificate of a plan of any kind from the plan's JSON alone: `python planner/verify.py plan.json`.

It imports Python's standard library alone, and its sums are exact: every float is taken as the fraction that it is. It
prints a line for each claim: `verified` by the formula that stands at its function (docs/certificates.md has them all),
`REFUSED`, `as stated` for what a proof rests on and a plan cannot derive, or `not verifiable`. Exits 0 when all claims
are verified or as stated, 1 when one is refused, 2 where nothing can be: no plan, none that claims, an old one.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = Any  # what json.loads returns
Plan: TypeAlias = Mapping[str, Any]
Number: TypeAlias = Any  # a fraction or an integer
VERIFIED, REFUSED, STATED, MISSING, NOTHING = "verified", "REFUSED", "as stated", "not verifiable", "claims nothing"
CLOSED, ROUNDING = Fraction(1e-6), Fraction(3, 10**9)  # gaps that count as optimal, rows as kept; of sums of floats
LEAST_RATE = Fraction(1e-5)  # of the fastest instance's; a rate to be met counts as no less
AGAIN = "`planner check --level proof` derives it again from the plan's inputs"
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what damaged data raise when read
MAXIMISED = ("goodput_per_gpu", "tokens_per_s_per_gpu", "tokens_per_usd", "attainment", "usd")
STOPS = ("finished", "time_limit", "node_limit", "interrupted", "numerical")


class Line(NamedTuple):  # what was found of one claim
    rule: str
    verdict: str
    what: str


def judge(plan: Plan) -> list[Line]:
    """One line a claim of the certificate of a plan, as JSON; damaged data are refused, not raised."""
    lines: list[Line] = []
    for part in (_statement, _proof):
        try:
            lines += part(plan, plan["certificate"])
        except MALFORMED as error:
            lines.append(_judged("proof", False, f"damaged, or no proof: {error!r}"))
    return lines


def _judged(rule: str, holds: bool, what: str) -> Line:
    return Line(f"certificate.{rule}", VERIFIED if holds else REFUSED, what)


def _number(value: Json) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ValueError(f"{value!r} is no number")
    return Fraction(value)


def _count(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _near(a: Json, b: Json, tolerance: Fraction = ROUNDING) -> bool:
    return bool(abs(_number(a) - _number(b)) <= tolerance * max(abs(_number(a)), abs(_number(b))))


def checksum(certificate: Plan) -> int:
    """Of all else that a certificate holds: against slips, since whoever alters it on purpose can write another."""
    proof = {name: part for name, part in certificate.get("proof", {}).items() if name != "checksum"}
    stated: Json = json.dumps({**certificate, "proof": proof})  # None is as good as left out, 4 as 4.0
    stated = json.loads(stated, parse_int=float, object_hook=lambda x: {key: x[key] for key in x if x[key] is not None})
    return int.from_bytes(json.dumps(stated, sort_keys=True).encode()) % (2**61 - 1)


def _statement(plan: Plan, certificate: Plan) -> Iterator[Line]:
    """What a certificate states of itself: of value v and bound b, gap = |v - b| / |v|, and v does not beat b."""
    objective, status = certificate["objective"], certificate["status"]
    gap, bound = certificate.get("gap"), certificate.get("bound")
    if status == "stated":
        yield _judged("status", gap is bound and not certificate.get("proof"), "given, not searched: it proves nothing")
        return
    unaltered = certificate.get("proof", {}).get("checksum", checksum(certificate)) == checksum(certificate)
    yield _judged("checksum", unaltered, "the certificate is as it was written")
    metric, value = objective["metric"], _number(objective["value"])
    sense = "maximize" if metric in MAXIMISED else "minimize"
    yield _judged("objective", objective["sense"] == sense, f"the objective is to {sense} {metric}")
    for row in plan["predictions"]:
        if row["metric"] == metric and not row.get("of") and row.get("statistic", "mean") == "mean":
            yield _judged("predicted", _near(row["value"], value), f"the plan predicts {metric} {float(value):.9g}")
    right = bound is None or (bound >= value if sense == "maximize" else bound <= value)
    yield _judged("bound", right, f"{float(value):.9g} does not beat the bound {bound}")
    derived = None if bound is None else abs(value - _number(bound)) / max(abs(value), Fraction(1, 10**9))
    right = gap is None if derived is None else abs(_number(gap) - derived) <= ROUNDING * derived + Fraction(1, 10**15)
    yield _judged("gap", right, f"the gap is {gap}")
    closed, method = gap is not None and gap <= CLOSED, certificate.get("proof", {}).get("method")
    right = certificate.get("stop_reason", "finished") in STOPS and status == ("optimal" if closed else "feasible")
    right = right and certificate.get("tolerance") == 1e-6
    yield _judged("status", right, f"`{status}`: optimal where the gap is at most 1e-6, else feasible")
    right = ("the bound" in certificate["claim"]) is (method == "optimistic_simulation" or not closed)
    yield _judged("claim", right, f"worded as this gap allows: {certificate['claim']}")
    others = certificate.get("next_best") or []
    yield from (_alternative(row, value, sense) for row in (others if isinstance(others, list) else [others]))
    if part := certificate.get("within"):  # on some values of the axes, judged as the whole space is
        axes = {"zero_stage_in_pipelines": certificate["axes"].get("zero_stage"), **certificate["axes"]}
        right = all(value in axes[name] for name, values in part["axes"].items() for value in values)
        yield _judged("within", right and part["objective"] == objective, "the same plan's, on a part of the axes")
        yield from judge({**plan, "certificate": part})


def _alternative(row: Json, value: Number, sense: str) -> Line:
    """loss = (o - v) / |v| of an alternative's o, or (o - v) / |o|: seconds; of what is maximised (v - o)."""
    worth, loss, value = row.get("objective"), row.get("loss"), _number(row.get("beside", value))
    more = (_number(worth) - value) * (-1 if sense == "maximize" else 1) if worth else 0
    losses = [more / abs(part) for part in (value, _number(worth)) if part] if worth else []
    right = any(abs(_number(loss) - lost) <= ROUNDING * max(abs(lost), 1) for lost in losses) if worth else loss is None
    return _judged("next_best", right, f"what `{row['plan']}` loses; that none of its kind loses less is as stated")


def _proof(plan: Plan, certificate: Plan) -> Iterator[Line]:
    """Whether the bound follows from the proof."""
    method = (stated := certificate.get("proof", {})).get("method")
    kind, judged, evidence, rests_on = METHODS.get(method, ("", None, "", ""))
    lacking = [name for name in (*evidence.split(), "checksum") if name not in stated]
    if certificate["status"] == "stated" or (method is None and certificate.get("bound") is None):
        yield Line("certificate.proof", NOTHING, "no bound is stated")
    elif judged is None or plan["kind"] not in kind.split():
        yield _judged("proof", False, f"`{method}` is no method of proof of a plan of kind `{plan['kind']}`")
    elif lacking:
        yield Line("certificate.proof", MISSING, f"solved by an older version: the proof has no `{lacking[0]}`")
    else:
        yield from judged(plan, certificate, stated)
        again = "solving again simulates them" if method == "optimistic_simulation" else AGAIN
        yield Line("certificate.rests_on", STATED, f"{rests_on}: {again}")


def _follows(certificate: Plan, numbers: Sequence[Number], how: str) -> Line:
    """No plan is better than the best of all floors, and the bound no better than that."""
    if (bound := certificate.get("bound")) is None:
        return _judged("proof", not numbers, f"{how} give no bound")
    best = max(numbers) if (maximised := certificate["objective"]["sense"] == "maximize") else min(numbers)
    right = _near(best, bound) or (bound > best if maximised else bound < best)
    return _judged("proof", right, f"{how} give {float(best):.12g}, the bound is {bound:.12g}")


# Serving: a mixed-integer program, and a tree of its duals (solvers/mix_model.py, solvers/dualtree.py)
Column: TypeAlias = tuple[Number, Number, bool]  # least, most, whether it is an integer
Row: TypeAlias = tuple[str, dict[str, Number], Number, Number]  # name, terms, least and most of their sum


class Model(NamedTuple):  # a mixed-integer linear model; the objective is a sum of terms too, and None is no limit
    columns: dict[str, Column]
    rows: list[Row]
    objective: dict[str, Number]
    maximising: bool


def leaf_side(model: Model, box: Mapping[str, Column], multipliers: Json, *, with_objective: bool) -> Number:
    """sum_j max over [l_j, u_j] of (c - yA)_j x_j + sum_i max(y_i L_i, y_i U_i), of a maximisation.
    It is above c x at every feasible x of the box, for any y; with c = 0 it is not below 0 where there is such an x.
    """
    sign = 0 if not with_objective else 1 if model.maximising else -1
    rows = ((_number(y), *model.rows[_count(index)][1:]) for index, y in multipliers)
    used = [(y, terms, _number(side)) for y, terms, low, high in rows if (side := high if y > 0 else low) is not None]
    numbers = (*model.objective.values(), *(a for _, terms, side in used for a in (side, *terms.values())))
    unit, fine = math.lcm(*(a.denominator for a in numbers)), math.lcm(*(y.denominator for y, _, _ in used))
    reduced, total = {name: sign * int(c * unit) * fine for name, c in model.objective.items()}, Fraction(0)
    for y, terms, side in ((int(y * fine), *rest) for y, *rest in used):  # a y on a side without limit counts as 0
        total += y * int(side * unit)
        for name, a in terms.items():
            reduced[name] = reduced.get(name, 0) - y * a.numerator * (unit // a.denominator)
    return (total + sum(r * box[name][r > 0] for name, r in reduced.items() if r)) / (unit * fine)


def tree_bound(model: Model, nodes: Json) -> Number | None:
    """The bound of the worst leaf on the objective, in its own sense; None where the leaves prove all boxes empty.
    A split of integer column j at k parts a box into x_j <= k and x_j >= k + 1: the leaves hold every point. ValueError
    where the nodes are no tree.
    """
    names, best, reached = list(model.columns), list[Number](), set[int]()
    stack = [(0, model.columns)]
    while stack:
        index, box = stack.pop()
        node = nodes[_count(index)]
        if index in reached:
            raise ValueError(f"node {index} of the tree has two parents")
        reached.add(index)
        if "split" in node:
            (j, k), (below, above) = node["split"], node["children"]
            low, high, integer = box[names[_count(j)]]
            if not integer or min(below, above) <= index:
                raise ValueError(f"node {index} of the tree is no split of an integer")
            stack.append((below, {**box, names[j]: (low, min(high, int(k)), True)}))
            stack.append((above, {**box, names[j]: (max(low, int(k) + 1), high, True)}))
        elif all(low <= high for low, high, _ in box.values()):
            bounded = "duals" in node
            side = leaf_side(model, box, node["duals" if bounded else "empty"], with_objective=bounded)
            if bounded or side >= 0:
                best.append(_rounded(model, side if bounded else leaf_side(model, box, [], with_objective=True)))
    if len(reached) != len(nodes):
        raise ValueError("a node of the tree hangs on nothing")
    return (max(best) if model.maximising else -max(best)) if best else None


def _rounded(model: Model, side: Number) -> Number:
    """Down to a value that an objective of whole multiples of integers can have."""
    terms = [(model.columns[name][2], Fraction(c)) for name, c in model.objective.items()]
    if not terms or not all(integer and c.denominator == 1 for integer, c in terms):
        return side
    return side // (step := math.gcd(*(c.numerator for _, c in terms))) * step


def point_value(model: Model, values: Json) -> Number:
    """The objective at a point; ValueError where it breaks a bound or row by more than 1e-6 of its largest term."""
    x = {name: _number(value) for name, value in zip(model.columns, values, strict=True)}
    bounds = [(name, {name: 1}, low, high) for name, (low, high, _) in model.columns.items()]
    for name, terms, low, high in (*bounds, *model.rows):
        parts = [a * x[column] for column, a in terms.items()]
        slack, held = CLOSED * max([1, *map(abs, parts)]), sum(parts)
        if (low is not None and held < low - slack) or (high is not None and held > high + slack):
            raise ValueError(f"the plan breaks {name}")
    if any(integer and abs(x[name] - round(x[name])) > CLOSED for name, (_, _, integer) in model.columns.items()):
        raise ValueError("the plan has a part of an instance")
    return sum((c * x[name] for name, c in model.objective.items()), Fraction(0))


class Mix:
    """An instance mix and its model, by (C1) to (C9) of solvers/mix_model.py in its letters; (C8) as stated."""

    def __init__(self, data: Json, stated: Json) -> None:
        self.shapes = [{"price_per_hour": 0, "channel": 0, "aside": [], "least": 1} | shape for shape in data["shapes"]]
        self.demands = [{"share": 1, "transfer_bytes": 0} | demand for demand in data["demands"]]
        self.pools, self.links, self.limits, self.goal = data["pools"], data["links"], data["limits"], data["objective"]
        self.C, self.W, self.more = range(len(self.shapes)), range(len(self.demands)), self.goal == "scale"
        self.unit: Number = max(_number(rate) for shape in self.shapes for rate in shape["rate_per_s"]) or 1
        self.dearest: Number = max(_number(shape["price_per_hour"]) for shape in self.shapes) or 1
        self.v = [_number(shape["price_per_hour"]) / self.dearest for shape in self.shapes]
        rates = (((c, w), _number(r)) for c in self.C for w, r in enumerate(self.shapes[c]["rate_per_s"]) if r)
        self.R = {key: rate / self.unit for key, rate in rates}
        self.U, self.last = [self._most(c) for c in self.C], [c for c in self.C if self.shapes[c]["role"] != "first"]
        self.y = [c for c in self.C if "shapes" in self.limits or 1 < self.shapes[c]["least"] <= self.U[c]]
        self.K = sorted({shape["channel"] for shape in self.shapes if shape["role"] != "whole"})
        self.P = {role: sorted({s["pool"] for s in self.shapes if s["role"] == role}) for role in ("first", "second")}
        self.L = {(p, q): self.links and self.links[p][q] for p in self.P["first"] for q in self.P["second"]}
        keys = ((*ends, w, k) for ends, w, k in itertools.product(self.L, self.W, self.K))
        moved = (key for key in keys if self.L[key[:2]] != 0 or not self.demands[key[2]]["transfer_bytes"])
        self.f = {key: f"f[{','.join(map(str, key))}]" for key in moved}
        weights = [_number(shape["devices"]) for shape in self.shapes] if self.goal == "devices" else self.v
        objective = {"t": 1} if self.more else {f"n[{c}]": weight for c, weight in enumerate(weights) if weight}
        rows = [(name, {x: a for x, a in terms.items() if a}, low, high) for name, terms, low, high in self._rows()]
        columns, failures = self._stated(stated)
        self.model = Model(columns | self._columns(), rows + failures, objective, self.more)

    def _stated(self, data: Json) -> tuple[dict[str, Column], list[Row]]:
        """Of the stated model the rows (C8), what failures leave, and where there are some its columns."""
        names, kept = data["names"], [row for row in data["rows"] if row[0].startswith("C8")]
        rows = [(row, {names[j]: _number(a) for j, a in zip(js, y, strict=True)}, *ends) for row, js, y, *ends in kept]
        boxes = zip(map(_number, data["lower"]), map(_number, data["upper"]), data["integer"], strict=True)
        return dict(zip(names, boxes, strict=True)) if kept else {}, rows

    def parts(self, c: int) -> list[tuple[int, int, int]]:
        """(p, g_cp, e_cp) of an instance: its pools, and the devices there in groups of so many."""
        shape = self.shapes[c]
        own = shape["devices"] - sum(part[1] for part in shape["aside"])
        return [(shape["pool"], own, shape["group_devices"]), *map(tuple, shape["aside"])]

    def _groups(self, p: int, s: int) -> int:  # sum_i floor(a_pi / s)
        return sum(_count(free) // s * _count(number) for free, number in self.pools[p]["nodes"])

    def _most(self, c: int) -> int:
        """Instances that the slots, and the limits on devices and price, leave room for."""
        most = [self._groups(p, size) // (devices // size) for p, devices, size in self.parts(c)]
        devices, price = self.limits.get("devices"), self.limits.get("price_per_hour")
        most += [] if devices is None else [devices // self.shapes[c]["devices"]]
        if price is not None and self.v[c]:
            most.append(math.floor(_number(price) / (self.v[c] * self.dearest) * (1 + Fraction(1, 10**12))))
        return max(0, min(most)) if min(most) >= self.shapes[c]["least"] else 0

    def _columns(self) -> dict[str, Column]:
        most = [sum(self.R.get((c, w), 0) * self.U[c] for c in self.last) for w in self.W]
        fastest = [max((self.R.get((c, w), 0) for c in self.C), default=0) for w in self.W]
        planned = [None if (r := d.get("rate_per_s")) is None else _number(r) / self.unit for d in self.demands]
        if not self.more:
            planned = [rate and max(rate, LEAST_RATE * fastest[w]) for w, rate in enumerate(planned)]
        room = most if self.more else [2 * served + 1 for served in most]
        cap = [most[w] if rate is None else min(rate, room[w]) for w, rate in enumerate(planned)]
        columns: dict[str, Column] = {f"n[{c}]": (0, self.U[c], True) for c in self.C}
        columns |= {f"u[{c},{w}]": (0, self.U[c], False) for c, w in self.R}
        columns |= {name: (0, cap[key[2]], False) for key, name in self.f.items()}
        columns |= {f"d[{w}]": (0 if self.more or planned[w] is None else cap[w], cap[w], False) for w in self.W}
        scales = [cap[w] / _number(demand["share"]) for w, demand in enumerate(self.demands) if demand["share"] > 0]
        columns |= {"t": (0, min(scales), False)} if self.more else {}
        return columns | {f"y[{c}]": (0, 1, True) for c in self.y}

    def _x(self, shapes: Iterable[int], w: int, per: Mapping[int, Number] | None = None) -> dict[str, Number]:
        """sum_c R_cw u_cw, or what each x_cw counts."""
        return {f"u[{c},{w}]": self.R[c, w] * (per[c] if per else 1) for c in shapes if (c, w) in self.R}

    def _rows(self) -> Iterator[Row]:
        for c in self.C:
            yield f"C1[{c}]", {**{f"u[{c},{w}]": 1 for w in self.W if (c, w) in self.R}, f"n[{c}]": -1}, None, 0
        for w in self.W:
            yield f"C2[{w}]", {**self._x(self.last, w), f"d[{w}]": -1}, 0, 0
            if self.more:
                yield f"C2s[{w}]", {f"d[{w}]": 1, "t": -_number(self.demands[w]["share"])}, 0, 0
        for w, k, (name, role, end) in itertools.product(self.W, self.K, (("C3f", "first", 0), ("C3s", "second", 1))):
            for p in self.P[role]:
                own = [c for c in self.C if [self.shapes[c][x] for x in ("role", "pool", "channel")] == [role, p, k]]
                moved = {f: -1 for key, f in self.f.items() if (key[end], *key[2:]) == (p, w, k)}
                yield f"{name}[{p},{w},{k}]", {**self._x(own, w), **moved}, 0, 0
        parts = [(f"n[{c}]", *part) for c in self.C for part in self.parts(c)]
        for p, s in sorted({(pool, size) for _, pool, _, size in parts}):
            taken: dict[str, Number] = {n: g // s for n, pool, g, size in parts if pool == p and size >= s}
            yield f"C4[{p},{s}]", taken, None, self._groups(p, s)
        yield from self._limits()

    def _limits(self) -> Iterator[Row]:
        b = [_number(demand["transfer_bytes"]) * self.unit for demand in self.demands]
        for p, q in sorted({key[:2] for key in self.f}):
            if link := self.L[p, q]:
                moved = {f: b[key[2]] / _number(link) for key, f in self.f.items() if key[:2] == (p, q)}
                yield f"C5l[{p},{q}]", moved, None, 1
        for c, shape in enumerate(self.shapes):
            side = {"whole": "", "first": "egress_bytes_per_s", "second": "ingress_bytes_per_s"}[shape["role"]]
            if (port := shape.get(side)) is not None:
                scale = _number(port) or max(b) or Fraction(1)
                moved = {u: a for w in self.W for u, a in self._x([c], w, {c: b[w] / scale}).items()}
                yield f"C5e[{c}]", {**moved, f"n[{c}]": -_number(port) / scale}, None, 0
        if (limit := self.limits.get("devices")) is not None:
            yield "C6[devices]", {f"n[{c}]": self.shapes[c]["devices"] for c in self.C}, None, limit
        if (limit := self.limits.get("price_per_hour")) is not None:
            yield "C6[price]", {f"n[{c}]": v for c, v in enumerate(self.v)}, None, _number(limit) / self.dearest
        if (limit := self.limits.get("shapes")) is not None:
            yield "C6[shapes]", {f"y[{c}]": 1 for c in self.C}, None, limit
        for c in self.y:
            yield f"C9[{c}]", {f"n[{c}]": 1, f"y[{c}]": -self.U[c]}, None, 0
            yield f"C9l[{c}]", {f"n[{c}]": 1, f"y[{c}]": -self.shapes[c]["least"]}, 0, None
        for w, clients in ((w, self.demands[w].get("clients")) for w in self.W):
            if clients is not None:
                stay = {c: _number(self.shapes[c]["held_s"][w]) * self.unit / _number(clients) for c in self.C}
                yield f"C7[{w}]", self._x(self.C, w, stay), *((None, 1) if self.more else (1, None))


def _dual_tree(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """The plan is a point of the model of the mix, and the leaves of the tree bound its objective."""
    mix, unit, nodes = Mix(stated["mix"], stated["model"]), _number(stated["objective_unit"]), stated["tree"]["nodes"]
    in_use = mix.goal == "devices" and certificate["objective"]["metric"] in MAXIMISED  # a rate per device in use
    ends: tuple[Json, Json] = point_value(mix.model, stated["values"]), tree_bound(mix.model, nodes)
    reached, bound = (end and (unit / end if in_use else end * unit + _number(stated.get("offset", 0))) for end in ends)
    right, types = _near(reached, certificate["objective"]["value"]), f"(C1) to (C9) of the {len(mix.shapes)} types"
    yield _judged("point", right, f"the instances keep {types} and give {float(reached):.12g}")
    counts = [(round(stated["values"][c]), mix.shapes[c]) for c in mix.C]
    roles, degrees = plan["decision"]["roles"], ("tp", "pp", "dp", "cp")
    used = sum(role["replicas"] * math.prod(role["parallelism"].get(name, 1) for name in degrees) for role in roles)
    instances = sum(role["replicas"] for role in roles if role["function"] != "ffn")
    right = [sum(n for n, _ in counts), sum(n * shape["devices"] for n, shape in counts)] == [instances, used]
    yield _judged("instances", right, f"they are the {instances} instances of the plan on {used} devices")
    yield _follows(certificate, [] if bound is None else [bound, reached], f"the duals of {len(nodes)} nodes")
    counted = len(mix.R) + sum(number for why, number in certificate["pruned"].items() if not why.startswith("shape: "))
    yield _judged("candidates", counted == certificate["candidates"], f"{counted} are pruned by a rule or in the proof")


def _floors(stated: Plan, counted: str, floor: str) -> tuple[dict[str, int], list[Number]]:
    """Members of the groups by their end, and their floors; ValueError for a group twice."""
    groups, ends = stated["groups"], dict[str, int]()
    if len({tuple(group.get(x) for x in ("end", "tp", "pp", "first_replicas")) for group in groups}) < len(groups):
        raise ValueError("a group stands twice")
    for group in groups:
        ends[group["end"]] = ends.get(group["end"], 0) + _count(group.get(counted, group.get("cuts", 0)))
    return ends, [_number(group[floor]) for group in groups if floor in group]


def _branch_and_bound(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """The bound is the least of the value and of all floors, in seconds; groups hold every candidate once."""
    pruned, axes, options = certificate["pruned"], certificate["axes"], plan["inputs"]["options"]
    ends, floors = _floors(stated, "candidates", "least")
    if certificate["objective"]["metric"] in MAXIMISED:
        floors = [_number(options["global_batch"]) * _number(options["sequence_tokens"]) / floor for floor in floors]
    yield _follows(certificate, [_number(certificate["objective"]["value"]), *floors], f"{len(floors)} groups")
    mixes = [ends.pop(end, 0) for end in ("chains solved", "bound: chains")]
    illegal = {why: number for why, number in pruned.items() if why.startswith("illegal: ")}
    right = ends | illegal == {**pruned, "evaluated": stated["evaluated"]}
    right = right and sum(ends.values()) == certificate["candidates"]
    right = right and all(g.get(x) in (None, *axes[x]) for g in stated["groups"] for x in ("tp", "pp"))
    right = right and [sum(mixes), mixes[0]] == [stated.get("cuts_of_mixes", 0), stated.get("cuts_solved", 0)]
    yield _judged("candidates", right, "the groups hold all, as many as each rule left out")
    if "legal" in stated:
        grid = math.prod(len(set(axes[x])) for x in ("tp", "pp", "dp", "cp", "ep", "moe_tp", "micro_batch"))
        yield _judged("axes", grid == sum(illegal.values()) + stated["legal"], f"{grid} combinations, legal or not")


def _best_first(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """The bound is the best of the value and of all floors; groups hold every plan once."""
    ends, floors = _floors(stated, "plans", "least")
    yield _follows(certificate, [_number(certificate["objective"]["value"]), *floors], f"{len(floors)} groups")
    priced, plans = sum(_count(group["priced"]) for group in stated["groups"]), sum(ends.values())
    counts = [certificate["candidates"], stated["priced_exactly"], stated["excluded_by_bound"]]
    right = {group["first_replicas"] for group in stated["groups"]} <= {*certificate["axes"]["generating replica"]}
    right = right and [*counts, *certificate["pruned"].values()] == [plans, priced, plans - priced, plans - priced]
    yield _judged("candidates", right, f"the groups hold all {plans} plans, {priced} of them priced")


def _horizon(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """v_t(s) = c_t(s) + min over s' of (v_t-1(s') + sum of the changes from s' to s), over the open states of a period.
    A path through another state costs no less than its `least_left` and the least of every other period.
    """
    changes = [_number(change) for change in stated["changes"]]
    before = [(tuple(stated["running"]), Fraction(0))] if "running" in stated else []
    least, left = [], []
    for period in stated["periods"]:
        costs = [(tuple(attributes), _number(cost)) for *attributes, cost in period["open"]]
        reached = dict[tuple[int, ...], Number]()
        for state, cost in costs:
            ways = [v + sum(w for w, a, b in zip(changes, came, state, strict=True) if a != b) for came, v in before]
            reached[state] = min(cost + min(ways, default=0), reached.get(state, math.inf))
        before = list(reached.items())
        least.append(min(cost for _, cost in costs))
        left += [_number(period["least_left"]) - least[-1]] if "least_left" in period else []
        yield _judged("candidates", len(costs) + period["left"] == certificate["candidates"], "states of a period")
    paths = [min(v for _, v in before), *(sum(least) + more for more in left)]
    yield _follows(certificate, paths, f"all paths over {len(least)} periods")
    right = len(least) == len(certificate["axes"]["period"]) == len(plan["decision"]["horizon"])
    yield _judged("periods", right, "those of the plan")


def _slots_and_mean(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """A layer's bound T is 1, or breaks a rule just below T; the objective and the bound are means over layers.
    (B1) T >= 1; (B2) sum_e max(1, ceil(w_e / (T max s_r))) <= slots; (B3) sum_r min(T s_r, S_r heaviest w_e) >= 1.
    """
    bounds, reached = ([_number(x) for x in stated[name]] for name in ("bound_by_layer", "imbalance_by_layer"))
    above, decision = {row["layer"]: row for row in stated["bounds_above_1"]}, plan["decision"]
    slots, value = decision["slots_per_rank"], _number(certificate["objective"]["value"])
    slots = slots[0] * decision["roles"][0]["parallelism"]["ep"] if len(slots) == 1 else sum(slots)
    for layer, bound in enumerate(bounds):
        row, T, own = above.pop(layer, {}), bound * (1 - ROUNDING), decision.get("slots_by_layer")
        if "heavy" in row:
            heavy = [math.ceil(_number(w) / (T * _number(row["top_speed"]))) for w in row["heavy"]]
            right = sum(heavy) + decision["num_experts"] - len(heavy) > (sum(own[layer]) if own else slots)
        else:
            ranks = [(_count(n), _number(speed), _number(top)) for n, _, speed, top in row.get("ranks", [])]
            whole = _near(sum(n * speed for n, speed, _ in ranks), 1)
            right = T <= 1 or (whole and sum(n * min(T * speed, top) for n, speed, top in ranks) < 1)
        yield _judged("layer", right and reached[layer] >= T, f"layer {layer}: no layout is below {float(bound):.9g}")
    rows = decision["num_layers"] * decision.get("num_windows", 1)
    right = rows == len(bounds) == len(reached) == certificate["candidates"] and _near(sum(reached) / rows, value)
    yield _judged("mean", right and not above, f"the objective is the mean imbalance of {len(reached)} layers")
    yield _follows(certificate, [sum(bounds) / len(bounds), value], "layers, in the mean,")


def _optimistic_simulation(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """The bound is the best floor of all groups of placements."""
    ends, floors = _floors(stated, "placements", "bound")
    yield _follows(certificate, [] if certificate.get("bound") is None else floors, f"{len(ends)} groups of placements")
    left = (0, "simulated", "not reached", *certificate["pruned"].values())
    right = stated["seed"] == plan["seed"] and all(number in left or end in left for end, number in ends.items())
    yield _judged("candidates", right, "as many as each rule left out")


def _covered(plan: Plan, certificate: Plan, stated: Plan) -> Iterator[Line]:
    """Every combination of the axes ended once, and none that can be costs less than the `least` of its end."""
    ends, floors = _floors(stated, "combinations", "least")
    yield _follows(certificate, [_number(certificate["objective"]["value"]), *floors], f"{len(floors)} groups")
    every = math.prod(map(len, certificate["axes"].values())) if certificate.get("axes") else sum(ends.values())
    right = {g["end"] for g in stated["groups"] if "least" not in g} <= {"late", "no room", "too few", "unable"}
    whole = sum(ends.values()) == certificate["candidates"] == every
    yield _judged("candidates", right and whole, f"the groups hold all {every} combinations")


METHODS: Mapping[str, tuple[str, Any, str, str]] = {  # kind, judge, evidence, and what that rests on
    "dual_tree": ("serve", _dual_tree, "mix tree values", "axes; rates, stays, ports, prices, their unit, rows (C8)"),
    "optimistic_simulation": ("serve", _optimistic_simulation, "groups", "axes; simulations, floors of placements"),
    "step_prices": ("serve", lambda *_: (), "model tree objective_unit", "axes; prices of steps, prompts late, model"),
    "branch_and_bound": ("train", _branch_and_bound, "groups", "axes; floors of candidates, and which do not fit"),
    "best_first": ("rl", _best_first, "groups", "axes; curves, floors and prices of plans"),
    "horizon": ("rl", _horizon, "periods", "axes; curves, changes and prices of plans"),
    "covered": ("workflow", _covered, "groups", "axes; simulations, which break limits, floors of costs or times"),
    "solved_again": ("place fleet", lambda *_: (), "", "the bound, which the problem gives"),
    "slots_and_mean": ("experts", _slots_and_mean, "bounds_above_1", "recorded loads; imbalance of each layer"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line a claim; 0 where all are verified or as stated, 1 where one is refused, 2 for nothing to verify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="a plan as `planner solve` writes it; `-` is standard input")
    path = parser.parse_args(argv).plan
    try:
        with open(0 if path == "-" else path, encoding="utf-8") as file:
            plan = json.load(file)
    except (OSError, ValueError) as error:
        print(f"error: {path} is no plan: {error}", file=sys.stderr)
        return 2
    lines = judge(plan)
    print("\n".join(f"{line.verdict:14} {line.rule}: {line.what}" for line in lines))
    verdicts = {line.verdict for line in lines}
    return 1 if REFUSED in verdicts else 2 if {MISSING, NOTHING} & verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
