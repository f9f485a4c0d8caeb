"""The benchmarks run, and the layer that ours is measured against computes the same. Nothing here is timed."""

import importlib.util
import json

import helpers


def test_one_hot_dispatch_is_the_same_layer(tmp_path):
    sizes = (
        "--n_tokens=256",
        "--d_model=16",
        "--d_ff=24",
        "--n_experts=4",
        "--fine=8,2,12",
        "--rounds=1",
        f"--json={tmp_path}/layer.json",
    )
    done = helpers.run("benchmarks.moe_layer", *sizes)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "layer.json").read_text())
    torch = ["torch Mixtral"] if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers") else []
    coarse = [f"{name} E=4" for name in ["switch", "one-hot", *torch]]
    fine = [f"{name} E=8 k=2 ff=12" for name in ["mixture", "one-hot", *torch]]
    assert [row["layer"] for row in written["rows"]] == ["dense", *coarse, *fine]
    assert float(written["notes"].rsplit(" ", 1)[1]) < 1e-4
    for row in written["rows"]:
        assert f"{row['ms']:.3g}" in done.stdout
