"""Wrong versions of the code, one small change each: do the tests notice?

    python -m benchmarks.mutants                      # all of benchmarks/mutants.toml
    python -m benchmarks.mutants --only=jmoe/run      # those of files that begin so
    python -m benchmarks.mutants --known=table.md     # continue: mutants of this table are not run again

It copies the files that git tracks to a temporary folder, checks that the named tests pass there, and changes one file
after another. A mutant has died when a test failed. It prints the table of benchmarks/README.md, and exits with 1 where
a mutant lives, or where its text is no longer in its file.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "mutants.toml"
SECONDS = 900  # of one pytest; a mutant that takes longer hangs, which a person would notice
FAILED = 1  # pytest's exit code where a test failed


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one file.

    Attributes:
      file: its path in the repository.
      old: what stands there once.
      new: what takes its place.
      tests: that should fail, FILE or FILE::TEST below tests/, the cheapest first.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The file's text with the change; ValueError unless `old` stands there once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"its text is {count} times in the file, expected once: mend benchmarks/mutants.toml")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {shown(self.old)} -> {shown(self.new)}"


def shown(code: str) -> str:
    """Code as a cell of a Markdown table."""
    return "`" + " ".join(code.split()).replace("|", "\\|") + "`"


def read(path: pathlib.Path) -> list[Mutant]:
    """The mutants of a table, in its order."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(row["file"], row["old"], row["new"], tuple(row["tests"])) for row in rows]


def copy_of_the_tree(folder: pathlib.Path) -> None:
    """Copies the files that git tracks, as they are in the working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: pathlib.Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests of the copy up to the first failure; returns pytest's exit code and its output."""
    compiled = os.environ.get("JMOE_TESTS_COMPILED", str(ROOT / ".pytest_cache" / "compiled"))
    environment = os.environ | {"PYTHONPATH": str(folder), "JMOE_TESTS_COMPILED": compiled}
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "--durations=0", "--tb=line", "-p", "no:cacheprovider"]
    command += [f"tests/{test}" for test in tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        return FAILED, f"FAILED by hanging for {error.timeout:g} s"
    return done.returncode, done.stdout + done.stderr


def fate(folder: pathlib.Path, mutant: Mutant) -> str:
    """The fate of a mutant: the first test that failed, "lives", or why it could not be tried."""
    path = folder / mutant.file
    original = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied_to(original), encoding="utf-8")
    except ValueError as error:
        return f"not tried: {error}"
    try:
        code, output = run_tests(folder, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if code == 0:
        return "lives"
    failed = re.search(r"^FAILED (?:\S*::)?(\w+|by .*)", output, re.MULTILINE)
    if code != FAILED or failed is None:
        return f"not tried: pytest ended with {code}: {output[-300:]}"
    return failed[1]


def known_fates(path: str | None) -> dict[str, str]:
    """{file, old and new as the table shows them: fate} of a table that this command printed."""
    if path is None:
        return {}
    rows = re.findall(r"^\| (`.*`) \| (\w+) \|$", pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginning of the paths of the files to change")
    parser.add_argument("--known", help="file with a table that this command printed: its mutants are not run again")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutant first")
    options = parser.parse_args()
    mutants = [mutant for mutant in read(TABLE) if mutant.file.startswith(options.only)]
    known = known_fates(options.known)
    fates = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = pathlib.Path(name)
        copy_of_the_tree(folder)
        if not options.unchecked:
            code, output = run_tests(folder, sorted({test for mutant in mutants for test in mutant.tests}))
            if code:
                sys.exit(f"the tests fail without any mutant:\n{output[-2000:]}")
        for i, mutant in enumerate(mutants):
            row = f"`{mutant.file}` | {shown(mutant.old)} | {shown(mutant.new)}"
            fates[row] = known.get(row) or fate(folder, mutant)
            print(f"{i + 1} of {len(mutants)}: {mutant}: {fates[row]}", file=sys.stderr, flush=True)
    print("| file | text | changed to | fails |\n|---|---|---|---|")
    for row, end in fates.items():
        print(f"| {row} | {end} |")
    n_dead = sum(end != "lives" and not end.startswith("not tried") for end in fates.values())
    print(f"\n{n_dead} of {len(fates)} mutants died.")
    sys.exit(n_dead < len(fates))


if __name__ == "__main__":
    main()
