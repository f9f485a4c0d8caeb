"""Real processes, run as a user runs them, and a configuration small enough to run many times."""

import os
import subprocess
import sys

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
    config.batch_tokens = ((0, 256), (4_096, 512))
    config.optimizer.warmup_tokens = 1_024
    config.log_every = 1
    config.checkpoint_every = 5
    return config
"""


def write_config(folder, text_glob, **replace):
    """A config file in `folder`; its runs take a few seconds."""
    path = folder / "tiny.py"
    path.write_text(CONFIG.format(path=text_glob))
    return path


def environment(n_devices: int = 1) -> dict:
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    compiled = os.path.join(os.environ["JMOE_CACHE"], "compiled")  # one compilation for all the starts of a config
    return os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices} {flags}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def command(module: str, *flags) -> list[str]:
    return [sys.executable, "-m", module, *map(str, flags)]


def run(module: str, *flags, n_devices: int = 1, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(module, *flags), env=environment(n_devices), capture_output=True, text=True, timeout=300, **options
    )


def fails(module: str, *flags, n_devices: int = 1) -> str:
    """Runs a command that must fail as a user's mistake should; returns its one sentence."""
    done = run(module, *flags, n_devices=n_devices)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    sentences = [
        line for line in done.stderr.splitlines() if line.startswith("error: ") or "Error" in line or "flag" in line
    ]
    assert sentences, done.stderr
    return done.stderr
