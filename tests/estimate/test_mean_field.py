"""The mean field of a loop at rest: Little's law, its own pace, and what decoding or prefill allows, by hand."""

import numpy as np
import pytest

from planner.estimate.mean_field import Dynamics, settle


def loop(**change: float) -> Dynamics:
    rows = {
        "clients": 0.0, "rate_per_s": 0.0, "osl": 101.0, "decode_ranks": 4.0, "prefill_ranks": 2.0,
        "decode_base_s": 0.01, "decode_slope_s": 1e-4, "stretch_s": 0.0505, "queue_s": 0.05, "service_s": 0.2,
        "first_steps": 1.5, "service_cv2": 0.5, "most_decoding": 64.0,
    }  # fmt: skip
    return Dynamics(**{name: np.array([value]) for name, value in (rows | change).items()})


def test_a_loop_at_rest_keeps_littles_law_and_its_own_pace() -> None:
    settled = settle(loop(clients=50.0))
    rate, decoding = float(settled.rate_per_s[0]), float(settled.decoding[0])
    tpot, ttft = float(settled.tpot_s[0]), float(settled.ttft_s[0])
    assert rate * (ttft + 100 * tpot) == pytest.approx(50.0, rel=1e-9)
    assert decoding == pytest.approx(rate / 4 * 100 * tpot)
    assert tpot == pytest.approx(0.01 + (1e-4 + 0.0505 / 101) * decoding)
    busy = rate / 2 * 0.05
    assert ttft == pytest.approx(0.2 + 1.5 * tpot + busy * 0.05 * (1 + 0.5) / 2 / (1 - busy))


def test_an_open_loop_has_its_rate_up_to_what_decoding_or_prefill_allows() -> None:
    assert settle(loop(rate_per_s=3.0)).rate_per_s == pytest.approx(3.0)
    pace = 0.01 + 6e-4 * 64
    full = settle(loop(rate_per_s=1000.0, queue_s=0.01))
    assert full.rate_per_s == pytest.approx(64 * 4 / (100 * pace))
    assert np.isinf(full.ttft_s).all()
    starved = settle(loop(rate_per_s=1000.0, queue_s=1.0))
    assert starved.rate_per_s == pytest.approx(0.98 * 2 / 1.0)
    alone = settle(loop(rate_per_s=1e-6))
    assert alone.tpot_s == pytest.approx(0.01 + 6e-4)  # never fewer than one sequence


def test_clients_that_a_full_loop_cannot_decode_wait_in_front() -> None:
    pace = 0.01 + 6e-4 * 64
    rate = 64 * 4 / (100 * pace)
    settled = settle(loop(clients=1000.0, queue_s=0.01))
    assert settled.rate_per_s == pytest.approx(rate, rel=1e-6)
    assert settled.ttft_s == pytest.approx(1000 / rate - 100 * pace, rel=1e-6)
