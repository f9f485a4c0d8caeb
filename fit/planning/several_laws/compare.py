"""Several laws asked about one budget: the best architecture of each, against its own best dense model.

Losses on different corpora cannot be compared, so no law's loss is set against another's. The architectures are
compared, all counted in one way (n_active and n_total with embedding and head, 6 n_active n_tokens training FLOPs); a
law that counts otherwise is given its own counts of the same model. Also compared is how far, by each law, its best
model lies below its best dense model under the same limits, and how many more FLOPs that dense model would need.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.errors import UserError
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law, load
from fit.model.architecture import Architecture, training_flops
from fit.model.reference_model import PublishedModel
from fit.model.step_counts import KEPT
from fit.planning.chosen import optimum
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import other_budget, plan_findings
from fit.planning.context.other_budget import OtherBudget
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import BudgetOptions
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.requests import PAPER_SHAPE
from fit.planning.search import by_hours, infeasible, solver
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels
from fit.planning.several_laws import agreement, compare_answer, leverage, votes
from fit.planning.several_laws.comparison import (
    Comparison,
    DenseAnswer,
    LawAnswer,
    NoAnswer,
    ReferenceAnswer,
    VotesOfLaw,
)
from fit.planning.space import calibration, size_speeds

LAWS = ("joint-moe-2025", "sparsity-2025", "fine-grained-2024", "comprehensive-2025", "chinchilla-refit-2024")
GRANULARITIES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32)
MOST_SHARED = 64  # numbers of shared experts that are tried
ABOUT = (
    "Losses are not set against each other: every law has its own text and tokenizer. Each law's best is measured "
    "against the best dense model by the same law under the same limits. Counts are with embedding and head, training "
    "FLOPs are 6 n_active n_tokens, for all of them."
)


def compare(laws: Sequence[Law], options: BudgetOptions) -> Comparison:
    """Compares the answers of several laws to a budget.

    Raises:
      UserError: No law has a feasible model, or a law cannot be planned with.
    """
    shared = SharedProblem(
        shape=options.shape_fields,
        constraints=options.constraints_of_all_laws(),
        experts=options.experts,
        used=options.shape.used,
        reference=options.reference_model,
        has_modelled_speeds=options.has_modelled_speeds,
        speeds=options.speeds,
    )
    result = compare_laws(laws, shared)
    if options.verbose:
        return dataclasses.replace(result, answer_of=compare_answer.verbose)
    return result


@dataclasses.dataclass(frozen=True)
class SharedProblem:
    """The problem that every law of a comparison solves.

    Attributes:
      shape: {field of Architecture: value}: vocab_size, width_per_block, and others where they are given.
      constraints: The budget and the limits.
      experts: Numbers of experts to choose from; None takes each law's own.
      used: Widths of experts that a token may use, for laws that read it; None takes each law's own.
      reference: A model to set beside each law's best.
      has_modelled_speeds: Whether each model has its own speed on the chips.
      speeds: Path of a table of the user's speeds, or None.
    """

    shape: Json
    constraints: Constraints
    experts: Floats | None = None
    used: Sequence[float] | None = None
    reference: PublishedModel | None = None
    has_modelled_speeds: bool = False
    speeds: str | None = None


def compare_laws(laws: Sequence[Law], shared: SharedProblem) -> Comparison:
    """As `compare`, without its options."""
    answers: list[LawAnswer] = []
    without_model: list[NoAnswer] = []
    for law in laws:
        response = answer(law, shared)
        if isinstance(response, NoAnswer):
            without_model.append(response)
        else:
            answers.append(response)
    if not answers:
        raise UserError(without_model[0].why)
    return Comparison(
        **shared.shape,
        constraints=shared.constraints.to_json(),
        about=ABOUT,
        laws=answers,
        infeasible=without_model,
        agreement=agreement.agreement(agreement.counted(answers)),
        votes=votes.together(agreement.counted(answers)),
        findings=agreement.findings(answers),
        like=counts(shared.reference) if shared.reference else None,
        answer_of=compare_answer.answer,
    )


def counts(reference: PublishedModel) -> Json:
    """The counts of a reference model; the cache in numbers, training memory in bytes without what tokens at work
    take."""
    return dict(
        name=reference.name,
        n_active=reference.n_active,
        n_total=reference.n_total,
        n_embedding=reference.n_embedding,
        n_experts=reference.shape.n_experts,
        top_k=reference.shape.top_k,
        n_shared_experts=reference.shape.n_shared_experts,
        whole_experts=reference.whole_experts,
        notes=list(reference.notes),
        cache_elements_per_token=reference.cache_elements_per_token,
        n_active_without_embedding=reference.n_active - reference.n_embedding,
        training_bytes=KEPT * reference.n_total,
        training_flops_per_token=training_flops(reference.n_active, 1),
    )


def of_reference_model(reference: PublishedModel, law: Law, shape: Json, constraints: Constraints) -> Json:
    """The counts of a reference model and, where a number of FLOPs is given, `laws`: what `law` and each other law of
    mixtures would build instead."""
    if not isinstance(constraints.flops, float):  # none, or FLOPs by number of experts
        return counts(reference)
    others = [other for other in map(load, LAWS) if other.name != law.name and other.reads_n_experts]
    shared = SharedProblem(shape=shape, constraints=constraints, reference=reference)
    responses = [answer(each, shared) for each in (law, *others)]
    return counts(reference) | dict(laws=[response for response in responses if isinstance(response, LawAnswer)])


def _reference_answer(reference: PublishedModel, problem: Problem, n_experts: int) -> ReferenceAnswer | None:
    """A reference model under the same budget.

    None where the budget trains no token of it, or the law holds for another number of experts alone.
    """
    law = problem.law
    constraints = problem.constraints
    if constraints.flops is None:
        return None
    n_tokens = float(constraints.tokens_within_flops(reference.n_active))
    if n_tokens < 1:
        return None
    its_architecture = reference.architecture()
    uncounted = law_counts.uncounted_rows(law, its_architecture) * reference.shape.d_model
    columns = reference.columns(uncounted, bool(law.models.architecture))
    if law.only_n_experts is not None and not np.isclose(float(columns["n_experts"]), law.only_n_experts):
        return None
    loss = float(law.loss(law.coefficients, columns | dict(n_tokens=n_tokens)))
    counted = law_counts.counted_n_active(law, its_architecture, reference.n_active, reference.shape.d_model)
    within = Constraints(flops=1e-6 * constraints.flops, inference_tokens=constraints.inference_tokens)
    needed = solver.least_budget(Problem(law, problem.architecture, within), float(n_experts), loss, times=1e6)
    return ReferenceAnswer(
        n_tokens=n_tokens,
        loss=loss,
        extrapolation=law.extrapolation(**columns, n_tokens=n_tokens, flops=training_flops(counted, n_tokens)),
        flops_share=None if needed is None else needed / constraints.flops,
    )


def answer(law: Law, shared: SharedProblem) -> LawAnswer | NoAnswer:
    """The law's best architecture, its best dense one, and the reference model beside them."""
    experts = shared.experts
    if (
        experts is not None
        and law.holds_for_mixtures
        and law.only_n_experts is not None
        and law.only_n_experts not in experts
    ):
        return NoAnswer(law=law.name, why=law.only_words)
    if experts is None or law.has_fixed_n_experts or not law.reads_n_experts:
        experts = law.experts
    numbers = np.array(experts, float)
    architectures = architectures_to_try(law, shared.shape, shared.used)
    best = _best(_problem(law, shared, architectures[0]), architectures, numbers)
    problem = best.problem
    if best.solved is None:
        return NoAnswer(law=law.name, why=infeasible.reason(problem, min(experts)))
    architecture = problem.architecture
    model = optimum.optimum_at(problem, best.solved, best.index, None)
    e = model.n_experts
    counted = law_counts.with_law_vocabulary(law, architecture)
    columns = counted.columns(architecture.d_model(model.n_active, e), e, law.counts_embedding)
    return LawAnswer(
        **{name: model[name] for name in ("n_experts", *MODEL_COLUMNS)},
        law=law.name,
        form=law.form.name,
        source=law.source or None,
        note=law.note or None,
        mixtures=law.holds_for_mixtures,
        sparsity=float(columns["sparsity"]),
        granularity=architecture.granularity,
        shared=architecture.shared,
        active_width=architecture.active_width,
        size_bound=model.size_bound,
        memory_bytes=model.memory_bytes,
        chose_experts=law.reads_n_experts and not law.has_fixed_n_experts,
        at_edge=plan_findings.is_best_at_edge(law, experts, e),
        not_bounded=e == max(experts) and plan_findings.not_bounded(problem),
        finest=bool(len(_granularities(law)) > 1 and architecture.granularity == max(_granularities(law))),
        extrapolation=model.extrapolation,
        embedding_share=plan_findings.embedding_share(architecture, model.d_model, model.n_active),
        not_read=_not_read(law, shared),
        leverage=_leverage(architecture, e, model.training_flops),
        dense=_dense(problem, shared, model.loss),
        votes=_votes(best, numbers),
        speed=model.speed,
        clock=_clock(problem, model, numbers),
        serving=model.cost.serving if model.cost else None,
        like=_reference_answer(shared.reference, problem, e) if shared.reference else None,
        explicit=("like",) if shared.reference else (),
    )


def _leverage(architecture: Architecture, n_experts: float, flops: float) -> Json | None:
    """The efficiency leverage of a mixture; None for a dense model."""
    if n_experts == 1:
        return None
    return leverage.of_architecture(n_experts, architecture.granularity, flops, architecture.active_width)


def _votes(best: "_Best", experts: Array) -> VotesOfLaw | None:
    """How the law divides its vote among numbers of experts; None unless it chooses among several."""
    law = best.problem.law
    if not law.reads_n_experts or law.has_fixed_n_experts or len(experts) < 2:
        return None
    assert best.solved is not None
    return votes.of_law(best.problem, best.solved.n_experts[best.solved.feasible])


def _clock(problem: Problem, model: Optimum, experts: Array) -> OtherBudget | None:
    """The best of these numbers of experts by FLOPs in place of hours, or by hours in place of FLOPs."""
    allowed = experts[problem.architecture.has_enough_experts(experts)]
    if problem.is_by_hours:
        allowed = [e for e in allowed if size_speeds.trains_any(problem, float(e))]
    return other_budget.against_other_budget(problem, model, allowed)


def _granularities(law: Law) -> Sequence[int]:
    """The GRANULARITIES within the law's data; [1] where granularity makes no difference to the law."""
    columns = [name for name in ("top_k", "granularity") if name in law.form.columns]
    if not columns:
        return [1]
    return [k for k in GRANULARITIES if all(k <= law.ranges.get(name, (1, k))[1] for name in columns)]


def _not_read(law: Law, shared: SharedProblem) -> Json:
    """{option: value} that is given but that the law has no column for."""
    not_read = {}
    kv_share = shared.shape.get("kv_share")
    if kv_share not in (None, 1.0):
        not_read["kv_share"] = kv_share
    n_dense = shared.shape.get("n_dense")
    if n_dense not in (None, 0):
        not_read["dense_blocks"] = n_dense
    used = shared.used
    if used and list(used) != [1.0] and law.holds_for_mixtures and not law.reads_active_width:
        not_read["used"] = ",".join(f"{u:g}" for u in used)
    return not_read


def architectures_to_try(law: Law, shape: Json, used: Sequence[float] | None) -> list[Architecture]:
    """The architectures that the law can tell apart.

    With a law that reads neither sparsity nor top_k, a token uses one expert's width. With a law whose runs were not
    built like the paper's, they are built like those runs.
    """
    of_runs = law.shaped(shape["vocab_size"], shape["width_per_block"])
    if of_runs.counts_routed_experts:
        of_runs = dataclasses.replace(of_runs, **shape)
        widths = used if used and law.reads_active_width else [of_runs.active_width]
        narrow = [max(of_runs.shared + 1, round(u * of_runs.granularity)) for u in widths]
        return [dataclasses.replace(of_runs, active_width=n / of_runs.granularity) for n in dict.fromkeys(narrow)]
    most_shared = 0
    if "shared_share" in law.form.columns:
        most_shared = law.ranges.get("shared_share", (0, 1))[1]
    widths = used if used and law.reads_active_width else (1.0,)
    granularities = [shape["granularity"]] if "granularity" in shape else _granularities(law)
    architectures = []
    for u in widths:
        for k in granularities:
            for s in [shape["shared"]] if "shared" in shape else _shared_of(u * k):
                is_whole = s <= most_shared * u * k and float(u * k).is_integer()
                if "shared" in shape or is_whole:
                    architectures.append(
                        dataclasses.replace(Architecture(granularity=k, shared=s, active_width=u), **shape)
                    )
    return architectures


def _shared_of(chosen: float) -> Sequence[int]:
    """How many of the experts that a token uses may be shared: all numbers, or MOST_SHARED of them, evenly spaced."""
    numbers = range(math.ceil(chosen))
    step = math.ceil(len(numbers) / MOST_SHARED)
    return numbers[::step]


@dataclasses.dataclass(frozen=True)
class _Best:
    """The model of a law's least loss: the problem of its architecture, and its index in what was solved for that.

    `solved` is None where nothing is feasible.
    """

    solved: BestModels | None
    problem: Problem
    index: int


def _problem(law: Law, shared: SharedProblem, architecture: Architecture) -> Problem:
    """The problem of one law."""
    problem = Problem(law, architecture, shared.constraints)
    if shared.has_modelled_speeds:
        return calibration.at_modelled_speeds(problem, shared.speeds)
    return problem


def _best(problem: Problem, architectures: list[Architecture], experts: Array) -> _Best:
    """The model of the law's least loss among architectures."""
    if problem.is_by_hours:
        architecture, reached = by_hours.best_architecture(problem, architectures, experts)
        architectures = [architecture]
        if architecture.shared == 0:  # then models of the coarse grid are models of the fine one
            problem = dataclasses.replace(problem, loss_cutoff=reached)
    elif len(architectures) > 1 and problem.constraints.chips is not None and not problem.has_paper_shape:
        # the sizes that chips hold are those of the paper's shapes here, which are known at once
        architectures = [_best(problem.within(request=PAPER_SHAPE), architectures, experts).problem.architecture]
    best = None
    lowest = math.inf
    for architecture in architectures:
        of_architecture = dataclasses.replace(problem, architecture=architecture)
        solved = solver.best_models(of_architecture, experts[architecture.has_enough_experts(experts)])
        if not solved.feasible.any():
            continue
        index = int(np.nanargmin(solved.loss))
        if best is None or solved.loss[index] < lowest:
            lowest = solved.loss[index]
            best = _Best(solved, of_architecture, index)
    return best or _Best(None, dataclasses.replace(problem, architecture=architectures[0]), 0)


def _dense(problem: Problem, shared: SharedProblem, loss: float) -> DenseAnswer | None:
    """The best dense model by the law, or by the dense law of the same paper; None where none is feasible.

    problem: That of the law's best model. loss: its loss.
    """
    law = problem.law
    if not law.holds_for_dense:
        return None
    dense_law = load(law.dense) if law.published and law.dense else law
    architectures = architectures_to_try(dense_law, shared.shape, None)
    best = _best(dataclasses.replace(problem, law=dense_law, loss_cutoff=math.inf), architectures, np.array([1.0]))
    if best.solved is None:
        return None
    model = best.solved.row(best.index)
    ratio = {}
    constraints = best.problem.constraints
    if constraints.has_budget:
        needed = solver.least_budget(best.problem, 1.0, loss)
        name = "hours_ratio" if best.problem.is_by_hours else "flops_ratio"
        ratio = {name: None if needed is None else needed / constraints.budget}
    return DenseAnswer(
        **model,
        law=dense_law.name,
        loss_saved_share=1 - loss / model["loss"],
        **ratio,
        explicit=tuple(ratio),
    )
