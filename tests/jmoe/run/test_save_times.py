"""When a run saves: by steps, by wall-clock time, and whatever a step takes."""

import random

import jax
import pytest

from configs import quickstart
from jmoe.run import distributed
from jmoe.run.save_times import SaveTimes


class Clock:
    """A clock that shows what the test sets."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def config_of(**fields):
    config = quickstart.get_config()
    config.update(fields)
    return config


def saves(config, seconds_of_step, start=0) -> list[tuple[int, float]]:
    """(step, time) of each save, where step i takes seconds_of_step[i]."""
    clock = Clock()
    times = SaveTimes(config, start, clock)
    saved = []
    for step, seconds in enumerate(seconds_of_step, start + 1):
        clock.seconds += seconds
        if times.due(step):
            saved.append((step, clock.seconds))
            times.saved(step)
    return saved


def test_by_steps():
    config = config_of(checkpoint_every=4)
    assert [step for step, _ in saves(config, [1.0] * 10)] == [4, 8]
    assert [step for step, _ in saves(config, [1.0] * 10, start=6)] == [8, 12, 16]
    config.keep_every = 6
    assert [step for step, _ in saves(config, [1.0] * 13)] == [4, 6, 8, 12]


@pytest.fixture(params=[1, 2])
def n_processes(request, monkeypatch):
    """This process alone, or as the first one of a run of two, whose number every process gets."""
    monkeypatch.setattr(jax, "process_count", lambda: request.param)
    monkeypatch.setattr(distributed, "agreed", lambda number: number)
    return request.param


@pytest.mark.parametrize("seconds", [0.01, 0.4, 7.0])
def test_by_the_clock(seconds, n_processes):
    """Within a step of each ten minutes, where steps take equally long and the first one compiles."""
    config = config_of(checkpoint_minutes=10.0)
    steps = [90.0] + [seconds] * int(7_200 / seconds)
    saved = saves(config, steps)
    gaps = [later - earlier for (_, earlier), (_, later) in zip([(0, 0.0), *saved], saved, strict=False)]
    assert len(gaps) >= 11 and all(600 <= gap < 600 + seconds + 1e-6 for gap in gaps)


@pytest.mark.parametrize("slower", [3, 1000])
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_steps_that_become_slow_delay_a_save_by_one_of_them(seconds, slower):
    """Whenever they do."""
    for n_fast in (1, 10, 100, 299):
        saved = saves(config_of(checkpoint_minutes=10.0), [seconds] * n_fast + [slower * seconds] * 70_000)
        gaps = [later - earlier for (_, earlier), (_, later) in zip([(0, 0.0), *saved], saved, strict=False)]
        assert gaps and all(600 - 1e-6 <= gap < 600 + slower * seconds + 1e-6 for gap in gaps)


def test_steps_that_become_slow_delay_a_save_by_half_of_it_at_most(n_processes):
    """Some of the remaining steps pass before the next look, however long they take by then."""
    config = config_of(checkpoint_minutes=10.0)
    saved = saves(config, [1.0] * 301 + [3.0] * 300)
    assert 600 <= saved[0][1] <= 1_200
    chance = random.Random(0)
    saved = saves(config, [chance.expovariate(1.0) for _ in range(20_000)])
    gaps = [later - earlier for (_, earlier), (_, later) in zip(saved, saved[1:], strict=False)]
    assert all(600 <= gap < 700 for gap in gaps) and len(gaps) > 25


def test_processes_look_at_the_first_ones_clock_a_few_times_for_each_save(monkeypatch):
    """Each look waits for the devices of all hosts."""
    looks = []

    def agreed(number):
        looks.append(number)
        return number

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "agreed", agreed)
    saved = saves(config_of(checkpoint_minutes=15.0), [0.5] * 20_000)
    assert len(saved) == 11 and len(looks) < 16 * len(saved)


def test_kept_for_good_are_saved_by_step_and_start_the_clock_anew():
    config = config_of(checkpoint_minutes=1.0, keep_every=100)
    assert [step for step, _ in saves(config, [1.0] * 230)] == [60, 100, 160, 200]
