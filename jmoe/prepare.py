"""Tokenises text once, in parallel: python -m jmoe.prepare --config=configs/NAME.py --out_dir=DIR.

    python -m jmoe.prepare --config=configs/joint_moe.py --config.data.path='fineweb/*.parquet' --out_dir=fineweb-gpt2
    python -m jmoe.train --config=configs/joint_moe.py --config.data.path=fineweb-gpt2 --workdir=DIR

config.data says which text, which tokenizer and what is held out. After a kill the same command continues and ends
with the same bytes.

Several machines prepare one folder, shared or on gs://, where each gets a part: --part=1/16 to --part=16/16. The result
has the same bytes again. --join ends what they left undone.

--verify prepares nothing; it checks the shards of DIR against their hashes, and that bytes are UTF-8. Each source of
config.data.mixture gets a folder of its own in DIR; the last line printed is the field that names them.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import pathlib
from typing import Any

from absl import flags
from etils import epath
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config.check import check_text
from jmoe.config.schema import check_fields
from jmoe.errors import UserError
from jmoe.storage import ownership
from jmoe.storage.files import absolute, is_remote
from jmoe.text import corpus, mixture, parts, prepare, sources, tokenizer
from jmoe.text import manifest as manifest_lib
from jmoe.text.manifest import SPLITS


def main(_: list[str]) -> None:
    options = flags.FLAGS
    if options.verify:
        if is_remote(options.out_dir):
            raise UserError(f"--out_dir={options.out_dir}: --verify reads a local folder; copy it there")
        _verify(pathlib.Path(options.out_dir).expanduser().absolute())
        return
    if is_remote(options.out_dir):
        folder = absolute(options.out_dir)
    else:
        folder = epath.Path(pathlib.Path(options.out_dir).expanduser().absolute())
    if options.config is None:
        raise UserError("--config must say what to prepare")
    config = cli.read_config()
    check_fields(config)
    check_text(config.data)
    weights = dict(config.data.mixture)
    if not weights:
        _prepare_and_describe(config.data, config.data.path, folder)
        return
    places = {}  # of the sources: the path as it is where that is prepared, else a folder of its own
    for i, path in enumerate(weights):
        if corpus.is_prepared(path):
            places[path] = path
        else:
            places[path] = str(folder / f"source-{i:03}")
            _prepare_and_describe(config.data, path, folder / f"source-{i:03}")
    print(f"config.data.mixture = {tuple((places[path], weight) for path, weight in weights.items())!r}")


def _verify(folder: pathlib.Path) -> None:
    """Checks and describes a prepared folder, or those of a mixture's sources in it."""
    for source in sorted(folder.glob("source-*")) or [folder]:
        if not (source / "manifest.json").exists():
            raise UserError(f"--out_dir={source} is not prepared: manifest.json is missing; {_left_undone(source)}")
        text = corpus.open_folder(source, verify=True)
        corpus.check_utf8(text, source)
        describe(text.manifest, source)


def _left_undone(folder: pathlib.Path) -> str:
    """The sentence on a folder without a manifest."""
    by_parts = parts.unfinished(folder)
    if by_parts:
        return by_parts
    n_units = len(list(folder.glob("units-*/[0-9]*.npz")))
    if n_units:
        return f"{n_units} units of text are tokenised; the same command without --verify goes on from there"
    return "nothing in it is tokenised; the command without --verify prepares it"


def _prepare_and_describe(data: ConfigDict, path: str, folder: epath.Path) -> None:
    """Prepares the text at `path`, by the rules of `data` (config.data), or its --part, in `folder`."""
    options = flags.FLAGS
    data = corpus.of_path(data, path)
    if not (options.part or options.join or is_remote(folder)):
        local = pathlib.Path(folder)
        prepare_folder(data, local, options.workers, options.shard_tokens)
        describe(corpus.open_folder(local).manifest, local, data)
        return
    text = sources.find(data)
    encoder = tokenizer.load(data.tokenizer, data.end_of_text)
    preparation = parts.Preparation(text, data, encoder, folder, options.shard_tokens)
    if options.join:
        parts.join(preparation)
    else:
        part = parts.Part.parse(options.part or "1/1")
        if not parts.prepare_part(preparation, part, options.workers):
            print(f"part {part} is done in {folder}; the last part to end writes the manifest")
            return
    describe(manifest_lib.parse((folder / "manifest.json").read_text()), folder, data)


def describe(manifest: dict[str, Any], folder: pathlib.Path | epath.Path, data: ConfigDict | None = None) -> None:
    """Prints what a prepared folder has.

    Args:
      manifest: Its manifest.
      folder: Its path.
      data: The config.data that it was prepared for now, if it was.
    """
    for split in SPLITS:
        n_documents = manifest["documents"][split]
        n_tokens = manifest["tokens"][split]
        n_bytes = manifest["bytes"][split]
        print(
            f"{split}: {n_documents:,} documents, {n_tokens:,} tokens of {n_bytes / n_tokens:.3f} bytes, "
            f"{len(manifest['shards'][split])} shards"
        )
    if manifest.get("skipped"):
        print(corpus.skipped_warning(manifest["skipped"]))
    if data:
        warning = mixture.held_out_warning(manifest["tokens"]["validation"], data)
        if warning:
            print(warning)
    print(f"corpus {manifest['fingerprint']} by tokenizer {manifest['tokenizer']['name']} in {folder}")


def prepare_folder(data: ConfigDict, folder: pathlib.Path, n_workers: int, shard_tokens: int) -> None:
    """Prepares text in a folder, unless that is done already.

    Args:
      data: config.data, which names the text.
      folder: Where to write.
      n_workers: Processes that tokenise.
      shard_tokens: Tokens of a shard.

    Raises:
      UserError: The folder has other text, or a source or tokenizer can't be used.
    """
    text = sources.find(data)
    encoder = tokenizer.load(data.tokenizer, data.end_of_text)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ownership.hold(folder / ".lock", "jmoe.prepare"):
            if (folder / "parts.json").exists():
                raise UserError(f"--out_dir={folder} is prepared in parts: give the --part, or --join to end them all")
            if not (folder / "manifest.json").exists():
                prepare.prepare(text, data, encoder, folder, n_workers, shard_tokens)
            elif corpus.open_folder(folder).manifest["source"]["inputs"] != prepare.digest(text, data, encoder):
                raise UserError(f"--out_dir={folder} holds tokens of other text or other rules; choose another folder")
            else:
                prepare.clean(folder)
    except ownership.Taken as error:
        raise UserError(f"--out_dir={folder}: another process is preparing it, {error.owner}") from None


if __name__ == "__main__":
    cli.define_config(required=False)
    flags.DEFINE_string(
        "out_dir", None, "Folder of the shards, local or gs://: a training's --config.data.path.", required=True
    )
    flags.DEFINE_integer("workers", len(cli.cores()), "Number of processes that tokenise.", lower_bound=1)
    flags.DEFINE_integer("shard_tokens", prepare.SHARD_TOKENS, "Tokens in each shard.", lower_bound=1)
    flags.DEFINE_string(
        "part", None, "I/N: prepare part I of N, each on a machine of its own at the same time, all into one --out_dir."
    )
    flags.DEFINE_bool("join", False, "Write what the parts in --out_dir have left undone.")
    flags.DEFINE_bool("verify", False, "Only check every shard of --out_dir: its hash, and bytes as UTF-8.")
    cli.run(main, config_sections=("data",))
