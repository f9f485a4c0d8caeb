"""A checkpoint as a folder that Hugging Face's transformers loads: python -m jmoe.export --workdir=DIR --out=DIR.

Writes model.safetensors, config.json, generation_config.json, the tokenizer and a model card: Llama or Qwen3 for a
dense model, Qwen2-MoE, Qwen3-MoE or OLMoE for a mixture. Refused, since transformers has no counterpart: a model with
LayerNorm, no norm before its head, sigmoid scores, bias balancing, or shared experts plus norms of queries and keys.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
from absl import flags
from etils import epath
from jaxtyping import Float, PyTree, Shaped
from ml_collections import ConfigDict

from jmoe import cli, huggingface
from jmoe.config import counts
from jmoe.config.schema import columns
from jmoe.errors import UserError
from jmoe.run import checkpoint
from jmoe.storage import files as storage
from jmoe.text.tokenizer import Tokenizer

CARD = pathlib.Path(__file__).with_name("card.md")
MIXTURE = (
    ": in each layer a router sends a token to {} of {} experts, and the output of each is multiplied by the "
    "router's probability. No token is dropped"
)
DOCUMENTS = """
In training a token saw only its own document (`document_mask`), and positions restarted at each. transformers has no
such mask. So give the model one document at a time, from its beginning, without an end of text before it: it has never
seen the text before one.
"""
PART_BYTES = 2 * 2**30  # of a file of tensors


def main(_: list[str]) -> None:
    options = flags.FLAGS.flag_values_dict()
    export(**{name: options[name] for name in ("workdir", "out", "segment", "step", "dtype", "tokenizer", "law")})
    print(f"wrote {storage.absolute(options['out'])}")


def export(
    workdir: str | os.PathLike,
    out: str | os.PathLike,
    segment: str | None = None,
    step: int | None = None,
    dtype: str = "float32",
    tokenizer: str | None = None,
    law: str | None = None,
) -> None:
    """Writes a checkpoint as a folder for transformers, config.json last: a folder with a config.json is complete.

    Args:
      workdir: The run's folder, local or gs://.
      out: The folder to write, local or gs://.
      segment: As in checkpoint.find.
      step: As in checkpoint.find.
      dtype: Type of the weights, "float32" or "bfloat16".
      tokenizer: Path of the tokenizer, in place of config.data.tokenizer.
      law: As in `card`.

    Raises:
      UserError: The checkpoint does not exist or is damaged, transformers cannot compute the model, the tokenizer is
        missing or not the run's, or `out` is not empty.
    """
    workdir = storage.absolute(workdir)
    out = storage.absolute(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out={out} is not empty")
    folder, record, config, params = checkpoint.on_host(workdir, segment, step, huggingface.check)
    result = storage.read_sealed(folder.parent.parent / "result.json")
    if result and result["n_tokens"] != record["n_tokens"]:
        result = None
    if config.data.document_mask:
        note = "transformers has no document mask: give it one document at a time, as the model card says"
        print(f"note: {note}", file=sys.stderr)
    write_folder(out, params, config, record, dtype, tokenizer, result, law)


def write_folder(  # noqa: PLR0913  most are those of `export`
    out: epath.Path,
    params: PyTree[Shaped[np.ndarray, "..."]],
    config: ConfigDict,
    record: dict[str, Any],
    dtype: str = "float32",
    tokenizer: str | None = None,
    result: dict[str, Any] | None = None,
    law: str | None = None,
) -> None:
    """Writes parameters as a folder for transformers, config.json last.

    Args:
      out: The folder to write.
      params: The parameters, as NumPy arrays.
      config: The config that they were trained with.
      record: The record of the run, with `step` and `n_tokens`.
      dtype: As in `export`.
      tokenizer: As in `export`.
      result: As in `card`.
      law: As in `card`.

    Raises:
      UserError: As `export`.
    """
    values = huggingface.config_json(config.model, config.data.seq_len)
    encoder = checkpoint.tokenizer_of(config, tokenizer)
    ids = {"bos_token_id": encoder.end_of_text, "eos_token_id": encoder.end_of_text}
    texts = tokenizer_files(encoder, config.data.seq_len) | {
        "README.md": card(str(out), record, config, result, law),
        "generation_config.json": json.dumps(ids, indent=2),
        "config.json": json.dumps(values | ids | {"torch_dtype": dtype}, indent=2),
    }
    write(out, dict(huggingface.tensors(params, config.model)), dtype)
    for name, text in texts.items():
        storage.write_whole(out / name, text)


def write(folder: epath.Path, tensors: dict[str, Float[np.ndarray, "..."]], dtype: str) -> None:
    """Writes safetensors: one file, or parts of PART_BYTES and an index beside them.

    Args:
      folder: The folder, created if missing.
      tensors: Array by name.
      dtype: Type of the weights, "float32" or "bfloat16".
    """
    from safetensors import numpy as safetensors

    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    parts = _parts({name: array.size * numpy_dtype.itemsize for name, array in tensors.items()})
    if len(parts) == 1:
        files = ["model.safetensors"]
    else:
        files = [f"model-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for file, names in zip(files, parts, strict=True):
        part = {name: np.ascontiguousarray(tensors[name], numpy_dtype) for name in names}
        (folder / file).write_bytes(safetensors.save(part, {"format": "pt"}))
    if len(parts) > 1:
        index = {
            "metadata": {"total_size": sum(array.size for array in tensors.values()) * numpy_dtype.itemsize},
            "weight_map": {name: file for file, names in zip(files, parts, strict=True) for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _parts(sizes: dict[str, int]) -> list[list[str]]:
    """Names of the tensors of each file; `sizes`: the bytes of each tensor."""
    parts: list[list[str]] = []
    bytes_left = 0
    for name, n_bytes in sizes.items():
        if n_bytes > bytes_left:
            parts.append([])
            bytes_left = PART_BYTES
        parts[-1].append(name)
        bytes_left -= n_bytes
    return parts


def tokenizer_files(encoder: Tokenizer, seq_len: int) -> dict[str, str]:
    """A tokenizer as transformers loads it: text by name of the file.

    As in training, text that spells the end-of-text is ordinary text.
    """
    import tokenizers

    text = encoder.json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(encoder.end_of_text)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,  # in training a document follows the end of another
        "eos_token": end,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {"tokenizer.json": text, "tokenizer_config.json": json.dumps(config, indent=2)}


def card(
    folder: str, record: dict[str, Any], config: ConfigDict, result: dict[str, Any] | None, law: str | None
) -> str:
    """The text of a model card.

    Args:
      folder: Where the model is exported to.
      record: The checkpoint's record.
      config: The checkpoint's config.
      result: The result of a finished branch; None if the checkpoint is of none.
      law: A law.json or the name of a published law, whose prediction stands beside the loss; None for no prediction.

    Raises:
      UserError: The law cannot be used.
    """
    model = config.model
    n_tokens = record["n_tokens"]
    shape = (
        f"{model.n_blocks} blocks, d_model {model.d_model}, {model.n_heads} heads, d_ff {model.d_ff}, "
        f"{model.n_experts} experts, vocabulary {model.vocab_size:,}"
    )
    rows = {
        "parameters": f"{counts.n_active(model):,} active of {counts.n_total(model):,}",
        "shape": shape + "".join(f", {name} {value}" for name, value in columns(config).items()),
        "trained on": f"{n_tokens:,} tokens in rows of {config.data.seq_len}",
        "text": f"corpus `{record['corpus_fingerprint']}`, tokenizer {config.data.tokenizer.rpartition('/')[2]}",
    }
    if result:
        rows["validation loss"] = f"{result['loss']:.4f} nats per token, nothing dropped"
        if "train_loss" in result:  # not of a branch whose last checkpoint is of older code
            rows["training loss"] = f"{result['train_loss']:.4f} nats per token over the last part of training"
        if model.n_experts > 1 and "drop_rate" in result:
            rows["dropped in training"] = f"{result['drop_rate']:.1%} of tokens, by the capacity of the experts"
    if law:
        rows[f"loss predicted by {law.rpartition('/')[2]}"] = _predicted(law, model, n_tokens)
    rows |= {
        "seed": str(config.seed),
        "checkpoint": f"step {record['step']}",
        "written by": f"jmoe {record['jmoe']}, jax {record['jax']}",
    }
    return CARD.read_text(encoding="utf-8").format(
        tag=", mixture-of-experts" if model.n_experts > 1 else "",
        title=folder.rstrip("/").rpartition("/")[2],
        mixture=MIXTURE.format(model.top_k, model.n_experts) if model.n_experts > 1 else "",
        folder=folder,
        documents=DOCUMENTS if config.data.document_mask else "",
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
    )


def _predicted(law: str, model: ConfigDict, n_tokens: int) -> str:
    """fit's answer in words, with its warning where the model lies outside what the law was fitted to."""
    d_expert = model.d_expert
    n_tables = 1 if model.tied_embeddings else 2
    options = {
        "law": law,
        "n_active": counts.n_active(model),
        "n_total": counts.n_total(model),
        "n_tokens": n_tokens,
        "n_experts": model.n_experts,
        "top_k": model.top_k,
        "n_shared_experts": model.n_shared_experts,
        "granularity": model.d_ff / d_expert if d_expert else 1,
        "n_embedding": n_tables * model.vocab_size * model.d_model,
    }
    command = [sys.executable, "-m", "fit", "predict", *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.run(command, capture_output=True, text=True)
    lines = [line.removeprefix("error: ").removeprefix("warning: ") for line in process.stderr.strip().splitlines()]
    if process.returncode:
        raise UserError(f"--law={law}: {lines[-1] if lines else 'fit predict failed'}")
    loss, *intervals = process.stdout.strip().splitlines()  # intervals where the law holds bootstrap draws
    return f"{float(loss):.4f} nats per token{''.join(f'; {line}' for line in intervals + lines)}"


if __name__ == "__main__":
    cli.define_checkpoint()
    flags.DEFINE_string("out", None, "Folder to write, new or empty, local or gs://.", required=True)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Type of the weights in the file.")
    flags.DEFINE_string("tokenizer", None, "Path of the run's tokenizer, if its file has moved.")
    flags.DEFINE_string("law", None, "A law.json or a published law; the model card shows its prediction.")
    cli.run(main)
