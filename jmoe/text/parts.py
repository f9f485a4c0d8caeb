"""Text prepared by several machines at once, in a shared folder or on gs://: the same bytes as by one machine.

Each machine prepares a part, i of n, and all machines see the same sources.

1. It tokenises every n-th unit (jmoe/text/units.py) into FOLDER/parts-DIGEST/units/. Then it writes the table of their
   documents, `documents-00000.npz`.
2. It waits for the tables of all parts, and chooses from all documents what goes where (prepare.make_plan).
3. It writes every n-th shard, and beside the units `SHARD.json` with the shard's hash.
4. Whichever machine finds all shards written writes FOLDER/manifest.json and deletes FOLDER/parts-DIGEST/.

Files are written whole, and two machines that write one write the same bytes. So a machine that was killed starts again
and repeats only the files that it had not written. Each file is checked when it is read. A machine that finds a damaged
unit, table or SHARD.json makes it again.

Axis legend: N documents of a unit, T tokens of a shard, U units, V tokens of the vocabulary.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Bool, Int, UInt
from ml_collections import ConfigDict
from tqdm import tqdm

from jmoe.errors import Damaged, Unavailable, UserError, first_few
from jmoe.storage import ownership
from jmoe.storage.files import is_remote, make_folder, of_each, read_sealed, sealed, write_whole
from jmoe.text import manifest as manifest_lib
from jmoe.text import prepare
from jmoe.text.manifest import SPLITS
from jmoe.text.sources import Text
from jmoe.text.tokenizer import Tokenizer
from jmoe.text.unit_format import DOCUMENTS, AnyPath, Documents, read_part_documents, write_part
from jmoe.text.units import UnitFiles

PAUSE = 2.0  # seconds between two looks for the tables of other parts
READERS = 8  # threads that read units of a shard


@dataclasses.dataclass(frozen=True)
class Part:
    """Part `number`, from 1 on, of `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """The part that --part names, such as 3/16; UserError for other text."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--part={text}: expected I/N with I from 1 to N, such as 3/16")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def table_path(work: AnyPath, number: int) -> AnyPath:
    """The table of the documents of part `number`; `work`: as of Preparation."""
    return work / f"documents-{number:05}.npz"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the tokens of a split lie in the units.

    Attributes:
      chosen: Of each unit, whether the split has a document of it.
      n_tokens_U: How many tokens of a unit the split has.
      ends_U: Where they end among the tokens of the split.
    """

    chosen: list[Bool[np.ndarray, " N"]]
    n_tokens_U: list[int]
    ends_U: Int[np.ndarray, " U"]

    @classmethod
    def of(cls, plan: prepare.Plan, split: str) -> "Layout":
        chosen = plan.by_unit(split)
        n_tokens_U = [int(table["tokens"][is_in].sum()) for table, is_in in zip(plan.tables, chosen, strict=True)]
        return cls(chosen, n_tokens_U, np.cumsum(n_tokens_U))


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The text, settings and folder that the machines of a preparation share.

    Attributes:
      text: The sources.
      data: config.data.
      tokenizer: The tokenizer that config.data names.
      folder: Where to write.
      shard_tokens: Tokens of a shard.
    """

    text: Text
    data: ConfigDict
    tokenizer: Tokenizer
    folder: epath.Path
    shard_tokens: int

    @property
    def inputs(self) -> str:
        """Identifies the input (prepare.digest)."""
        return prepare.digest(self.text, self.data, self.tokenizer)

    @property
    def work(self) -> epath.Path:
        """The folder of units, tables and hashes of shards."""
        return self.folder / f"parts-{self.inputs}"

    @property
    def files(self) -> UnitFiles:
        """The units of all parts."""
        return UnitFiles(self.text.units(), self.work / "units", self.data, self.tokenizer)

    def table(self, number: int) -> AnyPath:
        """The table of a part's documents."""
        return table_path(self.work, number)

    def done(self) -> bool:
        """Whether all is prepared.

        Raises:
          UserError: The folder has tokens of other text, or its manifest is damaged.
        """
        path = self.folder / "manifest.json"
        if not path.exists():
            return False
        try:
            manifest = manifest_lib.parse(path.read_text())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it, and the same command prepares the text") from None
        if manifest["source"]["inputs"] != self.inputs:
            raise UserError(f"--out_dir={self.folder} holds tokens of other text or other rules; choose another folder")
        return True


def prepare_part(preparation: Preparation, part: Part, n_workers: int) -> bool:
    """Prepares a part.

    Returns:
      Whether all shards of all parts are written, and the manifest.

    Raises:
      UserError: As prepare.prepare; or another process prepares this part, or other parts have other text, another
        tokenizer, another count or other shards.
      Unavailable: The store gave no answer for minutes.
    """
    folder = preparation.folder
    try:
        make_folder(folder)
        with ownership.hold(folder / f".part-{part.number}.lock", "jmoe.prepare"):
            if preparation.done():
                _clean(preparation)
                return True
            _agree(preparation, part)
            files = preparation.files
            if not preparation.table(part.number).exists():
                _tokenise_part(preparation, files, part, n_workers)
            if not _wait_for_tables(preparation, part):
                return True
            _agree(preparation, part)
            return _write_shards(preparation, files, part, part.count)
    except ownership.Taken as error:
        raise UserError(f"--part={part}: another process is preparing it, {error.owner}") from None
    except FileNotFoundError:  # another machine ended the preparation and deleted what this one was reading
        if not preparation.done():
            raise
        return True
    except (UserError, Unavailable, Damaged, OSError):
        raise
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own errors
        if not is_remote(folder):
            raise
        raise UserError(f"--out_dir={folder} cannot be used: {' '.join(str(error).split())[:300]}") from error


def join(preparation: Preparation) -> None:
    """Writes the shards that no machine has written, and the manifest.

    Raises:
      UserError: A part has not tokenised its text, or parts have other text than `preparation`.
    """
    if preparation.done():
        _clean(preparation)
        return
    agreed = _read_agreed(preparation.folder)
    if agreed is None:
        raise UserError(f"--join: {preparation.folder} has no parts; prepare them by --part=1/N to N/N")
    count = agreed["parts"]
    _agree(preparation, Part(1, count))
    missing = _without_table(preparation.work, count)
    if missing:
        raise UserError(f"--join: {_names(missing, count)} not tokenised; run it with --part first")
    _write_shards(preparation, preparation.files, None, count)


def unfinished(folder: AnyPath) -> str:
    """A sentence on what a preparation in parts has not done yet in `folder`; "" where none has begun there.

    Raises:
      UserError: parts.json is damaged.
    """
    agreed = _read_agreed(folder)
    if agreed is None:
        return ""
    count = agreed["parts"]
    missing = _without_table(folder / f"parts-{agreed['inputs']}", count)
    if missing:
        return f"{_names(missing, count)} not tokenised; run it with --part"
    return f"all {count} parts are tokenised, and not all shards are written; --join writes them"


def _read_agreed(folder: AnyPath) -> dict[str, Any] | None:
    """The settings that all parts share, by parts.json; None if there is none. UserError where it is damaged."""
    path = folder / "parts.json"
    if not path.exists():
        return None
    try:
        agreed = read_sealed(path)
    except Damaged as error:
        raise UserError(f"{error}; delete it, and start the parts again with the N that they had") from None
    return None if agreed is None else agreed["record"]


def _agree(preparation: Preparation, part: Part) -> None:
    """Writes the settings that all parts share, if no part has; UserError where they differ from these."""
    path = preparation.folder / "parts.json"
    wanted = {"inputs": preparation.inputs, "parts": part.count, "shard_tokens": preparation.shard_tokens}
    record = _read_agreed(preparation.folder)
    if record is None:
        with _written_by_another():
            write_whole(path, json.dumps(sealed({"record": wanted}), indent=1))
        record = _read_agreed(preparation.folder)
        assert record is not None
    place = f"--out_dir={preparation.folder}"
    if record["inputs"] != wanted["inputs"]:
        raise UserError(
            f"{place}: its parts are of other text, or by another tokenizer or other rules. All machines must see the "
            "same files, of the same names, sizes and times; or choose another folder"
        )
    if record["parts"] != wanted["parts"]:
        raise UserError(f"--part={part}: {place} is prepared in {record['parts']} parts, which would overlap with it")
    if record["shard_tokens"] != wanted["shard_tokens"]:
        raise UserError(
            f"--shard_tokens={preparation.shard_tokens}: the parts in {place} have shards of {record['shard_tokens']}"
        )


@contextlib.contextmanager
def _written_by_another() -> Generator[None]:
    """Lets it pass that another machine has written the object, on gs://, since this one began to."""
    try:
        yield
    except Unavailable as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise


def _tokenise_part(preparation: Preparation, files: UnitFiles, part: Part, n_workers: int) -> None:
    """Tokenises the units of a part that are not there, and writes the table of all their documents."""
    make_folder(epath.Path(files.folder))
    numbers = _units_of(part.number, part.count, len(files.units))
    files.tokenise(numbers, n_workers)
    write_part(preparation.table(part.number), Documents.joined(of_each(files.documents, numbers, preparation.folder)))


def _read_table(preparation: Preparation, files: UnitFiles, part: Part) -> Documents:
    """The documents of a part; makes a damaged table again."""
    path = preparation.table(part.number)
    try:
        return read_part_documents(path)
    except Damaged as error:
        tqdm.write(f"WARNING: {error}; it is made again", file=sys.stderr)
    _tokenise_part(preparation, files, part, 1)
    return read_part_documents(path)


def _units_of(number: int, count: int, n_units: int) -> range:
    """The units of a part."""
    return range(number - 1, n_units, count)


def _without_table(work: AnyPath, count: int) -> list[int]:
    """The parts without a table, which have not tokenised all of their units; `work`: as of Preparation."""
    numbers = range(1, count + 1)
    exist = of_each(lambda number: table_path(work, number).exists(), numbers, work)
    return [number for number, exists in zip(numbers, exist, strict=True) if not exists]


def _wait_for_tables(preparation: Preparation, part: Part) -> bool:
    """Returns True once the tables of all parts are there, False once another machine has prepared all."""
    printed: list[int] = []
    while True:
        missing = _without_table(preparation.work, part.count)
        if not missing:
            return True
        if preparation.done():
            return False
        if missing != printed:
            printed = missing
            print(f"part {part} is tokenised; waiting: {_names(missing, part.count)} not", file=sys.stderr, flush=True)
        time.sleep(PAUSE)


def _names(numbers: list[int], count: int) -> str:
    """Parts in a sentence, up to the verb."""
    shown = first_few(numbers)
    return f"part {shown} of {count} is" if len(numbers) == 1 else f"parts {shown} of {count} are"


def _write_shards(preparation: Preparation, files: UnitFiles, part: Part | None, count: int) -> bool:
    """Writes the shards of `part`, or of all parts where it is None, and the manifest if no other shard is missing.

    Returns:
      Whether the manifest is written.
    """
    tables = [np.empty(0, DOCUMENTS)] * len(files.units)
    n_skipped = 0
    for number in range(1, count + 1):
        of_part = _read_table(preparation, files, Part(number, count))
        n_skipped += of_part.n_skipped
        for i, table in zip(_units_of(number, count, len(files.units)), of_part.tables, strict=True):
            tables[i] = table
    with tempfile.TemporaryDirectory(prefix="jmoe-") as name:
        cut_path = pathlib.Path(name) / "cut.npz"
        plan = prepare.make_plan(files.units, tables, preparation.data, preparation.tokenizer, cut_path)
        shards = {split: prepare.shards_of(plan, split, preparation.shard_tokens) for split in SPLITS}
        layouts = {split: Layout.of(plan, split) for split in SPLITS}
        todo = []
        for split in SPLITS:
            for i, shard in enumerate(shards[split]):
                if part is None or i % count == part.number - 1:
                    todo.append((split, i, shard))
        for split, i, shard in tqdm(todo, desc="writing shards", unit=" shards", disable=None, leave=False):
            if _written_shard(preparation, shard) is None:
                start = i * preparation.shard_tokens
                tokens = np.empty(shard["tokens"], preparation.tokenizer.dtype)
                _fill(tokens, start, layouts[split], plan, files)
                _write_shard(preparation, split, shard, tokens)
        return _finish(preparation, plan, shards, n_skipped)


def _fill(tokens: UInt[np.ndarray, " T"], start: int, layout: Layout, plan: prepare.Plan, files: UnitFiles) -> None:
    """Reads the tokens of a split from `start` on, into `tokens`, from the units that have them."""

    def fill_from(i: int) -> None:
        of_unit = plan.tokens_of_unit(files, i)[np.repeat(layout.chosen[i], plan.tables[i]["tokens"])]
        first = int(layout.ends_U[i]) - layout.n_tokens_U[i] - start  # place of the unit's first token in `tokens`
        of_unit = of_unit[max(0, -first) : len(tokens) - first]
        place = max(0, first)
        tokens[place : place + len(of_unit)] = of_unit

    first_unit = int(np.searchsorted(layout.ends_U, start, "right"))
    last_unit = int(np.searchsorted(layout.ends_U, start + len(tokens), "left"))
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        list(pool.map(fill_from, range(first_unit, last_unit + 1)))


def _write_shard(preparation: Preparation, split: str, shard: dict[str, Any], tokens: UInt[np.ndarray, " T"]) -> None:
    """Writes a shard, and then what the manifest says of it."""
    content = tokens.tobytes()
    write_whole(preparation.folder / shard["file"], content)
    written: dict[str, Any] = {"shard": shard | {"sha256": hashlib.sha256(content).hexdigest()}}
    if split == "validation":
        written["token_counts"] = np.bincount(tokens, minlength=preparation.tokenizer.vocab_size).tolist()
    write_whole(preparation.work / f"{shard['file']}.json", json.dumps(sealed({"record": written})))


def _written_shard(preparation: Preparation, shard: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a shard in SHARD.json; None where there is none, or with a warning where it is damaged."""
    path = preparation.work / f"{shard['file']}.json"
    try:
        written = read_sealed(path)
    except Damaged as error:
        tqdm.write(f"WARNING: {error}; its part, or --join, writes that shard again", file=sys.stderr)
        return None
    return None if written is None else written["record"]


def _finish(
    preparation: Preparation, plan: prepare.Plan, shards: dict[str, list[dict[str, Any]]], n_skipped: int
) -> bool:
    """Writes the manifest and deletes the units if all shards are written; returns whether they are."""
    written: dict[str, list[dict[str, Any]]] = {}
    for split in SPLITS:
        read_shard = functools.partial(_written_shard, preparation)
        records = of_each(read_shard, shards[split], preparation.folder)
        written[split] = [record for record in records if record is not None]
        if len(written[split]) < len(records):
            return preparation.done()
    token_counts: Int[np.ndarray, " V"] = np.sum([record["token_counts"] for record in written["validation"]], axis=0)
    shards_written = {split: [record["shard"] for record in written[split]] for split in SPLITS}
    manifest = prepare.make_manifest(plan, preparation.tokenizer, n_skipped, token_counts, shards_written)
    with _written_by_another():
        prepare.write_manifest(manifest, preparation.data, preparation.inputs, preparation.folder)
    _clean(preparation)
    return True


def _clean(preparation: Preparation) -> None:
    """Deletes what only the preparation needs; other machines may do so at the same time."""
    (preparation.folder / "parts.json").unlink(missing_ok=True)
    if is_remote(preparation.folder):
        if preparation.work.exists():
            preparation.work.rmtree(missing_ok=True)
    else:
        shutil.rmtree(preparation.work, ignore_errors=True)
