"""Plan a model while you move sliders: `pip install marimo`, then `marimo run examples/plan_app.py`."""

import marimo

app = marimo.App()


@app.cell
def imports():
    import marimo as mo

    import fit

    return fit, mo


@app.cell
def limits(mo):
    law = mo.ui.dropdown(
        ["joint-moe-2025", "sparsity-2025", "chinchilla-refit-2024"], value="joint-moe-2025", label="Law"
    )
    log_flops = mo.ui.slider(18, 25, step=0.1, value=22, label="log10 of training FLOPs")
    memory_gb = mo.ui.slider(8, 640, step=8, value=80, label="Memory for weights and cache, GB")
    mo.vstack([law, log_flops, memory_gb])
    return law, log_flops, memory_gb


@app.cell
def plan(fit, law, log_flops, memory_gb):
    fit.plan(law.value, flops=10**log_flops.value, memory_gb=memory_gb.value)


if __name__ == "__main__":
    app.run()
