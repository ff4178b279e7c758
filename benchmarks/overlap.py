"""Products fused with their exchange: published times beside what the formula makes of the two alone.

Published rows give a product [m, n] on one rank (depth k), its group, the time of both in turn, and that together.
Where product and exchange were published apart, the formula of `planner.costs.rates.overlap` is given both; where only
their
sum was, it is divided as the planner's own costs divide it. Nothing is fitted to these rows. Beside it stand a constant
share of the exchange hidden, the best there is for the judged rows in hindsight; the same, clipped to what the product
lasts; the published maximum, clipped; and nothing hidden. Compared are tuned kernels whose exchange is the one that ran
alone: some fuse another one, so that product and exchange together take less than the exchange did.

Sources: [1] github.com/bytedance/flux, its performance.md and performance_report.md; [2] its issues 36, 50, 79 and
90 (users' runs; 79 and the scatter of 90 without kernels tuned for the shape); [3] github.com/vllm-project/vllm pull
52079 (B200, the faster of its two baselines; 8 ranks assumed); [4] github.com/flagos-ai/FlagTree pull 861 (all-reduce
in the switch, against a library's); [5] github.com/pytorch/pytorch pull 143160 and [6] github.com/meta-pytorch/kraken
pull 19 (products split by rank, launched one by one).

Run with: make bench-overlap, or .venv/bin/python benchmarks/overlap.py
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import Collective, Gemm
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.overlap import MOST_HIDDEN, Numbers, fastest_tiles, fused_s, split_s, waves
from planner.costs.rates.roofline import Roofline
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.topology import Topology

SIDE_BY_SIDE = 2.0  # streams that run the pieces of a split product


@dataclass(frozen=True)
class Row:
    """One published measurement; times in milliseconds."""

    source: str
    gpu: str
    kind: str  # all_gather, reduce_scatter, all_reduce
    ranks: int
    m: int
    n: int
    k: int
    serial_ms: float
    together_ms: float
    transfer_ms: float = 0.0  # of serial_ms, where it was published
    split: bool = False  # one product a rank, in place of one kernel

    @cached_property
    def alone_ms(self) -> tuple[float, float]:
        """The product and the exchange, each alone."""
        if self.transfer_ms:
            return self.serial_ms - self.transfer_ms, self.transfer_ms
        product, exchange = self._priced_s
        return self.serial_ms * product / (product + exchange), self.serial_ms * exchange / (product + exchange)

    @cached_property
    def _priced_s(self) -> tuple[float, float]:
        """The same by the planner's costs, in seconds."""
        roofline, unit = Roofline(*_where(self.gpu), load_calibration().efficiencies), np.ones(1)
        product = roofline.price(Gemm("product", 1.0, self.m * unit, self.n * unit, self.k * unit, "bf16"))
        width = self.k if self.kind == "all_gather" else self.n
        size = 2.0 * self.m * width * unit
        exchange = roofline.price(Collective("exchange", 1.0, self.kind, size, self.ranks * unit, unit))
        return float(product.seconds[0]), float(exchange.seconds[0])

    @property
    def computed_ms(self) -> float:
        """What the formula says."""
        product, exchange = self.alone_ms
        multiprocessors = _where(self.gpu)[0].num_multiprocessors
        if not self.split:
            return float(fused_s(product, exchange, waves(self.m, self.n, multiprocessors)))
        slowdown = split_slowdown(self.m, self.n, self.ranks, multiprocessors)
        known = load_calibration().efficiencies
        start_ms = 1e3 * (known.collective_start_s + known.gemm_start_s)
        return float(split_s(product, exchange, self.ranks, slowdown, start_ms))

    def constant_ms(self, share: float) -> float:
        """A constant share of the exchange hidden."""
        return self.serial_ms - share * self.alone_ms[1]

    def clipped_ms(self, share: float) -> float:
        """The same, but no more than the product lasts."""
        product, exchange = self.alone_ms
        return self.serial_ms - min(share * exchange, product)


def split_slowdown(m: Numbers, n: Numbers, pieces: Numbers, multiprocessors: int) -> Floats:
    """How much longer [N] the pieces of an [m, n] product take than the whole: rows are cut, and tiles left empty."""
    rows = np.ceil(np.asarray(m / pieces))
    whole = fastest_tiles(m, n, multiprocessors)[0]
    cut = fastest_tiles(rows, n, multiprocessors, SIDE_BY_SIDE)[0]
    return np.asarray(np.maximum(pieces / SIDE_BY_SIDE * cut / np.maximum(whole, 1.0), 1.0))


def _where(gpu: str) -> tuple[Accelerator, Topology]:
    node = find_node(gpu)
    return node.accelerator, Pool(gpu, node, 1).topology()


def _many(
    source: str, gpu: str, kind: str, n: int, k: int, rows: Sequence[tuple[int, float, float]], *, split: bool = False
) -> list[Row]:
    return [Row(source, gpu, kind, 8, m, n, k, serial, together, split=split) for m, serial, together in rows]


GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
FLUX = [
    Row("[1]", "a800_sxm", GATHER, 8, 4096, 6144, 12288, 3.099, 2.469, 0.662),
    Row("[1]", "a800_sxm", SCATTER, 8, 4096, 12288, 6144, 3.100, 2.508, 0.646),
    Row("[1]", "h800_sxm", GATHER, 8, 4096, 6144, 12288, 1.429, 0.957, 0.583),
    Row("[1]", "h800_sxm", SCATTER, 8, 4096, 12288, 6144, 1.408, 0.932, 0.590),
    Row("[2] 36", "a100_sxm", SCATTER, 8, 5120, 8192, 1024, 0.773, 0.523, 0.416),
    Row("[2] 50", "h100_sxm", GATHER, 8, 1024, 7168, 8192, 0.264, 0.250, 0.078),
    *_many(
        "[2] 90", "h100_sxm", GATHER, 7168, 8192,
        [(1024, 0.247, 0.250), (2048, 0.454, 0.426), (4096, 0.867, 0.673), (8192, 1.692, 1.315),
         (16384, 3.387, 2.804), (32768, 6.831, 5.819)],
    ),
]  # fmt: skip
SWITCH = _many(
    "[3]", "b200_sxm", SCATTER, 7168, 768,
    [(128, 0.0449, 0.0401), (512, 0.0566, 0.0475), (2048, 0.1008, 0.0811), (8192, 0.2644, 0.2023),
     (32768, 0.9288, 0.6975)],
)  # fmt: skip
OTHER = [
    *_many(
        "[4]", "h800_sxm", REDUCE, 8192, 1024,
        [(1024, 0.2703, 0.2116), (2048, 0.4517, 0.3378), (8192, 1.4001, 1.1642), (16384, 2.7189, 2.2514)],
    ),
    *_many(
        "[4]", "h800_sxm", REDUCE, 8192, 3584,
        [(1024, 0.3205, 0.2462), (2048, 0.5786, 0.3739), (8192, 1.8684, 1.1931), (16384, 3.6280, 2.2778)],
    ),
]  # fmt: skip
UNTUNED = [
    *_many(
        "[2] 90", "h100_sxm", SCATTER, 8192, 3584,
        [(1024, 0.180, 0.183), (2048, 0.290, 0.331), (4096, 0.542, 0.633), (8192, 1.040, 1.241),
         (16384, 2.011, 2.459), (32768, 3.978, 4.986)],
    ),
    Row("[2] 79", "h100_sxm", SCATTER, 8, 16384, 2048, 2048, 0.605, 0.803, 0.405),
]  # fmt: skip
SPLIT = [
    *_many("[5]", "h100_sxm", GATHER, 3584, 8192, [(2048, 0.301, 0.354)], split=True),
    *_many(
        "[6]", "h100_sxm", SCATTER, 4096, 14336,
        [(512, 0.1337, 0.6138), (1024, 0.2236, 0.6669), (2048, 0.4227, 0.7552)], split=True,
    ),
]  # fmt: skip
TUNED = [*FLUX, *SWITCH]
GROUPS = {
    "FLUX's kernels": FLUX,
    "a scatter reduced in the switch": SWITCH,
    "not the exchange that ran alone": OTHER,
    "FLUX without tuning": UNTUNED,
    "products split by rank, launched one by one": SPLIT,
}
JUDGED = "the first two: tuned, and the same exchange"


def main() -> int:
    """Prints every row and the errors by group; 1 where a constant share is nearer than the formula where judged."""
    share = float(min(np.linspace(0.0, 1.0, 101), key=lambda each: _error(TUNED, lambda row: row.constant_ms(each))))
    clipped = float(min(np.linspace(0.0, 1.0, 101), key=lambda each: _error(TUNED, lambda row: row.clipped_ms(each))))
    for name, rows in GROUPS.items():
        print(f"\n{name}\n{'':42}   serial  published   computed  {share:.0%} hidden")
        for row in rows:
            shape = f"{row.source:7} {row.gpu:9} {row.kind:14} [{row.m}, {row.n}]"
            times = (row.serial_ms, row.together_ms, row.computed_ms, row.constant_ms(share))
            print(f"{shape:42} {times[0]:8.3f} {times[1]:10.3f} {times[2]:10.3f} {times[3]:10.3f} ms")
    columns = f"computed  {share:.0%} hidden  {clipped:.0%} clipped  {MOST_HIDDEN:.0%} clipped  nothing"
    print(f"\n{'mean error of the time together':46}{columns}")
    for name, rows in {**GROUPS, JUDGED: TUNED}.items():
        print(
            f"{name:46}{_error(rows, lambda row: row.computed_ms):8.1%}"
            f"{_error(rows, lambda row: row.constant_ms(share)):12.1%}"
            f"{_error(rows, lambda row: row.clipped_ms(clipped)):13.1%}"
            f"{_error(rows, lambda row: row.clipped_ms(MOST_HIDDEN)):13.1%}"
            f"{_error(rows, lambda row: row.serial_ms):9.1%}"
        )
    ours = _error(TUNED, lambda row: row.computed_ms)
    return 0 if ours < _error(TUNED, lambda row: row.constant_ms(share)) else 1


def _error(rows: Sequence[Row], predicted_ms: Callable[[Row], float]) -> float:
    return float(np.mean([abs(predicted_ms(row) / row.together_ms - 1.0) for row in rows]))


if __name__ == "__main__":
    sys.exit(main())
