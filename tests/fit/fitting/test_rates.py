"""`fit lr`: best rates against size, experts, tokens and batch; on any table; intervals; what a wrong rate costs."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from fit import __main__ as command_line
from fit.fitting import learning_rate, rates_answer
from fit.messages import lines
from fit.table.table import Table, write

LAW = dict(constant=0.5, n_active=-0.5, n_experts=-0.25, n_tokens=0.07, batch_tokens=0.3)
SIZES = (1e6, 1e7)
EXPERTS = (1, 8)
TOKENS = (1e8, 1e9)
BATCHES = (4096.0, 65536.0)
RATES = np.geomspace(1e-3, 1, 25).tolist()


def rows(sizes=SIZES, experts=EXPERTS, tokens=TOKENS, batches=BATCHES, rates=RATES):
    """Runs whose loss is 3 nats at LAW's rate, and the squared ln of the factor from it above that elsewhere."""
    result = []
    for n, e, d, b in itertools.product(sizes, experts, tokens, batches):
        model = dict(n_active=n, n_experts=e, n_tokens=d, batch_tokens=b)
        best = learning_rate.predict(LAW, **model)
        result += [model | dict(peak_learning_rate=r, loss=float(3 + np.log(r / best) ** 2)) for r in rates]
    return result


def table(found):
    return Table("rates", {name: [row[name] for row in found] for name in found[0]}, list(range(len(found))))


@pytest.fixture
def lr(tmp_path, capsys):
    """Runs `fit lr` on rows; what it printed."""

    def run(found, *flags, code=0):
        write(table(found), str(tmp_path / "rates.csv"))
        assert command_line.run(["lr", f"--runs={tmp_path}/rates.csv", *flags]) == code
        message = capsys.readouterr()
        return message.err if code else message.out

    return run


def test_the_exponents_of_tokens_and_batch_are_recovered(lr, tmp_path):
    message = lr(rows(), "--with_tokens", "--with_batch", f"--out={tmp_path}/lr.json")
    record = json.loads((tmp_path / "lr.json").read_text())
    assert record["lr_law"] == pytest.approx(LAW, rel=1e-6) and record["intervals"].keys() == LAW.keys()
    for name, value in LAW.items():
        assert f"config.optimizer.lr_law.{name} = {value:.6f}  # 10% to 90%: " in message
    some = lr(rows(), "--experts=8", "--with_tokens")
    assert "on 8 fitted models" in some and f"lr_law.n_tokens = {LAW['n_tokens']:.6f}" in some
    without = lr(rows())
    assert "lr_law.n_tokens" not in without and "lr_law.batch_tokens" not in without


def test_exponents_that_the_runs_do_not_tell_apart_are_refused(lr):
    assert "cannot tell size from experts from tokens, expected" in lr(rows(tokens=[1e8]), "--with_tokens", code=2)
    assert "cannot tell size from experts from batch, expected" in lr(rows(batches=[4096]), "--with_batch", code=2)
    assert "was tried at 2 learning rates, expected 3 or more" in lr(rows(rates=RATES[:2]), code=2)
    assert "was tried at 1 learning rate, expected 3 or more" in lr(rows(rates=RATES[:1]), code=2)


def test_a_table_of_anothers_names_and_models_of_one_kind(lr):
    """Dense runs of one batch that no column tells, some tried at a single rate."""
    result = [{"lr" if k == "peak_learning_rate" else k: v for k, v in row.items() if k != "batch_tokens"} for row in
             rows(experts=[1], batches=[4096]) + rows([2e6], [1], [1e8], [4096], RATES[:2])]  # fmt: skip
    message = lr(result, "--columns=peak_learning_rate:lr", "--with_tokens")
    assert "left out: 1 models that were tried at fewer than three rates" in message
    assert "lr_law.n_experts = 0.000000  # all fitted models have n_experts = 1: the law holds there alone" in message
    assert f"lr_law.n_tokens = {LAW['n_tokens']:.6f}" in message
    assert "column batch_tokens is missing" in lr(result, "--columns=peak_learning_rate:lr", "--with_batch", code=2)
    one = lr(rows([1e6], [1], [1e8], [4096]))
    assert "no intervals: 1 models are as many as the coefficients" in one and "lr_law.n_active = 0.000000" in one


def test_runs_of_two_batches_are_two_models_unless_some_do_not_say_theirs(lr):
    result = rows()
    assert len(learning_rate.best_rates(table(result))[0]) == 16
    result[0]["batch_tokens"] = ""
    assert len(learning_rate.best_rates(table(result))[0]) == 8
    assert "row 2, column batch_tokens: found nothing" in lr(result, "--with_batch", code=2)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Eight tenths of 500 laws fitted to scattered best rates, for each coefficient and for a model far outside."""
    chance = np.random.default_rng(0)
    optima, _ = learning_rate.best_rates(table(rows()))
    held = dict.fromkeys([*LAW, "rate"], 0)
    outside = learning_rate.BestRate(1e9, 64, 1e11, 0, 0, 0, False, 1e6)
    at = learning_rate.predict(LAW, 1e9, 64, 1e11, 1e6)
    for _ in range(500):
        drawn = [dataclasses.replace(best, rate=best.rate * np.exp(0.1 * chance.standard_normal())) for best in optima]
        law = learning_rate.fit(drawn, with_tokens=True, with_batch=True)
        intervals, half = learning_rate.spread(law, drawn)
        for name, (low, high) in intervals.items():
            held[name] += low <= LAW[name] <= high
        best = at * np.exp(0.1 * chance.standard_normal())
        held["rate"] += abs(np.log(best / learning_rate.predict(law, 1e9, 64, 1e11, 1e6))) <= half(outside)
    assert all(0.75 < n / 500 < 0.85 for n in held.values()), held


def test_a_wrong_rate_costs_what_the_runs_say():
    """Along a curve that is no parabola, within what was tried and not beyond; nothing where the best is at the end."""

    def loss(x):
        return 2 + np.where(x > 0, 0.3, 0.1) * x**2

    x = np.log(2) * np.arange(-1.5, 2.6, 0.25)
    model = dict(n_active=1e6, n_experts=1, n_tokens=1e9)
    result = [model | dict(peak_learning_rate=float(np.exp(a)), loss=float(loss(a))) for a in x]
    (best,), _ = learning_rate.best_rates(table(result))
    for factor in (0.5, 2.0, 4.0):
        assert best.lost[factor] == pytest.approx(float(loss(np.log(best.rate * factor))) - 2, abs=3e-3)
    assert best.rate == pytest.approx(1, rel=0.05) and 0.25 not in best.lost  # the lowest rate is 0.35 times the best
    law = {"constant": np.log(2.0), "n_active": 0, "n_experts": 0}
    message = lines.text(rates_answer.answer(law, [best], [best]))
    (line,) = [line for line in message.splitlines() if "   2 times the best" in line]
    assert float(line.split()[4]) == pytest.approx(best.lost[2.0], abs=1e-5) and line.endswith("of 1 model")
    (edge,), _ = learning_rate.best_rates(table(result[10:]))
    assert edge.at_edge and not edge.lost


def test_a_best_rate_at_the_end_of_its_grid_is_shown_and_not_fitted(lr):
    """Half of the models were tried only at rates above their best."""
    high = rows(experts=[1], rates=[r for r in RATES if r > 0.25])
    message = lr(high + rows(experts=[8, 64]), "--with_tokens", "--with_batch")
    assert message.count("at the end of its grid\n") == 8 and "not fitted: 8 models at the end of the grid" in message
    assert f"lr_law.n_experts = {LAW['n_experts']:.6f}" in message and "on 16 fitted models" in message
    assert "every model is at the end of its grid: widen" in lr(high, code=2)


def test_the_rate_of_one_model_and_what_its_error_may_cost(lr):
    flags = "--with_tokens", "--with_batch", "--n_active=1e8", "--n_experts=8", "--n_tokens=1e10"
    rate = learning_rate.predict(LAW, 1e8, 8, 1e10, 1e6)
    *_, of_model, at_an_end = lr(rows(), *flags, "--batch_tokens=1e6").splitlines()
    assert of_model.startswith(f"rate {rate:.4e}, 10% to 90%: ") and at_an_end.endswith("costs 0.00000 nats per token")
    assert "--batch_tokens is missing" in lr(rows(), *flags, code=2)
    assert "--n_active is missing" in lr(rows(), "--n_experts=8", code=2)


def test_the_trainer_takes_the_law():
    """Printed lines set in a config give the same rate in the trainer as here; older configs are as they were."""
    from configs import quickstart
    from jmoe.config import counts, schema
    from jmoe.config.schedule import Schedule

    config = quickstart.get_config()
    before = Schedule(config).peak
    law = dict(config.optimizer.lr_law) | dict(n_tokens=0.07, batch_tokens=0.3)
    config.update_from_flattened_dict({f"optimizer.lr_law.{name}": value for name, value in law.items()})
    config.n_tokens = (524_288, 1_048_576)
    config.batch_tokens = ((0, 1_024), (600_000, 4_096))
    wanted = learning_rate.predict(law, counts.n_active(config.model), 1, 1_048_576, 4_096)
    assert Schedule(config).peak == pytest.approx(wanted, rel=1e-12) != before
    record = schema.record_of(config)
    config.n_tokens = (524_288, 1_048_576, 4_194_304)  # a longer budget would change the rate of a run that has begun
    assert schema.differences(record, schema.record_of(config)) == [
        "config.n_tokens was [524288, 1048576], is [524288, 1048576, 4194304]"
    ]


def test_predict_is_eq_10_with_two_more_factors():
    by_hand = np.exp(0.5 - 0.5 * np.log(1e6) - 0.25 * np.log(8) + 0.07 * np.log(1e9) + 0.3 * np.log(4096))
    assert learning_rate.predict(LAW, 1e6, 8, 1e9, 4096) == pytest.approx(by_hand)
