"""Says where tables that state no licence come from, and checks a clone of them.

python -m benchmarks.tables fetch
python -m benchmarks.tables fetch --name=steplaw --clone=/tmp/steplaw
"""

import argparse
import sys

from benchmarks import tables


def main(arguments: list[str] | None = None) -> int:
    """Prints the commands that fetch the tables, or checks a clone; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["fetch"])
    parser.add_argument("--name", choices=sorted(tables.SOURCES), help="One source. Default: all.")
    parser.add_argument("--clone", help="Folder of a clone to check; needs --name.")
    parsed = parser.parse_args(arguments)
    if parsed.clone is not None and parsed.name is None:
        parser.error("--clone needs --name")
    for name in [parsed.name] if parsed.name else sorted(tables.SOURCES):
        source = tables.SOURCES[name]
        if parsed.clone is None:
            print(f"{name}: {source.what}. It states no licence, so it is not copied here.")
            print(f"    git clone {source.repository} /tmp/{name}")
            print(f"    git -C /tmp/{name} checkout {source.commit}")
            for file, checksum in source.files.items():
                print(f"    {file}: SHA-256 {checksum}")
            continue
        for file in source.files:
            try:
                print(f"{tables.table_path(name, parsed.clone, file)}: as expected")
            except tables.WrongTableError as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
