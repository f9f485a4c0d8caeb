"""The options of `fit predict`: one model."""

import dataclasses

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH, RATE
from fit.fitted_law.tuning import BOUNDS as BOUNDS_OF_TUNING
from fit.messages.finding import Finding, finding
from fit.options import Options, number, whole
from fit.table.table import BOUNDS, DERIVED, Table

# columns of a table that a model's options give
OF_A_MODEL = ("n_active", "n_total", "n_tokens", "top_k", "granularity", "n_experts", "n_shared_experts", RATE, BATCH)
# {option on the experts of a model: columns of laws that follow from it}
COLUMNS_OF = dict(
    top_k=("top_k", "sparsity", "shared_share"), n_shared_experts=("shared_share",), granularity=("granularity",)
)


USUAL = dict(top_k=1, n_shared_experts=0, granularity=1)  # of experts as wide as a dense layer, one for each token


@dataclasses.dataclass(kw_only=True)
class PredictOptions(Options):
    """One model whose loss is predicted."""

    n_active: float | None = number("Active parameters, embedding and head included.", None, *BOUNDS["n_active"])
    n_tokens: float | None = number("Training tokens.", None, *BOUNDS["n_tokens"])
    n_experts: int | None = whole(
        "Experts in each layer, 1 for a dense model. Default: the law's own, else 1.", least=1
    )
    n_total: float | None = number("All parameters, embedding and head included.", None, *BOUNDS["n_total"])
    top_k: int | None = whole("Experts that a token chooses.", least=1)
    n_shared_experts: int | None = whole("Experts that every token uses.", least=0)
    granularity: float | None = number("How many times narrower an expert is than a dense layer.", None, 1, 1e6)
    n_embedding: float | None = number(
        "Parameters of embedding and head among those given, which some laws do not count.", None, 0, 1e16
    )
    peak_learning_rate: float | None = number(
        "Also say what this rate costs; for a law fitted with --with_rate.", None, *BOUNDS_OF_TUNING[RATE]
    )
    batch_tokens: float | None = number("Tokens of its batches, for the same.", None, *BOUNDS_OF_TUNING[BATCH])

    def table(self, law: Law) -> Table:
        """The model as a table of one row. Raises UserError where the law reads a column that is not given."""
        self._check_read(law)
        if self.n_experts is not None:
            law.check_experts(self.n_experts, "--n_experts")
        if self.top_k is not None and "sparsity" in law.form.columns:
            self._check_top_k(law)
        model = {name: getattr(self, name) for name in OF_A_MODEL}
        model["n_experts"] = self.n_experts or law.only_n_experts or 1
        if self.n_embedding is not None and not law.counts_embedding:
            for name in ("n_active", "n_total"):
                if model[name] is not None:
                    model[name] -= self.n_embedding
        table = Table("the model", {name: [value] for name, value in model.items() if value is not None}, [1])
        for column in law.form.columns:
            _check_can_give(table, column, law)
        return table

    def unread(self, law: Law) -> Finding | None:
        """A finding on what is given of the model's experts and no column of the law shows; None without."""
        names = []
        for name, usual in USUAL.items():
            is_read = not set(COLUMNS_OF[name]).isdisjoint(law.form.columns)
            if getattr(self, name) not in (None, usual) and not is_read:
                names.append(name)
        if not names:
            return None
        own = ", ".join(f"{name} {USUAL[name]}" for name in names)
        return finding("experts_not_read", names=", ".join(names), form=law.form.name, own=own)

    def _check_read(self, law: Law) -> None:
        """Raises UserError for a rate or a batch of which the law says nothing."""
        for name in self.changed(RATE, BATCH):
            if law.tuning is None:
                raise UserError(f"--{name}: --law={law.name} has no best rates; fit it with fit law --with_rate")
            if name == BATCH and not law.tuning.with_batch:
                raise UserError(f"--{name}: --law={law.name} has no best batch; leave --{name} out")

    def _check_top_k(self, law: Law) -> None:
        """Raises UserError where a token cannot choose so many experts; sparsity follows from both numbers."""
        if self.top_k is None or self.top_k <= (self.n_experts or 1):
            return
        if self.n_experts is None:
            raise UserError(f"--n_experts is missing: the {law.form.name} law needs it beside --top_k={self.top_k}")
        raise UserError(
            f"--top_k={self.top_k}: expected a whole number from 1 to {self.n_experts}, the model's n_experts"
        )

    def check_no_model(self) -> None:
        """Raises UserError where one of these options is given beside a table of models, which has its own columns."""
        given = self.changed(*[field.name for field in dataclasses.fields(PredictOptions)])
        if given:
            raise UserError(f"--{given[0]}: describes a single model, and --runs gives a table of them")


def _check_can_give(table: Table, column: str, law: Law) -> None:
    """Raises UserError where no option of the model gives a column that the law reads."""
    sources = (column,)
    if column not in OF_A_MODEL and column in DERIVED:
        sources, _ = DERIVED[column]
    missing = [source for source in sources if source not in table]
    if not missing:
        return
    if missing[0] not in OF_A_MODEL:
        raise UserError(f"the {law.form.name} law reads {column}, for which there is no flag: give a table by --runs")
    raise UserError(f"--{missing[0]} is missing: the {law.form.name} law needs it")
