"""The learning rate of results/: two widths, dense and E = 16, several rates; the smaller width also on four
times the tokens.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_lr.py --workdir=runs/bytes_2026/lr
python -m fit lr --runs=runs/bytes_2026/lr/runs.csv --with_tokens
"""

RATES = (3.75, 4.1, 4.45, 4.8, 5.15)  # config.optimizer.lr_law.constant
MORE_TOKENS = (3.75, 4.1, 4.45, 4.8)  # at the smaller width: more tokens want a smaller rate


def get_sweep():
    """(config file, one dict of overrides for each job)."""
    models = [(d_model, n_experts) for d_model in (48, 96) for n_experts in (1, 16)]
    jobs = [(*model, rate, 4_194_304) for model in models for rate in RATES]
    jobs += [(48, n_experts, rate, 16_777_216) for n_experts in (1, 16) for rate in MORE_TOKENS]
    return "configs/bytes_2026.py", [
        {
            "model.d_model": d_model,
            "model.n_experts": n_experts,
            "optimizer.lr_law.constant": rate,
            "n_tokens": (n_tokens,),
        }
        for d_model, n_experts, rate, n_tokens in jobs
    ]
