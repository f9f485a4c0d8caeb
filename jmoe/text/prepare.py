"""Text to sharded files of tokens, by several processes, resumable after a kill at any moment.

The processes tokenise units of text (jmoe/text/units.py) in any order into files in FOLDER/units-DIGEST/. Then one
process goes through the units in order, drops repeated documents and holds out 1% (jmoe/text/holdout.py). It writes
FOLDER/SPLIT-00000.bin, ... and last of all FOLDER/manifest.json. The result depends neither on the number of processes
nor on how often they were killed. jmoe/text/parts.py does the same with several machines.

Axis legend: N documents of a unit, or of all units; T tokens of a unit; V tokens of the vocabulary.
"""

import dataclasses
import hashlib
import json
import pathlib
import shutil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt
from ml_collections import ConfigDict
from tqdm import tqdm

from jmoe.errors import UserError
from jmoe.storage import durable
from jmoe.storage.files import sealed, write_whole
from jmoe.text import holdout, sources
from jmoe.text import manifest as manifest_lib
from jmoe.text.manifest import SPLITS
from jmoe.text.tokenizer import Tokenizer
from jmoe.text.unit_format import DOCUMENTS, AnyPath, Documents, DocumentTable, read_tokens, read_unit_documents
from jmoe.text.units import Split, Unit, UnitFiles, tokenise_unit

SHARD_TOKENS = 2**28


@dataclasses.dataclass(frozen=True)
class Plan:
    """The documents of each split.

    Attributes:
      tables: Of each unit, in their order.
      chosen: By split, whether it has a document, [N] of all units.
      fingerprint: As of holdout.Selection.
      cut_unit: The unit that was tokenised again, with one of its documents as two; None if there is none.
      cut_path: The file of that unit, if there is one.
    """

    tables: list[DocumentTable]
    chosen: dict[str, Bool[np.ndarray, " N"]]
    fingerprint: str
    cut_unit: int | None
    cut_path: pathlib.Path

    def of_split(self, split: str) -> DocumentTable:
        """The documents of a split, in their order."""
        tables = []
        for table, is_chosen in zip(self.tables, self.by_unit(split), strict=True):
            tables.append(table[is_chosen])
        return np.concatenate(tables)

    def by_unit(self, split: str) -> list[Bool[np.ndarray, " N"]]:
        """Whether the split has a document, of each unit."""
        ends = np.cumsum([len(table) for table in self.tables])
        return np.split(self.chosen[split], ends[:-1])

    def tokens_of_unit(self, files: UnitFiles, number: int) -> UInt[np.ndarray, " T"]:
        """The tokens of a unit, of the documents in its table.

        Raises:
          UserError: It had to be tokenised again, and its source has changed since the first time.
        """
        if number == self.cut_unit:
            return read_tokens(self.cut_path)
        tokens = files.tokens(number)
        if len(tokens) != self.tables[number]["tokens"].sum():
            _, unit = files.units[number]
            raise _changed(unit)
        return tokens


def rules(tokenizer: Tokenizer) -> str:
    """Everything that the tokens of a corpus depend on, apart from the documents."""
    return f"{tokenizer.rules}, dedup by sha256, 1% by hash, v1"


def digest(text: sources.Text, data: ConfigDict, tokenizer: Tokenizer) -> str:
    """Identifies the input of a preparation by names, sizes and times, without reading it: 16 hex digits."""
    # another way to hold out is another preparation
    lines = [rules(tokenizer), "hold-out v2", f"{data.on_bad_document} bad documents", *text.stamps()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def prepare(
    text: sources.Text,
    data: ConfigDict,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    n_workers: int = 1,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Tokenises `text` into `folder`. While it works it takes twice the tokens' space on disk.

    Args:
      text: The sources.
      data: config.data.
      tokenizer: The tokenizer that config.data names.
      folder: Where to write; what a killed preparation left there is used.
      n_workers: Processes that tokenise.
      shard_tokens: Tokens of a shard.

    Returns:
      The manifest.

    Raises:
      UserError: A source can't be read, a document is bad and config.data.on_bad_document is "fail", or there is too
        little text to hold any out.
      OSError: `folder` can't be written.
    """
    inputs = digest(text, data, tokenizer)
    work = folder / f"units-{inputs}"
    durable.make_folder(work)
    files = UnitFiles(text.units(), work, data, tokenizer)
    files.tokenise(range(len(files.units)), n_workers)
    manifest = _write(files, work / "cut.npz", folder, shard_tokens)
    write_manifest(manifest, data, inputs, folder)
    clean(folder)
    return manifest


def write_manifest(manifest: dict[str, Any], data: ConfigDict, inputs: str, folder: AnyPath) -> None:
    """Adds to `manifest` what it was prepared from (`inputs`: `digest`), and writes it."""
    manifest["source"] = {"train": data.path, "validation": data.validation_path, "inputs": inputs}
    write_whole(folder / "manifest.json", json.dumps(sealed(manifest), indent=1))


def clean(folder: pathlib.Path) -> None:
    """Removes the temporary files of a preparation, also those that one leaves if it is killed at its end."""
    for stale in folder.glob("units-*"):
        shutil.rmtree(stale)
    for stale in folder.glob("manifest.json.*"):
        stale.unlink()


def make_plan(
    units: list[Unit], tables: list[DocumentTable], data: ConfigDict, tokenizer: Tokenizer, cut_path: pathlib.Path
) -> Plan:
    """Chooses the documents of each split.

    Args:
      units: All units.
      tables: The documents of each.
      data: config.data.
      tokenizer: The tokenizer that config.data names.
      cut_path: Where to write the unit that has to be tokenised again, if one has.

    Raises:
      UserError: A split has no document, or a source has changed since its unit was tokenised.
    """
    documents = np.concatenate([np.empty(0, DOCUMENTS), *tables])
    in_validation_path = [split == "validation" for split, _ in units]
    is_validation = np.repeat(in_validation_path, [len(table) for table in tables]).astype(bool)
    selection = holdout.choose(documents, is_validation, bool(data.validation_path), rules(tokenizer))
    chosen = {
        "train": selection.unique & ~selection.held_out,
        "validation": selection.unique & selection.held_out,
    }
    cut = selection.cut
    cut_unit = None
    if cut:
        cut_unit = int(np.searchsorted(np.cumsum([len(table) for table in tables]), cut.index, "right"))
        n_before = sum(len(table) for table in tables[:cut_unit])
        _, unit = units[cut_unit]
        cut_table = _cut_document(unit, tables[cut_unit], cut.index - n_before, cut.tail, cut_path, data, tokenizer)
        tables = [*tables[:cut_unit], cut_table, *tables[cut_unit + 1 :]]
        chosen = {split: np.insert(chosen[split], cut.index + 1, split == "validation") for split in SPLITS}
    n_documents = {split: int(np.sum(chosen[split])) for split in SPLITS}
    if not all(n_documents.values()):
        raise UserError(_too_little(n_documents, data))
    return Plan(tables, chosen, selection.fingerprint, cut_unit, cut_path)


def _write(files: UnitFiles, cut_path: pathlib.Path, folder: pathlib.Path, shard_tokens: int) -> dict[str, Any]:
    """Writes the shards of both splits; returns the manifest."""
    tokenizer = files.tokenizer
    numbers = range(len(files.units))
    documents = Documents.joined([files.documents(number) for number in numbers])
    plan = make_plan(files.units, documents.tables, files.data, tokenizer, cut_path)
    for stale in folder.glob("*.bin"):  # of a preparation that was killed
        stale.unlink()
    writers = {split: _ShardWriter(folder, shards_of(plan, split, shard_tokens), shard_tokens) for split in SPLITS}
    token_counts = _write_tokens(files, plan, writers)
    shards = {split: writers[split].written() for split in SPLITS}
    return make_manifest(plan, tokenizer, documents.n_skipped, token_counts, shards)


def make_manifest(
    plan: Plan,
    tokenizer: Tokenizer,
    n_skipped: int,
    token_counts: Int[np.ndarray, " V"],
    shards: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """The manifest, but for its `source`.

    Args:
      plan: Which documents went where.
      tokenizer: What tokenised them.
      n_skipped: How many bad documents were left out.
      token_counts: How often each token is held out.
      shards: Of each split, as they were written.
    """
    documents = {split: plan.of_split(split) for split in SPLITS}
    n_bytes = {split: int(documents[split]["bytes"].sum()) for split in SPLITS}
    return {
        "fingerprint": plan.fingerprint,
        "rules": rules(tokenizer),
        "tokenizer": tokenizer.describe(),
        "dtype": tokenizer.dtype.name,
        "documents": {split: len(documents[split]) for split in SPLITS},
        "tokens": {split: int(documents[split]["tokens"].sum()) for split in SPLITS},
        "bytes": n_bytes,
        "skipped": n_skipped,
        "token_bytes": manifest_lib.pack(_token_bytes(token_counts, tokenizer, n_bytes["validation"])),
        "shards": shards,
    }


def shards_of(plan: Plan, split: str, shard_tokens: int) -> list[dict[str, Any]]:
    """The file, documents and tokens of each shard of a split; a document counts where it ends."""
    ends = np.cumsum(plan.of_split(split)["tokens"])
    n_tokens = int(ends[-1])
    shards = []
    for i, n_documents in enumerate(np.bincount((ends - 1) // shard_tokens).tolist()):
        tokens = min(shard_tokens, n_tokens - i * shard_tokens)
        shards.append({"file": f"{split}-{i:05}.bin", "documents": n_documents, "tokens": tokens})
    return shards


def _write_tokens(files: UnitFiles, plan: Plan, writers: dict[str, "_ShardWriter"]) -> Int[np.ndarray, " V"]:
    """Writes the tokens of the chosen documents of each split; returns how often each token is held out."""
    token_counts = np.zeros(files.tokenizer.vocab_size, np.int64)
    chosen = {split: plan.by_unit(split) for split in SPLITS}
    numbers = range(len(files.units))
    for i in tqdm(numbers, desc="writing shards", unit=" units", disable=None, leave=False):
        tokens = plan.tokens_of_unit(files, i)
        for split in SPLITS:
            tokens_of_split = tokens[np.repeat(chosen[split][i], plan.tables[i]["tokens"])]
            writers[split].append(tokens_of_split)
            if split == "validation":
                token_counts += np.bincount(tokens_of_split, minlength=len(token_counts))
    return token_counts


def _too_little(n_documents: dict[str, int], data: ConfigDict) -> str:
    """The error for text that leaves a split without documents."""
    if not data.validation_path:
        return (
            f"config.data.path={data.path!r}: {sum(n_documents.values())} different document(s) can't be split into "
            "training and validation; give more text, or held-out files by config.data.validation_path"
        )
    if not n_documents["validation"]:
        return f"config.data.validation_path={data.validation_path!r} holds no text"
    return f"config.data.path={data.path!r} holds no text that config.data.validation_path does not hold out"


def _cut_document(
    unit: list[sources.Piece],
    table: DocumentTable,
    row: int,
    tail: int,
    path: pathlib.Path,
    data: ConfigDict,
    tokenizer: Tokenizer,
) -> DocumentTable:
    """Tokenises a unit again, with the document in `row` of its table as two: the second is its tail, and held out.

    Writes the unit to `path`; returns its new table.
    """
    tokenise_unit(unit, path, data, tokenizer, Split(table["sha256"][row], tail))
    (cut_table,) = read_unit_documents(path).tables
    if len(cut_table) != len(table) + 1 or np.any(np.delete(cut_table, [row, row + 1]) != np.delete(table, row)):
        raise _changed(unit)
    return cut_table


def _changed(unit: list[sources.Piece]) -> UserError:
    """The error for a unit whose source changed between two looks."""
    return UserError(f"{unit[0].path} changed while it was prepared; the same command starts it again")


def _token_bytes(token_counts: Int[np.ndarray, " V"], tokenizer: Tokenizer, n_bytes: int) -> Float[np.ndarray, " V"]:
    """UTF-8 bytes that each token encodes, scaled so that the held-out tokens sum to the held-out text's bytes.

    The scale is 1 except for tokenizers that change or drop characters.

    Args:
      token_counts: How often each token occurs in the held-out text.
      tokenizer: The tokenizer.
      n_bytes: Size of the held-out text.
    """
    lengths = tokenizer.byte_lengths()
    total = int(token_counts @ lengths)
    if total:
        return lengths * (n_bytes / total)
    return np.full(len(token_counts), n_bytes / max(1, token_counts.sum()))


class _ShardWriter:
    """Writes the tokens of one split, `shard_tokens` to a file."""

    def __init__(self, folder: pathlib.Path, shards: list[dict[str, Any]], shard_tokens: int) -> None:
        """`shards`: as shards_of gives them."""
        self._shards = shards
        self._hashes = [hashlib.sha256() for _ in shards]
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._n_tokens = 0

    def append(self, tokens: UInt[np.ndarray, " T"]) -> None:
        """Writes tokens behind those that are written."""
        while len(tokens):
            i, n_in_shard = divmod(self._n_tokens, self._shard_tokens)
            part, tokens = np.split(tokens, [self._shard_tokens - n_in_shard])
            path = self._folder / self._shards[i]["file"]
            with durable.named(path), open(path, "ab") as file:
                file.write(part.data)
            self._hashes[i].update(part.data)
            self._n_tokens += len(part)

    def written(self) -> list[dict[str, Any]]:
        """The file, documents, tokens and sha256 of each shard, once all are on the disk."""
        for shard, hash_of_shard in zip(self._shards, self._hashes, strict=True):
            durable.sync_file(self._folder / shard["file"])
            shard["sha256"] = hash_of_shard.hexdigest()
        durable.sync_folder(self._folder)
        return self._shards
