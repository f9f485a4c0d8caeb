"""The lease of a workdir on gs://: an object that its owner writes again every RENEW_EVERY seconds.

docs/explanation/owners.md says which states it has, who may write in each, and which tests prove that. The names here
are those of that page.

A process writes the lease only over the generation that it last saw, so that one of two writers fails. It never
compares the clocks of two machines: an owner counts from when the newest renewal that the store confirmed was *sent*, a
process that wants the lease from when it first saw the newest generation. What it saw was written no earlier than that
renewal was sent, however late the owner was told.
"""

import contextlib
import dataclasses
import enum
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn

from jmoe.errors import UNAVAILABLE, Taken
from jmoe.storage.deadline import Deadline, now
from jmoe.storage.owner_check import checking_owner
from jmoe.storage.retries import retried

if TYPE_CHECKING:
    import tensorstore

RENEW_EVERY = 10.0  # seconds
EXPIRY = 180.0  # seconds without a renewal, after which another process may take the lease
# fractions of EXPIRY
SELF_STOP = 2 / 3  # without a confirmed renewal, after which the owner ends itself
KERNEL_KILL = 3 / 4  # without a confirmed renewal, after which the kernel kills an owner that is halted
REQUEST_GRACE = 1 - KERNEL_KILL  # for requests that were on their way when their process ended
SECONDS_TO_RELEASE = 3.0  # for the last renewal, and again for the deletion: a stopping process waits no longer
POLL = 0.02  # seconds between two looks for the answer to a request


class State(enum.Enum):
    """States of a lease or a lock, as its owner or a process that wants it can tell."""

    FREE = "nobody owns it"
    OWNED = "its owner may write"
    OVERDUE = "its owner must end: no renewal was confirmed for SELF_STOP"
    LOST = "its owner must end: another process has it, or it was deleted"
    ENDED = "its owner was a process of this machine and has ended; its requests may be on their way"
    EXPIRED = "its owner has ended, wherever it ran, and its requests too: one process takes it over"


def end(reason: str) -> NoReturn:
    """Prints why, and ends this process at once: all else that Python does at its end could still write."""
    consequence = "this process ends and writes nothing more; the same command goes on from what is saved"
    print(f"error: {reason}: {consequence}", file=sys.stderr, flush=True)
    os._exit(UNAVAILABLE)


@dataclasses.dataclass(frozen=True)
class Written:
    """A lease that this process wrote."""

    generation: Any
    sent: float  # when the request was sent that may have written it first, by deadline.now


class Watch:
    """The lease as a process that wants it has seen it.

    Attributes:
      waited: Seconds since the first look.
      renewed: Whether the generation changed between the last two looks.
    """

    def __init__(self) -> None:
        self._began = now()
        self._looked = self._began
        self._generation: Any = None
        self._silence = 0.0  # seconds for which the generation stayed the same while the store could be read
        self._ended: Any = None  # the owner that was seen to have ended, on this machine
        self.waited = 0.0
        self.renewed = False

    def look(self, generation: Any, owner: Any) -> State:
        """The state of a lease that was read just now.

        Args:
          generation: That of the lease.
          owner: Its owner, an ownership.Owner; None if nobody owns it.
        """
        looked = now()
        self.renewed = self._generation is not None and generation != self._generation
        if generation == self._generation:
            # looks are a second apart; a longer gap is time in which the store could not be read, and does not count
            self._silence += min(looked - self._looked, 2.0)
        else:
            self._silence = 0.0
        self._generation = generation
        self._looked = looked
        self.waited = looked - self._began
        if owner is None:
            return State.FREE
        if owner != self._ended and owner.has_ended():
            self._ended = owner
            self._silence = 0.0
        state = State.ENDED if owner == self._ended else State.OWNED
        return State.EXPIRED if self._silence >= seconds_until_expired(state) else state

    def saw_end_of(self, owner: Any) -> bool:
        """Whether `owner` was seen to have ended, on this machine."""
        return owner == self._ended


def state_at(age: float) -> State:
    """The state of its owner's lease, OWNED or OVERDUE.

    Args:
      age: Seconds since the newest renewal that the store confirmed was sent.
    """
    return State.OVERDUE if age > SELF_STOP * EXPIRY else State.OWNED


def seconds_until_expired(state: State) -> float:
    """For how long a lease must stay as it is, in this state, until it is EXPIRED."""
    return REQUEST_GRACE * EXPIRY if state is State.ENDED else EXPIRY


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
        self._sent = math.inf  # when the request for that generation was sent, by deadline.now
        # When the first write was sent that may have got through without an answer. None if the last one was answered.
        # In a process that follows: when its previous look was sent.
        self._first_unheard: float | None = None

    @contextlib.contextmanager
    def hold(self, wait: float) -> Generator[None]:
        """Holds the lease within the `with` block; Taken if another owner still has it after `wait` seconds."""
        self._take(wait)
        try:
            with self._alive(self._renew, RENEW_EVERY):
                yield
        finally:
            with contextlib.suppress(Exception):  # it expires by itself
                self._release()

    @contextlib.contextmanager
    def follow(self) -> Generator[None]:
        """Ends this process, within the `with` block, as soon as the first process of its run may have lost the lease.

        The lease must be held already.
        """
        retried(self._look, self._path)
        with self._alive(self._look, RENEW_EVERY / 2):
            yield

    @contextlib.contextmanager
    def _alive(self, renew: Callable[[], State], interval: float) -> Generator[None]:
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
        """Ends this process if its lease is OVERDUE.

        Returns:
          Seconds until it is.
        """
        age = now() - self._sent
        if state_at(age) is State.OVERDUE:
            end(
                f"{os.fspath(self._path)}: the store confirmed no renewal of this lease that was sent in the last "
                f"{age:.0f} s, and after {EXPIRY:.0f} s another process may take it"
            )
        return SELF_STOP * EXPIRY - age

    def _take(self, wait: float) -> None:
        """Writes the lease once it is FREE or EXPIRED; Taken if it is renewed after `wait` seconds."""
        watch = Watch()
        printed = ""
        own_generation = None  # that this process wrote, but heard so late that it writes the lease again
        while True:
            lease = retried(lambda: self._answer(self._store.read(self._key)), self._path)
            generation = lease.stamp.generation
            owner = None
            if lease.state == "value" and generation != own_generation:
                owner = self._me.read(lease.value.decode(errors="replace"))
            state = watch.look(generation, owner)
            if watch.renewed and owner and watch.waited > wait:
                raise Taken(self._path, owner)
            if state in (State.FREE, State.EXPIRED):
                written = retried(functools.partial(self._write, generation), self._path)
                if written is None:
                    continue  # another process was first: look again
                if owner:
                    self._print_taken_over(owner, watch.saw_end_of(owner))
                own_generation = written.generation
                if now() - written.sent < RENEW_EVERY:
                    self._renewed(written)
                    return
                continue
            reason = _why_wait(state, owner)
            if reason != printed:
                printed = reason
                _print(f"{os.fspath(self._path)} is held by {reason}")
            self._over.wait(1.0)

    def _print_taken_over(self, owner: Any, seen_ended: bool) -> None:
        how = "which has ended" if seen_ended else f"of which nothing was heard for {EXPIRY:.0f} s"
        _print(f"{os.fspath(self._path)} was held by {owner}, {how}: taken over")

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

    def _renew(self) -> State:
        """Writes the lease again: OWNED, or LOST if another process has taken it."""
        written = self._write(self._generation)
        if written is None:
            return State.LOST
        self._renewed(written)
        return State.OWNED

    def _look(self) -> State:
        """Notes what the owner, another process, has renewed: OWNED, or LOST if the lease has another owner now.

        What is new was written after the request of the previous look was sent. The first look assumes that the lease
        was renewed RENEW_EVERY seconds ago.
        """
        sent = now()
        lease = self._answer(self._store.read(self._key))
        if lease.state == "value":  # else the owner gave it up, or was never seen
            holder = self._me.read(lease.value.decode(errors="replace"))
            if self._generation is None:  # the first look: this process follows the owner that it finds
                self._me = holder
                self._first_unheard = sent - RENEW_EVERY
            if holder != self._me:
                return State.LOST
            if lease.stamp.generation != self._generation:
                assert self._first_unheard is not None
                self._renewed(Written(lease.stamp.generation, self._first_unheard))
        self._first_unheard = sent
        return State.OWNED

    def _renewed(self, written: Written) -> None:
        """Notes a renewal that the store confirmed, and moves the deadline."""
        self._generation = written.generation
        self._sent = written.sent
        self._deadline.set(written.sent + KERNEL_KILL * EXPIRY - now())

    def _answer(self, future: Any) -> Any:
        """The result of a request, a tensorstore.Future.

        Polls instead of waiting in TensorStore: Python would abort the process if it ended while a thread waits there.

        Raises:
          ConnectionError: There is no answer after RENEW_EVERY seconds.
          TimeoutError: The lease was given up meanwhile.
        """
        began = now()
        while not future.done():
            self.check()
            if self._over.wait(POLL):
                raise TimeoutError("the lease was given up before the store answered")
            if now() - began > RENEW_EVERY:
                raise ConnectionError(f"no answer in {RENEW_EVERY:.0f} s")
        return future.result()

    def _beat(self, renew: Callable[[], State], interval: float) -> None:
        """Calls `renew()` until the lease is given up; ten times as often while the store does not answer."""
        pause = interval
        while not self._over.wait(pause):
            try:
                if renew() is State.LOST:
                    end(f"{os.fspath(self._path)}, the lease that this process held, was taken over")
                pause = RENEW_EVERY / 10 if now() - self._sent > 2 * RENEW_EVERY else interval
            except Exception:  # noqa: BLE001  the store gave no answer
                pause = RENEW_EVERY / 10
            self.check()


def _why_wait(state: State, owner: Any) -> str:
    """Who holds the lease that a process waits for, as words behind "held by"."""
    seconds = seconds_until_expired(state)
    if state is State.ENDED:
        return f"{owner}, which has ended: waiting {seconds:.0f} s for requests that it may have sent"
    return f"{owner}: waiting for a sign of life, or {seconds:.0f} s"


def _open_store(bucket: str) -> "tensorstore.KvStore":
    import tensorstore

    # one try for each request, as the age of a lease counts from the try that reached the store
    context = {"gcs_request_retries": {"max_retries": 1}}
    return tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket, "context": context}).result()


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
