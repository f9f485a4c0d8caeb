"""What a law knows of the models it was fitted to, and what it says outside of them."""

import dataclasses
import json

import fit_runs
import numpy as np
import pytest

from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import in_words, warning_of
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitted_law.models import Models
from fit.fitted_law.parts import FittedRuns
from fit.laws import FORMS
from fit.model.architecture import BATCH_RAMP, Architecture
from fit.table.table import Table, read


@pytest.fixture(scope="module")
def law(tmp_path_factory):
    return load(fit_runs.write_demo_law(tmp_path_factory.mktemp("law") / "law.json"))


def table(**changes):
    runs, columns = fit_runs.demo_runs()
    columns |= dict(n_active=runs.n_active.tolist(), n_experts=runs.n_experts.tolist()) | changes
    return Table("runs.csv", columns, list(range(36)))


def test_a_law_knows_its_models(law):
    from configs import quickstart

    assert law.architecture == Architecture(257, 8, final_norm=True) and law.experts == (1, 2, 4, 8)
    assert law.models.base_config == "configs/quickstart.py" and law.models.corpus == fit_runs.CORPUS
    rates = quickstart.get_config().optimizer.lr_law
    assert dict(law.models.learning_rate) == pytest.approx({name: rates[name] for name in fit_runs.RATES}, rel=1e-9)
    assert law.ranges["n_active"] == (14880, 69696) and law.ranges["training_flops"][1] == 6 * 69696 * 1_310_720
    assert law.shaped(vocab_size=300) == Architecture(300, 8, final_norm=True)  # flags go before


def test_a_published_law_knows_its_papers():
    law = load("joint-moe-2025")
    n, d, e = fit_runs.paper_grid()
    for name, values in dict(n_active=n, n_tokens=d, n_experts=e, training_flops=6 * n * d).items():
        assert law.ranges[name] == (values.min(), values.max())
    assert law.architecture == Architecture(50257, 64) and law.experts == (1, 2, 4, 8, 16, 32)
    points = fit_runs.chinchilla_runs()
    for name in ("n_active", "n_tokens"):
        ends = getattr(points, name).min(), getattr(points, name).max()
        assert load("chinchilla-refit-2024").ranges[name] == pytest.approx(ends, rel=1e-3)
    assert load("chinchilla-2022").experts == (1,)


def test_what_lies_outside_is_told_by_how_much(law):
    def outside(n_active, n_tokens, n_experts=None):
        return extrapolation.outside(law, n_active=n_active, n_tokens=n_tokens, n_experts=n_experts)

    assert outside(14880, 327680, 8) == [] and extrapolation.outside(law, n_experts=3) == []
    found = outside(14880 / 4, 2 * 1_310_720, 32)
    assert [(o["column"], o["factor"]) for o in found] == [
        ("n_active", pytest.approx(4)),
        ("n_tokens", pytest.approx(2)),
        ("n_experts", pytest.approx(4)),
    ]
    assert [o["column"] for o in outside(69696, 2e6)] == ["n_tokens", "training_flops"]
    assert warning_of(found) == (
        "outside the fitted range: n_active 4 times below 14.9K, n_tokens 2 times above 1.31M, "
        "n_experts 4 times above 8"
    )
    assert warning_of([]) == ""


@pytest.mark.parametrize(
    "ends, value, words, short",
    [
        ((0.5, 0.9), 0, "sparsity 0, below 0.5", "sparsity below"),
        ((0.0, 0.0), 0.5, "sparsity 0.5, above 0", "sparsity above"),
    ],
)
def test_nothing_is_a_multiple_of_zero(ends, value, words, short):
    law = load("sparsity-2025")
    law = dataclasses.replace(law, runs=FittedRuns(ranges=dict(sparsity=ends)))
    (outside,) = extrapolation.outside(law, sparsity=value)
    assert (outside.factor, outside.in_words, outside.in_short) == (None, words, short)
    if value == 0:
        assert extrapolation.of_model(law, law.architecture, 1, 1e8, 1e9, 1e8) == [outside]


def test_tokens_that_the_text_does_not_have(law):
    law = Law(law.name, law.form, law.coefficients, models=Models(unique_tokens=1000))
    assert in_words(extrapolation.outside(law, n_tokens=3000)) == "n_tokens 3 times the 1K of the text"
    assert extrapolation.outside(law, n_tokens=1000) == []


def test_text_seen_more_than_once_is_told():
    runs = fit_runs.demo_runs()[0]
    sizes = dict(n_tokens=runs.n_tokens.tolist())
    once = fit_runs.models_of(table(**sizes, epochs=(runs.n_tokens / 2_000_128).tolist()))
    assert once.unique_tokens == 2_000_128 and once.repeats is None and not [*once.findings()]
    twice = fit_runs.models_of(table(**sizes, epochs=(runs.n_tokens / 524_288).tolist()))
    assert twice.unique_tokens == 524_288 and twice.repeats == (24, 2.5)
    assert "runs that saw text more than once: 24, up to 2.5 epochs" in str(next(twice.findings()))


def test_runs_that_differ_give_no_default(law):
    few = fit_runs.models_of(table(vocab_size=[257] * 30 + [512] * 6))
    assert few.vocab_size == 257 and few.differing == {"vocab_size": (257, 512)}
    assert "that of most runs, 257" in str(next(few.findings()))
    half = fit_runs.models_of(table(vocab_size=[257] * 18 + [512] * 18, width_per_block=[8] * 36))
    assert half.vocab_size is None and half.width_per_block == 8
    with pytest.raises(UserError, match="say which by shape=vocab_size"):
        Law("x", FORMS["joint"], law.coefficients, models=half).architecture  # noqa: B018


def test_rates_without_a_law_give_none():
    rates = table().columns["peak_learning_rate"]
    assert fit_runs.models_of(table(peak_learning_rate=[2 * rates[0], *rates[1:]])).learning_rate is None
    assert fit_runs.models_of(table(peak_learning_rate=["fast"] * 36)).learning_rate is None  # no law needs it


@pytest.mark.parametrize("has_shapes", [True, False])
@pytest.mark.parametrize("written", ["1", "", None, "nan", "overrides"])
def test_dense_models_need_no_top_k(has_shapes, written):
    """With blanks there, or with overrides in place of the column, the mixtures have theirs all the same."""
    n_experts = np.array([1, 1, 8, 8, 8])
    columns = dict(n_active=np.geomspace(1e8, 1e9, 5), n_tokens=[2e10] * 5, n_experts=n_experts, granularity=[2] * 5)
    if has_shapes:
        columns |= dict(d_model=[512] * 5, n_blocks=[8] * 5)
    if written == "overrides":
        columns["overrides"] = ["", "", *["seed=1 model.top_k=2"] * 3]
    else:
        columns["top_k"] = [written, written, "2", "2", "2"]
    known = fit_runs.models_of(read(columns))
    assert known.architecture.top_k == 2 and known.architecture.granularity == 2 and not known.assumed
    unsaid = read(columns | dict(top_k=["1", "1", "", "", ""], overrides=[""] * 5))
    if not has_shapes:  # blanks of all mixtures say nothing
        assert [finding.code for finding in fit_runs.models_of(unsaid).assumed] == ["top_k_assumed"]


def test_ratios_that_no_model_has_are_refused():
    """No law.json may hold them."""
    with pytest.raises(UserError, match="^runs.csv: n_kv_heads / n_heads is 2.0, expected a number from 0.001 to 1"):
        fit_runs.models_of(table(n_heads=[8] * 36, n_kv_heads=[16] * 36))


def test_shares_of_experts_are_those_of_mixtures_that_can_be():
    """Others, of as many parameters in all as active ones, have no share that a law.json may hold."""
    n_active = np.geomspace(1e7, 1e9, 9)
    ratio = np.array([1, 1, 1, 1, 4, 4, 4, 4, 4])
    columns = dict(n_active=n_active, n_total=ratio * n_active, n_tokens=[2e10] * 9, n_experts=[8] * 9, top_k=[1] * 9)
    shares = fit_runs.models_of(read(columns)).shares
    np.testing.assert_allclose(shares.n_active, n_active[4:])
    np.testing.assert_allclose(shares.share, 3 / 7)


def test_overrides_that_all_runs_share_are_kept():
    ours = [f"{text} data.path='my text/*.txt' optimizer.b2=0.95" for text in table().columns["overrides"]]
    found = fit_runs.models_of(table(overrides=ours))
    assert found.overrides == {"data.path": "'my text/*.txt'", "optimizer.b2": "0.95"}
    mixed = fit_runs.models_of(table(overrides=[*ours[:-1], ours[-1].replace("0.95", "0.9")]))
    assert mixed.overrides == {"data.path": "'my text/*.txt'"}
    assert mixed.differing == {"optimizer.b2": ("0.9", "0.95")}
    for none in ("x=__import__('os')", "optimizer.decay_fraction='half'"):
        assert fit_runs.models_of(table(overrides=[none] * 36)).overrides == {}


# The batches of the runs.


def test_a_norm_and_rows_that_all_runs_set_are_known_without_their_columns():
    of_overrides = read(dict(n_active=[1e8] * 3, overrides=["model.final_norm=True data.seq_len=1024"] * 3))
    found = fit_runs.models_of(of_overrides)
    assert found.final_norm and found.seq_len == 1024
    columns = of_overrides.columns | dict(final_norm=["False"] * 3, seq_len=[512] * 3)
    found = fit_runs.models_of(read(columns))
    assert not found.final_norm and found.seq_len == 512


def ends_of(schedule):
    """(n_tokens, batch_tokens) of a schedule's budgets, as the trainer writes them."""
    branches = [segment for segment in schedule.segments if segment.decays]
    return zip(*((schedule.tokens_at(b.stop), schedule.batch_at(b.stop - 1)) for b in branches), strict=True)


@pytest.mark.parametrize("chosen", [None, ((0, 3_072), (999_424, 6_144), (3_000_000, 12_288))])
def test_a_law_knows_the_ramp_of_its_runs_batches(chosen):
    """That of the config where all runs override it alike, else the paper's with its own config: whatever step of it
    a run ends in, which may lie beyond the token that the ramp names."""
    from configs import joint_moe
    from jmoe.config.schedule import Schedule

    config = joint_moe.get_config()
    config.n_tokens = (490_000_000, 500_000_000, 500_200_000, 1_300_000_000)
    if chosen:
        config.model.group_tokens = 512
        config.optimizer.warmup_tokens = 100_000
        config.batch_tokens, config.n_tokens = chosen, (900_000, 999_424, 1_500_000, 4_000_000)
    n_tokens, last_batches = ends_of(Schedule(config))
    assert len(set(last_batches)) == 3
    overrides = f"model.d_model=512 batch_tokens={chosen!r}" if chosen else "model.d_model=512"
    columns = dict(n_tokens=n_tokens, config=["configs/joint_moe.py"] * 4, overrides=[overrides] * 4)
    for column in ({}, {"batch_tokens": last_batches}):
        of_runs = Table("runs.csv", {name: list(values) for name, values in (columns | column).items()}, [2, 3, 4, 5])
        assert fit_runs.models_of(of_runs).batches == config.batch_tokens


def test_a_column_of_batches_counts_more_than_a_config():
    assert fit_runs.models_of(table()).batches is None  # configs/quickstart.py has its own
    assert fit_runs.models_of(table(batch_tokens=[1_024] * 36)).batches == ((0, 1_024),)
    papers = dict(config=["configs/joint_moe.py"] * 36)
    assert fit_runs.models_of(table(**papers, batch_tokens=[1_024] * 36)).batches == ((0, 1_024),)


def test_runs_of_several_batches_have_none_in_common():
    """Nor have those whose batches shrink, which no plan has."""
    papers = dict(config=["configs/joint_moe.py"] * 36)
    assert fit_runs.models_of(table(**papers, overrides=["seed=1"] * 36)).batches == BATCH_RAMP
    few = "batch_tokens=((0, 4096),)"
    for overrides in ([few, *["seed=1"] * 35], ["batch_tokens=((0, 4096), (9, 512))"] * 36, ["batch_tokens=9"] * 36):
        assert fit_runs.models_of(table(**papers, overrides=overrides)).batches is None
    assert fit_runs.models_of(table(**papers, overrides=[few] * 36)).batches == ((0, 4_096),)


def test_batches_that_grow_with_the_tokens_are_a_ramp_and_others_are_not():
    n_tokens = fit_runs.demo_runs()[0].n_tokens
    grown = np.where(n_tokens > 400_000, 2_048, 1_024).tolist()
    known = fit_runs.models_of(table(n_tokens=n_tokens.tolist(), batch_tokens=grown))
    assert known.batches == ((0, 1_024), (327_680, 2_048))
    for others in ([2_048, *grown[1:]], [*grown[:-1], 1_024], ["", *grown[1:]], grown[::-1]):
        assert fit_runs.models_of(table(n_tokens=n_tokens.tolist(), batch_tokens=others)).batches is None
    assert fit_runs.models_of(table(batch_tokens=grown)).batches is None  # nothing says the tokens
    assert fit_runs.models_of(table(batch_tokens=[64] * 36)).batches is None  # rows of 128: they count something else


def test_a_law_keeps_its_batches(tmp_path):
    """In law.json; what no run can have is refused by name."""
    path = fit_runs.write_demo_law(tmp_path / "law.json", batches=[[0, 1_024], [327_680, 2_048]])
    law = load(path)
    assert law.models.batches == ((0, 1_024), (327_680, 2_048))
    assert law.to_dict()["models"]["batches"] == json.loads(json.dumps(law.models.batches))
    for wrong in ([], [[1, 1_024]], [[0, 0]], [[0, 1_024], [0, 2_048]], [[0, 1_024], [9, 512]], [[0, 1.5]], [0, 1], 7):
        fit_runs.write_demo_law(path, batches=wrong)
        with pytest.raises(UserError, match=r"models\.batches is .*, expected 1 to 16 pairs"):
            load(path)
