"""The model card of an exported checkpoint: README.md, written from the record of its run."""

import pathlib
import subprocess
import sys

from jmoe.config import counts
from jmoe.config.fields import columns, setting
from jmoe.errors import UserError

CARD = pathlib.Path(__file__).with_suffix(".md")
MIXTURE = (
    ": in each layer a router sends a token to {} of {} experts, and the output of each is multiplied by the "
    "router's probability. No token is dropped"
)


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
    asked = dict(law=law, n_active=counts.n_active(model), n_tokens=n_tokens, n_experts=model.n_experts)
    command = [sys.executable, "-m", "fit", "predict", *(f"--{name}={value}" for name, value in asked.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line.removeprefix("error: ").removeprefix("warning: ") for line in done.stderr.strip().splitlines()]
    if done.returncode:
        raise UserError(f"--law={law}: {lines[-1] if lines else 'fit predict failed'}")
    loss, *intervals = done.stdout.strip().splitlines()  # intervals where the law holds bootstrap draws
    return f"{float(loss):.4f} nats per token{''.join(f'; {line}' for line in intervals + lines)}"
