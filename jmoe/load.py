"""A run that begins with weights from a Hugging Face folder: python -m jmoe.load --from=DIR --config=... --workdir=DIR.

Writes the run's first checkpoint, of step 0; jmoe.train with the same --config and --workdir continues from it. A dense
model (Llama) can also start a mixture: with --config.model.n_experts=8 each expert starts as a copy of the dense layer.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import hashlib
import json
import pathlib

import jax
from absl import flags
from etils import epath
from ml_collections import ConfigDict

from jmoe import cli, huggingface
from jmoe.config.check import check_config
from jmoe.errors import UserError, first_few
from jmoe.model import sharding
from jmoe.model.parameters import init_params
from jmoe.run import checkpoint, distributed
from jmoe.run.record import make_record
from jmoe.run.step import abstract_state, make_optimizer
from jmoe.storage import files as storage
from jmoe.text import corpus
from jmoe.text.training_text import TrainingText


def main(_: list[str]) -> None:
    config = cli.read_config()
    options = flags.FLAGS.flag_values_dict()
    path = options["from"]
    workdir = options["workdir"]
    with distributed.joined():
        load(path, config, workdir)
        if jax.process_index() == 0:
            print(f"{workdir} begins with the weights of {path}; jmoe.train goes on")


def load(path: str, config: ConfigDict, workdir: str | epath.Path) -> None:
    """Writes the checkpoint of step 0 with the weights of the folder or files `path`.

    Raises:
      UserError: The files are missing, damaged, or of a model that jmoe cannot train; the config is of another model
        (the message names the fields that differ) or pins other text; or the workdir already has checkpoints.
    """
    check_config(config)
    workdir = storage.make_workdir(workdir)
    storage.refuse_links(workdir)
    text = corpus.load(config.data, config.model.vocab_size)  # before anything is read or written: it may be refused
    steps = checkpoint.steps_in(workdir / "trunk" / "checkpoints")
    if steps:
        raise UserError(f"--workdir={workdir} has checkpoints already, of steps {first_few(steps)}")
    values, files = _files(path)
    fields = huggingface.model_fields(values)
    upcycle = fields["n_experts"] == 1 and config.model.n_experts > 1
    ours = huggingface.comparable_fields(config.model)
    if not ours["tied_embeddings"]:  # an untied head may start as the embedding
        fields["tied_embeddings"] = False
    free = ("n_experts", "top_k", "normalize_gates") if upcycle else ()
    wrong = {name: value for name, value in fields.items() if ours[name] != value and name not in free}
    if wrong:
        needed = " ".join(f"--config.model.{name}={value}" for name, value in sorted(wrong.items()))
        raise UserError(f"--config is of another model than --from={path}: that one needs {needed}")
    params = huggingface.params(huggingface.reader(files), ConfigDict(fields))
    if upcycle:
        params = huggingface.upcycled(params, jax.device_get(init_params(config)))
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    _save(params, config, text, workdir, f"{path}, sha256 {digest.hexdigest()[:16]}")


def _files(path: str) -> tuple[dict, list[pathlib.Path]]:
    """The values of config.json and the safetensors files; `path` is a folder, or a pattern of files in a folder."""
    location = pathlib.Path(path).expanduser()
    folder = location if location.is_dir() else location.parent
    pattern = "*.safetensors" if location.is_dir() else location.name
    files = sorted(folder.glob(pattern))
    if not files:
        raise UserError(f"--from={location}: no such folder or file, or no *.safetensors in it")
    try:
        return json.loads((folder / "config.json").read_text()), files
    except (OSError, ValueError) as error:
        raise UserError(f"--from={location}: {folder / 'config.json'} cannot be read: {error}") from None


def _save(params: dict, config: ConfigDict, text: TrainingText, workdir: epath.Path, source: str) -> None:
    """Writes the checkpoint, and began_with.json, which the trainer copies into each result."""
    mesh = sharding.make_mesh(config)
    with jax.set_mesh(mesh), distributed.owned(workdir):
        placed, _ = abstract_state(config, mesh)
        params = jax.tree.map(lambda x, abstract: jax.device_put(x, abstract.sharding), params, placed)
        opt_state = jax.jit(make_optimizer(config).init)(params)
        if jax.process_index() == 0:
            storage.write_whole(workdir / "began_with.json", json.dumps(storage.sealed({"began_with": source})))
        record = make_record(config, text.fingerprint) | {"n_tokens": 0}
        saved = checkpoint.Checkpoints(workdir / "trunk" / "checkpoints")
        saved.save(0, params, opt_state, record)
        saved.wait()
        saved.close()


if __name__ == "__main__":
    text = "Folder with config.json and *.safetensors, or some of its files: DIR/a*."
    flags.DEFINE_string("from", None, text, required=True)
    cli.define_config()
    flags.DEFINE_string("workdir", None, "Directory of the run, local or gs://, without checkpoints.", required=True)
    cli.run(main, config_sections=())
