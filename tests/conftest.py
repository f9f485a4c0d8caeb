"""Eight virtual CPU devices, a private cache, and a small corpus shared by the tests."""

import gc
import os
import pathlib
import shutil
import signal
import sys
import time

import helpers
import leftovers

# what a shell starts in the background ignores Ctrl-C, and the tests' processes would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
leftovers.end_with_this_process()
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until pytest_collection_finish: nothing of what is imported is garbage
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes start, and read what the first one compiled
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # more of them would wait for each other: several workers share few cores
flags = [*os.environ.get("XLA_FLAGS", "").split(), *helpers.xla_flags(8).split()]
os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys(flags))  # a worker has them already; compiled programs go by them

import hypothesis  # noqa: E402
import jax  # noqa: E402
import outage  # noqa: E402
import pytest  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402

pytest_plugins = ["skips", "text_fixtures"]
# by this run of the tests and those before, or by those of another checkout
COMPILED = pathlib.Path(os.environ.get("JMOE_TESTS_COMPILED", helpers.ROOT / ".pytest_cache" / "compiled"))

# the same examples in every run, however long a busy machine takes for one
hypothesis.settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Nothing that a test prepares or compiles lands in the user's cache; all processes share what is compiled."""
    path = tmp_path_factory.mktemp("cache")
    os.environ["JMOE_CACHE"] = str(path)
    (path / "compiled").symlink_to(COMPILED)
    jax.config.update("jax_compilation_cache_dir", str(COMPILED))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path


@pytest.fixture
def not_kept():
    """For programs of devices that are not here: none could be read back."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax asks only once whether there is one
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def text_glob(tmp_path_factory) -> str:
    return helpers.write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def browser():
    """A browser of this machine, driven by playwright."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("without chromium: pages are not tested (apt-get install chromium)")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def bucket():
    """A gs:// folder served by a process on this machine, for this process and those it starts."""
    with helpers.bucket() as path:
        yield path


@pytest.fixture(scope="module")
def proxy(bucket):
    """A proxy in front of the bucket; this process and those that it starts reach the bucket through it."""
    from etils.epath import backend

    from jmoe.storage import gcs

    def forget():  # clients keep the address that they were made with
        backend._FileSystemSpecBackend._get_filesystem.cache_clear()
        gcs.Store.clear_instance_cache()

    with outage.proxy(os.environ["STORAGE_EMULATOR_HOST"]) as proxy, pytest.MonkeyPatch.context() as patch:
        for variable in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(variable, proxy.url)
        patch.setenv("JMOE_STORE_PATIENCE", "60" if outage.SECONDS == 1 else "300")
        forget()
        yield proxy
    forget()


@pytest.fixture(scope="module")
def cluster():
    """A Slurm of two nodes on this machine."""
    import slurm

    cluster = slurm.Cluster()
    yield cluster
    cluster.stop()


def pytest_xdist_auto_num_workers():
    """Four workers more than cores: a third of the time of the tests is waiting, for leases, outages and Slurm."""
    return os.cpu_count() + 4


# those of half a minute or more, longest first; those that mostly wait alternate with those that compute
LONGEST = """
jmoe/run/test_train launch/test_gs launch/test_slurm test_accelerator test_readme
fit/planning/test_plan_properties jmoe/storage/test_storage jmoe/model/test_moe launch/test_apiserver
jmoe/storage/test_outage jmoe/model/test_model launch/test_local jmoe/run/test_distributed jmoe/model/test_documents
jmoe/test_rehearsal fit/commands/test_every_form launch/test_slurm_control jmoe/test_startup launch/test_report
jmoe/model/test_mixtures jmoe/storage/test_disk_errors launch/test_control
jmoe/run/test_snapshot jmoe/model/test_mup fit/planning/test_serving jmoe/run/test_loop jmoe/test_generate
fit/render/test_planner jmoe/run/test_router_health jmoe/model/test_gradients jmoe/cost/test_ceilings
fit/commands/test_python fit/render/test_report jmoe/storage/test_power_loss jmoe/storage/test_lease launch/test_trust
jmoe/test_compiled_cache test_command launch/test_owner jmoe/test_contributing jmoe/model/test_flash
fit/planning/test_startable launch/test_faults jmoe/run/test_checkpoint test_site
""".split()


def pytest_sessionstart():
    """What was compiled two weeks ago goes: most of it is of code that has changed since."""
    missing = [name for name in LONGEST if not (helpers.ROOT / f"tests/{name}.py").exists()]
    if missing:
        raise pytest.UsageError(f"LONGEST of tests/conftest.py names files that are not there: {' '.join(missing)}")
    COMPILED.mkdir(parents=True, exist_ok=True)
    for program in COMPILED.iterdir() if "PYTEST_XDIST_WORKER" not in os.environ else ():
        if program.stat().st_mtime < time.time() - 14 * 86_400:
            program.unlink()


def pytest_collection_modifyitems(items):
    """Runs the longest files first: one worker runs all tests of a file, as they share what they trained, so all would
    wait for a long file that is started last."""
    turns = {f"tests/{name}.py": turn for turn, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turns.get(item.nodeid.partition("::")[0], len(turns)))


def pytest_collection_finish():
    """From here on, imported files are those that tests write, some again, as long as before, within a second. And
    garbage is looked for among what tests make: what is imported stays."""
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report):
    """Names a failure at once: a run that is cut off has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        why = getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longreprtext)
        print(f"\nFAILED {report.nodeid} after {report.duration:.0f} s: {why[:3000]}", flush=True)


def pytest_terminal_summary(terminalreporter):
    """Prints the tables that tests recorded (record_property("table", ...)), passed or not."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == "table":
                        terminalreporter.section(report.nodeid.split("::")[-1])
                        terminalreporter.write_line(value)
