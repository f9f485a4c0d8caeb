"""What is due after each step of a segment, by the config and a signal."""

import pytest

from configs import quickstart
from jmoe.config.schedule import Segment
from jmoe.run.timetable import Timetable

SEGMENT = Segment("trunk", 10, 40, False)


def due_steps(stop_at=None, start=10, **fields):
    """By what is due, the numbers of steps after which it is."""
    config = quickstart.get_config()
    config.update({"checkpoint_every": 1000, "eval_every": 0, "snapshot_every": 0} | fields)
    asked = []

    def stop_signal():
        asked.append(None)
        return 15 if len(asked) == stop_at else 0

    timetable = Timetable(config, SEGMENT, start, stop_signal)
    by_kind = {"evaluation": [], "save": [], "stop": [], "export": []}
    for n_steps in range(start + 1, SEGMENT.stop + 1):
        due = timetable.after(n_steps, None)
        for kind, steps in by_kind.items():
            if getattr(due, kind):
                steps.append(n_steps)
        assert bool(due) == any(steps[-1:] == [n_steps] for steps in by_kind.values())
        if due.save:
            timetable.saved(n_steps)
    assert len(asked) == SEGMENT.stop - start  # once a step
    return by_kind


def test_each_thing_is_due_after_its_own_number_of_steps():
    assert due_steps() == {"evaluation": [], "save": [40], "stop": [], "export": []}
    by_kind = due_steps(checkpoint_every=12, eval_every=15, snapshot_every=20)
    assert by_kind == {"evaluation": [15, 30], "save": [12, 24, 36, 40], "stop": [], "export": [20, 40]}


def test_a_signal_saves_and_stops_and_leaves_out_nothing_that_was_due():
    by_kind = due_steps(stop_at=5, eval_every=15, snapshot_every=15)
    assert by_kind == {"evaluation": [15, 30], "save": [15, 40], "stop": [15], "export": [15, 30]}


@pytest.mark.parametrize("start, every, was_missed", [(10, 20, False), (20, 20, True), (30, 20, False), (10, 5, False)])
def test_an_export_that_a_kill_prevented_is_made_up_for(start, every, was_missed):
    """Not at the segment's first step, whose state an earlier segment has saved."""
    config = quickstart.get_config()
    config.update({"snapshot_every": every})
    assert Timetable(config, SEGMENT, start, lambda: 0).export_was_missed() == was_missed
    config.update({"snapshot_every": 0})
    assert not Timetable(config, SEGMENT, start, lambda: 0).export_was_missed()
