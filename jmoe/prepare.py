"""Tokenises text once, in parallel: python -m jmoe.prepare --config=configs/NAME.py --out_dir=DIR.

    python -m jmoe.prepare --config=configs/joint_moe.py --config.data.path='fineweb/*.parquet' --out_dir=fineweb-gpt2
    python -m jmoe.train --config=configs/joint_moe.py --config.data.path=fineweb-gpt2 --workdir=DIR

config.data says which text, which tokenizer and what is held out. After a kill the same command continues and ends
with the same bytes. --verify prepares nothing; it checks the shards of DIR against their hashes, and that bytes are
UTF-8. Each source of config.data.mixture gets a folder of its own in DIR; the last line printed is the field that
names them.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import pathlib

from absl import flags

from jmoe import cli
from jmoe.config.check import check_text
from jmoe.config.schema import check_fields
from jmoe.errors import UserError
from jmoe.storage import ownership
from jmoe.storage.files import is_remote
from jmoe.text import corpus, mixture, prepare, sources, tokenizer
from jmoe.text.manifest import SPLITS


def main(_):
    asked = flags.FLAGS
    if is_remote(asked.out_dir):
        raise UserError(f"--out_dir={asked.out_dir}: prepare into a local folder and copy it there")
    folder = pathlib.Path(asked.out_dir).expanduser().absolute()
    if asked.verify:
        for one in sorted(folder.glob("source-*")) or [folder]:
            made = corpus.open_folder(one, verify=True)
            corpus.check_utf8(made, one)
            describe(made, one)
        return
    if asked.config is None:
        raise UserError("--config must say what to prepare")
    config = cli.read_config()
    check_fields(config)
    check_text(config.data)
    weights = dict(config.data.get("mixture", ()))
    places = {path: path if corpus.is_prepared(path) else folder / f"source-{i:03}" for i, path in enumerate(weights)}
    for path, one in (places or {config.data.path: folder}).items():
        if one != path:
            data = corpus.of_path(config.data, path)
            prepare_folder(data, one, asked.workers, asked.shard_tokens)
            describe(corpus.open_folder(one), one, data)
    if places:
        print(f"config.data.mixture = {tuple((str(places[path]), weight) for path, weight in weights.items())!r}")


def describe(made: corpus.Corpus, folder: pathlib.Path, data=None) -> None:
    """Prints what the prepared `folder` holds; `data`: the config.data that it was prepared for now."""
    manifest = made.manifest
    for split in SPLITS:
        n_documents, n_tokens, n_bytes = (manifest[what][split] for what in ("documents", "tokens", "bytes"))
        print(
            f"{split}: {n_documents:,} documents, {n_tokens:,} tokens of {n_bytes / n_tokens:.3f} bytes, "
            f"{len(manifest['shards'][split])} shards"
        )
    if manifest.get("skipped"):
        print(corpus.skipped_warning(manifest["skipped"]))
    if data and (warning := mixture.held_out_warning(manifest["tokens"]["validation"], data)):
        print(warning)
    print(f"corpus {manifest['fingerprint']} by tokenizer {manifest['tokenizer']['name']} in {folder}")


def prepare_folder(data, folder: pathlib.Path, n_workers: int, shard_tokens: int) -> None:
    """Prepares the text of `data` (config.data) in `folder` unless that is done already; UserError where `folder` holds
    other text, or a source or tokenizer can't be used."""
    text, encoder = sources.find(data), tokenizer.load(data.tokenizer, data.end_of_text)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ownership.hold(folder / ".lock", "jmoe.prepare"):
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
    flags.DEFINE_string("out_dir", None, "Folder of the shards: a training's --config.data.path.", required=True)
    flags.DEFINE_integer("workers", len(cli.cores()), "Number of processes that tokenise.", lower_bound=1)
    flags.DEFINE_integer("shard_tokens", prepare.SHARD_TOKENS, "Tokens in each shard.", lower_bound=1)
    flags.DEFINE_bool("verify", False, "Only check every shard of --out_dir: its hash, and bytes as UTF-8.")
    cli.run(main, config_sections=("data",))
