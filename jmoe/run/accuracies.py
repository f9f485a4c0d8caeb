"""Accuracies of tasks that lm-evaluation-harness measured on an exported model, as columns of a run's result."""

import json
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

from jmoe.config import counts
from jmoe.config.schema import config_of_record
from jmoe.errors import UserError, first_few
from jmoe.run import checkpoint
from jmoe.run.record import read_record
from jmoe.storage import files as storage

# prefix of the column by metric of the harness; of several for one column the first counts
PREFIXES = {"acc": "acc_", "exact_match": "acc_", "em": "acc_", "acc_norm": "accnorm_"}
LARGEST_DIFFERENCE = 0.05  # of the harness's count of parameters: some of transformers' models add biases


def enter(workdir: str | epath.Path, path: str | os.PathLike, segment: str | None, step: int | None) -> dict[str, Any]:
    """Writes accuracies into the result of the run that the exported model is of; they replace earlier ones.

    Args:
      workdir: The run's folder.
      path: The harness's results file (`lm_eval --output_path`).
      segment: As checkpoint.find.
      step: As checkpoint.find.

    Returns:
      "segment", "step" and "accuracies", {column of runs.csv: accuracy}.

    Raises:
      UserError: The file holds no accuracies or is of another model, or the checkpoint is not the end of a branch.
    """
    results = _read(path)
    accuracies = columns(results)
    if not accuracies:
        tasks = first_few(sorted(results["results"])) or "none"
        raise UserError(f"--lm_eval={path}: expected a task with one of {', '.join(PREFIXES)}; tasks found: {tasks}")
    folder = checkpoint.find(storage.absolute(workdir), segment, step)
    record = read_record(folder)
    _check_model(results, record, path)
    result_path = folder.parent.parent / "result.json"
    result = storage.read_sealed(result_path)
    name = folder.parent.parent.name
    if result is None or result["n_tokens"] != record["n_tokens"]:
        raise UserError(
            f"{name}, step {folder.name}: expected the last checkpoint of a finished branch, whose result.json takes "
            "the accuracies"
        )
    storage.write_whole(result_path, json.dumps(storage.sealed(result | accuracies), indent=1))
    return {"segment": name, "step": int(folder.name), "accuracies": accuracies}


def _read(path: str | os.PathLike) -> dict[str, Any]:
    """The harness's results."""
    try:
        results = json.loads(storage.read_bytes(storage.absolute(path)))
    except FileNotFoundError:
        raise UserError(f"--lm_eval={path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"--lm_eval={path}: found a folder, expected a results_*.json in it") from None
    except (ValueError, RecursionError):
        raise UserError(f"--lm_eval={path}: expected the JSON that lm_eval --output_path writes") from None
    if not isinstance(results, dict) or not isinstance(results.get("results"), dict):
        raise UserError(f"--lm_eval={path}: expected the JSON that lm_eval --output_path writes, with results by task")
    return results


def columns(results: Mapping[str, Any]) -> dict[str, float]:
    """{column: accuracy} of the harness's results, without the parts of its groups, such as the subjects of MMLU.

    A task's metrics have names such as "acc,none": the metric, and the filter of the answers.
    """
    in_groups = {part for parts in (results.get("group_subtasks") or {}).values() for part in parts}
    accuracies = {}
    for task, metrics in results["results"].items():
        if task in in_groups or not isinstance(metrics, dict):
            continue
        for metric, prefix in PREFIXES.items():
            values = [value for name, value in metrics.items() if name.partition(",")[0] == metric]
            numbers = [value for value in values if isinstance(value, (int, float)) and 0 <= value <= 1]
            if numbers:
                accuracies.setdefault(f"{prefix}{task}", float(numbers[0]))
    return accuracies


def _check_model(results: Mapping[str, Any], record: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Raises UserError where the harness counted other parameters than the checkpoint has."""
    counted = (results.get("config") or {}).get("model_num_parameters")
    if not isinstance(counted, int):
        return
    n_parameters = counts.n_exact(config_of_record(record["config"]).model)
    if abs(counted / n_parameters - 1) > LARGEST_DIFFERENCE:
        raise UserError(
            f"--lm_eval={path}: its model has {counted:,} weights, the checkpoint {n_parameters:,}: another model"
        )
