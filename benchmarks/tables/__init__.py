"""Tables of runs that state no licence: they are named here, fetched by the reader, and checked by their checksums."""

import dataclasses
import hashlib
import pathlib


@dataclasses.dataclass(frozen=True)
class Source:
    """A repository whose tables are not copied here.

    Attributes:
        repository: where to clone it from.
        commit: the version that figures are of.
        files: {path in the repository: SHA-256}.
        what: what the tables are, and whom to cite.
    """

    repository: str
    commit: str
    files: dict[str, str]
    what: str


SOURCES = {
    "steplaw": Source(
        repository="https://github.com/step-law/steplaw",
        commit="32a8f4cc50247695fb56cc6c9117abdf67c97763",
        files={"data/dense_lr_bs_loss.csv": "9e46181076c04d450294d75dfe6f72adc416e231e154a07b337e378f9410002c"},
        what="1,911 dense runs over grids of learning rate and batch; Li et al. 2025, arXiv 2503.04715",
    ),
    "misfitting": Source(
        repository="https://github.com/Open-Athena/scaling-law-analysis",
        commit="3e0656ee3dce1a2c89aa67691920f5eb9d30f0fc",
        files={
            "data/isoflops/extract/misfitting/isoflops.csv": (
                "f35291c4c7a8770b0dc174757a8ba377080023c4be7a46fdf8e13d812917a8f9"
            )
        },
        what="176 dense runs on FineWeb and C4 at equal FLOPs; Li et al. 2025, arXiv 2502.18969",
    ),
}


class WrongTableError(Exception):
    """A clone does not hold the table that figures are of."""


def table_path(name: str, clone: str | pathlib.Path, file: str) -> pathlib.Path:
    """Returns the path of a file of a clone.

    Args:
        name: of SOURCES.
        clone: its folder.
        file: one of the source's files.

    Raises:
        WrongTableError: The file is missing, or is another version.
    """
    path = pathlib.Path(clone) / file
    expected = SOURCES[name].files[file]
    if not path.is_file():
        raise WrongTableError(f"{path}: no such file; python -m benchmarks.tables fetch says how to get it")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    if checksum != expected:
        raise WrongTableError(f"{path}: SHA-256 {checksum}, expected {expected} of commit {SOURCES[name].commit}")
    return path
