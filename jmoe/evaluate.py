"""Validation loss of a checkpoint, nothing dropped: python -m jmoe.evaluate --workdir=DIR [--segment=trunk] [--step=N].

The config is the checkpoint's own. The same flags as in training set other text or another mesh:

    python -m jmoe.evaluate --workdir=runs/one --config.data.path='books/*.txt' --config.data.validation_tokens=100_000

    python -m jmoe.evaluate --workdir=runs/one --lm_eval=results.json

The last enters the accuracies that lm-evaluation-harness measured on the exported model into the run's result, and so
into runs.csv. It computes no loss.

The loss is the mean over held-out text in nats per token; of a mixture also on each of its sources. Bits per byte are
this loss divided by ln 2 and by the mean number of bytes of text per evaluated token, so that tokenizers can be
compared.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from absl import flags
from etils import epath
from ml_collections import ConfigDict, config_flags
from tqdm import tqdm

from jmoe import cli
from jmoe.config.check import check_config
from jmoe.config.schema import FIELDS, section
from jmoe.config.schema_types import default_config
from jmoe.errors import UserError
from jmoe.run import accuracies, checkpoint, distributed
from jmoe.run.step import losses_of_sources, make_eval_step
from jmoe.storage import files as storage
from jmoe.text import mixture
from jmoe.text.batches import validation_bytes, validation_sources
from jmoe.text.corpus import load as load_corpus
from jmoe.text.corpus import mask_token

SECTIONS = ("data", "mesh")  # those of the config that an evaluation may change


def main(_: list[str]) -> None:
    options = flags.FLAGS
    config_flag: Any = options["config"]
    if options.lm_eval:
        if options.json or config_flag.override_values:
            raise UserError("--lm_eval enters accuracies and computes no loss: leave out --json and --config")
        _enter_accuracies(options.workdir, options.lm_eval, options.segment, options.step)
        return
    with distributed.joined():
        result = evaluate(options.workdir, options.segment, options.step, config_flag.override_values)
        if jax.process_index() == 0:
            print(
                f"{result['segment']}, step {result['step']}: {result['loss']:.4f} nats per token, "
                f"{result['bits_per_byte']:.4f} bits per byte; {result['n_validation_tokens']} held-out tokens "
                f"of corpus {result['corpus_fingerprint']}"
            )
            for source, loss in result["loss_of_sources"].items():
                print(f"  {source}: {loss:.4f} nats per token")
            if options.json:
                storage.write_whole(storage.absolute(options.json), json.dumps(result, indent=1))


def _enter_accuracies(workdir: str, path: str, segment: str | None, step: int | None) -> None:
    """Enters the harness's accuracies, and prints them."""
    entered = accuracies.enter(workdir, path, segment, step)
    words = ", ".join(f"{name} {accuracy:.4g}" for name, accuracy in entered["accuracies"].items())
    print(f"{entered['segment']}, step {entered['step']}: {words}; written to its result.json, for launch.collect")


def evaluate(
    workdir: str | epath.Path,
    segment: str | None = None,
    step: int | None = None,
    overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
) -> dict[str, Any]:
    """Evaluates one checkpoint.

    Args:
      workdir: The run's folder.
      segment: As in checkpoint.find.
      step: As in checkpoint.find.
      overrides: Values that replace the checkpoint's own, by dotted name of a field in SECTIONS.

    Returns:
      "loss" in nats per token, "bits_per_byte", "loss_of_sources", and what identifies checkpoint and text.

    Raises:
      UserError: There is no such segment or step, the checkpoint is damaged or of another program, or text or mesh
        can't be used.
    """
    overrides = dict(overrides)
    fixed = [name for name in overrides if section(name) not in SECTIONS]
    if fixed:
        raise UserError(
            f"--config.{fixed[0]} is the checkpoint's own; only config.data and config.mesh can be set here"
        )
    folder = checkpoint.find(storage.absolute(workdir), segment, step)
    record, config, mesh, params = checkpoint.read(folder, lambda config: for_text(config, overrides))
    corpus = load_corpus(config.data, config.model.vocab_size)
    warning = mixture.check_held_out(corpus, config)
    if warning:
        distributed.log(warning)
    with jax.set_mesh(mesh):
        sources = {
            name: tqdm(batches, desc=f"evaluating {name}".strip(), unit=" batches", disable=None, leave=False)
            for name, batches in validation_sources(corpus, config, mesh).items()
        }
        eval_step = make_eval_step(config, mesh, mask_token(config.data, corpus))
        (loss, _), loss_of_sources = losses_of_sources(eval_step, params, sources)
    n_tokens = mixture.n_validation_tokens(corpus, config)
    n_bytes = validation_bytes(corpus, config)
    return {
        "segment": folder.parent.parent.name,
        "step": int(folder.name),
        "n_tokens": record["n_tokens"],
        "loss": loss,
        "loss_of_sources": loss_of_sources,
        "bits_per_byte": loss * n_tokens / math.log(2) / n_bytes,
        "n_validation_tokens": n_tokens,
        "corpus_fingerprint": corpus.fingerprint,
        "data_path": config.data.path or "; ".join(path for path, _ in config.data.mixture),
        "checkpoint": str(folder),
    }


def for_text(config: ConfigDict, overrides: dict[str, Any]) -> None:
    """Changes the config of a checkpoint, in place, for the devices and the text of this evaluation."""
    # only the run's own text must have the run's fingerprint
    other_text = {name for name in overrides if section(name) == "data"} - {"data.seq_len", "data.validation_tokens"}
    if other_text:
        config.data.fingerprint = ""
    if {"data.path", "data.mixture"} & overrides.keys():  # either replaces both
        config.data.update(path="", mixture=())
    config.update_from_flattened_dict(overrides)
    check_config(config)
    config.microbatch_tokens = 0
    # the loss does not depend on the batch size, which must only divide over the devices
    unit = math.lcm(config.data.seq_len, config.model.group_tokens) * jax.device_count()
    n_units = -(-config.batch_tokens[0][1] // unit)  # rounded up
    config.batch_tokens = ((0, n_units * unit),)
    config.lock()


if __name__ == "__main__":
    text = "Text or mesh to use instead of the training's: --config.data.path=..., --config.mesh.expert=8."
    # ml_collections reads the fields at once, and reports unknown ones in a traceback; cli.run in a sentence
    known = [argument for argument in sys.argv if not cli.names_no_field(argument)]
    config_flags.DEFINE_config_dict("config", default_config(FIELDS), text, sys_argv=known)
    cli.define_checkpoint()
    flags.DEFINE_string("lm_eval", None, "Enter the accuracies of this results file of lm-evaluation-harness.")
    flags.DEFINE_string("json", None, "Also write the result to this file, local or gs://.")
    cli.run(main, config_sections=SECTIONS)
