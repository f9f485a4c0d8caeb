"""The answer of `fit law --form=A,B`: the form that the runs call for; tables on demand."""

from collections.abc import Iterable, Iterator

from fit.aliases import Json
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import say

LEAST_AIC = "{form} has the least AIC of {count} forms: RMSE {fitted:.4f} nats on {runs} fitted runs{left_out}"
LEFT_OUT = ", {rmse:.4f} on budgets left out"
CLOSE_AIC = "As good by AIC, within {tie:g} of the least"
LEAST = "{form} has the least {measure}"
TABLES = Line("Tables", "--verbose (each form's errors, isoFLOP parabolas)")
TIE_OF_AIC = 2.0  # forms whose AIC differ by less are as good as each other (Burnham and Anderson 2002)


def answer(comparison: Json) -> Iterator[Line]:
    """Which of several forms the runs call for.

    Args:
      comparison: What fit.fitting.form_comparison.compare returns.
    """
    rows = sorted(comparison["forms"], key=lambda row: row["aic"])
    best = rows[0]
    left_out = say(LEFT_OUT, rmse=best["left_out"]["rmse_nats"]) if best["left_out"] else ""
    values = dict(form=best["form"], count=len(rows), fitted=best["fitted"]["rmse_nats"], runs=comparison["runs"])
    yield Line("", say(LEAST_AIC, **values, left_out=left_out))
    close = [row["form"] for row in rows[1:] if row["aic"] - best["aic"] < TIE_OF_AIC]
    if close:
        yield Line(say(CLOSE_AIC, tie=TIE_OF_AIC), ", ".join(close))
    measures = []
    least_bic = min(rows, key=lambda row: row["bic"])["form"]
    if least_bic != best["form"]:
        measures.append(say(LEAST, form=least_bic, measure="BIC"))
    names = {"fitted": "the fitted runs", "held_out": "the held-out runs", "left_out": "budgets left out"}
    for name, runs in names.items():
        measured = [row for row in rows if row[name]]
        if not measured:
            continue
        least = min(measured, key=lambda row: row[name]["rmse_nats"])["form"]
        if least != best["form"]:
            measures.append(say(LEAST, form=least, measure=f"RMSE on {runs}"))
    if measures:
        yield Line("Not by every measure", "; ".join(measures))
    yield TABLES


def details(comparison: Json) -> list[Line]:
    """Each form's errors, and the isoFLOP parabolas."""
    return [lines.rows(_table(comparison)), *_parabolas(comparison["isoflop"])]


def _table(result: Json) -> Iterator[str]:
    """A row for each form, that of the least AIC first."""
    on_held_out = ", on the held-out ones" if any(row["held_out"] for row in result["forms"]) else ""
    yield f"{'form':14} {'k':>3} {'RMSE':>8} {'held-out':>9} {'left-out':>9} {'AIC':>9} {'BIC':>9}"
    for row in sorted(result["forms"], key=lambda row: row["aic"]):
        yield (
            f"{row['form']:14} {len(row['coefficients']):3d} {_rmse(row['fitted']):>8} {_rmse(row['held_out']):>9} "
            f"{_rmse(row['left_out']):>9} {row['aic']:9.1f} {row['bic']:9.1f}"
        )
    yield (
        f"RMSE in nats per token on the {result['runs']} fitted runs{on_held_out}, and on each of "
        f"the {result['budgets']} budgets ({result['budgets_by']}) by the fit to all others; k coefficients; AIC and "
        "BIC take the runs' errors for independent"
    )


def _rmse(errors: Json | None) -> str:
    """An RMSE in a table."""
    return f"{errors['rmse_nats']:.4f}" if errors else "-"


def _parabolas(profiles: Iterable[Json]) -> Iterator[Line]:
    """The isoFLOP parabolas over n_active, as isoflop.profiles returns them."""
    for profile in profiles:
        power = profile["power"]
        points = ", ".join(
            f"n_active = {row['best']:.3g}{_interval(row['interval'], '{:.3g}')} at {row['flops']:.3g}"
            for row in profile["budgets"]
        )
        law = ""
        if power:
            exponent = _interval(profile["exponent"], "{:.3f}")
            law = f"; n_active_opt = {power[0]:.3g} C^{power[1]:.3f}{exponent}"
        experts = "experts" if profile["n_experts"] > 1 else "expert"
        yield Line(f"isoFLOP parabolas, {profile['n_experts']} {experts}", f"{points}{law}")


def _interval(ends: list[float] | None, form: str) -> str:
    """The ends of an interval in brackets after a space; "" where they are not known."""
    return f" [{form.format(ends[0])}, {form.format(ends[1])}]" if ends else ""
