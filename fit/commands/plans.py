"""The commands that plan: by one law, and by several."""

import dataclasses

from fit import options
from fit.commands import flags
from fit.errors import UserError
from fit.fitted_law.law_files import load
from fit.planning import make_comparison, make_plan
from fit.planning.emit import plan_config
from fit.planning.inputs.options import CompareOptions, PlanOptions
from fit.planning.several_laws.comparison import LAWS
from fit.table.files import write_text


@dataclasses.dataclass(kw_only=True)
class PlanCommand(PlanOptions, flags.OfLaw, flags.JsonOutput):
    """The best n_active, n_tokens and n_experts for a law under constraints, and the best model that can be built.

    python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384
    python -m fit plan --law=joint-moe-2025 --chips=H100:64 --hours=240 --dollars_per_hour=2.5 --max_tokens=2e10 \
--epochs=4
    python -m fit plan --law=joint-moe-2025 --target_loss=2.1 --inference_tokens=1e12
    python -m fit plan --law=sparsity-2025 --flops=1e21 --memory_gb=80 --shape=used:1,used:2,used:4,kv_share:0.25
    """

    emit_config: str | None = options.text("Write a training config of the best buildable model to this file (.py).")
    base_config: str | None = options.text("Config file that --emit_config starts from; default: the law's own.")

    def run(self) -> None:
        if self.base_config is not None and self.emit_config is None:
            raise UserError("--base_config is for --emit_config")
        law = load(self.law)
        plan = make_plan.plan(law, self)
        if self.emit_config is not None:
            write_text(self.emit_config, plan_config.source(law, plan, self.base_config))
            plan = dataclasses.replace(plan, emitted=self.emit_config)
        self.show(plan)


@dataclasses.dataclass(kw_only=True)
class CompareCommand(CompareOptions, flags.JsonOutput):
    """Compare the answers of several laws to one budget, each against its own best dense model, and say where they
    agree.

    python -m fit compare --flops=1e22 --memory_gb=80
    python -m fit compare --flops=1e22 --memory_gb=80 --laws=joint-moe-2025,law.json --json
    """

    laws: tuple[str, ...] = options.words("Laws to compare: names of published laws, or law.json files.", LAWS)

    def run(self) -> None:
        if not self.laws or not all(self.laws):
            raise UserError(f"--laws={','.join(self.laws)}: expected laws separated by commas")
        self.show(make_comparison.compare([load(law, "laws") for law in self.laws], self))
