"""Tokenises text once, in parallel: python -m jmoe.prepare --config=configs/NAME.py --out_dir=DIR.

    python -m jmoe.prepare --config=configs/joint_moe.py --config.data.path='fineweb/*.parquet' --out_dir=fineweb-gpt2
    python -m jmoe.train --config=configs/joint_moe.py --config.data.path=fineweb-gpt2 --workdir=DIR

config.data says which text, which tokenizer and what is held out. After a kill the same command continues and ends
with the same bytes. --verify prepares nothing; it checks the shards of DIR against their hashes, and that bytes are
UTF-8.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import ownership
from jmoe.storage.files import is_remote
from jmoe.text import corpus, prepare, sources, supply, tokenizer
from jmoe.text.manifest import SPLITS

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Configuration; its section data says what to prepare.", lock_config=True
)
OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder for shards and manifest.json: a training's --config.data.path.")
WORKERS = flags.DEFINE_integer("workers", len(cli.cores()), "Number of processes that tokenise.", lower_bound=1)
SHARD_TOKENS = flags.DEFINE_integer("shard_tokens", prepare.SHARD_TOKENS, "Tokens in each shard.", lower_bound=1)
VERIFY = flags.DEFINE_bool("verify", False, "Only check every shard of --out_dir: its hash, and bytes as UTF-8.")


def main(_):
    if is_remote(OUT_DIR.value):
        raise UserError(f"--out_dir={OUT_DIR.value}: prepare into a local folder and copy it there")
    folder = pathlib.Path(OUT_DIR.value).expanduser().absolute()
    data = None
    if not VERIFY.value:
        if CONFIG.value is None:
            raise UserError("--config must say what to prepare")
        data = cli.read_config(CONFIG).data
        prepare_folder(data, folder)
    made = corpus.open_folder(folder, verify=VERIFY.value)
    if VERIFY.value:
        corpus.check_utf8(made, folder)
    manifest = made.manifest
    for split in SPLITS:
        n_documents, n_tokens, n_bytes = (manifest[what][split] for what in ("documents", "tokens", "bytes"))
        print(
            f"{split}: {n_documents:,} documents, {n_tokens:,} tokens of {n_bytes / n_tokens:.3f} bytes, "
            f"{len(manifest['shards'][split])} shards"
        )
    if manifest.get("skipped"):
        print(corpus.skipped_warning(manifest["skipped"]))
    if data and (warning := supply.held_out_warning(manifest["tokens"]["validation"], data)):
        print(warning)
    print(f"corpus {manifest['fingerprint']} by tokenizer {manifest['tokenizer']['name']} in {folder}")


def prepare_folder(data, folder: pathlib.Path) -> None:
    """Prepares the text of `data` (config.data) in `folder` unless that is done already; UserError where `folder` holds
    other text, or a source or tokenizer can't be used."""
    text, encoder = sources.find(data), tokenizer.load(data.tokenizer, data.end_of_text)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ownership.hold(folder / ".lock", "jmoe.prepare"):
            if not (folder / "manifest.json").exists():
                prepare.prepare(text, data, encoder, folder, WORKERS.value, SHARD_TOKENS.value)
            elif corpus.open_folder(folder).manifest["source"]["inputs"] != prepare.digest(text, data, encoder):
                raise UserError(
                    f"--out_dir={folder} holds tokens of other text or of other rules; choose another folder"
                )
            else:
                prepare.clean(folder)
    except ownership.Taken as error:
        raise UserError(f"--out_dir={folder}: another process is preparing it, {error.owner}") from None


def run():
    flags.mark_flags_as_required(["out_dir"])
    cli.run(main, config_sections=("data",))


if __name__ == "__main__":
    run()
