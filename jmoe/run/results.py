"""The results of a run's branches: BRANCH/result.json, each of which becomes one row of runs.csv.

Losses are in nats per token.
"""

import json
import time
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from jmoe import __version__
from jmoe.config import counts
from jmoe.config.schedule import Schedule, Segment
from jmoe.config.schema import columns
from jmoe.errors import Damaged
from jmoe.run import checkpoint, distributed, prediction
from jmoe.run.evaluation import Losses
from jmoe.run.record import check_record
from jmoe.run.token_means import TokenMeans
from jmoe.storage.files import read_lines, read_sealed, sealed, write_whole
from jmoe.text import mixture
from jmoe.text.training_text import TrainingText

MOSTLY_SKIPPED = 0.5  # a decay of which more than this share of steps was skipped gets a warning


class Results:
    """Reads and writes the results of a run's branches.

    Attributes:
      of_branch: Result by branch, in the order of budgets; None for a branch that is not finished.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: epath.Path,
        schedule: Schedule,
        text: TrainingText,
        record: dict[str, Any],
        began_with: dict[str, Any],
    ) -> None:
        """Begins without results; `missing` reads them.

        Args:
          config: The run's config.
          workdir: Its folder.
          schedule: Its schedule.
          text: Its text.
          record: The entry `record` of its results: config, corpus and versions.
          began_with: The columns of its results on first weights from another model; {} if it has none.
        """
        self._config = config
        self._workdir = workdir
        self._schedule = schedule
        self._text = text
        self._record = record
        self._began_with = began_with
        self._warned_of: set[str] = set()  # branches whose result.json is damaged
        self.of_branch: dict[str, dict[str, Any] | None] = {
            segment.name: None for segment in schedule.segments if segment.decays
        }

    def missing(self) -> list[tuple[Segment, Segment]]:
        """(trunk, branch) of each branch that is not finished, by its result.json; the trunk ends where it forks.

        Raises:
          UserError: A result was made under another configuration or corpus.
        """
        # segments alternate: the trunk up to a fork, its branch, the trunk up to the next fork, ...
        trunks = self._schedule.segments[::2]
        branches = self._schedule.segments[1::2]
        self.of_branch = {branch.name: self._read(branch) for branch in branches}
        pairs = zip(trunks, branches, strict=True)
        return [(trunk, branch) for trunk, branch in pairs if self.of_branch[branch.name] is None]

    def n_tokens_left(self, segment: Segment, start: int) -> int:
        """Tokens that the run trains from step `start` of `segment` on."""
        index = self._schedule.segments.index(segment)
        later = [other for other in self._schedule.segments[index + 1 :] if not self.of_branch.get(other.name)]
        pieces = [(start, segment.stop)] + [(other.start, other.stop) for other in later]
        return sum(self._schedule.tokens_at(stop) - self._schedule.tokens_at(first) for first, stop in pieces)

    def finish(self, branch: Segment, losses: Losses, began: float) -> None:
        """Writes the result of a branch.

        Args:
          branch: The branch.
          losses: Those after its last step.
          began: When its training began, by time.monotonic().
        """
        result = self._columns(branch, losses)
        result |= {"seconds": round(time.monotonic() - began, 1), "record": self._record}
        result |= losses.columns()
        result |= self._began_with
        self.of_branch[branch.name] = result
        if jax.process_index() == 0:
            write_whole(self._workdir / branch.name / "result.json", json.dumps(sealed(result), indent=1))
        n_tokens = result["n_tokens"]
        distributed.log(f"{branch.name}: validation loss {losses.loss:.4f} nats per token after {n_tokens} tokens")
        skipped_share = result.get("skipped_decay_share", 0.0)
        if skipped_share > MOSTLY_SKIPPED:
            distributed.log(
                f"WARNING: {branch.name}: {skipped_share:.0%} of the steps of its decay were skipped "
                f"(config.optimizer.skip_above={self._config.optimizer.skip_above:g}), so its loss is not that of a "
                "decayed run; a larger skip_above, or a lower learning rate, in another --workdir"
            )

    def compare_with_prediction(self) -> None:
        """Prints the measured loss against what a plan predicted, where the config holds the prediction."""
        results = [result for result in self.of_branch.values() if result is not None]
        sentence = prediction.comparison(self._config, results)
        if sentence:
            distributed.log(sentence)

    def _read(self, branch: Segment) -> dict[str, Any] | None:
        """The branch's result; None if there is none or it is damaged. The last checkpoint then gives it again."""
        path = self._workdir / branch.name / "result.json"
        try:
            result = read_sealed(path)
        except Damaged as error:
            if branch.name not in self._warned_of:  # a trainer calls `missing` before and after it owns the workdir
                distributed.log(f"WARNING: {error}; it is made again from the last checkpoint")
            self._warned_of.add(branch.name)
            return None
        if result is not None:
            check_record(result["record"], self._record, str(path))
        return result

    def _columns(self, branch: Segment, losses: Losses) -> dict[str, Any]:
        """A branch's result without its time and record: one row of runs.csv."""
        config = self._config
        model = config.model
        n_tokens = self._schedule.tokens_at(branch.stop)
        readings = mixture.readings(self._text, config, n_tokens)
        sources = [reading for reading in readings if reading.part.name]
        return {
            "n_active": counts.n_active(model),
            "n_total": counts.n_total(model),
            "n_tokens": n_tokens,
            "n_experts": model.n_experts,
            "loss": losses.loss,
            **self._training_means(branch),
            "d_model": model.d_model,
            "n_blocks": model.n_blocks,
            "width_per_block": model.d_model / model.n_blocks,
            "vocab_size": model.vocab_size,
            "seq_len": config.data.seq_len,
            "final_norm": bool(model.final_norm),
            **columns(config),
            "flops": counts.training_flops(counts.n_active(model), n_tokens),
            "peak_learning_rate": self._schedule.peak,
            "batch_tokens": self._schedule.batch_at(branch.stop - 1),
            "seed": config.seed,
            "unique_tokens": sum(min(reading.n_read, reading.n_distinct) for reading in readings),
            "epochs": max(reading.n_read / reading.n_distinct for reading in readings),
            **{f"share/{reading.part.name}": reading.n_read / n_tokens for reading in sources},
            **{f"epochs/{reading.part.name}": reading.n_read / reading.n_distinct for reading in sources},
            **{name: round(value, 6) for name, value in losses.by_position.items()},
            **self._skipped(branch),
            **prediction.columns(config, n_tokens),
            "validation_tokens": mixture.n_validation_tokens(self._text, config),
            "corpus_fingerprint": self._text.fingerprint,
            "jmoe_version": __version__,
            "jax_version": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "n_devices": jax.device_count(),
        }

    def _training_means(self, branch: Segment) -> dict[str, float]:
        """The columns train_loss and drop_rate; none where the last checkpoint is of older code and has no sums."""
        means = TokenMeans(checkpoint.saved_record(self._workdir, branch.name, branch.stop).get("token_means"))
        found = {"train_loss": means.mean("cross_entropy"), "drop_rate": means.mean("drop_rate")}
        return {name: mean for name, mean in found.items() if mean is not None}

    def _skipped(self, branch: Segment) -> dict[str, float]:
        """The columns of config.optimizer.skip_above; none where no step could be skipped."""
        if not self._config.optimizer.skip_above:
            return {}
        # there is a line for the last step, and one for each that was skipped
        lines = read_lines(self._workdir / branch.name / "metrics.jsonl")
        n_skipped = sum("skipped_rows" in line for line in lines)
        return {
            "skipped_steps": lines[-1]["skipped_steps"] if lines else 0,
            "skipped_decay_share": round(n_skipped / (branch.stop - branch.start), 6),
        }
