"""The owner of a workdir on gs:// holds a lease: an object that a process writes only over the generation that it last
saw, so that one of two writers fails. The owner writes it again every BEAT seconds. A process that wants the lease
watches it. A new generation means that the owner lives. After EXPIRY seconds without one, in which the store could be
read, the process takes the lease over and says so; it never compares the clocks of two machines.

Two owners never write at the same time, since the one before has ended when the lease can be taken. All its times count
from when the newest renewal that the store confirmed was *sent*, by a clock that goes on while a process is halted or a
machine sleeps: what a taker sees last was written no earlier, however late the owner was told.

  2/3 EXPIRY   the owner ends itself, with exit code 75; each write asks first whether it is still earlier (files.ask)
  3/4 EXPIRY   the kernel kills the owner, also one that is halted between asking and writing (Linux)
  EXPIRY       the lease can be taken

The last quarter, 45 seconds, is for requests that were on their way when the owner ended. A process of the same machine
sees that the owner has ended, and leaves its requests as much time from then on. One that a network holds back for even
longer names the generation that its object had when the owner last looked, whether it writes, moves or deletes the
object (gcs.py): it is refused once the new owner has written that object, and overwritten if it has not. Arrays, which
TensorStore writes, lie where no checkpoint is until gcs.py has written its commit.
"""

import contextlib
import ctypes
import math
import os
import signal
import struct
import sys
import threading
import time

from jmoe.errors import UNAVAILABLE, Taken
from jmoe.storage.files import asked_by_writes, retried

BEAT = 10.0  # seconds
EXPIRY = 180.0
ENDS, KILLED = 2 / 3, 3 / 4  # of EXPIRY, without a renewal: when the owner ends itself, and when the kernel kills it
LANDS = 1 - KILLED  # of EXPIRY: for how long a request may be on its way when its process has ended
SECONDS_TO_RELEASE = 3.0  # for the last heartbeat, and again for the deletion: a stopping process waits no longer
POLL = 0.02
# it goes on while a process is halted or a machine sleeps
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by CLOCK."""
    return time.clock_gettime(CLOCK)


def end(why: str) -> None:
    """Ends this process at once."""
    so = "this process ends and writes nothing more; the same command goes on from what is saved"
    print(f"error: {why}: {so}", file=sys.stderr, flush=True)
    os._exit(UNAVAILABLE)


class Deadline:
    """A time at which the kernel kills this process, also while it is halted (SIGSTOP, a frozen container): a thread
    that watches the time would wake no earlier than the threads that write. There is none at first, and none on
    systems without such timers (macOS)."""

    def __init__(self):
        libc, self._timer = ctypes.CDLL(None), ctypes.c_void_p()
        event = struct.pack("Pii48x", 0, signal.SIGKILL, 0)  # struct sigevent; the last is SIGEV_SIGNAL
        create = getattr(libc, "timer_create", None)
        made = create and not create(CLOCK, event, ctypes.byref(self._timer))
        self._libc = libc if made else None

    def set(self, seconds: float | None) -> None:
        """Has the process killed that many seconds from now, and not when it was to be killed before; never if None."""
        if self._libc:
            seconds = 0.0 if seconds is None else max(seconds, 1e-6)
            interval_and_value = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # seconds, nanoseconds
            self._libc.timer_settime(self._timer, 0, interval_and_value, None)


class Lease:
    """The lease that the object `path` stands for; `me` is this process, an ownership.Owner."""

    def __init__(self, path, me, store=None):
        import tensorstore

        bucket, _, self._key = os.fspath(path).partition("://")[2].partition("/")
        # one try for each request, as the age of a lease counts from the try that reached the store
        once = {"gcs_request_retries": {"max_retries": 1}}
        spec = {"driver": "gcs", "bucket": bucket, "context": once}
        self._store = store or tensorstore.KvStore.open(spec).result()
        self._path, self._me, self._over, self._deadline = path, me, threading.Event(), Deadline()
        self._generation, self._sent = None, math.inf  # of the lease as this process wrote it, and when that was sent
        self._tried = None  # when the first of the writes was sent that may have got through unheard

    @contextlib.contextmanager
    def held(self, wait: float):
        self._take(wait)
        try:
            with self._alive(self._renew, BEAT):
                yield
        finally:
            with contextlib.suppress(Exception):  # it expires by itself
                self._release()

    @contextlib.contextmanager
    def followed(self):
        """The same in another process of the run, once the lease is held."""
        retried(self._look, self._path)
        with self._alive(self._look, BEAT / 2):
            yield

    @contextlib.contextmanager
    def _alive(self, renew, every: float):
        """Calls `renew()` all the time, and ends this process if that is in vain."""
        heart = threading.Thread(target=self._beat, args=(renew, every), daemon=True)
        heart.start()
        try:
            with asked_by_writes(self.ask):
                yield
        finally:
            self._over.set()
            heart.join(SECONDS_TO_RELEASE)
            self._deadline.set(None)

    def ask(self) -> float:
        """Ends this process if the store has not confirmed a renewal that was sent lately enough; else returns the
        seconds until then."""
        if (age := now() - self._sent) > ENDS * EXPIRY:
            end(
                f"{os.fspath(self._path)}: the store confirmed no renewal of this lease that was sent in the last "
                f"{age:.0f} s, and after {EXPIRY:.0f} s another process may take it"
            )
        return ENDS * EXPIRY - age

    def _take(self, wait: float) -> None:
        """Writes the lease once there is none or its owner is gone."""
        began = before = now()
        seen, watched, printed = None, 0.0, ""
        ended = None  # the holder that was seen to have ended, on this machine
        own = None  # the generation that this process wrote, so long ago that it must write the lease again
        while True:
            lease = retried(lambda: self._answer(self._store.read(self._key)), self._path)
            generation, looked = lease.stamp.generation, now()
            holder = self._me.read(lease.value.decode(errors="replace")) if lease.state == "value" else None
            if generation == seen:
                watched += min(looked - before, 2.0)  # time in which the store can't be read does not count
            elif seen is not None and holder and generation != own and looked - began > wait:
                raise Taken(self._path, holder)
            else:
                watched = 0.0
            seen, before = generation, looked
            if holder and holder != ended and holder.has_ended():
                ended, watched = holder, 0.0
            gone = holder is not None and holder == ended
            expiry = LANDS * EXPIRY if gone else EXPIRY
            if holder is None or generation == own or watched >= expiry:
                if written := retried(lambda: self._write(generation), self._path):
                    if holder and generation != own:
                        how = "which has ended" if gone else f"of which nothing was heard for {EXPIRY:.0f} s"
                        _print(f"{os.fspath(self._path)} was held by {holder}, {how}: taken over")
                    own, sent = written
                    if now() - sent < BEAT:
                        self._renewed(own, sent)
                        return
                continue
            reason = f"{holder}, which has ended: waiting {expiry:.0f} s for requests that it may have sent"
            if not gone:
                reason = f"{holder}: waiting for a sign of life, or {expiry:.0f} s"
            if reason != printed:
                printed = reason
                _print(f"{os.fspath(self._path)} is held by {reason}")
            self._over.wait(1.0)

    def _release(self) -> None:
        """Deletes the lease in the generation that it has now: a renewal may have got through without an answer, or
        may do so between looking and deleting."""
        until = now() + SECONDS_TO_RELEASE
        while (left := until - now()) > 0:
            lease = self._store.read(self._key).result(left)
            if lease.value != self._me.text().encode():
                return
            self._store.write(self._key, None, if_equal=lease.stamp.generation).result(left)

    def _write(self, generation):
        """Writes the lease over `generation`; (the new generation, when it was sent), or None if another was first."""
        text, sent = self._me.text(), now()
        self._tried = self._tried or sent
        written = self._answer(self._store.write(self._key, text, if_equal=generation)).generation
        if not written:  # another process was first, or an answer was lost, to this write or to one before
            lease = self._answer(self._store.read(self._key))
            if lease.value != text.encode():
                return None
            written, sent = lease.stamp.generation, self._tried
        self._tried = None
        return written, sent

    def _renew(self) -> bool:
        """Writes the lease again; False if another process has taken it."""
        if written := self._write(self._generation):
            self._renewed(*written)
        return bool(written)

    def _look(self) -> bool:
        """Sees whether the owner, another process, has renewed the lease; False if it has another owner now. What is
        new was written after the look before was sent. The first look finds a lease that was renewed a BEAT ago."""
        sent = now()
        lease = self._answer(self._store.read(self._key))
        if lease.state == "value":  # else the owner gave it up, or was never seen
            holder = self._me.read(lease.value.decode(errors="replace"))
            if self._generation is None:
                self._me, self._tried = holder, sent - BEAT
            if holder != self._me:
                return False
            if lease.stamp.generation != self._generation:
                self._renewed(lease.stamp.generation, self._tried)
        self._tried = sent
        return True

    def _renewed(self, generation, sent: float) -> None:
        self._generation, self._sent = generation, sent
        self._deadline.set(sent + KILLED * EXPIRY - now())

    def _answer(self, asked):
        """The store's answer; ConnectionError after BEAT seconds without one, TimeoutError once the lease is given up.

        Polls instead of waiting in TensorStore: Python would abort the process if it ended while a thread waits there.
        """
        began = now()
        while not asked.done():
            self.ask()
            if self._over.wait(POLL):
                raise TimeoutError("the lease was given up before the store answered")
            if now() - began > BEAT:
                raise ConnectionError(f"no answer in {BEAT:.0f} s")
        return asked.result()

    def _beat(self, renew, every: float) -> None:
        pause = every
        while not self._over.wait(pause):
            try:
                if not renew():
                    end(f"{os.fspath(self._path)}, the lease that this process held, was taken over")
                pause = BEAT / 10 if now() - self._sent > 2 * BEAT else every
            except Exception:  # noqa: BLE001  the store gave no answer
                pause = BEAT / 10
            self.ask()


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
