"""The recipe of configs/joint_moe.py scaled to a laptop: bytes, short rows, widths of 32 to 128, minutes on two cores.

    python -m jmoe.train --config=configs/quickstart.py --workdir=runs/one --config.model.n_experts=8

takes about half a minute on 2 cores and ends at a validation loss of about ? nats per token.
"""

from configs import joint_moe


def get_config():
    config = joint_moe.get_config()
    config.n_tokens = (524_288,)

    config.model.d_model = 64
    config.model.n_blocks = 2
    config.model.n_heads = config.model.get_oneway_ref("d_model") // 16
    config.model.vocab_size = 257
    config.model.group_tokens = 2_048
    config.model.dtype = "float32"

    config.data.seq_len = 128
    config.data.validation_tokens = 65_536
    config.batch_tokens = ((0, 2_048),)

    config.optimizer.warmup_tokens = 32_768
    config.optimizer.grad_clip = 1.0

    config.log_every = 10
    config.checkpoint_every = 100
    return config
