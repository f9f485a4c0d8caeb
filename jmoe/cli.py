"""What every command shares: flags, one sentence for a user's mistake, exit codes.

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
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from jmoe import startup
from jmoe.config import schema
from jmoe.errors import UNAVAILABLE, Failure, Interrupted, Unavailable, UserError, missing_package
from jmoe.storage import durable

flags.disclaim_key_flags()  # --help lists those that are defined here as the command's own


def run(main, config_sections=None) -> None:
    """Parses flags, calls `main(argv)` and exits; UserError and Interrupted end in one line on stderr.

    An OSError that names a full, read-only or forbidden path counts as a user's mistake too, and so does a package that
    is not installed. --help lists the config fields of `config_sections`: () means all sections, None means none.
    """

    def checked(argv):
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
            _drop_echoes()
            app.run(checked, flags_parser=_parse)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  orbax and tensorstore wrap the disk's or the store's
        if isinstance(error, BrokenPipeError):
            try:
                sys.stdout.flush()
            except BrokenPipeError:  # nobody reads our output any more, as after `| head`
                os._exit(128 + signal.SIGPIPE)
        code, message = _told(error)
        if message is None:
            raise
        print(message if code > 128 else f"error: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(code)  # background threads of a failed save must not hold the process up


def _told(error: BaseException) -> tuple[int, str | None]:
    """The exit code and the sentence for an error; no sentence for one that needs a traceback."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command resumes"
    if isinstance(error, Interrupted):
        return 128 + error.signum, str(error)
    if isinstance(error, UserError | Failure):
        return 2 if isinstance(error, UserError) else 1, str(error)
    if outage := unavailable(error):
        return UNAVAILABLE, outage
    return 1 if disk_failed(error) else 2, disk_error(error) or missing_package(error)


def check_flags(given: flags.FlagValues) -> None:
    """Raises UserError for a flag given as nothing, as by an unset variable of the shell, as a place that is neither a
    path nor gs://, or as a number that is not finite. Fields of the config may be so, and flags of the default ""."""
    for flag in (given[name] for name in given if given[name].present and not name.startswith("config.")):
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise UserError(f"--{flag.name}={flag.value} is no finite number")
        words = [value for value in values if isinstance(value, str)]
        if flag.default == "" or not words:
            continue
        if not all(word.strip() for word in words):
            raise UserError(f"--{flag.name}= is empty; give it a value or leave it out")
        if flag.value == words:  # a list, of other options perhaps
            continue
        if words[0].startswith("--") and words[0][2:].partition("=")[0] in given:
            raise UserError(f"--{flag.name} has no value: what follows it is {words[0]}")
        if re.match(r"\w+:/", words[0]) and not re.match(r"gs://\w", words[0]):
            raise UserError(f"--{flag.name}={words[0]}: expected a path on this machine, or gs://BUCKET/...")


def _help(module, config_sections) -> None:
    name = sys.argv[0] if module.__name__ == "__main__" else module.__name__
    if "config" in flags.FLAGS:
        flags.FLAGS.register_key_flag_for_module(name, flags.FLAGS["config"])
    said = f"{module.__doc__}\n{flags.FLAGS.module_help(name)}"
    if config_sections is not None:
        path = _config_path(sys.argv) or "configs/joint_moe.py"
        said += "\n\n" + schema.describe(path, config_in(path), config_sections)
    try:
        print(said, flush=True)
    except BrokenPipeError:
        os._exit(0)


# --config.FIELD=None for a field that is a number or None: a number's flag cannot parse None, so read_config sets it
NONE = re.compile(r"--?config\.([\w.]+)=None")
CONFIG_FIELD = re.compile(r"--?(?:no)?config\.([^=\[]*)")


def installed(path: str) -> str:
    """`path`; for configs/... that is not in the current folder, the path of the file that came with this package."""
    beside = schema.ROOT / path
    return str(beside) if path.startswith("configs/") and not os.path.exists(path) and beside.exists() else path


def unavailable(error: BaseException) -> str | None:
    """The sentence of an Unavailable anywhere in `error`'s chain of causes, or None."""
    return next((str(cause) for cause in _causes(error) if isinstance(cause, Unavailable)), None)


def cores() -> list[int]:
    """The CPU cores that this process may use; all of the machine's where the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


# what the system says of a disk that a user must mend, and of one that failed and may not do so again
UNUSABLE = "ENOSPC EROFS EACCES EDQUOT ENOTDIR EPERM ENAMETOOLONG EISDIR ELOOP".split()
FAILING = "EIO ESTALE EREMOTEIO ENXIO EBADMSG EUCLEAN ETIMEDOUT".split()


def disk_failed(error: BaseException) -> bool:
    """Whether a disk, or a server of files, failed in `error`'s chain of causes."""
    return any(errno.errorcode.get(durable.error_number(cause)) in FAILING for cause in _causes(error))


def disk_error(error: BaseException) -> str | None:
    """One sentence for an unusable disk or a forbidden bucket in `error`'s chain of causes; None if there is none."""
    for cause in _causes(error):
        number = durable.error_number(cause)
        if errno.errorcode.get(number) in (*UNUSABLE, *FAILING):
            path = getattr(cause, "filename", None) or durable.path_in(cause) or "the workdir"
            goes_on = "; the same command goes on from what is saved" if errno.errorcode[number] in FAILING else ""
            return f"cannot use {path}: {os.strerror(number).lower()}{goes_on}"
        if "No space left" in str(cause) or "ENOSPC" in str(cause):
            return "cannot write the workdir: no space left"
        if isinstance(cause, OSError) and str(cause).startswith("Forbidden: "):  # gcsfs's 403
            return " ".join(str(cause).split())
    return None


def _causes(error: BaseException | None):
    """`error` and what it was raised from, each once."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _drop_echoes() -> None:
    """Silences what a failed save or restore leaves behind, which hides the cause: callbacks that find their event loop
    closed, and reads that Python closes unfinished, which Orbax makes an error of."""

    def quiet(hook, exception_of):
        def call(*args):
            error = exception_of(*args)
            closed = isinstance(getattr(error, "__cause__", None), GeneratorExit)
            if not closed and "Event loop is closed" not in str(error):
                hook(*args)

        return call

    sys.excepthook = quiet(sys.excepthook, lambda kind, error, trace: error)
    sys.unraisablehook = quiet(sys.unraisablehook, lambda unraisable: unraisable.exc_value)
    default = threading.excepthook  # the main thread reports a full disk; a library's thread stays silent
    threading.excepthook = lambda args: None if disk_error(args.exc_value) else default(args)


def _parse(argv):
    logging.set_verbosity(logging.FATAL)  # libraries log every step, and every error twice; --verbosity=0 shows it
    if "config" in flags.FLAGS:
        check_config_flags(argv)
    argv = [arg for arg in argv if not NONE.fullmatch(arg)]
    try:
        argv = flags.FLAGS([re.sub("(?<=^--config=).+", lambda path: installed(path[0]), arg) for arg in argv])
    except flags.Error as error:
        if missing := re.match(r"flag --(\w+)=None: Flag --\1 must have a value other than None", str(error)):
            error = f"--{missing[1]} is missing: {flags.FLAGS[missing[1]].help}"
        raise UserError(f"{error}\nPass --help to see the flags.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # an unknown --config.field
        raise UserError(f"--config has no such field or value: {one_line(error)}") from None
    return argv


def check_config_flags(argv: Sequence[str], config: ConfigDict | None = None) -> None:
    """Raises UserError for a --config that is empty or can't be loaded, and for a flag --config.FIELD of a field that
    neither it, nor `config`, nor any config has. ml_collections tells of these in many lines, or in a traceback."""
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
        given = CONFIG_FIELD.match(argument)
        if given and given[1] not in known | sections:
            raise UserError(schema.unknown(given[1], "--config."))


def names_no_field(argument: str) -> bool:
    """Whether an argument is --config.FIELD of a field that no config has."""
    given = CONFIG_FIELD.match(argument)
    return given is not None and given[1] not in schema.FIELDS


def _config_path(argv: Sequence[str]) -> str | None:
    """The value of --config, as --config=VALUE or as the argument after it; None where it is not given."""
    for i, argument in enumerate(argv):
        if re.match(r"--?config=", argument):
            return argument.partition("=")[2]
        if argument in ("--config", "-config"):
            following = "".join(argv[i + 1 : i + 2])
            return "" if following.startswith("-") else following
    return None


def load_module(path: str, what: str):
    """The Python file `path` as a module. UserError, which calls it `what`, where it is no Python file or fails."""
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


def call(function, *args, name: str):
    """function(*args), code of the user's file, which `name` names. UserError, in one line, for whatever it raises."""
    try:
        return function(*args)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  the file is the user's
        reason = missing_package(error) or " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name} fails: {reason}") from None


def one_line(error: BaseException) -> str:
    """What an error says, without the quotes that a KeyError puts around it."""
    return " ".join(str(error.args[0] if error.args else error).split())


def config_of(module, *argument) -> ConfigDict:
    """What get_config() of a module returns; UserError where there is no such function, or it returns anything else."""
    path = module.__file__
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"{path} has no function get_config(), which returns the config")
    config = call(module.get_config, *argument, name=f"{path}: get_config()")
    if not isinstance(config, ConfigDict):
        raise UserError(f"{path}: get_config() must return a ConfigDict, not {config!r:.100}")
    return config


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


def read_config():
    """The locked ConfigDict that --config and the overrides on the command line make."""
    config = flags.FLAGS.config.lock()
    for field in filter(None, map(NONE.fullmatch, sys.argv)):
        config.update_from_flattened_dict({field[1]: None})
    return config
