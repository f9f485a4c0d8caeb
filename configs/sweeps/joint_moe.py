"""The 270 runs of Joint MoE Scaling Laws, App. H, at the paper's recipe: 51 trunks with 1 to 16 branches each.

python -m launch.sweep --sweep=configs/sweeps/joint_moe.py --workdir=gs://BUCKET/joint_moe --backend=slurm|gke
python -m launch.sweep --sweep=configs/sweeps/joint_moe.py --workdir=x --dry_run --text_elsewhere --accelerator=H100:8

51 jobs, 4.77e21 FLOPs: 3,350 H100-hours at 40% MFU. Separate runs would cost 9.51e21 FLOPs: sharing trunks saves half.
Set `config.data.path` to your text in a copy of configs/joint_moe.py (the paper: FineWeb-Edu, GPT-2 tokens).
"""

TO_2 = (0.5, 1, 2)
TO_4 = (*TO_2, 4)
TO_8 = (*TO_4, 8)
TO_16 = (*TO_8, 16)
TO_32 = (*TO_16, 32)

# (d_model, n_blocks, n_heads, numbers of experts, budgets in billions of tokens). One printed row reads "704 576"; its
# sizes are those of d_model 704.
TABLE = [
    (512, 8, 8, (1, 2, 4, 8, 16, 32), TO_2),
    (576, 9, 9, (8,), (1.7, 3.3)),
    (640, 10, 10, (1, 2, 4, 8, 16, 32), TO_4),
    (704, 11, 11, (4,), (1.1, 2.3, 4.5)),
    (768, 12, 12, (1, 2, 4, 8, 16, 32), TO_8),
    (832, 13, 13, (2,), (0.8, 1.6, 3.2, 6.4)),
    (1024, 16, 16, (1, 2, 4, 8, 16, 32), TO_16),
    (1152, 18, 18, (4,), (1.3, 2.6, 5.2, 10.4, 20.7, 25.9, 31.0)),
    (1280, 16, 10, (1, 2, 4), TO_32),
    (1280, 16, 10, (8,), (1, 2, 4, 8, 16, 32)),
    (1280, 20, 20, (1, 2), (8, 16)),
    (1408, 21, 11, (1, 2), TO_32),
    (1408, 21, 11, (4, 8), TO_16),
    (1408, 22, 22, (1,), (3.8, 5.3, 6.2, 7.7, 10.6, 12.2, 12.5, 35.3)),
    (1408, 22, 22, (2,), (0.778, 1.6, 3.1, 3.8, 5.3, 6.2, 7.7, 10.6, 12.2, 12.5, 15.6, 18.7, 21.8, 24.9, 35.3, 49.8)),
    (1408, 22, 22, (4,), (3.8, 5.3, 7.7, 10.6, 12.2, 35.3)),
    (1536, 24, 24, (1,), (5.0, 9.9)),
    (1664, 26, 26, (1,), (*TO_8, 10, 12, 14, 16, 32, 48, 64, 80)),
    (1664, 26, 26, (2,), TO_16),
    (1664, 26, 26, (4,), (*TO_32, 48, 64, 80)),
    (1792, 28, 28, (1,), (2.0, 2.8, 3.3, 4.0, 5.6, 6.5, 11.1, 18.6)),
    (1792, 28, 28, (2,), (2.0, 2.8, 4.0, 5.6, 11.1, 18.6)),
    (1792, 28, 28, (4,), (2.0, 2.8, 5.6, 11.1)),
    (1920, 30, 30, (1, 2), (2.7, 5.4)),
    (2304, 36, 36, (1,), (0.98, 1.4, 2.0, 2.8, 5.5, 9.2)),
]


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each trunk."""
    return "configs/joint_moe.py", [
        {
            "model.d_model": d_model,
            "model.n_blocks": n_blocks,
            "model.n_heads": n_heads,
            "model.n_experts": n_experts,
            "n_tokens": tuple(round(billions * 1e9) for billions in budgets),
        }
        for d_model, n_blocks, n_heads, experts, budgets in TABLE
        for n_experts in experts
    ]
