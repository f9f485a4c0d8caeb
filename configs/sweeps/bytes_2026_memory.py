"""Figure 1b at laptop size, for results/: dense 528k parameters against E = 2 (509k) and E = 4 (524k), at equal FLOPs.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_memory.py --workdir=runs/bytes_2026/memory

Equal totals need widths between those of bytes_2026_fit.py: blocks of width 28 and 21, heads of 28 and 32. There are
three seeds. bytes_2026_fit.py trains two of the dense model: it has the same model with the same number of tokens.
"""

MODELS = (  # d_model, n_blocks, n_heads, n_experts, n_tokens, seeds: 4.434e12 active parameters times tokens each
    (96, 4, 4, 1, 8_388_608, (2,)),
    (84, 3, 3, 2, 13_927_682, (0, 1, 2)),
    (64, 3, 2, 4, 23_017_114, (0, 1, 2)),
)


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job."""
    return "configs/bytes_2026_tuned.py", [
        {
            "model.d_model": d_model,
            "model.n_blocks": n_blocks,
            "model.n_heads": n_heads,
            "model.n_experts": n_experts,
            "seed": seed,
            "n_tokens": (n_tokens,),
        }
        for d_model, n_blocks, n_heads, n_experts, n_tokens, seeds in MODELS
        for seed in seeds
    ]
