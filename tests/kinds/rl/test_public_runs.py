"""Public RL runs as problems: the lengths that a published mean stands for, and what cannot be priced."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rl_public import Pair, gain_lines, outcome
from rl_runs import Row, files, job, mean_before_cap, missing, problem, read_rows

ROWS = Path(__file__).parents[4] / "shared" / "data" / "rl" / "measured.csv"
RUN: Row = {
    "id": "run",
    "framework": "NeMo-RL",
    "version": "v1",
    "group": "llama",
    "model": "LLAMA3.1_8B",
    "hw": "H100",
    "gpus_total": "16",
    "gpus_gen": "16",
    "gpus_train": "16",
    "placement": "colocated",
    "sync_mode": "sync",
    "staleness": "0",
    "algo": "GRPO",
    "precision": "BF16",
    "gen_tp": "1",
    "gen_pp": "1",
    "gen_dp": "16",
    "train_tp": "1",
    "train_pp": "2",
    "train_cp": "1",
    "train_ep": "1",
    "global_samples": "128",
    "samples_per_prompt": "16",
    "train_gbs": "64",
    "max_seq_len": "4096",
    "mean_seq_len": "1060",
    "step_time_s": "10",
}


@given(st.floats(50.0, 5000.0), st.floats(1.02, 20.0), st.floats(0.2, 2.5))
def test_lengths_cut_at_the_cap_have_the_published_mean(mean: float, room: float, cv: float) -> None:
    cap, sigma = mean * room, np.sqrt(np.log1p(cv**2))
    uncut = mean_before_cap(mean, cap, cv)
    z_N = np.linspace(-8.0, 8.0, 20001)
    density_N = np.exp(-(z_N**2) / 2) / np.sqrt(2 * np.pi) * (z_N[1] - z_N[0])
    lengths_N = np.minimum(uncut * np.exp(sigma * z_N - sigma**2 / 2), cap)
    assert float(lengths_N @ density_N) == pytest.approx(mean, rel=1e-3)
    assert uncut >= mean


@pytest.mark.parametrize(("mean", "cap"), [(500.0, 500.0), (0.0, 10.0)])
def test_a_mean_that_the_cap_forbids_is_refused(mean: float, cap: float) -> None:
    with pytest.raises(ValueError, match="under a cap"):
        mean_before_cap(mean, cap, 1.0)


def test_what_a_run_does_not_publish_is_named() -> None:
    assert missing(RUN) == ""
    assert missing({**RUN, "mean_seq_len": ""}) == "mean length"
    assert missing({**RUN, "gen_tp": "", "train_cp": ""}) == "gen_tp, train_cp"
    assert "FP8" in missing({**RUN, "precision": "FP8"})


def test_a_run_is_priced_as_it_was_configured() -> None:
    priced = outcome(RUN, recommended=True)
    assert priced.absent == ()
    assert priced.priced is not None
    assert priced.priced.broken == ()
    assert priced.priced.gpus_of_pool == {"gpus": 16}
    assert priced.best is not None
    assert priced.best.iteration_s <= priced.priced.iteration_s


def test_replicas_over_several_nodes_are_in_the_space_and_larger_ones_than_the_pool_are_not() -> None:
    assert outcome({**RUN, "gen_tp": "16", "gen_dp": "1"}, recommended=False).absent == ()
    assert outcome({**RUN, "gen_tp": "32", "gen_dp": "1"}, recommended=False).absent[0].startswith("no replica of")


def test_a_run_ahead_trains_apart() -> None:
    options = problem({**RUN, "sync_mode": "async", "staleness": "8"})["options"]
    assert options["arrangements"] == ["disaggregated"]
    assert options["max_staleness"] == 8
    assert options["iterations"] > 8


def test_a_problem_of_a_run_has_the_degrees_and_the_settings_of_its_recipe() -> None:
    pinned, free = problem({**RUN, "train_tp": "2"}), job(RUN)
    assert pinned["engine"]["memory_utilisation"] == 0.6
    assert pinned["options"]["training_tp"] == [2]
    assert pinned["options"]["recompute"] == "full"
    assert set(pinned["options"]) - set(free["options"]) == {
        "generation_tp", "training_tp", "training_pp", "training_cp", "training_ep", "recompute"
    }  # fmt: skip


@pytest.mark.skipif(not ROWS.is_file(), reason="../shared/data/rl is absent")
def test_the_problem_files_of_public_runs_are_those_of_the_published_rows() -> None:
    folder = Path(__file__).parents[3] / "examples" / "rl-runs"
    written = dict(files(read_rows(ROWS)))
    assert sorted(written) == sorted(path.name for path in folder.iterdir())
    assert all((folder / name).read_text(encoding="utf-8") == text for name, text in written.items())


def test_gains_are_told_beside_one_gain_for_all_other_setups() -> None:
    table = [Pair("a", 2.0, 2.0, 2.0), Pair("b", 0.5, 0.5, 0.5), Pair("c", 1.5, 0.75, 1.5)]
    first, *groups, second = gain_lines(table)
    assert len(groups) == 3
    assert "3 pairs: mean log-ratio error priced 0.231" in first
    assert second == "faster side called right: priced 2, engines 3, constant 1, always asynchronous 2"
