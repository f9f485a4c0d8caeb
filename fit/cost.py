"""What a plan costs on chips: hours, dollars, the memory that training takes, and how fast the model answers."""

import dataclasses
import io
import json
import math
import os

from fit import UserError, sentences

GiB = 2**30
MFU = 0.4  # share of the chips' peak that training reaches, unless one is given
STATE_BYTES = 14  # a parameter in training: float32 weight 4 and moments of AdamW 4 + 4, its gradient in bfloat16 2
ACTIVATION_BYTES = 2  # an element of what each block leaves to the backward pass, in bfloat16
# The memory of a compiled step of the paper's recipe that computes everything again in the backward pass: 18 bytes a
# parameter (the state, a copy in bfloat16, gradients in float32), twice what the blocks leave, and for the block at
# work 29 bytes per token and unit of width and 3 float32 arrays of attention scores. Read off steps that jmoe.compile
# compiled for TPUs (widths of 512 to 2,048, 1 to 16 experts); the formula meets them within 6%.
COMPILED_BYTES, COMPILED_SAVED, AT_WORK, SCORES = 18, 2, 29, 3


@dataclasses.dataclass(frozen=True)
class Chip:
    """flops: bfloat16 FLOP/s, dense. memory: bytes. bandwidth: bytes a second of that memory."""

    flops: float
    memory: float
    bandwidth: float


# One chip each, by the makers' data sheets: cloud.google.com/tpu/docs, NVIDIA's A100, H100, H200, DGX B200 (an eighth
# of it) and GB200 NVL72 (a 72nd).
CHIPS = {
    "H100": Chip(989e12, 80 * GiB, 3350e9),
    "H200": Chip(989e12, 141e9, 4800e9),
    "B200": Chip(2250e12, 180e9, 8000e9),
    "GB200": Chip(2500e12, 186e9, 8000e9),
    "A100": Chip(312e12, 80 * GiB, 2039e9),
    "v4": Chip(275e12, 32 * GiB, 1228e9),
    "v5e": Chip(197e12, 16 * GiB, 819e9),
    "v5p": Chip(459e12, 95 * GiB, 2765e9),
    "v6e": Chip(918e12, 32 * GiB, 1638e9),
    "tpu7x": Chip(2307e12, 192 * GiB, 7380e9),
}


@dataclasses.dataclass(frozen=True)
class Chips:
    """`count` chips of a kind to train on. mfu: a number, or {n_experts: number}. dollars_per_hour: of one chip, or
    None. devices: chips of the same kind that serve the trained model together."""

    kind: str
    count: int
    mfu: float | dict = MFU
    dollars_per_hour: float | None = None
    devices: int = 1

    @property
    def chip(self):
        """The Chip of this kind."""
        return CHIPS[self.kind]

    def rate(self, n_experts):
        """FLOP/s that training a model of so many experts reaches on all of them."""
        mfu = self.mfu[n_experts] if isinstance(self.mfu, dict) else self.mfu
        return self.count * self.chip.flops * mfu

    def flops(self, hours):
        """FLOPs that training does in so many hours; {n_experts: FLOPs} where mfu is by n_experts."""
        of = lambda e: 3600 * hours * self.rate(e)
        return {e: of(e) for e in self.mfu} if isinstance(self.mfu, dict) else of(None)

    def price(self, flops, n_experts, name=""):
        """{NAMEhours, NAMEdollars} of so many FLOPs; dollars are None where no price is given."""
        hours = flops / self.rate(n_experts) / 3600
        dollars = None if self.dollars_per_hour is None else hours * self.count * self.dollars_per_hour
        return {f"{name}hours": hours, f"{name}dollars": dollars}


def parse_chips(text):
    """(kind, count) of KIND:COUNT or KIND alone; UserError otherwise."""
    kind, colon, count = text.partition(":")
    if kind not in CHIPS or (colon and not (count.isascii() and count.isdigit() and 0 < int(count) <= 10**9)):
        raise UserError(sentences.NO_CHIPS.format(value=text, kinds=", ".join(CHIPS)))
    return kind, int(count or 1)


def parse_mfu(text, experts):
    """The MFU of a number, or by n_experts of a JSON file, or text, {"1": 0.45, "8": 0.38} that names all `experts`."""
    try:
        mfu = float(text)
    except ValueError:
        return _mfu_of_file(text, experts)
    if not 1e-6 <= mfu <= 1:
        raise UserError(sentences.NO_MFU.format(value=text, found=f"{mfu:g}"))
    return mfu


def _mfu_of_file(path, experts):
    inline = path.startswith("{")
    if not inline and not os.path.exists(path):
        raise UserError(sentences.NO_MFU.format(value=path, found="neither a number nor a file"))
    try:
        with io.StringIO(path) if inline else open(path, encoding="utf-8") as f:
            table = {int(e): value for e, value in json.load(f).items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(sentences.NO_MFU.format(value=path, found="a file that is no such table")) from error
    for e, value in table.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-6 <= value <= 1:
            raise UserError(sentences.NO_MFU.format(value=path, found=f"{json.dumps(value)} at E = {e}"))
    if missing := [e for e in experts if e not in table]:
        raise UserError(sentences.MFU_MISSING.format(value=path, missing=missing[0], known=", ".join(map(str, table))))
    return {e: float(value) for e, value in sorted(table.items())}


def step_bytes(n_parameters, d_model, n_tokens, sequence, width_per_block):
    """Bytes that a compiled step of the paper's recipe takes over all chips, n_tokens at once in rows of `sequence`."""
    saved = ACTIVATION_BYTES * d_model / width_per_block * d_model * n_tokens
    at_work = (AT_WORK + SCORES * 4 * sequence / width_per_block) * n_tokens * d_model
    return COMPILED_BYTES * n_parameters + COMPILED_SAVED * saved + at_work


def add_to(plan, chips, architecture, constraints):
    """Adds to a plan `chips`, what was given, and to its optima and buildable model `cost`:

    training_hours, training_dollars; training_bytes, the least that training keeps over all chips (weights, moments and
    gradients; of the buildable model, where its batch is known, also what each block leaves to the backward pass when
    all else is computed again); training_chips, the fewest that hold it; tokens_per_second of one sequence, by the
    memory's bandwidth: `alone`, where each token reads the weights of its own experts, and `among_many`, where the
    tokens of a large batch read all; both read the whole cache. The buildable model's `cost` also has step_tokens,
    step_bytes and step_chips: what a compiled step of its largest batch takes, None where the batch is not known.
    """
    plan["chips"] = dataclasses.asdict(chips)
    for row in plan["optima"]:
        row["cost"] = _cost(row, row["n_total"], 0, chips, architecture, constraints)
    if built := plan["buildable"]:
        batch = max((tokens for _, tokens in built["batch_tokens"] or []), default=0)
        saved = ACTIVATION_BYTES * built["n_blocks"] * built["d_model"] * batch
        built["cost"] = _cost(built, built["exact_parameters"], saved, chips, architecture, constraints)
        built["cost"] |= _step(built, batch, chips, architecture)
    checked = built or plan["best"]
    values = dict(e=checked["n_experts"], kind=chips.kind, count=chips.count)
    cost = checked["cost"]
    if cost["training_chips"] > chips.count:
        least = dict(need=cost["training_bytes"] / 1e9, least=cost["training_chips"])
        plan["warnings"].append(sentences.TOO_FEW_CHIPS.format(**values, **least))
    elif (cost.get("step_chips") or 0) > chips.count:
        plan["warnings"].append(sentences.STEP_TOO_LARGE.format(**values, **cost, need=cost["step_bytes"] / 1e9))


def _step(built, batch, chips, architecture):
    if not batch:
        return dict(step_tokens=None, step_bytes=None, step_chips=None)
    shape = built["d_model"], batch, built["sequence"], architecture.width_per_block
    taken = step_bytes(built["exact_parameters"], *shape)
    return dict(step_tokens=batch, step_bytes=taken, step_chips=math.ceil(taken / chips.chip.memory))


def _cost(row, n_parameters, saved, chips, architecture, constraints):
    # a token reads only one row of an embedding that is not also the head
    looked_up = row["d_model"] * (architecture.ends - architecture.vocab_size)
    cache = constraints.bytes_per_kv_element * architecture.kv_elements(row["d_model"], constraints.kv_tokens)
    speed = lambda n: chips.devices * chips.chip.bandwidth / (constraints.bytes_per_parameter * (n - looked_up) + cache)
    training_bytes = STATE_BYTES * n_parameters + saved
    return chips.price(row["training_flops"], row["n_experts"], "training_") | dict(
        training_bytes=training_bytes,
        training_chips=math.ceil(training_bytes / chips.chip.memory),
        tokens_per_second=dict(alone=speed(row["n_active"]), among_many=speed(row["n_total"])),
    )
