"""Tokens, batches and learning rates against tables worked by hand."""

import math

import pytest

from configs import joint_moe, quickstart
from jmoe.config.schedule import Schedule
from jmoe.errors import UserError


def paper(n_tokens=(1_000_000_000, 2_000_000_000), d_model=512, n_experts=1):
    config = joint_moe.get_config()
    config.n_tokens, config.model.d_model, config.model.n_experts = n_tokens, d_model, n_experts
    return config


def test_the_papers_batch_ramp():
    schedule = Schedule(paper())
    # 64K until 0.5B tokens: 7630 steps reach 500,039,680; then 128K: 3815 more reach 1,000,079,360; then 256K
    assert [schedule.batch_at(step) for step in (0, 7629, 7630, 11444, 11445, 10**6)] == [
        65536,
        65536,
        131072,
        131072,
        262144,
        262144,
    ]
    assert schedule.tokens_at(7630) == 500_039_680
    assert schedule.tokens_at(11445) == 1_000_079_360
    assert schedule.tokens_at(11446) == 1_000_079_360 + 262_144


def test_steps_and_tokens_are_inverse():
    schedule = Schedule(paper())
    for step in (0, 1, 7629, 7630, 7631, 11445, 20000):
        assert schedule.step_at(schedule.tokens_at(step)) == step
        assert schedule.step_at(schedule.tokens_at(step) + 1) == step + 1


def test_trunk_and_branches():
    schedule = Schedule(paper())
    assert [(s.name, s.decays) for s in schedule.segments] == [
        ("trunk", False),
        ("branch-1000000000", True),
        ("trunk", False),
        ("branch-2000000000", True),
    ]
    trunk, branch, rest, last = schedule.segments
    assert trunk.stop == branch.start == rest.start and rest.stop == last.start
    assert 0 <= schedule.tokens_at(trunk.stop) - 800_000_000 < 131_072
    assert 0 <= schedule.tokens_at(branch.stop) - 1_000_000_000 < 262_144
    assert 0 <= schedule.tokens_at(last.stop) - 2_000_000_000 < 262_144


def test_learning_rate_warms_up_stays_and_decays_to_zero():
    schedule = Schedule(paper())
    trunk, branch = schedule.segments[:2]
    # Eq. 10 at N = 79,266,816 active parameters (d 512, 8 blocks), E = 1
    n_active = 2 * 512 * 50257 + 8 * 13 * 512**2
    assert schedule.peak == pytest.approx(math.exp(8.39 - 0.81 * math.log(n_active)), rel=0.05)
    assert schedule.learning_rate(0, trunk) == 0
    half = schedule.step_at(65_000_000)
    assert schedule.learning_rate(half, trunk) == pytest.approx(schedule.peak * schedule.tokens_at(half) / 130e6)
    assert schedule.learning_rate(trunk.stop - 1, trunk) == schedule.peak
    assert schedule.learning_rate(branch.start, branch) == schedule.peak
    rates = [schedule.learning_rate(step, branch) for step in range(branch.start, branch.stop + 1)]
    assert all(a > b for a, b in zip(rates, rates[1:], strict=False))
    assert rates[-1] == 0  # after the last step


def test_more_experts_lower_the_rate():
    assert Schedule(paper(n_experts=16)).peak == pytest.approx(Schedule(paper()).peak / 2)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(n_tokens=()), "n_tokens=()"),
        (dict(n_tokens=(200, 100)), "ascending"),
        (dict(n_tokens=(100_000_000,)), "warmup_tokens=130000000"),
        (dict(n_tokens=(2_000_000_000, 2_000_000_001)), "wider"),
        (dict(batch_tokens=()), "batch_tokens=() must be pairs"),
        (dict(batch_tokens=((5, 65536),)), "the first from 0"),
        (dict(batch_tokens=((0, 65536), (0, 131072))), "the first from 0, ascending"),
        (dict(batch_tokens=((0, 65537),)), "65537"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    config = paper()
    config.update(change)
    with pytest.raises(UserError, match=words.replace("(", r"\(").replace(")", r"\)")):
        Schedule(config)


def test_every_token_of_a_short_run_is_counted():
    config = quickstart.get_config()
    schedule = Schedule(config)
    assert schedule.tokens_at(schedule.segments[-1].stop) == config.n_tokens[-1]
