"""What is asked of a plan, and the plan that answers it."""

import dataclasses
import math
import re

from fit.asked.fields import Asked, choice, experts, free, number, numbers, switch, text, whole
from fit.errors import UserError
from fit.fitted_law import expert_widths
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.planning import by_time, compare, cost, memory, mesh, planning, repeats, startable, target
from fit.planning.constraints import CHIPS, ROOM, Chips, Constraints, Mesh
from fit.shape.architecture import PAPER, Architecture
from fit.shape.reference_model import PUBLISHED, Known, read

BY = ("flops", "time")
SHAPES = ("hardware", "paper")
OWN = "Default: the law's own"
MOST_BLOCKS = 1000  # of any model
WIDENED, AS_WIDE = 4, 1e-3  # times that a plan is made again for the widths of experts at its size; until they agree


@dataclasses.dataclass(kw_only=True)
class Shape(Asked):
    """The shape of models, where it is not the law's."""

    vocab_size: int | None = whole(f"Tokens in the vocabulary; n_active includes embedding and head. {OWN}.", least=1)
    width_per_block: int | None = whole(f"d_model / n_blocks, which is also d_model / n_heads. {OWN}.", least=1)

    def architecture(self, law: Law) -> Architecture:
        """The law's where nothing is said. Raises UserError where the law's runs had several."""
        return law.shaped(self.vocab_size, self.width_per_block)


def _kind_and_count(text: str) -> tuple[str, int]:
    """The kind of chip and the number of chips that --chips names: H100 is one, H100:64 and H100:8x8 are 64, and
    v5p:4x4x4, too. Capitals of the kind make no difference. Raises UserError for anything else."""
    typed, colon, sizes = text.partition(":")
    kind_by_lower_name = {kind.lower(): kind for kind in CHIPS}
    kind = kind_by_lower_name.get(typed.lower())
    count = 1
    if colon and re.fullmatch(r"[0-9]{1,10}(x[0-9]{1,10}){0,2}", sizes):
        count = math.prod(map(int, sizes.split("x")))
    elif colon:
        count = 0
    if kind is None or not 0 < count <= 10**9:
        raise UserError(sentences.NO_CHIPS.format(value=text, kinds=", ".join(CHIPS)))
    return kind, count


@dataclasses.dataclass(kw_only=True)
class Budget(Shape):
    """What a model must respect, the chips to train it on and what they cost; and how models are built where it is not
    as the law's."""

    kv_share: float | None = number(
        f"Key-value heads per query head; below 1 saves cache and attention. {OWN}, else 1.", least=1e-3, most=1
    )
    dense_blocks: int | None = whole(
        f"Number of dense blocks before a mixture's other blocks. {OWN}, else 0.", most=MOST_BLOCKS
    )
    used: tuple[float, ...] | None = numbers(
        "Expert width that a token uses, in widths of the dense layer. Laws that read sparsity or top_k choose among "
        f"several values. {OWN}, else 1."
    )
    granularity: float | None = number(
        f"How many times narrower an expert is than the dense layer; a token uses as many times more. {OWN}, else 1.",
        least=1,
    )
    shared_experts: int | None = whole(f"Experts that all tokens use, of those that a token uses. {OWN}, else 0.")
    like: str | dict | None = free(
        "config.json of a model to start from, or a published model's name: its sizes, what laws say of it, and plans "
        f"of models built like it. Names: {', '.join(PUBLISHED)}."
    )
    chips: str | None = text("Chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4, for costs in hours.")
    hours: float | None = number("Budget in hours on --chips, instead of --flops.")
    dollars_per_hour: float | None = number("Price of one chip for an hour.", least=0)
    by: str = choice(
        "What --hours on --chips give: flops, at one MFU for all models (or by --mfu); or time, the tokens that each "
        "model trains at its own modelled speed.",
        "flops",
        BY,
    )
    speeds: str | None = text(
        "With --by=time: a table of your own speeds, two rows at least of d_model, n_experts and tokens_per_second (of "
        "all chips), to recalibrate the model of speed by."
    )
    mfu: float | dict[int, float] | str | None = free(
        "Model FLOPs utilisation that training reaches: a number, or JSON, or a file of it, by number of experts, "
        f'{{"1": 0.45, "8": 0.38}}. Default: {cost.MFU}.'
    )
    flops: float | None = number("FLOPs of training (6 n_active n_tokens) and of serving --inference_tokens.")
    memory_gb: float | None = number("Memory of one device in GB (1e9 bytes), for weights and cache.")
    bytes_per_parameter: float = number("Bytes of a weight; 2 is bfloat16.", 2.0)
    kv_tokens: float = number("Tokens in the key-value cache, over all sequences.", 0.0, least=0)
    bytes_per_kv_element: float = number("Bytes of an element of the cache; 2 is bfloat16.", 2.0)
    inference_tokens: float = number(
        "Tokens to serve over the model's life, at 2 n_active FLOPs each, out of --flops.", 0.0, least=0
    )
    max_tokens: float | None = number("Training tokens available.", least=1, below=sentences.LESS_THAN_A_TOKEN)
    devices: int = whole("Devices that share weights and cache.", 1, least=1)
    experts: tuple[int, ...] | None = experts("Numbers of experts allowed. Default: those fitted.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hours is not None and self.flops is not None:
            raise UserError("--hours and --flops are both the budget: give one of them")
        if self.by != "time" and self.speeds is not None:
            raise UserError(sentences.SPEEDS_NEED_TIME)
        if self.by == "time":
            for name in ("chips", "hours"):
                if getattr(self, name) is None:
                    raise UserError(sentences.TIME_NEEDS.format(flag=f"--{name}"))
            if self.mfu is not None:
                raise UserError(sentences.TIME_OR_MFU)

    @property
    def known(self) -> Known | None:
        """The model to start from."""
        return None if self.like is None else read(self.like)

    @property
    def asked(self) -> dict[str, float]:
        """{field of Architecture: value} of what is said of blocks, heads and experts."""
        names = dict(kv_share="kv_share", dense_blocks="n_dense", granularity="split", shared_experts="shared")
        return {name: getattr(self, flag) for flag, name in names.items() if getattr(self, flag) is not None}

    @property
    def ratios(self) -> dict[str, float]:
        """{field of Architecture: value} for laws that choose the rest."""
        own = (known := self.known) and known.architecture() or PAPER
        names = ("vocab_size", "width_per_block")
        return {name: getattr(self, name) or getattr(own, name) for name in names} | self.asked

    def architecture(self, law: Law) -> Architecture:
        """That of the model to start from, else the law's. Raises UserError where the law's runs had several."""
        if (known := self.known) is None:
            return super().architecture(law)
        trained = bool(law.models["architecture"])
        return known.architecture(self.vocab_size, self.width_per_block, trained)

    def architectures(self, law: Law) -> list[Architecture]:
        """One for each number in `used`. Raises UserError where the law cannot choose between them, or one cannot be
        built."""
        used = self.used
        value = ",".join(f"{u:g}" for u in used or ())
        if used is not None and not law.of_mixtures:
            raise UserError(sentences.USED_OF_MIXTURES.format(value=value, law=law.name))
        if used is not None and len(used) > 1 and not law.reads_used:
            raise UserError(
                f"--used={value}: the {law.form.name} law reads neither sparsity nor top_k, so it cannot choose "
                "between them: give one number"
            )
        mixture, built = dataclasses.replace(self.architecture(law), **self.asked), []
        if used is None and not self.asked:
            return [mixture]
        if law.of_mixtures and law.only_experts is not None:  # its number counts what a token chooses from
            mixture = dataclasses.replace(mixture, trained=True)
        for u in used or [mixture.used]:
            narrow = round(u * mixture.split)  # widths of experts are rounded to whole ones
            if narrow <= mixture.shared or abs(narrow / mixture.split - u) > 0.1 * u:
                raise UserError(
                    sentences.NO_WHOLE_CHOICE.format(value=value, split=mixture.split, shared=mixture.shared, used=u)
                )
            built.append(dataclasses.replace(mixture, used=narrow / mixture.split))
        return built

    def bought(self, experts: tuple[int, ...]) -> Chips | None:
        """None where no chips are named. Raises UserError for an unknown kind, and for an MFU that is none or that
        leaves out one of `experts`."""
        if self.chips is None:
            if given := self.given("hours", "dollars_per_hour", "mfu"):
                raise UserError(sentences.NEEDS_CHIPS.format(flag=given[0]))
            return None
        kind, count = _kind_and_count(self.chips)
        mfu = cost.MFU if self.mfu is None else cost.mfu_of(self.mfu, experts)
        return Chips(kind, count, mfu, self.dollars_per_hour, self.devices, room=ROOM)

    def limits(self, experts: tuple[int, ...] = ()) -> Constraints:
        """The limits as plans of these numbers of experts are solved under, the hours as FLOPs of the chips."""
        same = ("flops", "bytes_per_parameter", "kv_tokens", "bytes_per_kv_element", "inference_tokens", "max_tokens")
        chips, given = self.bought(experts), {name: getattr(self, name) for name in same}
        if self.memory_gb is not None:
            given["memory_bytes"] = self.memory_gb * 1e9 * self.devices
        if self.hours is not None and chips is not None:
            given["budget"] = sentences.HOURS_BUDGET.format(hours=self.hours, chips=self.chips)
            if self.by == "flops":
                given["flops"] = chips.flops(self.hours)
        return Constraints(chips=chips, **given)

    @property
    def timed(self) -> by_time.ByTime | None:
        """Hours by the clock as the budget of laws of any architecture."""
        if self.by != "time" or self.hours is None:
            return None
        asked = {name for name in ("width_per_block", "kv_share") if getattr(self, name) is not None}
        shapes = startable.Shapes(frozenset(asked), family=self.like is not None)
        return by_time.ByTime(self.limits(), self.hours, self.speeds, shapes)

    def of_all(self) -> Constraints:
        """The limits for laws of any numbers of experts. Raises UserError for an MFU by number of experts."""
        limits = self.limits()
        if limits.chips and not isinstance(limits.chips.mfu, float):
            raise UserError(sentences.ONE_MFU.format(value=self.mfu))
        return limits


@dataclasses.dataclass(kw_only=True)
class Plan(Budget):
    """The best model of a law within limits."""

    epochs: float | None = number(
        "How many times the --max_tokens may be read. Default: once.", least=1, below=sentences.TOO_FEW_EPOCHS
    )
    target_loss: float | None = number("Loss to reach with the fewest FLOPs of training and --inference_tokens.")
    shape: str = choice(
        "Shapes of the buildable model: hardware, the widths, heads and experts that hardware likes, on a mesh of "
        "--chips that the trainer starts; or paper, whole blocks and heads of the law's own shape.",
        "hardware",
        SHAPES,
    )
    mesh_expert: int | None = whole("Of --chips, those that share one copy of the experts. Default: chosen.", least=1)
    mesh_model: int | None = whole("Of --chips, those that share each head and expert. Default: chosen.", least=1)
    remat: str | None = choice(
        "What the backward pass computes again on the mesh. Default: chosen; with --shape=paper 1, 1 and full.",
        None,
        memory.REMAT,
    )
    verbose: bool = switch("Also print tables by number of experts, costs, draws, exact counts and all warnings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.max_tokens is None:
            raise UserError("--epochs needs --max_tokens, the tokens that are read again")
        if self.by == "time" and self.shape == "paper":
            raise UserError(sentences.TIME_OF_GRID)

    def bought(self, experts: tuple[int, ...]) -> Chips | None:
        """With the mesh that is asked. Raises UserError where that does not divide the chips, too."""
        chips, given = super().bought(experts), self.given("mesh_expert", "mesh_model", "remat")
        if chips and self.shape == "paper":
            chips = dataclasses.replace(chips, room=1.0)
        if not given:
            return chips
        if chips is None:
            raise UserError(sentences.NEEDS_CHIPS.format(flag=given[0]))
        given_mesh = Mesh(self.mesh_expert or 1, self.mesh_model or 1, self.remat or "full")
        count = chips.count if self.shape == "paper" else chips.n_devices
        if count % (given_mesh.expert * given_mesh.model):
            raise UserError(
                sentences.MESH_OF_CHIPS.format(expert=given_mesh.expert, model=given_mesh.model, count=count)
            )
        return dataclasses.replace(chips, mesh=given_mesh)

    @property
    def shapes(self) -> startable.Shapes | None:
        """What is asked of the buildable model's shape and mesh; None for the paper's shapes."""
        if self.shape == "paper":
            return None
        asked = {name for name in ("width_per_block", "kv_share") if getattr(self, name) is not None}
        if self.like is not None:
            asked |= {"width_per_block", "kv_share"}
        return startable.Shapes(
            frozenset(asked), mesh.Asked(self.mesh_expert, self.mesh_model, self.remat), self.like is not None
        )


def experts_of(law: Law, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """The numbers of experts asked for, else those that the law was fitted to. Raises UserError for other numbers than
    the one of a law that holds for one number alone, such as 1 for dense models."""
    if asked is None:
        return law.experts
    if not law.knows_experts and asked != law.experts:
        sentence = sentences.ONLY_ONE_NUMBER if law.of_mixtures else sentences.ONLY_DENSE
        raise UserError(sentence.format(value=",".join(map(str, asked)), law=law.name, own=law.experts[0]))
    return asked


def planned(law: Law, asked: Plan) -> dict:
    """The plan, ready for JSON, beside the model to start from. Raises UserError where none is feasible."""
    plan = solved(law, asked)
    if known := asked.known:
        plan["like"] = compare.of_known(known, law, asked.ratios, asked.limits())
    return plan


def solved(law: Law, asked: Plan) -> dict:
    """The plan alone; with several architectures that of the best, which lists the results of all. Raises UserError
    where none is feasible."""
    made, architectures = [], asked.architectures(law)
    for architecture in architectures:
        try:
            made.append((architecture, _planned_as_wide(law, asked, architecture)))
        except UserError as error:  # another of the architectures may be feasible
            refused = error
    if not made:
        raise refused
    flops_or_loss = lambda plan: plan["target"]["best"]["flops"] if "target" in plan else plan["best"]["loss"]
    plan = min((plan for _, plan in made), key=flops_or_loss)
    if len(architectures) > 1:
        names = ("n_experts", "n_active", "n_total", "n_tokens", "loss")
        rows = [dict(used=a.used) | {name: p["best"][name] for name in names} for a, p in made]
        plan["architectures"] = sorted(rows, key=lambda row: row["used"])
        plan.setdefault("used", 1.0)  # the law's own architecture does not say it
    return plan


def _planned_as_wide(law: Law, asked: Plan, architecture: Architecture) -> dict:
    """The plan with experts as wide as the law's table has them at the size of the best model."""
    plan, shares = _planned(law, asked, architecture), law.models["shares"]
    own_experts = asked.known is None and not asked.given("used", "granularity", "shared_experts")
    for _ in range(WIDENED if shares and own_experts else 0):
        best = plan["best"]
        wider = expert_widths.at_size(architecture, shares, best["n_active"], best["n_experts"])
        if math.isclose(wider.split, architecture.split, rel_tol=AS_WIDE):
            break
        architecture = wider
        plan = _planned(law, asked, architecture)
    return plan


def _planned(law: Law, asked: Plan, architecture: Architecture) -> dict:
    compared = experts_of(law, asked.experts)
    constraints, reached = asked.limits(compared), None
    constraints, loss = dataclasses.replace(constraints, epochs=asked.epochs), asked.target_loss
    if asked.epochs is not None and asked.max_tokens is not None:
        law = repeats.of_law(law, asked.max_tokens, *([0] if loss is not None else []))  # a target is met exactly
    if loss is not None:
        if asked.hours is not None or constraints.flops is not None:
            raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
        knows_nothing = math.log(architecture.vocab_size)
        if loss >= knows_nothing:
            sentence = sentences.TARGET_KNOWS_NOTHING
            raise UserError(sentence.format(loss=loss, size=architecture.vocab_size, nothing=knows_nothing))
        constraints, reached = target.reach(law, architecture, constraints, compared, loss)
    if asked.by == "time" and asked.hours is not None and asked.shapes is not None:
        assert constraints.chips is not None
        known = by_time.calibration_of(law, architecture, constraints.chips, asked.shapes, asked.speeds)
        budget = asked.hours, known
        constraints = by_time.constraints_of(law, architecture, constraints, compared, asked.shapes, budget)
    plan = planning.plan(law, architecture, constraints, compared, asked.shapes)
    if reached is not None:
        plan["target"] = reached | dict(front=target.front(law, architecture, constraints, compared))
    if isinstance(law, repeats.Repeated):
        repeats.add_to(plan, law, architecture, constraints, compared)
    if constraints.clock is not None:
        constraints = by_time.add_to(plan, law, architecture, constraints)
    cost.add_to(plan, law, architecture, constraints, compared)
    return plan
