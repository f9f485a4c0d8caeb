"""The lease of a gs:// workdir: its own code in a thousand made-up histories of two owners, halts and a bad network."""

import contextlib
import heapq
import itertools
import math
import random
import re
import runpy
import types

import greenlet
import helpers
import pytest

from jmoe.storage import lease
from jmoe.storage.ownership import Owner

RENEW_EVERY, EXPIRY = 2.0, 12.0  # seconds of the made-up time
TESTS = helpers.ROOT / "tests"
PAGE = TESTS.parent / "docs/explanation/owners.md"
REQUEST_GRACE = EXPIRY * lease.REQUEST_GRACE  # seconds that a request may live once its process has ended


class Gone(BaseException):
    """Raised in the threads of a made-up process that has ended."""


class World:
    """Time, a store with generations, and processes of several threads, of which one runs at a time."""

    def __init__(self, seed: int):
        self.chance, self.time, self._events, self._number = random.Random(seed), 0.0, [], itertools.count()
        self.hub, self.running, self._threads = greenlet.getcurrent(), None, []
        self.generation, self.text = 0, None  # of the lease
        self.on_one_machine, self.processes = self.chance.random() < 0.5, {}  # by their owners
        self.taken, self.landed = [], []  # (time, process) of each take-over, and of each write of data

    def at(self, seconds: float, call) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._number), call))

    def start(self, process, call) -> "Thread":
        thread = Thread(self, process, call)
        self._threads.append(thread)
        self.at(0.0, thread.go_on)
        return thread

    def play(self, seconds: float) -> None:
        while self._events and self.time < seconds:
            self.time, _, call = heapq.heappop(self._events)
            call()
        for thread in self._threads:  # all that is left
            thread.process.alive = False
            thread.go_on()

    def sleep(self, seconds: float) -> None:
        """Called by the thread that runs."""
        thread = self.running
        if thread.process.alive:
            self.at(seconds, thread.go_on)
            self.hub.switch()
        if not thread.process.alive:
            raise Gone

    # the store

    def read(self, key):
        return Answer(self, lambda: types.SimpleNamespace(
            state="missing" if self.text is None else "value",
            value=(self.text or "").encode(),
            stamp=types.SimpleNamespace(generation=self.generation if self.text else 0),
        ))  # fmt: skip

    def write(self, key, text, if_equal):
        def carry_out():
            if if_equal != (self.generation if self.text else 0):
                return types.SimpleNamespace(generation=None)
            if text:
                self.generation += 1
            self.text = text
            return types.SimpleNamespace(generation=self.generation)

        answer = Answer(self, carry_out)
        if self.chance.random() < 0.1:  # halted while the answer is on its way, and then cut off
            self.running.process.halt(EXPIRY)
            self.running.process.cut_off(0.01, 2 * EXPIRY)
        return answer

    def write_data(self, process) -> None:
        """What asks nothing of the store, as TensorStore's arrays do not."""
        self.at(REQUEST_GRACE * self.chance.choice((0.1, 0.99)), lambda: self.land(process))

    def land(self, process) -> None:
        self.landed.append((self.time, process))


class Thread(greenlet.greenlet):
    """One of a process's threads."""

    def __init__(self, world, process, call):
        super().__init__(self._work, world.hub)
        self.world, self.process, self._call = world, process, call

    def _work(self) -> None:
        with contextlib.suppress(Gone):
            if self.process.alive:
                self._call()

    def go_on(self) -> None:
        if self.process.alive and self.process.halted_until > self.world.time:
            self.world.at(self.process.halted_until - self.world.time, self.go_on)
        elif not self.dead:
            self.world.running = self
            self.switch()

    def join(self, seconds: float) -> None:
        end = self.world.time + seconds
        while not self.dead and self.world.time < end:
            self.world.sleep(0.5)


class Answer:
    """A request: late on its way there or back, lost on either, or refused by a busy store."""

    def __init__(self, world, carry_out):
        self._world, self._result, self._error, self._done = world, None, None, False
        chance = world.chance
        if not world.running.process.alive:  # a `finally` that no process would have come to
            raise Gone
        there, back, fate = (0.02, 0.02, chance.random()) if world.running.process.online() else (0, 0, 1.0)
        if fate < 0.05:
            there = chance.uniform(0, 2 * EXPIRY)
        elif fate < 0.1:
            back = chance.uniform(0, 4 * EXPIRY)
        elif fate < 0.13:
            back = math.inf  # the answer is lost
        elif fate == 1.0:
            there = math.inf

        def arrive():
            self._result = carry_out()
            if back < math.inf:
                world.at(back, self._tell)

        def refuse():
            self._error = ConnectionError("503")
            self._done = True

        if 0.13 < fate < 0.2:
            world.at(there, refuse)
        elif there < math.inf:
            world.at(there, arrive)

    def _tell(self):
        self._done = True

    def done(self) -> bool:
        return self._done

    def result(self, seconds: float = math.inf):
        end = self._world.time + seconds
        while not self._done:
            if self._world.time > end:
                raise TimeoutError
            self._world.sleep(0.5)
        if self._error:
            raise self._error
        return self._result


class Process:
    """A trainer: takes the lease, writes data as long as it may, and gives the lease back or ends by its own rules."""

    numbers = itertools.count(1)

    def __init__(self, world):
        self.world, self.alive, self.halted_until, self._outages = world, True, 0.0, []
        number = next(Process.numbers)
        self.owner = Owner(f"host-{number}", f"boot-{number}", "", number, "1")
        world.processes[self.owner] = self
        chance = world.chance
        for _ in range(chance.randrange(2)):
            world.at(chance.uniform(0, 6 * EXPIRY), lambda: self.halt(EXPIRY))
            self.cut_off(chance.uniform(0, 6 * EXPIRY), EXPIRY)
        world.start(self, self._train)

    def halt(self, seconds: float) -> None:
        """For up to `seconds`."""
        self.halted_until = max(self.halted_until, self.world.time + seconds * self.world.chance.random())

    def cut_off(self, after: float, seconds: float) -> None:
        self._outages.append((self.world.time + after, self.world.time + after + seconds))

    def online(self) -> bool:
        return not any(began <= self.world.time < ended for began, ended in self._outages)

    def _train(self) -> None:
        world = self.world
        mine = lease.Lease("gs://bucket/run/train.lock", self.owner, world)
        with mine.hold(math.inf):
            world.taken.append((world.time, self))
            for _ in range(world.chance.randrange(60)):
                mine.check()
                if world.chance.random() < 0.03:
                    self.halt(2 * EXPIRY)
                world.sleep(0.0)
                world.write_data(self)
                world.sleep(world.chance.uniform(0, 2.0))
            world.sleep(REQUEST_GRACE)  # until its writes have been answered
        self.alive = False

    def end(self) -> None:
        if self.alive:
            self.alive = False
            self.world.at(self.world.chance.uniform(0, EXPIRY), lambda: Process(self.world))  # what started it, again


@pytest.fixture
def made_up(monkeypatch):
    """Puts a World under the lease's code: its clock, its threads, its end and its kernel."""
    worlds = []

    def here():
        return worlds[-1]

    class Event:
        def __init__(self):
            self._set = False

        def set(self):
            self._set = True

        def wait(self, seconds):
            end = here().time + seconds
            while not self._set and here().time < end:
                here().sleep(min(0.5, end - here().time))
            return self._set

    class HeartBeat:
        def __init__(self, target, args, daemon):
            self._call, self._process = lambda: target(*args), here().running.process

        def start(self):
            self._thread = here().start(self._process, self._call)

        def join(self, seconds):
            self._thread.join(seconds)

    class Deadline:
        def __init__(self):
            self._process, self._at = here().running.process, math.inf

        def set(self, seconds):
            if seconds is None:
                self._at = math.inf
                return
            world, self._at = here(), here().time + max(0.0, seconds)
            world.at(max(0.0, seconds), lambda: world.time >= self._at and self._process.end())

    def end(why):
        here().running.process.end()
        raise Gone

    def retried(call, path):
        while True:
            try:
                return call()
            except ConnectionError:
                here().sleep(1.0)

    def has_ended(owner):
        return here().on_one_machine and not here().processes[owner].alive

    monkeypatch.setattr(Owner, "has_ended", has_ended)
    monkeypatch.setattr(lease, "threading", types.SimpleNamespace(Event=Event, Thread=HeartBeat))
    for name, value in (
        ("now", lambda: here().time), ("Deadline", Deadline), ("end", end), ("retried", retried),
        ("_print", lambda text: None), ("RENEW_EVERY", RENEW_EVERY), ("EXPIRY", EXPIRY), ("POLL", 0.25),
    ):  # fmt: skip
        monkeypatch.setattr(lease, name, value)

    def play(seed: int, seconds: float) -> World:
        worlds.append(World(seed))
        for _ in range(2):
            Process(worlds[-1])
        worlds[-1].play(seconds)
        return worlds[-1]

    return play


def test_two_owners_never_interleave(made_up):
    """In a thousand histories, on one machine or several: halts anywhere, answers late or lost, a host cut off. Once a
    process has taken the lease, nothing that an earlier owner wrote arrives any more."""
    n_taken = n_written = 0
    for seed in range(1000):
        world = made_up(seed, 9 * EXPIRY)
        n_taken, n_written = n_taken + len(world.taken), n_written + len(world.landed)
        for when, process in world.landed:
            owner = [owner for since, owner in world.taken if since <= when][-1]
            assert process is owner, f"seed {seed}: at {when:.2f}, {process.owner.host} wrote, {owner.owner.host} owns"
    assert n_taken > 1500 and n_written > 10_000, (n_taken, n_written)


def test_the_page_on_owners_names_states_times_and_tests_that_there_are():
    page = PAGE.read_text()
    states = re.findall(r"^\| `([A-Z]+)` \|", page, re.MULTILINE)
    assert states == [state.name for state in lease.State]
    written = types.SimpleNamespace(**runpy.run_path(lease.__file__))  # other tests shorten the leases of this process
    times = re.findall(r"^\| (\d+) \|.*\| `([A-Z_]+)` \|$", page, re.MULTILINE)
    shares = {"EXPIRY": 1.0, "SELF_STOP": written.SELF_STOP, "KERNEL_KILL": written.KERNEL_KILL}
    assert {name: int(seconds) for seconds, name in times} == {
        name: round(share * written.EXPIRY) for name, share in shares.items()
    }
    (grace,) = re.findall(r"The last (\d+) seconds \(`REQUEST_GRACE`\)", page)
    assert int(grace) == written.REQUEST_GRACE * written.EXPIRY
    (renewal,) = re.findall(r"writes again\s+every (\d+) seconds", page)
    assert int(renewal) == written.RENEW_EVERY

    defined = set(re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in TESTS.rglob("test_*.py")), re.M))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 12 and named <= defined, named - defined
    rows = [line for line in page.split("\n") if re.match(r"\| [^-]", line) and not line.endswith("| constant |")]
    unproven = [row for row in rows if not re.search(r"`test_\w+` \|$|\| test \|$|`[A-Z_]+` \|$", row)]
    assert not unproven
