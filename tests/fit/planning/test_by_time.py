"""Plans by hours: speeds, words, and what a wrong combination of flags is told. What must hold of all of them stands in
test_plan_properties.py.
"""

import json

import pytest

import fit
from fit import __main__ as command_line

LAW = "joint-moe-2025"


def plan(capsys, *flags):
    assert command_line.run(["plan", f"--law={LAW}", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    del found["options"]  # of the flags
    return found


def test_ranges_hold_the_middle_and_agree(capsys):
    found = plan(capsys, "--chips=H100:64", "--hours=240")
    for row in [*found["optima"], found["buildable"]]:
        for low, middle, high in row["speed"].values():
            assert low < middle < high
        hours = row["speed"]["hours"]
        tokens = [rate * 3600 * h for rate, h in zip(row["speed"]["tokens_per_second"], reversed(hours), strict=True)]
        assert tokens == pytest.approx([row["n_tokens"]] * 3)


def test_experts_that_the_law_counts_as_no_whole_number():
    """16 experts split in 4 with one of them shared are built as 64, which the law counts as 16.25."""
    shape = dict(shape=dict(granularity=4, shared_experts=1), experts=[8, 16], chips="B200:32", hours=100)
    by_clock = fit.plan(LAW, **shape)
    assert by_clock.buildable["law_experts"] != round(by_clock.buildable["law_experts"])
    assert "modelled" in str(by_clock)
    assert "at MFU 0.3" in str(fit.plan(LAW, mfu={8: 0.3, 16: 0.3}, **shape))


def test_a_law_of_several_splits_is_timed_at_each():
    """Finer experts are slower: by wall-clock time the split is not the finest, which FLOPs prefer."""
    limits = dict(chips="H100:16", hours=100)
    found = fit.compare(["fine-grained-2024"], **limits, verbose=True)
    (fine,) = found.laws
    (by_flops,) = fit.compare(["fine-grained-2024"], **limits, mfu=0.4).laws
    assert 1 < fine.granularity < by_flops.granularity
    assert fine.n_tokens == pytest.approx(fine.speed.tokens_per_second[1] * 360_000, rel=1e-9)
    told = " ".join(str(found).split())
    assert "dense hours" in told and "speed on these chips (modelled" in told


def test_own_speeds_recalibrate_the_plan(tmp_path):
    """Four models at 0.6 of the modelled speed: a plan with them has the models and tokens of 0.6 of the hours."""
    chips = "H100:64"
    rows = []
    for hours, e in ((24, 1), (24, 8), (2400, 1), (2400, 8)):
        built = fit.plan(LAW, chips=chips, hours=hours, experts=[e]).buildable
        columns = (
            "d_model",
            "n_blocks",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "d_ff",
            "n_experts",
            "top_k",
            "vocab_size",
        )
        row = {name: built.get(name) for name in columns}
        layout = built.layout
        row |= dict(seq_len=built.sequence, batch_tokens=layout.batch_tokens, expert=layout.expert, remat=layout.remat)
        rows.append(row | dict(tokens_per_second=0.6 * built.speed.tokens_per_second[1]))
    path = tmp_path / "speeds.csv"
    lines = [",".join(rows[0])] + [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
    path.write_text("\n".join(lines))
    found = fit.plan(LAW, chips=chips, hours=240, speeds=str(path))
    expected = fit.plan(LAW, chips=chips, hours=0.6 * 240)
    for row, other in zip(found.optima, expected.optima, strict=True):
        assert row.loss == pytest.approx(other.loss, rel=2e-3)
        of_budget = 6 * row.n_active * row.n_tokens
        assert of_budget == pytest.approx(6 * other.n_active * other.n_tokens, rel=0.05)
        low, _, high = row.speed.tokens_per_second
        modelled_low, _, modelled_high = other.speed.tokens_per_second
        assert high / low < modelled_high / modelled_low
    assert found.clock.label == "measured" and ", measured; training takes" in " ".join(str(found).split())
