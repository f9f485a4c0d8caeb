"""The owner of a workdir on gs:// holds a lease: an object that it writes again every BEAT seconds.

A process writes the lease only over the generation that it last saw, so that one of two writers fails. A process that
wants the lease watches it. A new generation means that the owner lives. After EXPIRY seconds without one, in which the
store could be read, the process takes the lease over and prints so. It never compares the clocks of two machines.

Two owners never write at the same time, since the previous one has ended when the lease can be taken. All its times
count from when the newest renewal that the store confirmed was *sent*. Their clock continues while a process is halted
or a machine sleeps. So what a taker sees last was written no earlier, however late the owner was told.

  2/3 EXPIRY   the owner ends itself, with exit code 75; each write first checks that it is earlier (files.check_owner)
  3/4 EXPIRY   the kernel kills the owner, also one that is halted between check and write (Linux)
  EXPIRY       the lease can be taken

The last quarter, 45 seconds, is for requests that were on their way when the owner ended. A process of the same machine
sees that the owner has ended, and leaves its requests as much time from then on. A network may hold back a request for
even longer. Such a request names the generation that its object had when the owner last looked, whether it writes,
moves or deletes the object (gcs.py). It is refused once the new owner has written that object, and overwritten if it
has not. Arrays, which TensorStore writes, lie where no checkpoint is until gcs.py has written its commit.
"""

import contextlib
import ctypes
import dataclasses
import functools
import math
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn

from jmoe.errors import UNAVAILABLE, Taken
from jmoe.storage.files import checking_owner, retried

if TYPE_CHECKING:
    import tensorstore

BEAT = 10.0  # seconds
EXPIRY = 180.0
# parts of EXPIRY
ENDS = 2 / 3  # without a renewal until the owner ends itself
KILLED = 3 / 4  # without a renewal until the kernel kills the owner
LANDS = 1 - KILLED  # for which a request may be on its way when its process has ended
SECONDS_TO_RELEASE = 3.0  # for the last heartbeat, and again for the deletion: a stopping process waits no longer
POLL = 0.02
# a clock that continues while a process is halted or a machine sleeps
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by CLOCK."""
    return time.clock_gettime(CLOCK)


def end(reason: str) -> NoReturn:
    """Ends this process at once, and prints why."""
    consequence = "this process ends and writes nothing more; the same command goes on from what is saved"
    print(f"error: {reason}: {consequence}", file=sys.stderr, flush=True)
    os._exit(UNAVAILABLE)


class Deadline:
    """A time at which the kernel kills this process, also while it is halted (SIGSTOP, a frozen container).

    A thread that watches the time would wake no earlier than the threads that write. There is no deadline at first, and
    never one on systems without such timers (macOS).
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._timer = ctypes.c_void_p()
        event = struct.pack("Pii48x", 0, signal.SIGKILL, 0)  # struct sigevent; the last is SIGEV_SIGNAL
        create = getattr(libc, "timer_create", None)
        has_timer = create is not None and create(CLOCK, event, ctypes.byref(self._timer)) == 0
        self._libc = libc if has_timer else None

    def set(self, seconds: float | None) -> None:
        """Resets the kill timer to fire `seconds` from now; None stops it."""
        if self._libc:
            seconds = 0.0 if seconds is None else max(seconds, 1e-6)
            interval_and_value = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # seconds, nanoseconds
            self._libc.timer_settime(self._timer, 0, interval_and_value, None)


@dataclasses.dataclass(frozen=True)
class Written:
    """A lease that this process wrote."""

    generation: Any
    sent: float  # when the request was sent that may have written it first, by CLOCK


class Lease:
    """The lease that an object stands for."""

    def __init__(self, path: str | os.PathLike, me: Any, store: Any = None) -> None:
        """Opens the store, and leaves the lease as it is.

        Args:
          path: The object, gs://BUCKET/NAME.
          me: This process, an ownership.Owner; NOBODY for follow().
          store: A tensorstore.KvStore; by default that of the bucket.
        """
        self._path = path
        self._me = me
        bucket, _, self._key = os.fspath(path).partition("://")[2].partition("/")
        self._store = store or _open_store(bucket)
        self._over = threading.Event()
        self._deadline = Deadline()
        self._generation: Any = None  # of the lease as the owner wrote it last
        self._sent = math.inf  # when that was sent
        self._first_unheard: float | None = None  # when the first write was sent that may have got through unheard

    @contextlib.contextmanager
    def hold(self, wait: float) -> Generator[None]:
        """Holds the lease within the `with` block; Taken if another owner still has it after `wait` seconds."""
        self._take(wait)
        try:
            with self._alive(self._renew, BEAT):
                yield
        finally:
            with contextlib.suppress(Exception):  # it expires by itself
                self._release()

    @contextlib.contextmanager
    def follow(self) -> Generator[None]:
        """The same in another process of the run, once the lease is held."""
        retried(self._look, self._path)
        with self._alive(self._look, BEAT / 2):
            yield

    @contextlib.contextmanager
    def _alive(self, renew: Callable[[], bool], interval: float) -> Generator[None]:
        """Calls `renew()` every `interval` seconds, and ends this process if that fails for too long."""
        heartbeat = threading.Thread(target=self._beat, args=(renew, interval), daemon=True)
        heartbeat.start()
        try:
            with checking_owner(self.check):
                yield
        finally:
            self._over.set()
            heartbeat.join(SECONDS_TO_RELEASE)
            self._deadline.set(None)

    def check(self) -> float:
        """Ends this process if the newest renewal that the store confirmed was sent too long ago.

        Returns:
          Seconds until then.
        """
        age = now() - self._sent
        if age > ENDS * EXPIRY:
            end(
                f"{os.fspath(self._path)}: the store confirmed no renewal of this lease that was sent in the last "
                f"{age:.0f} s, and after {EXPIRY:.0f} s another process may take it"
            )
        return ENDS * EXPIRY - age

    def _take(self, wait: float) -> None:
        """Writes the lease once there is none or its owner is gone; Taken after `wait` seconds with a live owner."""
        began = now()
        previous_look = began
        previous_generation = None
        watched = 0.0  # seconds for which the generation stayed the same while the store could be read
        printed = ""
        ended = None  # the holder that was seen to have ended, on this machine
        own_generation = None  # that this process wrote, so long ago that it must write the lease again
        while True:
            lease = retried(lambda: self._answer(self._store.read(self._key)), self._path)
            looked = now()
            generation = lease.stamp.generation
            holder = self._me.read(lease.value.decode(errors="replace")) if lease.state == "value" else None
            held_by_other = holder is not None and generation != own_generation
            if generation == previous_generation:
                watched += min(looked - previous_look, 2.0)  # time in which the store can't be read does not count
            elif previous_generation is not None and held_by_other and looked - began > wait:
                raise Taken(self._path, holder)
            else:
                watched = 0.0
            previous_generation = generation
            previous_look = looked
            if holder and holder != ended and holder.has_ended():
                ended = holder
                watched = 0.0
            gone = holder is not None and holder == ended
            expiry = LANDS * EXPIRY if gone else EXPIRY
            if not held_by_other or watched >= expiry:
                written = retried(functools.partial(self._write, generation), self._path)
                if written is None:
                    continue
                if held_by_other:
                    how = "which has ended" if gone else f"of which nothing was heard for {EXPIRY:.0f} s"
                    _print(f"{os.fspath(self._path)} was held by {holder}, {how}: taken over")
                own_generation = written.generation
                if now() - written.sent < BEAT:
                    self._renewed(written)
                    return
                continue
            if gone:
                reason = f"{holder}, which has ended: waiting {expiry:.0f} s for requests that it may have sent"
            else:
                reason = f"{holder}: waiting for a sign of life, or {expiry:.0f} s"
            if reason != printed:
                printed = reason
                _print(f"{os.fspath(self._path)} is held by {reason}")
            self._over.wait(1.0)

    def _release(self) -> None:
        """Deletes the lease in the generation that it has now.

        A renewal may have got through without an answer, or may do so between reading and deleting.
        """
        deadline = now() + SECONDS_TO_RELEASE
        left = SECONDS_TO_RELEASE
        while left > 0:
            lease = self._store.read(self._key).result(left)
            if lease.value != self._me.text().encode():
                return
            self._store.write(self._key, None, if_equal=lease.stamp.generation).result(left)
            left = deadline - now()

    def _write(self, generation: Any) -> Written | None:
        """Writes the lease over `generation`; None if another process was first."""
        text = self._me.text()
        sent = now()
        if self._first_unheard is None:
            self._first_unheard = sent
        new_generation = self._answer(self._store.write(self._key, text, if_equal=generation)).generation
        if not new_generation:  # another process was first, or an answer was lost, to this write or to an earlier one
            lease = self._answer(self._store.read(self._key))
            if lease.value != text.encode():
                return None
            new_generation = lease.stamp.generation
            sent = self._first_unheard
        self._first_unheard = None
        return Written(new_generation, sent)

    def _renew(self) -> bool:
        """Writes the lease again; False if another process has taken it."""
        written = self._write(self._generation)
        if written is None:
            return False
        self._renewed(written)
        return True

    def _look(self) -> bool:
        """Checks that the owner, another process, has renewed the lease; False if it has another owner now.

        What is new was written after the request of the previous look was sent. The first look assumes that the lease
        was renewed a BEAT ago.
        """
        sent = now()
        lease = self._answer(self._store.read(self._key))
        if lease.state == "value":  # else the owner gave it up, or was never seen
            holder = self._me.read(lease.value.decode(errors="replace"))
            if self._generation is None:
                self._me = holder
                self._first_unheard = sent - BEAT
            if holder != self._me:
                return False
            if lease.stamp.generation != self._generation:
                assert self._first_unheard is not None
                self._renewed(Written(lease.stamp.generation, self._first_unheard))
        self._first_unheard = sent
        return True

    def _renewed(self, written: Written) -> None:
        """Notes a renewal that the store confirmed, and moves the deadline."""
        self._generation = written.generation
        self._sent = written.sent
        self._deadline.set(written.sent + KILLED * EXPIRY - now())

    def _answer(self, future: Any) -> Any:
        """The result of a request, a tensorstore.Future.

        Polls instead of waiting in TensorStore: Python would abort the process if it ended while a thread waits there.

        Raises:
          ConnectionError: There is no answer after BEAT seconds.
          TimeoutError: The lease was given up meanwhile.
        """
        began = now()
        while not future.done():
            self.check()
            if self._over.wait(POLL):
                raise TimeoutError("the lease was given up before the store answered")
            if now() - began > BEAT:
                raise ConnectionError(f"no answer in {BEAT:.0f} s")
        return future.result()

    def _beat(self, renew: Callable[[], bool], interval: float) -> None:
        """Calls `renew()` until the lease is given up; ten times as often while the store does not answer."""
        pause = interval
        while not self._over.wait(pause):
            try:
                if not renew():
                    end(f"{os.fspath(self._path)}, the lease that this process held, was taken over")
                pause = BEAT / 10 if now() - self._sent > 2 * BEAT else interval
            except Exception:  # noqa: BLE001  the store gave no answer
                pause = BEAT / 10
            self.check()


def _open_store(bucket: str) -> "tensorstore.KvStore":
    import tensorstore

    # one try for each request, as the age of a lease counts from the try that reached the store
    context = {"gcs_request_retries": {"max_retries": 1}}
    return tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket, "context": context}).result()


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
