"""The text of results/: the Python source in fourteen pinned packages of PyPI, the same bytes on every machine.

    python -m results.text --out=runs/bytes_2026/text.parquet

132 MB written by people, with a row for each file, in the order of results/text.txt and of the files' names. Four
spaces of indentation become a tab: otherwise three bytes in ten are spaces, more than the capacity of the expert that
gets them. pip checks each package against its hash. `config.data.fingerprint` in configs/bytes_2026.py checks the
result.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

import pyarrow
import pyarrow.parquet
from absl import flags

from jmoe import cli

OUT = flags.DEFINE_string("out", None, "Parquet file to write, with a column `text`.", required=True)
LIST = pathlib.Path(__file__).with_name("text.txt")
ROWS = 1_000  # in a row group: what one process reads at a time
INDENT = re.compile(r"^(?: {4})+", re.MULTILINE)


def main(_: object) -> None:
    """Writes the file."""
    with tempfile.TemporaryDirectory() as folder:
        download(folder)
        texts = [text for line in LIST.read_text().splitlines() for text in sources(folder, line)]
    path = pathlib.Path(OUT.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # 24 MB, which can be carried to a host without a network
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts}), part, row_group_size=ROWS, compression="zstd", compression_level=12
    )
    part.replace(path)
    print(f"{path}: {len(texts):,} files, {sum(len(text.encode()) for text in texts):,} bytes")


def download(folder: str) -> None:
    """Downloads each package of the list into `folder`, as the wheel for any machine."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--python-version=3.12", "--platform=any", f"--requirement={LIST}", f"--dest={folder}"]
    )
    if done.returncode:
        sys.exit(f"pip could not download the packages of {LIST}")


def sources(folder: str, line: str) -> Iterator[str]:
    """Yields the text of each .py file of the package that a line of the list names, except what is not UTF-8."""
    name, version = line.split(" ")[0].split("==")
    (wheel,) = pathlib.Path(folder).glob(f"{name.replace('-', '_')}-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for file in sorted(archive.namelist()):
            if file.endswith(".py"):
                try:
                    yield INDENT.sub(lambda spaces: "\t" * (len(spaces[0]) // 4), archive.read(file).decode())
                except UnicodeDecodeError:
                    pass


if __name__ == "__main__":
    cli.run(main)
