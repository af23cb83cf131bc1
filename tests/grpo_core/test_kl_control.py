from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import GrpoConfig
from grpo_core.kl_control import KlController, next_controller

THRESHOLD = GrpoConfig(beta=0.04, kl_control="threshold", kl_upper=0.5, kl_lower=0.05, kl_patience=3)
PID = GrpoConfig(beta=0.04, kl_control="pid", kl_target=0.1, kl_proportional=0.1, kl_integral=0.01, kl_derivative=0.0)


def betas(config: GrpoConfig, *kls: float) -> list[float]:
    """Beta after each of these KLs."""
    states = accumulate(kls, lambda controller, kl: next_controller(controller, kl, config), initial=KlController(beta=config.beta))
    return [controller.beta for controller in states][1:]


def test_fixed_never_moves_beta() -> None:
    assert betas(GrpoConfig(beta=0.04), 0.0, 100.0, 0.0) == [0.04] * 3


def test_the_threshold_multiplies_beta_by_one_and_a_half_at_every_step_above_the_upper_bound() -> None:
    assert betas(THRESHOLD, 0.51, 0.6, 100.0) == pytest.approx([0.06, 0.09, 0.135])


def test_the_threshold_leaves_beta_alone_between_and_on_its_bounds() -> None:
    assert betas(THRESHOLD, 0.5, 0.3, 0.05, 0.05, 0.05, 0.05) == [0.04] * 6


def test_beta_never_falls_before_the_upper_bound_was_exceeded() -> None:
    assert betas(THRESHOLD, *[0.0] * 20, 0.5, *[0.0] * 20) == [0.04] * 41


def test_once_armed_beta_falls_after_every_patience_of_steps_below_the_lower_bound() -> None:
    assert betas(THRESHOLD, 0.6, *[0.01] * 7) == pytest.approx([0.06, 0.06, 0.06, 0.04, 0.04, 0.04, 0.04 / 1.5, 0.04 / 1.5])


@pytest.mark.parametrize("interruption", [0.05, 0.3])
def test_patience_counts_consecutive_steps_only(interruption: float) -> None:
    assert betas(THRESHOLD, 0.6, 0.01, 0.01, interruption, 0.01, 0.01, 0.01) == pytest.approx([0.06] * 6 + [0.04])


def test_exceeding_the_upper_bound_again_forgets_the_steps_below() -> None:
    assert betas(THRESHOLD, 0.6, 0.01, 0.01, 0.6, 0.01, 0.01, 0.01) == pytest.approx([0.06, 0.06, 0.06, 0.09, 0.09, 0.09, 0.06])


def test_pid_moves_beta_up_above_the_target_and_down_below_it_and_not_on_it() -> None:
    proportional = replace(PID, kl_integral=0.0)
    up, down, still = (betas(proportional, kl)[0] for kl in (0.15, 0.05, 0.1))
    assert up == pytest.approx(0.04 * 1.0512710963760241)  # exp(0.1 · 0.5)
    assert down == pytest.approx(0.04 / 1.0512710963760241)
    assert still == 0.04


def test_pid_there_and_back_is_where_it_was() -> None:
    assert betas(replace(PID, kl_integral=0.0), 0.15, 0.15, 0.05, 0.05)[-1] == pytest.approx(0.04)


def test_pids_integral_sums_the_error_and_its_derivative_reads_the_change() -> None:
    integral = replace(PID, kl_proportional=0.0)
    assert betas(integral, 0.15, 0.15) == pytest.approx([0.04 * 1.005012520859401, 0.04 * 1.015113064615719])  # exp(0.005), exp(0.005 + 0.01)
    derivative = replace(PID, kl_proportional=0.0, kl_integral=0.0, kl_derivative=0.2)
    assert betas(derivative, 0.15, 0.15, 0.1) == pytest.approx([0.04 * 1.1051709180756477, 0.04 * 1.1051709180756477, 0.04])  # exp(0.2 · 0.5)


def test_an_outlier_of_kl_moves_beta_no_further_than_twice_the_target() -> None:
    assert betas(PID, 1e9) == betas(PID, 0.2)


def test_the_error_of_a_long_start_near_0_does_not_hold_beta_down_afterwards() -> None:
    short, long = ([0.0] * steps + [0.2] * 15 for steps in (20, 200))
    after_short, after_long = betas(PID, *short), betas(PID, *long)
    assert after_short[-1] / after_short[19] == pytest.approx(after_long[-1] / after_long[199])
    assert after_long[-1] > after_long[199]


@pytest.mark.parametrize("start", [1e-3, 1.0])
def test_pid_holds_the_target_where_kl_falls_as_beta_rises(start: float) -> None:
    controller = KlController(beta=start)
    for _ in range(400):
        controller = next_controller(controller, 1e-3 / controller.beta, PID)
    assert controller.beta == pytest.approx(0.01, rel=0.01)


@given(kls=st.lists(st.floats(0, 1e3), max_size=60), control=st.sampled_from([THRESHOLD, PID]))
@settings(deadline=None)
def test_beta_stays_above_0_whatever_the_kl_does(kls: list[float], control: GrpoConfig) -> None:
    assert all(beta > 0 for beta in betas(control, *kls))


@pytest.mark.parametrize("config", [THRESHOLD, PID])
def test_beta_stays_within_a_hundredfold_of_its_start_however_long_kl_stays_away(config: GrpoConfig) -> None:
    assert betas(config, *[0.6] * 1000)[-1] == pytest.approx(4.0)
    assert betas(config, 0.6, *[0.0] * 1000)[-1] == pytest.approx(0.0004)
