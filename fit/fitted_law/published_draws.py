"""Draws of published laws, simulated from the public grid of their runs.

fit/laws/draws/ has a file for each law of which `python -m benchmarks.published_draws` can make them; its docstring
says how. They are never the authors' own: every interval from them names SOURCE.
"""

import json
import pathlib

from fit.aliases import Json
from fit.fitted_law.bounds import USUAL_PERCENTILES
from fit.fitted_law.parts import SIMULATED, WAYS_OF_DRAWING

FOLDER = pathlib.Path(__file__).parents[1] / "laws" / "draws"
SOURCE = "simulated from the published grid"
HOW = "simulated from the published grid of runs, not the authors' own"


def bootstrap_of(name: str) -> Json | None:
    """The entry `bootstrap` of a published law, as a law.json has it; None where there are no draws.

    Args:
      name: of the preset.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    simulated = json.loads(path.read_text(encoding="utf-8"))
    return dict(
        form=SIMULATED,
        source=SOURCE,
        percentiles=USUAL_PERCENTILES,
        draws=simulated["draws"],
        runs=simulated["runs"],
    )


def fits_in_words(source: str | None) -> str:
    """The name of a bootstrap's fits in a sentence.

    Args:
      source: where draws of a published law are from; "" or None for those of a fit.
    """
    return f"fits {source}" if source else "bootstrap fits"


def drawing_in_words(form: str, by: str | None) -> str:
    """A bootstrap's way of resampling, in words.

    Args:
      form, by: as of a Bootstrap.
    """
    if form == SIMULATED:
        return HOW
    return WAYS_OF_DRAWING[form].format(by=by)
