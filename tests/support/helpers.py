"""Real processes, run as a user runs them, and a configuration small enough to run many times."""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import warm

ROOT = pathlib.Path(__file__).parents[2]

# in front of a config file: where a trainer reads it, every process of a run keeps what it compiles. On CPUs the key of
# a program in the cache differs by process, and jax writes those of the first process alone: the others would compile
# all of it at each start
KEPT_BY_ALL = """
import sys

compiler = sys.modules.get("jax._src.compiler")
if compiler and compiler._cache_write.__name__ == "_cache_write":
    cache_write = compiler._cache_write

    def write_by_all(key, seconds, name, backend, executable, *callbacks):  # jax 0.10 has callbacks
        if compiler.distributed.global_state.process_id and not any(callbacks):
            compiler.compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))
        else:
            cache_write(key, seconds, name, backend, executable, *callbacks)

    compiler._cache_write = write_by_all
"""
CONFIG = """
from configs import quickstart

def get_config():
    config = quickstart.get_config()
    config.n_tokens = (8_192, 16_384)
    config.model.d_model = 32
    config.model.n_blocks = 1
    config.model.n_heads = 2
    config.model.group_tokens = 256
    config.data.seq_len = 32
    config.data.validation_tokens = 2_048
    config.data.path = {path!r}
    config.batch_tokens = {batch_tokens}
    config.optimizer.warmup_tokens = 1_024
    config.log_every = 1
    config.checkpoint_every = {checkpoint_every}
    return config
"""


def write_text(folder) -> str:
    """A few hundred small files of real text, modules of the standard library; returns their glob."""
    for source in sorted(pathlib.Path(os.__file__).parent.glob("*.py")):
        (folder / f"{source.stem}.txt").write_bytes(source.read_bytes())
    return f"{folder}/*.txt"


# in front of a config file: all that read it wait a third as long for the requests of a dead owner
SHORT_LEASES = "from jmoe.storage import lease\n\nlease.RENEW_EVERY, lease.EXPIRY = 2.0, 60.0\n"
# in front of a config file: where it is read by a trainer, that waits at each step as long as a file exists
SLOW_STEPS = """
import pathlib
import sys
import time

log = sys.modules.get("jmoe.run.log")
if log and log.Log.write.__name__ == "write":
    write = log.Log.write

    def slowly(self, *values):
        write(self, *values)
        if pathlib.Path({slow!r}).exists():
            time.sleep(1)

    log.Log.write = slowly
"""
GROWING = ((0, 256), (4_096, 512))  # batches of two sizes: two steps to compile


def write_config(folder, text_glob, batch_tokens=GROWING[:1], checkpoint_every=20):
    """A config file in `folder`; its runs take a few seconds, and each save as long as a dozen of its steps."""
    path = folder / "tiny.py"
    fields = CONFIG.format(path=text_glob, batch_tokens=batch_tokens, checkpoint_every=checkpoint_every)
    path.write_text(KEPT_BY_ALL + fields)
    return path


def slow_steps(config: pathlib.Path) -> pathlib.Path:
    """Has the trainers of a config file take a second a step, and no processor, while the returned file exists:
    a run is long enough for what is done to it meanwhile, and short once the file is gone."""
    slow = config.with_suffix(".slow")
    slow.touch()
    config.write_text(SLOW_STEPS.format(slow=str(slow)) + config.read_text())
    return slow


def xla_flags(n_devices: int) -> str:
    """XLA's flags: virtual CPU devices; little optimisation, as compiling dominates the tests; the same mathematics."""
    flags = [
        f"--xla_force_host_platform_device_count={n_devices}",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # on two busy cores, eight threads may be late for a collective; by default XLA ends the process after 40 s
        "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    ]
    version = importlib.metadata.version("jaxlib")  # XLA ends a process that names a flag it lacks
    if version.startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")  # compiles in a third of the time
    if version.startswith("0.12."):
        flags.append("--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE")  # a tenth less
    return " ".join(flags)


def environment(n_devices: int = 1) -> dict:
    compiled = os.path.join(os.environ["JMOE_CACHE"], "compiled")  # one compilation for all the starts of a config
    return os.environ | {
        "XLA_FLAGS": xla_flags(n_devices),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def command(module: str, *flags) -> list[str]:
    return [sys.executable, "-m", module, *map(str, flags)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(module: str, *flags, n_processes: int = 1, n_devices: int = 1, stderr=subprocess.PIPE) -> list:
    """The processes of one run, joined by jax.distributed where there are several; `n_devices` on each."""
    joined = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(n_processes)}
    places = [joined | {"JAX_PROCESS_ID": str(i)} for i in range(n_processes)] if n_processes > 1 else [{}]
    return [
        begin(module, flags, environment(n_devices) | place, stdout=subprocess.DEVNULL, stderr=stderr)
        for place in places
    ]


def begin(module: str, flags, env: dict, **places):
    """subprocess.Popen of a command, or for jmoe's what behaves as one and starts in half the time."""
    if module.startswith("jmoe.") and sys.platform == "linux":  # elsewhere a fork is not safe after these imports
        return warm.Process(module, [*map(str, flags)], env, **places)
    return subprocess.Popen(command(module, *flags), env=env, text=True, **places)


def wait_until(condition, processes=(), seconds: float = 200.0, every: float = 0.02) -> None:
    """Waits until `condition()` holds, a process has ended, or `seconds`, far too long, have passed; looks `every` so
    many seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and all(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(every)


def spawn(module: str, *flags, env: dict | None = None, **places) -> subprocess.Popen:
    """The process of a command, with these variables more."""
    return subprocess.Popen(command(module, *flags), env=environment() | (env or {}), text=True, **places)


def run(
    module: str, *flags, n_devices: int = 1, timeout: float = 300, env: dict | None = None
) -> subprocess.CompletedProcess:
    """What a command ends with, with the variables `env` more."""
    variables = environment(n_devices) | (env or {})
    process = begin(module, flags, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, *output)


def succeeds(module: str, *flags, **options) -> subprocess.CompletedProcess:
    """As `run`, of a command that must end with exit code 0."""
    done = run(module, *flags, **options)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done


def fails(module: str, *flags, n_devices: int = 1) -> str:
    """Runs a command that must fail as a user's mistake should: exit code 2, no traceback. Returns its stderr."""
    done = run(module, *flags, n_devices=n_devices)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    sentences = [
        line for line in done.stderr.splitlines() if line.startswith("error: ") or "Error" in line or "flag" in line
    ]
    assert sentences, done.stderr
    return done.stderr


@contextlib.contextmanager
def bucket():
    """A gs:// folder without a cloud: a real server of the GCS API as a process, its objects in memory.

    Within the block, the environment of this process, and of those it starts, points to that server.
    """
    port = free_port()
    name = "jmoe-test"
    program = str(pathlib.Path(__file__).with_name("gcs_server.py"))
    flags = ["start", "--host=127.0.0.1", f"--port={port}", "--in-memory", f"--default-bucket={name}"]
    server = subprocess.Popen([sys.executable, program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    variables = "TENSORSTORE_GCS_HTTP_URL", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK"
    before = {variable: os.environ.pop(variable, None) for variable in variables}
    try:
        wait_until(answers, [server])
        assert answers(), "the storage emulator does not start"
        os.environ |= dict.fromkeys(variables, f"http://127.0.0.1:{port}")
        os.environ["NO_GCE_CHECK"] = "true"  # else google.auth looks for a cloud's credentials at every listing
        yield f"gs://{name}"
    finally:
        server.kill()
        server.wait()
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value


def odd_path() -> str:
    """A value that any shell that it passes through would change or execute."""
    return "no such $(touch pwned) `touch pwned` $HOME 'file' \"here\"\n*.txt; touch pwned"


def fingerprint(text_glob) -> str:
    """Prepares the corpus of these files and returns its fingerprint; a trainer that is given that needs no path."""
    from configs import quickstart
    from jmoe.text import corpus

    config = quickstart.get_config()
    config.data.path = text_glob
    return corpus.load(config.data).fingerprint


def blocks(path) -> list[list[str]]:
    """The commands of each ```sh block, continued lines joined."""
    result = re.findall(r"^```sh\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [
        [line.split("  #")[0].strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        for block in result
    ]


def typed_again(said: str) -> list[str]:
    """The words of the command of fit that an error ends with."""
    _, works, command = said.splitlines()[-1].partition("  this works: python -m fit ")
    assert works, said
    return shlex.split(command)


def typed_commands() -> list[str]:
    """The commands of the ```sh blocks of README and docs, in their order, each once."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return list(dict.fromkeys(command for page in pages for block in blocks(page) for command in block))


def halt(pid: int) -> None:
    """Stops a process; returns when all its threads stand still, which takes a while on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    for state in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            while state.read_text().rpartition(")")[2].split()[0] != "T":
                assert time.monotonic() < deadline, f"process {pid} does not stop"
                time.sleep(0.01)
