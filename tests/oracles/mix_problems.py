"""Small problems of the instance mix with every kind of limit, for brute force."""

import dataclasses
import random

from planner.solvers.mix import MixDemand, MixLimits, MixObjective, MixPool, MixProblem, MixRole, MixShape, Slots


def random_problem(
    seed: int,
    *,
    num_shapes: int = 3,
    num_pools: int = 1,
    num_demands: int = 1,
    roles: tuple[MixRole, ...] = tuple(MixRole),
) -> MixProblem:
    """A small problem with every kind of limit present now and then."""
    draw = random.Random(seed)
    shapes = []
    for index in range(num_shapes):
        group = draw.choice([1, 2, 4])
        devices = group * draw.choice([1, 1, 2])
        role = roles[index % len(roles)]
        shapes.append(
            MixShape(
                f"shape {index}",
                role,
                draw.randrange(num_pools),
                devices,
                group,
                tuple(0.0 if draw.random() < 0.1 else devices * draw.uniform(0.5, 2.0) for _ in range(num_demands)),
                devices * draw.uniform(1.0, 3.0),
                draw.choice([None, devices * 2e9]),
                draw.choice([None, devices * 2e9]),
            )
        )
    objective = draw.choice(list(MixObjective))
    demands = tuple(
        MixDemand(
            f"demand {w}",
            draw.uniform(0.5, 1.5),
            draw.uniform(0.5, 3.0)
            if objective in (MixObjective.DEVICES, MixObjective.PRICE)
            else draw.choice([None, 2.5]),
            draw.uniform(0.5, 2.0),
            1e9,
        )
        for w in range(num_demands)
    )
    limits = MixLimits(
        draw.choice([None, 6]),
        draw.choice([None, 12.0]),
        draw.choice([(), ((MixRole.WHOLE, 1),)]),
        draw.choice([(), ((MixRole.FIRST, 2),)]),
    )
    links = tuple(tuple(draw.choice([None, 0.0, 1.5e9, 4e9]) for _ in range(num_pools)) for _ in range(num_pools))
    pools = tuple(MixPool(f"pool {p}", ((4, 1), (3, 1))) for p in range(num_pools))
    return MixProblem(tuple(shapes), pools, demands, objective, draw.choice([None, links]), limits)


def waiting_problem(seed: int, *, num_shapes: int = 5, num_demands: int = 1) -> MixProblem:
    """A small problem whose first demand has clients that wait, with stages in two channels."""
    problem, draw = random_problem(seed, num_shapes=num_shapes, num_demands=num_demands), random.Random(seed)
    shapes = tuple(
        dataclasses.replace(
            shape, held_s=tuple(draw.uniform(0.5, 3.0) for _ in problem.demands), channel=draw.randrange(2)
        )
        for shape in problem.shapes
    )
    first = dataclasses.replace(problem.demands[0], rate_per_s=None, clients=draw.uniform(1.0, 6.0))
    return dataclasses.replace(problem, shapes=shapes, demands=(first, *problem.demands[1:]))


def scattered_problem(seed: int, *, num_shapes: int = 4) -> MixProblem:
    """A small problem of two pools in which half of the shapes take slots of both."""
    problem, draw = random_problem(seed, num_shapes=num_shapes, num_pools=2), random.Random(seed)
    shapes = []
    for shape in problem.shapes:
        group = draw.choice([1, 2])
        aside = (Slots(1 - shape.pool, group * draw.choice([1, 2]), group),) if draw.random() < 0.5 else ()
        more = sum(part.devices for part in aside)
        shapes.append(dataclasses.replace(shape, devices=shape.devices + more, aside=aside))
    return dataclasses.replace(problem, shapes=tuple(shapes))


def together_problem(seed: int, *, num_shapes: int = 5, num_demands: int = 1) -> MixProblem:
    """A small problem of small shapes, in stages of two channels, of which several must be in use together or none."""
    problem, draw = random_problem(seed, num_shapes=num_shapes, num_demands=num_demands), random.Random(seed)
    shapes = []
    for shape in problem.shapes:
        least = draw.choice([1, 2, 3])
        rates = tuple(0.4 * least * rate / shape.devices for rate in shape.rate_per_s)
        shapes.append(
            dataclasses.replace(
                shape, devices=1, group_devices=1, rate_per_s=rates, channel=draw.randrange(2), least=least
            )
        )
    return dataclasses.replace(problem, shapes=tuple(shapes))


def candidates_40(seed: int = 2, *, staged: bool = True) -> MixProblem:
    """40 candidates on four whole nodes of 8 and one of 7, for one demand."""
    draw = random.Random(seed)
    shapes = []
    for index in range(40):
        group = draw.choice([1, 2, 4, 8])
        role = draw.choice(list(MixRole)) if staged else MixRole.WHOLE
        rate = group ** draw.uniform(0.8, 1.1) * draw.uniform(0.5, 1.2) * (1.0 if role is MixRole.WHOLE else 2.0)
        shapes.append(MixShape(f"s{index}", role, 0, group, group, (rate,), 2.0 * group, 3e9 * group, 3e9 * group))
    return MixProblem(tuple(shapes), (MixPool("pool", ((8, 4), (7, 1))),), (MixDemand("d", transfer_bytes=1e9),))
