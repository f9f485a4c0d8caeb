"""The configs of the runs of results/third, and of the steps that they need compiled."""

from ml_collections import ConfigDict

from results.third import cells as study
from results.third.cells import Cell

TEXT = study.bytes_2026_tuned.get_config().data.path  # Parquet file of results.text
TOY_TOKENS = (16_384, 32_768)


def cells(toy: bool) -> list[Cell]:
    """The runs in their order; `toy` are one model's two, to try all of it on a CPU."""
    if toy:
        return [Cell(study.Trunk(24, 4, 2), n_tokens) for n_tokens in TOY_TOKENS]
    return study.cells()


def config_of(cell: Cell, todo: list[Cell], toy: bool, text: str = TEXT) -> ConfigDict:
    """The config of a run's trunk with all its branches that are not done."""
    n_tokens = tuple(sorted(other.n_tokens for other in todo if other.trunk == cell.trunk))
    config = cell.trunk.config(n_tokens)
    if toy:
        config.batch_tokens = ((0, 1_024), (TOY_TOKENS[0], 2_048))
        config.model.group_tokens = 1_024
        config.optimizer.warmup_tokens = 4_096
        config.data.validation_tokens = 8_192
        config.data.path = ""
        config.data.fingerprint = ""
    else:
        config.data.path = text
    return config


def one_batch_each(config: ConfigDict) -> list[ConfigDict]:
    """A config for each size of batch that the schedule reaches: each has a step of its own to compile."""
    configs = []
    for first_token, batch_tokens in config.batch_tokens:
        if first_token < config.n_tokens[-1]:
            of_batch = config.copy_and_resolve_references()
            of_batch.batch_tokens = ((0, batch_tokens),)
            configs.append(of_batch)
    return configs
