"""The pilot of the second study: when do models learn to use the text before? By batch, rows, width and vocabulary.

    python -m launch.sweep --sweep=results/second/pilot_sweep.py --workdir=runs/second/pilot --mix=config --mix=corpus

Commit bbca4d3 trained its 28 runs, in an hour of a busy core; pilot.csv has them. runs/second/bpe512.json is a BPE
vocabulary of bytes with 512 tokens, trained by the package tokenizers on every eighth document of the text.
"""

import math

MILLION = 2**20
TUNED = 2.8736  # config.optimizer.lr_law.constant of configs/bytes_2026_tuned.py, for batches of 4,096 tokens


def job(d_model, batch, seq_len, millions, rate=1.0, **more):
    """rate: times the rate of batches of 4,096 tokens."""
    return {
        "model.d_model": d_model,
        "data.seq_len": seq_len,
        "batch_tokens": ((0, batch),),
        "model.group_tokens": batch,
        "optimizer.lr_law.constant": TUNED + math.log(rate),
        "n_tokens": tuple(m * MILLION for m in millions),
        **more,
    }


BPE = {"data.tokenizer": "runs/second/bpe512.json", "model.vocab_size": 512, "data.fingerprint": ""}


def get_sweep():
    return "configs/bytes_2026_tuned.py", [
        job(48, 1024, 128, (1, 2, 4, 8), 0.5),
        job(48, 4096, 16, (1, 2, 4, 8)),
        job(96, 1024, 128, (1, 2, 4), 0.5),
        job(48, 1024, 64, (1, 2, 4, 8), 0.5),
        job(48, 1024, 64, (1, 2, 4), 0.5, **BPE),
        job(48, 512, 128, (1, 2, 4, 8), 0.35),
        job(48, 1024, 128, (1, 2, 4), 1.0),
        job(96, 4096, 16, (2, 4, 8)),
    ]
