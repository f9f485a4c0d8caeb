"""One run in its workdir: its text and schedule, where it goes on, a result for each branch. jmoe/train.py trains it.

Losses are in nats per token.
"""

import json
import time

import jax
import numpy as np
from etils import epath

from jmoe import __version__
from jmoe.config import counts
from jmoe.config.schema import columns, setting
from jmoe.errors import Damaged, UserError
from jmoe.model.parameters import init_params
from jmoe.run import checkpoint, distributed, divergence, prediction
from jmoe.run.record import check_record, cpu_threads, make_record
from jmoe.run.schedule import Schedule
from jmoe.run.step import abstract_state, losses_of_sources, make_eval_step, make_optimizer, make_train_step
from jmoe.storage.files import read_lines, read_sealed, sealed, write_whole
from jmoe.text import corpus, mixture
from jmoe.text.batches import validation_sources


class Run:
    """What the segments of a run share.

    Attributes: config, workdir, mesh; schedule and corpus; record, what checkpoints and results hold of all these; and
    results, {branch: its result, None where it is not finished}, in the order of budgets.
    """

    def __init__(self, config, workdir: epath.Path, mesh):
        self.config, self.workdir, self.mesh = config, workdir, mesh
        self.schedule = Schedule(config)
        self.results = {segment.name: None for segment in self.schedule.segments if segment.decays}
        self.corpus = corpus.load(config.data, config.model.vocab_size)
        self.record = make_record(config, self.corpus.fingerprint)
        if jax.default_backend() == "cpu":
            self.record["cpu_threads"] = cpu_threads()
        self._told_damaged = set()  # branches whose result.json is damaged, which was said
        self._began_with = read_sealed(workdir / "began_with.json") or {}  # jmoe.load writes it
        self.abstract = abstract_state(config, mesh)
        self.train_step, self._eval_step = make_train_step(config, mesh), make_eval_step(config, mesh)
        self._validation = {"validation_loss": self.corpus}
        for name, texts in corpus.validation_sets(config.data, config.model.vocab_size, self.corpus).items():
            self._validation[f"validation_loss/{name}"] = texts
            if warning := mixture.check_held_out(texts, config):
                distributed.log(f"{name}: {warning}")

    def missing(self) -> list[tuple]:
        """(trunk, branch) of each branch that is not finished, by its result.json: its Segment, and the trunk's up to
        where it forks. UserError where a result was made under another configuration or corpus."""
        segments = self.schedule.segments
        self.results = {branch.name: self._result(branch) for branch in segments[1::2]}
        return [pair for pair in zip(segments[::2], segments[1::2]) if self.results[pair[1].name] is None]

    def announce(self, missing) -> None:
        """Prints what the run is going to train (the branches of `missing`), on what text and devices."""
        model, schedule, config = self.config.model, self.schedule, self.config
        sizes = f"{counts.n_active(model):,} active of {counts.n_total(model):,} parameters"
        mixture = f"{model.n_experts} experts" if model.n_experts > 1 else "dense"
        if fields := columns(config):
            mixture += f" ({', '.join(f'{name} {value}' for name, value in fields.items())})"
        mesh = ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        if config.get("parametrization") == "mup" and (slope := config.optimizer.lr_law.n_active):
            distributed.log(
                f"note: config.optimizer.lr_law.n_active={slope} lowers the learning rate of larger models, as "
                "config.parametrization='mup' does by itself; 0 leaves it to that"
            )
        trunk, parts = schedule.segments[-2].stop, self.corpus.parts
        shares = "".join(f", {part.share / mixture.PERIOD:.1%} {part.name}" for part in parts if part.name)
        distributed.log(
            f"{self.workdir}: {sizes} ({mixture}, d_model {model.d_model}, {model.n_blocks} blocks); trunk of "
            f"{trunk:,} steps, {schedule.tokens_at(trunk):,} tokens, and {len(missing)} of {len(config.n_tokens)} "
            f"branches, to {', '.join(f'{schedule.tokens_at(branch.stop):,}' for _, branch in missing)} tokens; corpus "
            f"{self.corpus.fingerprint} of {sum(len(part.corpus.train) for part in parts):,} training tokens{shares}; "
            f"{self.mesh.size} x {jax.devices()[0].device_kind} ({mesh})"
        )

    def to_go(self, segment, start: int) -> int:
        """Tokens that the run trains from step `start` of `segment` on."""
        later = self.schedule.segments[self.schedule.segments.index(segment) + 1 :]
        later = [s for s in later if not self.results.get(s.name)]
        pieces = [(start, segment.stop)] + [(s.start, s.stop) for s in later]
        return sum(self.schedule.tokens_at(stop) - self.schedule.tokens_at(first) for first, stop in pieces)

    def _result(self, branch) -> dict | None:
        """The branch's result; None if it is not finished or damaged, and then the last checkpoint gives it again."""
        path = self.workdir / branch.name / "result.json"
        try:
            result = read_sealed(path)
        except Damaged as error:
            if branch.name not in self._told_damaged:  # results are read again once the workdir is this trainer's
                distributed.log(f"WARNING: {error}; it is made again from the last checkpoint")
            self._told_damaged.add(branch.name)
            return None
        if result is not None:
            check_record(result["record"], self.record, str(path))
        return result

    def finish(self, branch, params, began: float) -> None:
        """Evaluates the branch's last parameters and writes its result; `began`: the monotonic time of its start."""
        found = self.evaluated(params)
        loss, by_position = found.pop("validation_loss")
        losses = {name: mean for name, (mean, _) in found.items()}
        metrics = read_lines(self.workdir / branch.name / "metrics.jsonl")
        mean = lambda name: float(np.mean([line[name] for line in metrics if name in line] or [0.0]))
        n_tokens, model = self.schedule.tokens_at(branch.stop), self.config.model
        read = mixture.read(self.corpus, self.config, n_tokens)
        of_sources = [(f"share/{part.name}", asked / n_tokens) for part, asked, _ in read if part.name]
        of_sources += [(f"epochs/{part.name}", asked / has) for part, asked, has in read if part.name]
        result = {
            "n_active": counts.n_active(model),
            "n_total": counts.n_total(model),
            "n_tokens": n_tokens,
            "n_experts": model.n_experts,
            "loss": loss,
            "train_loss": mean("cross_entropy"),
            "drop_rate": mean("drop_rate"),
            "d_model": model.d_model,
            "n_blocks": model.n_blocks,
            "width_per_block": model.d_model / model.n_blocks,
            "vocab_size": model.vocab_size,
            "seq_len": self.config.data.seq_len,
            "final_norm": bool(setting(model, "final_norm")),
            **columns(self.config),
            "flops": counts.training_flops(counts.n_active(model), n_tokens),
            "peak_learning_rate": self.schedule.peak,
            "batch_tokens": self.schedule.batch_at(branch.stop - 1),
            "seed": self.config.seed,
            "unique_tokens": sum(min(asked, has) for _, asked, has in read),
            "epochs": max(asked / has for _, asked, has in read),
            **dict(of_sources),
            **{name: round(value, 6) for name, value in by_position.items()},
            **prediction.columns(self.config, n_tokens),
            "validation_tokens": mixture.n_validation_tokens(self.corpus, self.config),
            "corpus_fingerprint": self.corpus.fingerprint,
            "jmoe_version": __version__,
            "jax_version": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "n_devices": jax.device_count(),
            "seconds": round(time.monotonic() - began, 1),
            "record": self.record,
        }
        self.results[branch.name] = result = result | losses | self._began_with
        if jax.process_index() == 0:
            write_whole(self.workdir / branch.name / "result.json", json.dumps(sealed(result), indent=1))
        distributed.log(f"{branch.name}: validation loss {loss:.4f} nats per token after {n_tokens} tokens")

    def compare_with_prediction(self) -> None:
        """Prints the measured loss against what a plan predicted, where the config says that."""
        if sentence := prediction.comparison(self.config, list(self.results.values())):
            distributed.log(sentence)

    def evaluated(self, params) -> dict[str, tuple[float, dict[str, float]]]:
        """mean_losses on each of the validation sets, nothing dropped; of a mixture also on each of its sources."""
        losses = {}
        for name, texts in self._validation.items():
            sources = validation_sources(texts, self.config, self.mesh)
            losses[name], of_sources = losses_of_sources(self._eval_step, params, sources)
            # a validation set of the same name, which is that source, has more of its held-out text: it comes later
            losses |= {f"validation_loss/{source}": (loss, {}) for source, loss in of_sources.items()}
        return losses

    def checkpoints(self, segment) -> checkpoint.Checkpoints:
        """The segment's checkpoints; the caller closes them. The trunk's keep the steps where branches fork."""
        keep = () if segment.decays else [s.stop for s in self.schedule.segments if not s.decays]
        remedy = divergence.remedy(self.config, self.schedule.peak)
        return checkpoint.Checkpoints(self.workdir / segment.name / "checkpoints", keep, remedy)

    def initial(self) -> tuple:
        """(0, params, opt_state) before the first step. UserError where the run began with weights from elsewhere."""
        if self._began_with:
            raise UserError(
                f"{self.workdir} began with the weights of {self._began_with['began_with']}, and no checkpoint of "
                "its trunk is left: load them again by jmoe.load"
            )
        seed, placed = np.uint32(self.config.seed % 2**32), jax.tree.map(lambda a: a.sharding, self.abstract[0])
        init = jax.jit(lambda seed: init_params(self.config, seed), out_shardings=placed).lower(seed)
        # on a CPU, compiling the optimised random numbers would take longer than training a small model
        cheap = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
        params = init.compile(cheap)(seed)
        return 0, params, jax.jit(make_optimizer(self.config).init)(params)
