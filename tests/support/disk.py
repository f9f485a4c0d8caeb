"""What a disk may hold after a loss of power: a command's writes, syncs and renames are recorded by strace, which sees
those of C++ too, and played into a model of a disk.

The disk keeps a file's contents as they were at its last fsync, and a folder's names as they were at the folder's last
fsync. Of all that came later it may keep any part, in any order. Only a rename within a folder is whole or absent.
"""

import dataclasses
import hashlib
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

CHANGES = "open,openat,creat,write,pwrite64,writev,pwritev,lseek,ftruncate,truncate,rename,renameat,renameat2"
CHANGES += ",unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync"
BY_NAME = "open openat creat truncate unlink unlinkat rmdir mkdir mkdirat link linkat symlink symlinkat".split()
UNKNOWN = "link,linkat,symlink,symlinkat,fallocate,copy_file_range,sendfile,syncfs,sync,pwritev2"  # not in the model
HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?:<([^>]*)>)?")
TEXT = re.compile(r'"([^"]*)"')
HANDLE = re.compile(r"^\w+<([^>]*)>")
KINDS = ("lost", "names", "contents", "torn", "kept", "any")  # what of the unsynced a disk keeps


def missing() -> str:
    """Why nothing can be recorded here; empty where it can."""
    if shutil.which("strace") is None:
        return "without strace: losses of power are not tested (apt-get install strace)"
    done = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return f"without a strace that may trace: losses of power are not tested: {done.stderr}" if done.returncode else ""


def record(command: list[str], **options) -> list[str]:
    """Runs a command to its end; the lines in which strace tells what it and its processes did."""
    with tempfile.NamedTemporaryFile("r", errors="replace") as trace:
        strace = ["strace", "-f", "-y", "-xx", "-s", "100000000", "--seccomp-bpf", "-e", f"trace={CHANGES},{UNKNOWN}"]
        done = subprocess.run([*strace, "-o", trace.name, *command], capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return trace.read().splitlines()


@dataclasses.dataclass(eq=False, repr=False)
class File:
    """Contents as the system shows them, and as they are on the disk."""

    shown: bytes = b""
    synced: bytes = b""
    position: int = 0  # of the next write, unless that appends
    is_appended_to: bool = False
    states: dict = dataclasses.field(default_factory=dict)  # by kind, those that are known

    def contents(self, kind: str) -> bytes:
        if kind in ("kept", "contents"):
            return self.shown
        if kind == "torn":  # its size is on the disk, and half of what is new
            same = len(self.synced) if self.shown.startswith(self.synced) else 0
            half = same + (len(self.shown) - same) // 2
            return self.shown[:half] + bytes(len(self.shown) - half)
        return self.synced


@dataclasses.dataclass(eq=False, repr=False)
class Folder:
    """Names as the system shows them, as they are on the disk, and what has changed since."""

    shown: dict = dataclasses.field(default_factory=dict)
    synced: dict = dataclasses.field(default_factory=dict)
    changes: list[dict] = dataclasses.field(default_factory=list)  # {name: what it names, None where it is gone}
    states: dict = dataclasses.field(default_factory=dict)  # by kind, those that are known

    def change(self, **names: "File | Folder | None") -> None:
        self.changes.append(names)
        self.shown = _changed(self.shown, names)

    def names(self, kind: str, chance: random.Random) -> dict:
        if kind in ("kept", "names", "torn"):
            return self.shown
        names = self.synced
        if kind == "any":
            for change in self.changes:
                if chance.random() < 0.5:
                    names = _changed(names, change)
        return names


def _changed(names: dict, change: dict) -> dict:
    return {name: thing for name, thing in (names | change).items() if thing is not None}


class Disk:
    """The folder `root` on a disk while what `lines` of strace tell happens to it."""

    def __init__(self, root: str, lines: list[str]):
        self._root_path = root
        self._lines = lines
        self.root = Folder()

    def play(self) -> Iterator[str]:
        """Does one thing after another to the disk; yields what was done, in words. A call counts as done when it
        returns, and a sync covers what was done when it was called."""
        begun = {}  # by process: a call that has not returned, and what the file that it syncs showed
        for line in self._lines:
            process, _, text = line.partition(" ")
            text = text.strip()
            before = None
            if text.endswith("<unfinished ...>"):
                text = text.removesuffix("<unfinished ...>")
                begun[process] = text, self._to_sync(text)
                continue
            if text.startswith("<..."):
                start, before = begun.pop(process)
                text = start + text.partition("resumed>")[2]
            call = CALL.match(text)
            if call is None or int(call[3]) < 0:  # an exit or a signal, or a call that failed
                continue
            if done := self._do(call[1], call[2], int(call[3]), call[4], before or self._to_sync(text)):
                yield done

    def _to_sync(self, text: str):
        if not text.startswith(("fsync", "fdatasync")):
            return None
        path = self._below(_path("fsync", text.partition("(")[2]))
        thing = self._find(path) if path is not None else None
        if thing is None:
            return None
        return thing, thing.shown, len(thing.changes) if isinstance(thing, Folder) else 0

    def _do(self, name: str, arguments: str, result: int, opened: str | None, to_sync) -> str:
        """Does what a call did, and returns it in words; nothing for what was elsewhere or changed nothing."""
        if name in ("rename", "renameat", "renameat2"):
            return self._rename(*(self._below(found) for found in _paths(arguments)))
        path = self._below(_path(name, arguments))
        self._forget_states(path)
        if path is None or path == ():
            return self._sync(to_sync) if name.startswith("f") and to_sync else ""
        where = "/".join(path)
        if name in ("fsync", "fdatasync"):
            return self._sync(to_sync) and f"sync {where}"
        if name in ("open", "openat", "creat"):
            if not any(flag in arguments for flag in ("O_CREAT", "O_TRUNC", "O_WRONLY", "O_RDWR")):
                return ""
            file = self._find(path)
            made = file is None
            if made:
                file = File()
                self._find(path[:-1]).change(**{path[-1]: file})
            file.position = 0
            file.is_appended_to = "O_APPEND" in arguments
            if "O_TRUNC" in arguments:
                file.shown = b""
            return f"{'make' if made else 'open'} {where}" if made or "O_TRUNC" in arguments else ""
        if name in ("mkdir", "mkdirat"):
            self._find(path[:-1]).change(**{path[-1]: Folder()})
            return f"mkdir {where}"
        if name in ("unlink", "unlinkat", "rmdir"):
            self._find(path[:-1]).change(**{path[-1]: None})
            return f"remove {where}"
        file = self._find(path)
        if file is None:  # its name is gone: nobody will read it
            return ""
        if name == "lseek":
            file.position = result
            return ""
        if name in ("truncate", "ftruncate"):
            size = int(arguments.rpartition(",")[2])
            file.shown = file.shown[:size].ljust(size, b"\0")
            return f"truncate {where}"
        assert name in ("write", "writev", "pwrite64", "pwritev"), f"the model of a disk lacks {name}: {arguments}"
        start = len(file.shown) if file.is_appended_to else file.position
        if name.startswith("p"):
            start = int(arguments.rpartition(",")[2])
        data = b"".join(map(_bytes, TEXT.findall(arguments)))[:result]
        file.shown = file.shown[:start].ljust(start, b"\0") + data + file.shown[start + len(data) :]
        file.position = start + len(data)
        return f"write {where}"

    def _rename(self, source, target) -> str:
        if source is None and target is None:
            return ""
        assert source and target, "a rename into or out of the folder"
        self._forget_states(source)
        self._forget_states(target)
        moved = self._find(source)
        old = self._find(source[:-1])
        new = self._find(target[:-1])
        if old is new:
            old.change(**{source[-1]: None, target[-1]: moved})
        else:
            old.change(**{source[-1]: None})
            new.change(**{target[-1]: moved})
        return f"rename {'/'.join(source)} to {'/'.join(target)}"

    def _sync(self, to_sync) -> str:
        if to_sync is None:
            return ""
        thing, shown, n_changes = to_sync
        thing.synced = shown
        if isinstance(thing, Folder):
            thing.changes = thing.changes[n_changes:]
        return "sync"

    def _below(self, path: str | None) -> tuple[str, ...] | None:
        """The names that lead from the root to a path; None where it is not below the root."""
        if path is None or not (path + "/").startswith(self._root_path + "/"):
            return None
        return tuple(name for name in path[len(self._root_path) :].split("/") if name)

    def _find(self, path: tuple[str, ...]) -> File | Folder | None:
        thing = self.root
        for name in path:
            thing = thing.shown.get(name) if isinstance(thing, Folder) else None
        return thing

    def _forget_states(self, path: tuple[str, ...] | None) -> None:
        """Those of the thing at a path, which is about to change, and of the folders that it is in."""
        for n_names in range(len(path) + 1) if path is not None else ():
            if (thing := self._find(path[:n_names])) is not None:
                thing.states.clear()

    def state(self, kind: str, seed: int = 0) -> "State":
        """What the disk holds if the power is lost now, and it has kept `kind` of what was not synced."""
        return _state(self.root, kind, random.Random(seed))


@dataclasses.dataclass(frozen=True)
class State:
    """A file (bytes) or a folder ({name: State}) on the disk, with a hash of all of it, by which states are equal."""

    is_: "bytes | dict[str, State]" = dataclasses.field(compare=False)
    hash: bytes

    def at(self, *path: str) -> "State | None":
        state = self
        for name in "/".join(path).split("/"):
            state = state.is_.get(name) if state and isinstance(state.is_, dict) else None
        return state

    def write(self, path: pathlib.Path) -> None:
        """Makes the file or folder `path`, which must not exist."""
        if isinstance(self.is_, bytes):
            path.write_bytes(self.is_)
            return
        path.mkdir()
        for name, state in self.is_.items():
            state.write(path / name)


_hashes = {}  # of contents


def _state(thing: File | Folder, kind: str, chance: random.Random) -> State:
    if kind == "any":
        kept = _state(thing, "kept", chance)
        nothing_to_lose = kept.hash == _state(thing, "lost", chance).hash
        return kept if nothing_to_lose else _make_state(thing, kind, chance)
    if kind not in thing.states:
        thing.states[kind] = _make_state(thing, kind, chance)
    return thing.states[kind]


def _make_state(thing: File | Folder, kind: str, chance: random.Random) -> State:
    if isinstance(thing, File):
        data = thing.contents(chance.choice(("kept", "lost", "torn")) if kind == "any" else kind)
        if data not in _hashes:
            _hashes[data] = hashlib.sha256(data).digest()
        return State(data, _hashes[data])
    names = thing.names(kind, chance)
    states = {name: _state(names[name], kind, chance) for name in sorted(names)}
    all_ = hashlib.sha256(b"folder")
    for name, state in states.items():
        all_.update(name.encode() + b"\0" + state.hash)
    return State(states, all_.digest())


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return HEX.sub(lambda found: _bytes(found[0]).decode(errors="replace"), text)


def _paths(arguments: str) -> list[str]:
    """The paths in the arguments of a rename."""
    found = re.findall(r'(?:\w+<([^>]*)>, )?"([^"]*)"', arguments)
    return [_joined(_text(folder), _text(name)) for folder, name in found]


def _path(name: str, arguments: str) -> str | None:
    """The path that a call is about: a name, perhaps in an open folder, or an open file's."""
    handle = HANDLE.match(arguments)
    text = TEXT.search(arguments)
    folder = _text(handle[1]) if handle else ""
    if name in BY_NAME:
        return _joined(folder, _text(text[1]))
    is_gone = handle and arguments[handle.end() :].startswith("(deleted)")
    return folder if handle and not is_gone else None


def _joined(folder: str, name: str) -> str:
    return name if name.startswith("/") else f"{folder}/{name}"
