"""Options of `fit plan` and `fit compare`: the budget, the limits, and how models are built."""

import dataclasses

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import Architecture
from fit.model.chips import CHIPS
from fit.model.reference_model import PUBLISHED, PublishedModel, read
from fit.model.serving import Requirement, ServingChips
from fit.options import Options, experts, group, number, or_path, path, switch, text, unchecked, whole
from fit.planning.inputs import chip_flags
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.option_groups import BytesFields, LawShapeFields, MeshFields, ModelShapeFields, ServeFields
from fit.planning.inputs.requests import PAPER_SHAPE, MeshRequest, ShapeRequest
from fit.planning.inputs.training_chips import MEMORY_SHARE, MFU, Chips
from fit.task_maps.maps import TaskMaps

# {field of --shape: field of Architecture}
ARCHITECTURE_FIELDS = dict(
    kv_share="kv_share", dense_blocks="n_dense", granularity="granularity", shared_experts="shared"
)

# Sentences that this file alone says.
SPEEDS_NEED_TIME = "--speeds needs --chips, without --mfu and --shape=paper"
ONE_MFU = "--mfu={value}: the compared laws have different numbers of experts: give one number"
TOO_FEW_EPOCHS = "--epochs={value:g}: expected a number from 1 up"
USED_OF_MIXTURES = "--shape={value}: --law={law} is a law of dense models"
MESH_OF_CHIPS = "--mesh=expert:{expert},model:{model} does not divide the {devices} devices of --chips={chips}"


@dataclasses.dataclass(kw_only=True)
class ShapeOptions(Options):
    """The shape of models, where it is not the law's."""

    shape: LawShapeFields = group("Shape of models. Default: the law's own.", LawShapeFields)

    def architecture(self, law: Law) -> Architecture:
        """The law's own architecture, with these options. Raises UserError where the law's runs had several."""
        return law.shaped(self.shape.vocab_size, self.shape.width_per_block)


@dataclasses.dataclass(kw_only=True)
class BudgetOptions(Options):
    """The budget and the limits of a model, the chips to train it on, their price, and how models are built where that
    differs from the law's own models."""

    shape: ModelShapeFields = group(
        "Shape of models. Default: the law's own, in sizes that hardware likes.", ModelShapeFields
    )
    like: str | dict | None = unchecked(
        "config.json of a model to start from, or a published model's name: its sizes, what laws say of it, and plans "
        f"of models built like it. Names: {', '.join(PUBLISHED)}."
    )
    chips: str | None = text("Chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4, for costs in hours.")
    hours: float | None = number("Budget in hours on --chips, instead of --flops.")
    dollars_per_hour: float | None = number("Price of one chip for an hour.", least=0)
    speeds: str | None = path(
        "With --chips: a table of your own speeds, two rows at least of d_model, n_experts and tokens_per_second (of "
        "all chips), to recalibrate the model of speed by."
    )
    mfu: float | dict[int, float] | str | None = unchecked(
        "Model FLOPs utilisation that training reaches: a number, or JSON, or a file of it, by number of experts, "
        f'{{"1": 0.45, "8": 0.38}}. Default: the modelled speed of each model, else {MFU}.'
    )
    flops: float | None = number("FLOPs of training (6 n_active n_tokens) and of serving --inference_tokens.")
    memory_gb: float | None = number("Memory of one device in GB (1e9 bytes), for weights and cache.")
    bytes: BytesFields = group("Bytes of weights and cache.", BytesFields)
    kv_tokens: float = number("Tokens in the key-value cache, over all sequences.", 0.0, least=0)
    inference_tokens: float = number(
        "Tokens to serve over the model's life, at 2 n_active FLOPs each, out of --flops.", 0.0, least=0
    )
    max_tokens: float | None = number("Training tokens available.", least=1, below=sentences.LESS_THAN_A_TOKEN)
    devices: int = whole("Devices that share weights and cache.", 1, least=1)
    serve: ServeFields = group("Speed of decoding that the model must reach.", ServeFields)
    experts: tuple[int, ...] | None = experts("Numbers of experts allowed. Default: those fitted.")
    verbose: bool = switch("Also print all tables, costs, counts, notes and warnings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hours is not None and self.flops is not None:
            raise UserError("--hours and --flops are both the budget: give one of them")
        if self.speeds is not None and not self.has_modelled_speeds:
            raise UserError(SPEEDS_NEED_TIME)

    @property
    def is_by_hours(self) -> bool:
        """Whether the budget is --hours, at the modelled speed of each model."""
        return self.hours is not None and self.has_modelled_speeds

    @property
    def has_modelled_speeds(self) -> bool:
        """Whether each model has its own speed on the chips. The paper's shapes have no mesh that could be timed."""
        return self.chips is not None and self.mfu is None and not self.shape.paper

    @property
    def reference_model(self) -> PublishedModel | None:
        """The model of --like, to start from."""
        return None if self.like is None else read(self.like)

    @property
    def fixes_expert_widths(self) -> bool:
        """Whether an option says how wide experts are, or a model to start from does."""
        shape = self.shape
        given = (self.like, shape.used, shape.granularity, shape.shared_experts)
        return any(value is not None for value in given)

    @property
    def architecture_fields(self) -> dict[str, float]:
        """{field of Architecture: value} of the options about blocks, heads and experts that are given."""
        values = {field: getattr(self.shape, name) for name, field in ARCHITECTURE_FIELDS.items()}
        return {field: value for field, value in values.items() if value is not None}

    def architecture(self, law: Law) -> Architecture:
        """That of the model to start from, else the law's. Raises UserError where the law's runs had several."""
        reference = self.reference_model
        if reference is None:
            return law.shaped(self.shape.vocab_size, self.shape.width_per_block)
        like_the_runs = bool(law.models.architecture)
        return reference.architecture(self.shape.vocab_size, self.shape.width_per_block, like_the_runs)

    def architectures(self, law: Law) -> list[Architecture]:
        """An architecture for each number in `used`.

        Raises:
          UserError: The law cannot choose between them, or one of them cannot be built.
        """
        typed = ",".join(f"used:{u:g}" for u in self.shape.used or ())
        if self.shape.used is not None and not law.holds_for_mixtures:
            raise UserError(say(USED_OF_MIXTURES, value=typed, law=law.name))
        if self.shape.used is not None and len(self.shape.used) > 1 and not law.reads_active_width:
            raise UserError(
                f"--shape={typed}: the {law.form.name} law reads neither sparsity nor top_k, so it cannot choose "
                "between them: give one number"
            )
        base = dataclasses.replace(self.architecture(law), **self.architecture_fields)
        if self.shape.used is None and not self.architecture_fields:
            return [base]
        if law.holds_for_mixtures and law.only_n_experts is not None:  # its number counts what a token chooses from
            base = dataclasses.replace(base, counts_routed_experts=True)
        architectures = []
        for used in self.shape.used or [base.active_width]:
            n_narrow = round(used * base.granularity)  # a token uses whole experts
            if n_narrow <= base.shared or abs(n_narrow / base.granularity - used) > 0.1 * used:
                raise UserError(
                    say(sentences.NO_WHOLE_CHOICE, value=typed, split=base.granularity, shared=base.shared, used=used)
                )
            architectures.append(dataclasses.replace(base, active_width=n_narrow / base.granularity))
        return architectures

    def training_chips(self, experts: tuple[int, ...]) -> Chips | None:
        """The chips to train on; None where none are named.

        Raises:
          UserError: The kind is unknown, the MFU is no MFU or leaves out one of `experts`, the mesh does not suit
            the chips, or an option needs chips.
        """
        if self.chips is None:
            needs_chips = self.changed(*self._needing_chips)
            if needs_chips:
                raise UserError(say(sentences.NEEDS_CHIPS, flag=needs_chips[0]))
            if self.changed("devices") and self.memory_gb is None:
                raise UserError("--devices needs --memory_gb or --chips")
            return None
        kind, count = chip_flags.kind_and_count(self.chips)
        self._check_mesh(count, CHIPS[kind].devices)
        mfu = MFU if self.mfu is None else chip_flags.mfu_of(self.mfu, experts)
        return Chips(
            kind,
            count,
            mfu,
            dollars_per_hour=self.dollars_per_hour,
            devices=self.devices,
            memory_share=1.0 if self.shape.paper else MEMORY_SHARE,
            serve_batch=self.serve.batch,
            mfu_is_assumed=self.mfu is None,
        )

    @property
    def _needing_chips(self) -> tuple[str, ...]:
        """The options that need chips."""
        return ("hours", "dollars_per_hour", "mfu", "serve")

    def _check_mesh(self, count: int, devices: int) -> None:
        """Raises UserError where a given mesh divides no number of chips that may train.

        Args:
          count: How many chips there are.
          devices: Of a chip.
        """

    def constraints(self, experts: tuple[int, ...] = ()) -> Constraints:
        """The constraints of plans for these numbers of experts.

        Hours are the budget where each model has its own speed; else they become the FLOPs of the chips.
        """
        chips = self.training_chips(experts)
        flops = self.flops
        hours = None
        budget_flag = "--flops"
        if self.hours is not None and chips is not None:
            budget_flag = say(sentences.HOURS_BUDGET, hours=self.hours, chips=self.chips)
            if self.is_by_hours:
                hours = self.hours
            else:
                flops = chips.flops(self.hours)
        memory_bytes = None
        if self.memory_gb is not None:
            memory_bytes = self.memory_gb * 1e9 * self.devices
        serving = None
        if self.serve.tokens_per_second is not None and chips is not None:
            serving_chips = ServingChips(chips.kind, self.devices)
            serving = Requirement(self.serve.tokens_per_second, self.serve.batch, serving_chips)
        return Constraints(
            flops=flops,
            budget_flag=budget_flag,
            memory_bytes=memory_bytes,
            bytes_per_parameter=self.bytes.weights,
            kv_tokens=self.kv_tokens,
            bytes_per_kv_element=self.bytes.cache,
            inference_tokens=self.inference_tokens,
            max_tokens=self.max_tokens,
            chips=chips,
            hours=hours,
            serving=serving,
            request=self.shape_request,
        )

    def constraints_of_all_laws(self) -> Constraints:
        """The constraints for laws of any numbers of experts. Raises UserError for an MFU by number of experts."""
        constraints = self.constraints()
        if constraints.chips and not isinstance(constraints.chips.mfu, float):
            raise UserError(say(ONE_MFU, value=self.mfu))
        return constraints

    @property
    def shape_request(self) -> ShapeRequest:
        """The parts of a buildable model's shape and mesh that the user fixes.

        A model to start from fixes the width per block and the share of key-value heads.
        """
        if self.shape.paper:
            return dataclasses.replace(PAPER_SHAPE, like_published=self.like is not None)
        fixed = {name for name in ("width_per_block", "kv_share") if getattr(self.shape, name) is not None}
        if self.like is not None:
            fixed |= {"width_per_block", "kv_share"}
        return ShapeRequest(frozenset(fixed), like_published=self.like is not None)


@dataclasses.dataclass(kw_only=True)
class CompareOptions(BudgetOptions):
    """The options of `fit compare`."""

    shape: ModelShapeFields = group(
        "Shape of models. Default: each law's own, in sizes that hardware likes. All laws have one vocab_size and one "
        "width_per_block, so that they count alike: their own where these agree, else the paper's.",
        ModelShapeFields,
    )


@dataclasses.dataclass(kw_only=True)
class PlanOptions(BudgetOptions):
    """The options of `fit plan`."""

    epochs: float | None = number(
        "How many times the --max_tokens may be read, by the law of repeated text. Default: once, without that law; "
        "--epochs=1 reads them once, too, and discounts parameters beyond those that the text calls for.",
        least=1,
        below=TOO_FEW_EPOCHS,
    )
    target_loss: float | None = number("Loss to reach with the fewest FLOPs of training and --inference_tokens.")
    mesh: MeshFields = group(
        "Mesh and remat of the training. Default: chosen; with --shape=paper 1, 1 and full.", MeshFields
    )
    task_map: TaskMaps | str | None = or_path(
        unchecked("Maps from loss to accuracies of tasks, by fit tasks --out: what the model is expected to reach.")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.max_tokens is None:
            raise UserError("--epochs needs --max_tokens, the tokens that are read again")

    @property
    def _needing_chips(self) -> tuple[str, ...]:
        """As in BudgetOptions, with the mesh."""
        return (*super()._needing_chips, "mesh")

    @property
    def _fixed_mesh(self) -> MeshRequest:
        """The mesh that is given."""
        return MeshRequest(self.mesh.expert, self.mesh.model, self.mesh.remat)

    def _check_mesh(self, count: int, devices: int) -> None:
        """As in BudgetOptions."""
        expert, model, _ = self._fixed_mesh.with_defaults
        used = self._fixed_mesh.most_chips(count, devices)
        if used == 0 or (self.shape.paper and used < count):  # models of the paper's shape train on all chips
            values = dict(expert=expert, model=model, devices=count * devices, chips=self.chips)
            raise UserError(say(MESH_OF_CHIPS, **values))

    def constraints(self, experts: tuple[int, ...] = ()) -> Constraints:
        """As BudgetOptions.constraints, with the epochs."""
        return dataclasses.replace(super().constraints(experts), epochs=self.epochs)

    @property
    def shape_request(self) -> ShapeRequest:
        """As BudgetOptions.shape_request, with the mesh."""
        return dataclasses.replace(super().shape_request, fixed_mesh=self._fixed_mesh)


def experts_to_compare(law: Law, experts: tuple[int, ...] | None) -> tuple[int, ...]:
    """The given numbers of experts or, without these, those that the law was fitted to.

    Raises:
      UserError: The law holds for one number of experts only, such as 1 for dense models, and others are given.
    """
    if experts is None:
        return law.experts
    if not law.chooses_experts and experts != law.experts:
        sentence = sentences.ONLY_ONE_NUMBER if law.holds_for_mixtures else sentences.ONLY_DENSE
        raise UserError(say(sentence, value=",".join(map(str, experts)), law=law.name, own=law.experts[0]))
    return experts
