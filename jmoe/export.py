"""A checkpoint as a folder that Hugging Face's transformers loads: python -m jmoe.export --workdir=DIR --out=DIR.

Writes model.safetensors, config.json, generation_config.json, the tokenizer and a model card: Llama or Qwen3 for a
dense model, Qwen2-MoE, Qwen3-MoE or OLMoE for a mixture. Refused, since transformers has no counterpart: a model with
LayerNorm, no norm before its head, sigmoid scores, bias balancing, or shared experts plus norms of queries and keys.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import json
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
from absl import flags
from etils import epath

from jmoe import cli, huggingface
from jmoe.config import counts
from jmoe.config.schema import columns, setting
from jmoe.errors import UserError
from jmoe.run import checkpoint
from jmoe.storage import files as storage
from jmoe.text.tokenizer import Tokenizer

CARD = pathlib.Path(__file__).with_name("card.md")
MIXTURE = (
    ": in each layer a router sends a token to {} of {} experts, and the output of each is multiplied by the "
    "router's probability. No token is dropped"
)
PART_BYTES = 2 * 2**30  # of a file of tensors


def main(_):
    asked = flags.FLAGS.flag_values_dict()
    export(**{name: asked[name] for name in ("workdir", "out", "segment", "step", "dtype", "tokenizer", "law")})
    print(f"wrote {storage.absolute(asked['out'])}")


def export(workdir, out, segment=None, step=None, dtype="float32", tokenizer=None, law=None) -> None:
    """Writes the folder `out`, config.json last, so that a folder with a config.json is complete. Both folders are
    local or gs://. `segment` and `step` choose a checkpoint as in checkpoint.find; `tokenizer` is a path in place of
    config.data.tokenizer, `law` as in `card`.

    UserError where the checkpoint does not exist or is damaged, transformers cannot compute the model, the tokenizer is
    missing or not the run's, or `out` is not empty.
    """
    workdir, out = storage.absolute(workdir), storage.absolute(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out={out} is not empty")
    folder, record, config, params = checkpoint.on_host(workdir, segment, step, huggingface.check)
    values = huggingface.config_json(config.model, config.data.seq_len)
    made = checkpoint.tokenizer_of(config, tokenizer)
    result = storage.read_sealed(folder.parent.parent / "result.json")
    if result and result["n_tokens"] != record["n_tokens"]:
        result = None
    ids = {"bos_token_id": made.end_of_text, "eos_token_id": made.end_of_text}
    texts = tokenizer_files(made, config.data.seq_len) | {
        "README.md": card(str(out), record, config, result, law),
        "generation_config.json": json.dumps(ids, indent=2),
        "config.json": json.dumps(values | ids | {"torch_dtype": dtype}, indent=2),
    }
    write(out, dict(huggingface.tensors(params, config.model)), dtype)
    for name, text in texts.items():
        storage.write_whole(out / name, text)


def write(folder: epath.Path, tensors: dict, dtype: str) -> None:
    """Writes NumPy arrays by name, as float32 or bfloat16: one safetensors file, or parts and an index beside them."""
    from safetensors import numpy as safetensors

    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    parts, room = [], 0
    for name, array in tensors.items():
        n_bytes = array.size * dtype.itemsize
        if n_bytes > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(name)
        room -= n_bytes
    files = [f"model-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    files = files if len(parts) > 1 else ["model.safetensors"]
    folder.mkdir(parents=True, exist_ok=True)
    for file, names in zip(files, parts):
        part = {name: np.ascontiguousarray(tensors[name], dtype) for name in names}
        (folder / file).write_bytes(safetensors.save(part, {"format": "pt"}))
    if len(parts) > 1:
        index = {
            "metadata": {"total_size": sum(array.size for array in tensors.values()) * dtype.itemsize},
            "weight_map": {name: file for file, names in zip(files, parts) for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def tokenizer_files(made: Tokenizer, seq_len: int) -> dict[str, str]:
    """A tokenizer as transformers loads it, {name of a file: its text}. It takes text that spells the end-of-text for
    ordinary text, as training does."""
    import tokenizers

    text = made.json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(made.end_of_text)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,  # in training a document follows the end of another
        "eos_token": end,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {"tokenizer.json": text, "tokenizer_config.json": json.dumps(config, indent=2)}


def card(folder: str, record: dict, config, result: dict | None, law: str | None) -> str:
    """The card's text for the model exported to `folder`, from its checkpoint's record and config.

    `result` is the row of a finished branch, None if the checkpoint has none. `law`, if given, is a law.json or the
    name of a published law, whose prediction stands beside the loss; UserError where it cannot be used.
    """
    model, n_tokens = config.model, record["n_tokens"]
    rows = {
        "parameters": f"{counts.n_active(model):,} active of {counts.n_total(model):,}",
        "shape": f"{model.n_blocks} blocks, d_model {model.d_model}, {model.n_heads} heads, d_ff {model.d_ff}, "
        f"{model.n_experts} experts, vocabulary {model.vocab_size:,}"
        + "".join(f", {name} {value}" for name, value in columns(config).items()),
        "trained on": f"{n_tokens:,} tokens in rows of {config.data.seq_len}",
        "text": f"corpus `{record['corpus_fingerprint']}`, tokenizer {config.data.tokenizer.rpartition('/')[2]}",
    }
    if result:
        rows["validation loss"] = f"{result['loss']:.4f} nats per token, nothing dropped"
        rows["training loss"] = f"{result['train_loss']:.4f} nats per token over the last part of training"
        if model.n_experts > 1:
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
        mixture=MIXTURE.format(setting(model, "top_k"), model.n_experts) if model.n_experts > 1 else "",
        folder=folder,
        rows="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
    )


def _predicted(law: str, model, n_tokens: int) -> str:
    """fit's answer in words, with its warning where the model lies outside what the law was fitted to."""
    d_expert = setting(model, "d_expert")
    tables = 1 if setting(model, "tied_embeddings") else 2
    asked = dict(
        law=law,
        n_active=counts.n_active(model),
        n_total=counts.n_total(model),
        n_tokens=n_tokens,
        n_experts=model.n_experts,
        top_k=setting(model, "top_k"),
        n_shared_experts=setting(model, "n_shared_experts"),
        granularity=model.d_ff / d_expert if d_expert else 1,
        n_embedding=tables * model.vocab_size * model.d_model,
    )
    command = [sys.executable, "-m", "fit", "predict", *(f"--{name}={value}" for name, value in asked.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line.removeprefix("error: ").removeprefix("warning: ") for line in done.stderr.strip().splitlines()]
    if done.returncode:
        raise UserError(f"--law={law}: {lines[-1] if lines else 'fit predict failed'}")
    loss, *intervals = done.stdout.strip().splitlines()  # intervals where the law holds bootstrap draws
    return f"{float(loss):.4f} nats per token{''.join(f'; {line}' for line in intervals + lines)}"


if __name__ == "__main__":
    cli.define_checkpoint()
    flags.DEFINE_string("out", None, "Folder to write, new or empty, local or gs://.", required=True)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Type of the weights in the file.")
    flags.DEFINE_string("tokenizer", None, "Path of the run's tokenizer, if its file has moved.")
    flags.DEFINE_string("law", None, "A law.json or a published law; the model card shows its prediction.")
    cli.run(main)
