"""Build the container image of this checkout, for --backend=gke.

python -m launch.image --image=REGISTRY/jmoe:TAG [--extra=cuda] [--platform=linux/arm64] [--push]

A pod trains a job only with the code that the sweep was started with (jmoe/version.py). So the image gets this folder
as it is, uncommitted edits included, and the version of jax that is installed here. The build fails if the image's code
is not the same as this checkout's.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import importlib.metadata
import pathlib
import shlex
import shutil
import subprocess

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.version import code_version

ROOT = pathlib.Path(__file__).parents[1]
BUILDERS = ("docker", "podman")

IMAGE = flags.DEFINE_string("image", None, "Name of the image to build. Give it to launch.sweep --image too.")
EXTRA = flags.DEFINE_enum("extra", "tpu", ["tpu", "cuda", "train"], "Extra to install: for TPUs, GPUs or CPUs.")
PLATFORM = flags.DEFINE_string("platform", None, "linux/amd64, or linux/arm64 for GB200. Default: this machine's.")
PUSH = flags.DEFINE_bool("push", False, "Push the image to its registry.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands without running them.")
EXPECT = flags.DEFINE_string("expect", None, "Build nothing. Fail unless the code here has this version.")


def main(_: object) -> None:
    """Builds, and with --push pushes, the image; with --expect, only compares the version of the code."""
    if EXPECT.value:
        code = code_version()
        if code != EXPECT.value:
            raise UserError(f"the image's code is {code}, not {EXPECT.value}")
        return
    if IMAGE.value is None:
        raise UserError("--image is missing: the name of the image, as europe-docker.pkg.dev/PROJECT/REPOSITORY/jmoe:1")
    if not (ROOT / "Dockerfile").exists():
        raise UserError(f"{ROOT} has no Dockerfile: an image is built from a checkout of the repository")
    builder = next(filter(shutil.which, BUILDERS), BUILDERS[0] if DRY_RUN.value else None)
    if builder is None:
        raise UserError(f"an image is built by {' or '.join(BUILDERS)}, and neither is on this machine's PATH")
    commands = [_build_command(builder, IMAGE.value)]
    if PUSH.value:
        commands.append([builder, "push", IMAGE.value])
    for command in commands:
        print(shlex.join(command), flush=True)
        if DRY_RUN.value:
            continue
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        if code:
            raise UserError(f"{builder} {command[1]} failed with exit code {code}; what it printed says why")
    print(f"{IMAGE.value} {'would hold' if DRY_RUN.value else 'holds'} code {code_version()}")


def _build_command(builder: str, image: str) -> list[str]:
    """The command that builds the image of this checkout."""
    arguments = {"EXTRA": EXTRA.value, "JAX": importlib.metadata.version("jax"), "CODE": code_version()}
    command = [builder, "build", f"--tag={image}"]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    if PLATFORM.value:
        command.append(f"--platform={PLATFORM.value}")
    return [*command, str(ROOT)]


if __name__ == "__main__":
    cli.run(main)
