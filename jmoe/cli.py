"""Shared by every command: flags, one sentence for a user's mistake, exit codes.

Exit codes:
    0    done
    2    a mistake that one sentence explains: the same command would fail again
    75   the object store gave no answer for minutes, or another trainer has the workdir: start the same command again
    130  Ctrl-C, 143 SIGTERM: saved and stopped
Any other code is a failure that the same command may not meet again: 1 with a traceback, or with one sentence where
memory ran out or a disk failed (an input/output error); 134 where jax aborts a process because another process of its
run was lost.
"""

import errno
import hashlib
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn, TextIO

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from jmoe import startup
from jmoe.config import schema
from jmoe.errors import UNAVAILABLE, Damaged, Failure, Interrupted, Unavailable, UserError, missing_package
from jmoe.printable import printable_lines
from jmoe.storage import durable

flags.disclaim_key_flags()  # --help lists those that are defined here as the command's own


def run(main: Callable[[list[str]], Any], config_sections: Collection[str] | None = None) -> None:
    """Parses flags, calls `main(argv)` and exits; UserError and Interrupted end in one line on stderr.

    An OSError that names a full, read-only or forbidden path counts as a user's mistake too, and so does a package that
    is not installed.

    Args:
      main: The command; what it returns is the exit code.
      config_sections: Sections of the config whose fields --help lists; () means all, None means no fields.
    """

    def checked(argv: list[str]) -> Any:
        startup.over()
        if len(argv) > 1:
            raise UserError(f"unexpected argument {argv[1]!r}: every option is a flag, --name=value")
        check_flags(flags.FLAGS)
        result = main(argv)
        sys.stdout.flush()
        return result

    try:
        if {"--help", "-h", "-help", "--helpshort"} & set(sys.argv[1:]):
            _help(sys.modules[main.__module__], config_sections)
        else:
            _hide_errors_of_other_reads()
            app.run(checked, flags_parser=_parse)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  orbax and tensorstore wrap the disk's or the store's
        if isinstance(error, BrokenPipeError) and not _is_read(sys.stdout):
            _end(128 + signal.SIGPIPE)
        code, message = _outcome(error)
        if message is None:
            raise
        message = printable_lines(message)
        print(message if code > 128 else f"error: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        _end(code)


def _end(code: int) -> NoReturn:
    """Ends this process at once, without what Python does at its end.

    Python would wait for the threads of a save that failed, which may retry its writes for minutes, and write what is
    left in stdout to a pipe that nobody reads, which is another error.
    """
    os._exit(code)


def _is_read(stream: TextIO) -> bool:
    """Whether somebody reads the stream; nobody does after `| head`."""
    try:
        stream.flush()
    except BrokenPipeError:
        return False
    return True


def _outcome(error: BaseException) -> tuple[int, str | None]:
    """The exit code and the sentence for an error; no sentence for one that needs a traceback."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command resumes"
    if isinstance(error, Interrupted):
        return 128 + error.signum, str(error)
    if isinstance(error, Failure):
        return 1, str(error)
    if isinstance(error, UserError | Damaged):
        return 2, str(error)
    outage = unavailable(error)
    if outage:
        return UNAVAILABLE, outage
    return 1 if disk_failed(error) else 2, disk_error(error) or missing_package(error)


def check_flags(flag_values: flags.FlagValues) -> None:
    """Checks the values of flags that the user gave. Fields of the config, and flags of the default "", may be empty.

    Raises:
      UserError: A flag is empty, as by an unset variable of the shell; it names a place that is neither a path nor
        gs://; or it is a number that is not finite.
    """
    for name in flag_values:
        flag = flag_values[name]
        if flag.present and not name.startswith("config."):
            _check_flag(flag, flag_values)


def _check_flag(flag: flags.Flag, flag_values: flags.FlagValues) -> None:
    values = flag.value if isinstance(flag.value, list) else [flag.value]
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise UserError(f"--{flag.name}={flag.value} is no finite number")
    words = [value for value in values if isinstance(value, str)]
    if flag.default == "" or not words:
        return
    if not all(word.strip() for word in words):
        raise UserError(f"--{flag.name}= is empty; give it a value or leave it out")
    if flag.value == words:  # a list, of other options perhaps
        return
    word = words[0]
    if word.startswith("--") and word[2:].partition("=")[0] in flag_values:
        raise UserError(f"--{flag.name} has no value: what follows it is {word}")
    if re.match(r"\w+:/", word) and not re.match(r"gs://\w", word):
        raise UserError(f"--{flag.name}={word}: expected a path on this machine, or gs://BUCKET/...")


def _help(module: ModuleType, config_sections: Collection[str] | None) -> None:
    """Prints the docstring of a command's module, its flags, and fields of the config."""
    name = sys.argv[0] if module.__name__ == "__main__" else module.__name__
    if "config" in flags.FLAGS:
        flags.FLAGS.register_key_flag_for_module(name, flags.FLAGS["config"])
    text = f"{module.__doc__}\n{flags.FLAGS.module_help(name)}"
    if config_sections is not None:
        path = _config_path(sys.argv) or "configs/joint_moe.py"
        text += "\n\n" + schema.describe(path, config_in(path), config_sections)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _end(0)


# --config.FIELD=None for a field that is a number or None: a number's flag cannot parse None, so read_config sets it
NONE = re.compile(r"--?config\.([\w.]+)=None")
CONFIG_FIELD = re.compile(r"--?(?:no)?config\.([^=\[]*)")


def installed(path: str) -> str:
    """`path`; for configs/... that is not in the current folder, the path of the file that came with this package."""
    shipped = schema.ROOT / path
    return str(shipped) if path.startswith("configs/") and not os.path.exists(path) and shipped.exists() else path


def unavailable(error: BaseException) -> str | None:
    """The sentence of an Unavailable anywhere in `error`'s chain of causes, or None."""
    return next((str(cause) for cause in _causes(error) if isinstance(cause, Unavailable)), None)


def cores() -> list[int]:
    """The CPU cores that this process may use; all of the machine's where the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


# errors of a disk that a user must mend, and of one that failed and may not fail again
UNUSABLE = "ENOSPC EROFS EACCES EDQUOT ENOTDIR EPERM ENAMETOOLONG EISDIR ELOOP".split()
FAILING = "EIO ESTALE EREMOTEIO ENXIO EBADMSG EUCLEAN ETIMEDOUT".split()


def disk_failed(error: BaseException) -> bool:
    """Whether a disk, or a server of files, failed in `error`'s chain of causes."""
    numbers = [durable.error_number(cause) for cause in _causes(error)]
    return any(number is not None and errno.errorcode.get(number) in FAILING for number in numbers)


def disk_error(error: BaseException) -> str | None:
    """One sentence for an unusable disk or a forbidden bucket in `error`'s chain of causes; None if there is none."""
    for cause in _causes(error):
        number = durable.error_number(cause)
        code = None if number is None else errno.errorcode.get(number)
        if number is not None and code in (*UNUSABLE, *FAILING):
            path = getattr(cause, "filename", None) or durable.path_in(cause) or "the workdir"
            hint = "; the same command goes on from what is saved" if code in FAILING else ""
            return f"cannot use {path}: {os.strerror(number).lower()}{hint}"
        if "No space left" in str(cause) or "ENOSPC" in str(cause):
            return "cannot write the workdir: no space left"
        if isinstance(cause, OSError) and str(cause).startswith("Forbidden: "):  # gcsfs's 403
            return " ".join(str(cause).split())
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what it was raised from, each once."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _hide_errors_of_other_reads() -> None:
    """Leaves the error of one failed read or write as the only one that is printed.

    Orbax reads many arrays at once, in an event loop that it closes when one read fails. The answers to the others then
    find a closed loop, and each prints a traceback, in the midst of our sentence: without this function
    tests/jmoe/storage/test_disk_errors.py fails. Python closes reads that did not end, of which Orbax makes an error.
    Where a disk is full, a thread of a library fails as the main one does.
    """
    excepthook = sys.excepthook
    unraisablehook = sys.unraisablehook
    thread_excepthook = threading.excepthook

    def quiet_excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not _follows_from_another(error):
            excepthook(kind, error, trace)

    def quiet_unraisablehook(unraisable: Any) -> None:
        if not _follows_from_another(unraisable.exc_value):
            unraisablehook(unraisable)

    def quiet_thread_excepthook(args: Any) -> None:
        """The main thread reports a full disk; a library's thread stays silent."""
        if not disk_error(args.exc_value):
            thread_excepthook(args)

    sys.excepthook = quiet_excepthook
    sys.unraisablehook = quiet_unraisablehook
    threading.excepthook = quiet_thread_excepthook


def _follows_from_another(error: BaseException | None) -> bool:
    """Whether an error only follows from another one, which closed an event loop or a read."""
    closed = isinstance(getattr(error, "__cause__", None), GeneratorExit)
    return closed or "Event loop is closed" in str(error)


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags; UserError where that fails. Returns the words that are no flags."""
    logging.set_verbosity(logging.FATAL)  # libraries log every step, and every error twice; --verbosity=0 shows it
    if "config" in flags.FLAGS:
        check_config_flags(argv)
    words = [word for word in argv if not NONE.fullmatch(word)]
    words = [re.sub("(?<=^--config=).+", lambda path: installed(path[0]), word) for word in words]
    try:
        return flags.FLAGS(words)
    except flags.Error as error:
        message = str(error)
        missing = re.match(r"flag --(\w+)=None: Flag --\1 must have a value other than None", message)
        if missing:
            message = f"--{missing[1]} is missing: {flags.FLAGS[missing[1]].help}"
        raise UserError(f"{message}\nPass --help to see the flags.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # an unknown --config.field
        raise UserError(f"--config has no such field or value: {one_line(error)}") from None


def check_config_flags(argv: Sequence[str], config: ConfigDict | None = None) -> None:
    """Checks --config and --config.FIELD, whose errors ml_collections reports in many lines or a traceback.

    Args:
      argv: Words of the command line.
      config: A config, some of whose fields only it may have.

    Raises:
      UserError: --config is empty or can't be loaded; or neither it, nor `config`, nor any config has the field.
    """
    path = _config_path(argv)
    if path == "":
        raise UserError("--config= is empty: name a configuration, such as --config=configs/quickstart.py")
    known = set(schema.FIELDS)
    if path is not None:
        known |= schema.flat(config_in(path)).keys()
    if config is not None:
        known |= schema.flat(config).keys()
    sections = {name[:end] for name in known for end in range(len(name)) if name[end] == "."}
    for argument in argv:
        field = CONFIG_FIELD.match(argument)
        if field and field[1] not in known | sections:
            raise UserError(schema.unknown(field[1], "--config."))


def names_no_field(argument: str) -> bool:
    """Whether an argument is --config.FIELD of a field that no config has."""
    field = CONFIG_FIELD.match(argument)
    return field is not None and field[1] not in schema.FIELDS


def _config_path(argv: Sequence[str]) -> str | None:
    """The value of --config, as --config=VALUE or as the argument after it; None where it is not given."""
    for i, argument in enumerate(argv):
        if re.match(r"--?config=", argument):
            return argument.partition("=")[2]
        if argument in ("--config", "-config"):
            following = "".join(argv[i + 1 : i + 2])
            return "" if following.startswith("-") else following
    return None


def load_module(path: str, what: str) -> ModuleType:
    """Loads a Python file as a module.

    Args:
      path: The file; configs/... may be one that came with this package.
      what: Names the file in errors.

    Raises:
      UserError: It is no Python file, or it fails.
    """
    path = installed(path)
    if not path.endswith(".py") or not os.path.isfile(path):
        raise UserError(f"{what}: {path!r} is no Python file")
    # its imports of configs.NAME find the user's own, else ours
    if str(schema.ROOT) not in sys.path:
        sys.path.append(str(schema.ROOT))
    import configs

    if str(schema.ROOT / "configs") not in configs.__path__:
        configs.__path__.append(str(schema.ROOT / "configs"))
    name = "file_" + hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return call(schema.module_of, path, name, name=f"{what}: {path}")


def call(function: Callable[..., Any], *args: Any, name: str) -> Any:
    """Calls a function of the user's file.

    Args:
      function: What to call.
      *args: Its arguments.
      name: Names it in errors.

    Raises:
      UserError: It raised anything; the message has one line.
    """
    try:
        return function(*args)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  the file is the user's
        reason = missing_package(error) or " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name} fails: {reason}") from None


def one_line(error: BaseException) -> str:
    """The message of an error, without the quotes that a KeyError puts around it."""
    return " ".join(str(error.args[0] if error.args else error).split())


def config_of(module: ModuleType, *argument: str) -> ConfigDict:
    """The config that get_config() of a module returns, completed.

    Args:
      module: The module.
      *argument: The argument of get_config(), if it has one.

    Raises:
      UserError: There is no such function, or it fails or returns anything else.
    """
    path = module.__file__
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"{path} has no function get_config(), which returns the config")
    config = call(module.get_config, *argument, name=f"{path}: get_config()")
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return a ConfigDict, not {config!r:.100}")
    return schema.complete(config)


def config_in(path: str) -> ConfigDict:
    """The config of the Python file `path`, or of FILE.py:x, for which ml_collections calls get_config("x")."""
    path, *argument = path.split(".py:", 1)
    return config_of(load_module(path + ".py" if argument else path, "--config"), *argument)


def define_config(required: bool = True) -> None:
    """Defines the flag --config, a file with overrides of its fields; read_config() reads it."""
    text = "Configuration, e.g. configs/quickstart.py; override a field by --config.model.n_experts=8."
    config_flags.DEFINE_config_file("config", None, text, lock_config=True)
    if required:
        flags.mark_flag_as_required("config")


def define_checkpoint() -> None:
    """Defines --workdir, --segment and --step, which choose a checkpoint as checkpoint.find does."""
    flags.DEFINE_string("workdir", None, "Directory of the run, local or gs://.", required=True)
    flags.DEFINE_string("segment", None, "trunk or branch-N. Default: the last branch that has a checkpoint.")
    flags.DEFINE_integer("step", None, "Step of the checkpoint. Default: the newest.")


def read_config() -> ConfigDict:
    """The config of --config and the overrides on the command line, complete and locked."""
    config = schema.complete(flags.FLAGS.config).lock()
    for argument in sys.argv:
        none_field = NONE.fullmatch(argument)
        if none_field:
            config.update_from_flattened_dict({none_field[1]: None})
    return config
