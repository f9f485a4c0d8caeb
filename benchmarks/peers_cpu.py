"""Training a small mixture on a CPU, transformers' Mixtral and MaxText beside ours: tokens per second.

    python -m benchmarks.peers_cpu [--environment=DIR] [--rounds=11] [--json=PATH]

Needs the [export] extra. d_model 128, 4 blocks, 8 experts of 384, two of a token's, 16 rows of 128 tokens, float32,
AdamW, on all cores or as many threads as PJRT_NPROC says. Transformers' steps and ours, with a capacity and with
nothing dropped, take turns in one process; transformers keeps all activations, and so do ours (config.remat = "none").
MaxText's trainer, in the environment that
`python -m benchmarks.peers` made in DIR, runs by itself before and after them: with its experts' products over all
experts (dense) and over each token's (sparse), both without drops, and everything kept.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import jax
import torch
import transformers
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks import measure, peers
from benchmarks.train_step import stepper
from configs import joint_moe
from jmoe.model import sharding
from jmoe.run.record import cpu_threads

ENVIRONMENT = flags.DEFINE_string("environment", None, "MaxText's environment; without it, its arms are left out.")
D_MODEL = 128
N_BLOCKS = 4
N_HEADS = 4
D_FF = 384
VOCAB = 1024
N_EXPERTS = 8
TOP_K = 2
N_ROWS = 16
SEQ_LEN = 128
STEPS = 30  # of MaxText's trainer; the median of their rates is taken
TRAINER = f"{peers.START}\nimport runpy; runpy.run_module('maxtext.trainers.pre_train.train', run_name='__main__')"
MAXTEXT = (
    f"decoder_block=mixtral base_emb_dim={D_MODEL} base_num_decoder_layers={N_BLOCKS} base_num_query_heads={N_HEADS} "
    f"base_num_kv_heads={N_HEADS} head_dim={D_MODEL // N_HEADS} base_mlp_dim={D_FF} base_moe_mlp_dim={D_FF} "
    f"num_experts={N_EXPERTS} num_experts_per_tok={TOP_K} vocab_size={VOCAB} per_device_batch_size={N_ROWS} "
    f"max_target_length={SEQ_LEN} dtype=float32 weight_dtype=float32 remat_policy=minimal attention=dot_product "
    f"dataset_type=synthetic enable_checkpointing=false hardware=cpu steps={STEPS} run_name=cpu megablox=False "
    "capacity_factor=-1 skip_jax_distributed_system=True"
).split()


def ours(capacity_factor: float | None) -> ConfigDict:
    """Our config of the model; None: nothing is dropped."""
    config = joint_moe.get_config()
    config.model.update(d_model=D_MODEL, n_blocks=N_BLOCKS, n_heads=N_HEADS, d_ff=D_FF, vocab_size=VOCAB)
    config.model.update(n_experts=N_EXPERTS, top_k=TOP_K, norm="rms", final_norm=True, dtype="float32")
    config.model.capacity_factor = capacity_factor
    config.model.group_tokens = N_ROWS * SEQ_LEN
    config.data.seq_len = SEQ_LEN
    config.batch_tokens = ((0, N_ROWS * SEQ_LEN),)
    config.remat = "none"
    config.unroll = True
    return config


def theirs() -> Callable[[], None]:
    """A function that makes one step of transformers' Mixtral."""
    torch.set_num_threads(cpu_threads())  # as many as XLA has
    torch.manual_seed(0)
    settings = transformers.MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=D_MODEL,
        intermediate_size=D_FF,
        num_hidden_layers=N_BLOCKS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
        num_local_experts=N_EXPERTS,
        num_experts_per_tok=TOP_K,
        output_router_logits=True,
        pad_token_id=None,
    )
    model = transformers.MixtralForCausalLM(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCAB, (N_ROWS, SEQ_LEN))

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def maxtexts(folder: str, sparse: bool) -> float:
    """Tokens per second of MaxText's trainer.

    Args:
      folder: MaxText's environment.
      sparse: whether a token is multiplied by its own experts alone.
    """
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [f"{folder}/bin/python", "-c", TRAINER, peers.base(pathlib.Path(folder)), *MAXTEXT]
            + [f"sparse_matmul={sparse}", f"base_output_directory={out}"],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
    rates = [float(rate) for rate in re.findall(r"Tokens/s/device: ([\d.]+)", done.stdout + done.stderr)]
    if not rates:
        sys.exit(f"MaxText's trainer in {folder} printed no speed: {(done.stderr.splitlines() or [''])[-1]}")
    return statistics.median(rates[len(rates) // 3 :])


def maxtexts_rates() -> list[float]:
    """Tokens per second of MaxText, dense and sparse; none without an environment."""
    if ENVIRONMENT.value is None:
        return []
    return [maxtexts(ENVIRONMENT.value, sparse) for sparse in (False, True)]


def main(_) -> None:
    mesh = sharding.make_mesh(ours(None), jax.devices()[:1])
    with jax.set_mesh(mesh):
        arms = {
            "transformers' Mixtral": theirs(),
            "jmoe, capacity 1": stepper(ours(1.0), mesh)[0],
            "jmoe, nothing dropped": stepper(ours(None), mesh)[0],
        }
        before = maxtexts_rates()
        seconds, cpu = measure.in_turn(arms, measure.ROUNDS.value)
        after = maxtexts_rates()
    first = next(iter(arms))
    rows = [
        {
            "arm": name,
            "tokens/s": N_ROWS * SEQ_LEN / statistics.median(seconds[name]),
            "x transformers": 1 / measure.ratio(seconds, name, first),
            "x transformers, CPU time": 1 / measure.ratio(cpu, name, first),
        }
        for name in arms
    ]
    if ENVIRONMENT.value:
        for name, rates in zip(("MaxText, dense", "MaxText, sparse"), zip(before, after, strict=True), strict=True):
            rate = statistics.mean(rates)
            row = {
                "arm": name,
                "tokens/s": rate,
                "x transformers": rate / rows[0]["tokens/s"],
                "x transformers, CPU time": None,
            }
            rows.append(row)
    notes = "median of the rounds' ratios; MaxText's are of its own clock, before and after."
    measure.show(rows, notes, measure.JSON.value)


if __name__ == "__main__":
    app.run(main)
