"""The style of all figures: the size of a page of a paper, one meaning of a colour, dashes for extrapolation."""

import functools
import io
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import matplotlib.style
import numpy as np
from matplotlib import colors, lines, patches, ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fit.aliases import Array, Floats, Numbers
from fit.fitted_law import extrapolation, planned_models
from fit.fitted_law.law import Law
from fit.fitted_law.published_draws import fits_in_words
from fit.messages import units
from fit.model.architecture import Architecture, training_flops
from fit.planning.search import solver

Look = dict[str, Any]  # color, marker and whatever else matplotlib takes of a line
Looks = dict[float, Look]  # by number of experts
Drawn = tuple[Figure, dict[str, list]]  # a picture and its numbers
Where = Literal["outside upper center", "outside lower center"]  # of a legend
# Widths in inches: of a column of a page, and of a page.
COLUMN = 3.35
PAGE = 6.75
OF_THE_BEST = ", of the best curve"  # alone a band is drawn: several would cover each other
NEAR = 1.25  # a run belongs to a budget within this factor of it
DPI = 200  # of PNG
POINTS = 200  # of a curve
MANY = 3000  # points from here on are stored as an image within PDF and SVG
# Colour is the number of experts in every picture, dark for dense to light for many; only a colour bar is another map.
LIGHTEST = 0.88  # of both maps: beyond it a line on white cannot be seen
EXPERTS_MAP = matplotlib.colormaps["viridis"]
SIZES_MAP = colors.ListedColormap(matplotlib.colormaps["magma"](np.linspace(0, LIGHTEST, 256)), "sizes")  # of n_active
MARKERS = "os^DvPX<>phd"
LEFT_OUT = dict(png=["Software"], pdf=["Creator", "Producer", "CreationDate"], svg=["Creator", "Date"])  # of metadata


# matplotlib's own defaults and paper.mplstyle, whatever the user's matplotlibrc says
in_style = functools.partial(matplotlib.style.context, ["default", pathlib.Path(__file__).with_name("paper.mplstyle")])


class NotebookFigure(Figure):
    """A figure that a notebook shows, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        """The picture as PNG."""
        picture = io.BytesIO()
        with in_style():
            self.savefig(picture, format="png", dpi=DPI)
        return picture.getvalue()


def panels(n: int = 1, height: float = 2.6, **sharing: Any) -> tuple[Figure, Array]:
    """(figure, its n axes side by side): one is a column wide, more fill the page."""
    figure = NotebookFigure(figsize=(COLUMN if n == 1 else PAGE, height), layout="constrained")
    FigureCanvasAgg(figure)  # legend() measures with it
    return figure, figure.subplots(1, n, squeeze=False, **sharing)[0]


class Picture:
    """A law's models of some numbers of experts, drawn on panels, and the numbers behind them: columns {name: list}."""

    def __init__(self, law: Law, architecture: Architecture, experts: Floats) -> None:
        self.law = law
        self.architecture = architecture
        self.experts = solver.allowed_experts(law, experts)
        self.looks = looks(law, self.experts)
        self.columns: dict[str, list] = {}

    def add(self, **blocks: Any) -> None:
        """Adds rows to the columns; the values broadcast together."""
        for name, values in zip(blocks, np.broadcast_arrays(*blocks.values()), strict=True):
            self.columns.setdefault(name, []).extend(np.ravel(values).tolist())

    def curve(
        self,
        axis: Axes,
        x: Array,
        models: tuple[Numbers, Numbers, Numbers],
        e: Numbers,
        look: Look | None = None,
        shown: Array | None = None,
        with_band: bool = False,
        **numbers: Any,
    ) -> None:
        """Draws the losses of models over x [k], and adds the models to the columns.

        Args:
          models: n_active, n_tokens and loss, [k].
          e: their number of experts.
          look: of style.curve; by default that of the number of experts.
          shown: which of them are drawn, boolean [k].
          with_band: draw the band of the draws: for one curve of several, since bands that cover each other show none.
          numbers: further columns.
        """
        size, tokens, loss = models
        shown = np.ones(np.shape(loss), bool) if shown is None else shown
        columns = extrapolation.columns_of_sizes(self.law, self.architecture, size, e)
        within = extrapolation.are_inside(self.law, n_tokens=tokens, **columns)
        ends = band(self.law, self.architecture, size, tokens, e) if with_band else None
        ends = None if ends is None else np.where(shown, ends, np.nan)
        curve(axis, x, np.where(shown, loss, np.nan), within, look or self.looks[float(e)], ends)
        numbers |= dict(n_experts=e, n_active=size, n_tokens=tokens, loss=loss, extrapolated=~within)
        self.add(**{name: v if np.ndim(v) == 0 else v[shown] for name, v in numbers.items()})

    def done(self, figure: Figure, *notes: Artist, experts: bool = True, band: str = OF_THE_BEST) -> Drawn:
        """(figure, its numbers), once its legends are drawn."""
        legends(figure, self.law, self.looks if experts else {}, notes, band=band)
        return figure, self.columns


def looks(law: Law, experts: Floats) -> Looks:
    """{number of experts: its color and marker} for those drawn. The numbers that the law was fitted to count too, so
    that each keeps its colour from picture to picture."""
    numbers = sorted({float(e) for e in (*experts, *law.experts)})
    scale = LIGHTEST / max(np.log(numbers[-1]), np.log(2))
    return {
        e: dict(color=EXPERTS_MAP(scale * np.log(e)), marker=MARKERS[i % len(MARKERS)])
        for i, e in enumerate(numbers)
        if e in experts
    }


def band(
    law: Law, architecture: Architecture, n_active: Numbers, n_tokens: Numbers, n_experts: Numbers
) -> Array | None:
    """(low, high) percentiles [2, k] over the law's draws of the loss of these models [k]; None without draws."""
    if not law.draws:
        return None
    with np.errstate(all="ignore"):
        losses = planned_models.loss_of_sizes(law, architecture, n_experts, n_active, n_tokens, drawn(law))
        counted = law.counting.counted(architecture, n_active, architecture.d_model(n_active, n_experts))
        flops = training_flops(counted, n_tokens)
        losses = losses * np.exp(law.log_change(np.atleast_2d(flops)))
    return percentiles(law, losses)


def drawn(law: Law) -> dict[str, Array]:
    """The bootstrap's coefficients by name, [n_draws, 1] each."""
    return {name: values[:, None] for name, values in (law.draws or {}).items()}


def percentiles(law: Law, values: Array) -> Array:
    """(low, high) over the draws of values [n_draws, k], leaving out what is not finite; NaN where most are not."""
    values = np.where(np.isfinite(values), values, np.nan)
    known = np.isfinite(values).mean(axis=0) > 0.5
    ends = np.full((2, values.shape[1]), np.nan)
    ends[:, known] = np.nanpercentile(values[:, known], law.percentiles, axis=0, method="weibull")
    return ends


def curve(axis: Axes, x: Array, y: Array, within: Array | bool, look: Look, ends: Array | None = None) -> None:
    """Draws y over x [k]: solid where `within` the fitted range, in thin dashes elsewhere.

    Args:
      look: color and marker; with (first, step) as `every`, the point `first` and every `step`-th after it have
        markers.
      ends: of a band [2, k] to be shaded.
    """
    within = np.broadcast_to(within, np.shape(x))
    touching = ~within  # dashes begin where the solid line ends
    touching[1:] |= ~within[:-1]
    touching[:-1] |= ~within[1:]
    colour = look["color"]
    axis.plot(x, np.where(within, y, np.nan), "-", color=colour)
    axis.plot(x, np.where(touching, y, np.nan), "--", color=colour, linewidth=0.9)
    if "every" in look:
        axis.plot(x, y, look["marker"], color=colour, markersize=3, markevery=look["every"])
    if ends is not None:
        axis.fill_between(x, *ends, color=colour, alpha=0.12, linewidth=0)


def point(axis: Axes, x: Numbers, y: Numbers, look: Look) -> None:
    """A single model on a curve: the marker of its number of experts, hollow."""
    axis.plot(x, y, look["marker"], color=look["color"], markerfacecolor="white", markeredgewidth=1)


def legends(
    figure: Figure, law: Law, looks: Looks, notes: Iterable[Artist] = (), line: str = "-", band: str = ""
) -> None:
    """Draws legends outside the axes, never over data: numbers of experts above, whatever else needs a word below.

    Args:
      notes: entries of the legend below.
      line: style of the lines in the legend above.
      band: of which curve a band is, in words.
    """
    _legend(figure, "outside upper center", [handle(f"E = {e:g}", linestyle=line, **look) for e, look in looks.items()])
    notes = list(notes)
    dashed = [line for axis in figure.axes for line in axis.lines if line.get_linestyle() == "--"]
    if any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in dashed):
        notes.append(handle("extrapolated", linestyle="--", linewidth=0.9))
    if law.draws and any(axis.collections for axis in figure.axes):
        low, high = law.percentiles
        fits = fits_in_words(law.source_of_draws)
        label = f"{low:g}–{high:g}% of {len(next(iter(law.draws.values())))} {fits}{band}"
        notes.append(patches.Patch(color="0.3", alpha=0.2, linewidth=0, label=label))
    _legend(figure, "outside lower center", notes)


def _legend(figure: Figure, where: Where, handles: Sequence[Artist]) -> None:
    """A legend in as few rows as fit the figure; none without handles."""
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        by_rows = [h for i in range(columns) for h in handles[i::columns]]  # matplotlib fills column by column
        drawn = figure.legend(handles=by_rows, loc=where, ncols=columns)
        if rows == len(handles) or drawn.get_window_extent().width < figure.bbox.width:
            return
        drawn.remove()


def handle(label: str, **look: Any) -> lines.Line2D:
    """Another legend entry, in grey by default."""
    grey: Look = dict(linestyle="none", color="0.3")
    return lines.Line2D([], [], **grey | look, label=label)


def extent(axes: Iterable[Axes], beyond: float = 1.0) -> tuple[float, float]:
    """(least, most) x that is drawn on any of the axes, and a factor beyond on a logarithmic scale."""
    lows, highs = zip(*(axis.dataLim.intervalx for axis in axes), strict=True)
    return min(lows) / beyond, max(highs) * beyond


def log_axis(axis: XAxis | YAxis, low: float, high: float, words: Callable[[float], str] = units.amount) -> None:
    """Makes an axis (axes.xaxis or .yaxis) logarithmic from low to high, with ticks labelled by `words`."""
    name = axis.axis_name
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    place = axis.axes.get_subplotspec()
    several = name == "x" and place is not None and place.get_gridspec().ncols > 1
    _set_ticks(axis, _ticks(low, high, 4 if several else 5), words)


def _ticks(low: float, high: float, most: int) -> Array:
    """At most `most` round numbers from low to high, as many as may be."""
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    # leading digits of the ticks, and the step of their decades, from many ticks to few
    patterns = [((1, 1.5, 2, 3, 5, 7), 1), ((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 6)]
    for leading, step in patterns:
        ticks = np.outer(10.0 ** decades[decades % step == 0], leading).ravel()
        ticks = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
        if len(ticks) <= most:
            break
    if len(ticks) < 3 and high < 5 * low:  # so narrow a range is nearly linear
        ticks = np.asarray(ticker.MaxNLocator(most - 1, steps=[1, 2, 5, 10]).tick_values(low, high))
    return ticks[(ticks >= low) & (ticks <= high)]


def experts_axis(axis: XAxis | YAxis, experts: Floats) -> None:
    """Makes an axis one of numbers of experts, each named."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log", base=2)
    _set_ticks(axis, np.asarray(experts, float), "{:g}".format)


def _set_ticks(axis: XAxis | YAxis, ticks: Array, words: Callable[[float], str]) -> None:
    axis.set_major_locator(ticker.FixedLocator(ticks.tolist()))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: words(x)))
    axis.set_minor_locator(ticker.NullLocator())
