"""Chance levels of common tasks: the accuracy of guessing, by their names in lm-evaluation-harness."""

from fit.table.known_columns import ACCURACY_PREFIXES

OF_TASKS = {
    "agieval_lsat_ar": 0.2,
    "agieval_lsat_lr": 0.2,
    "agieval_lsat_rc": 0.2,
    "arc_challenge": 0.25,
    "arc_easy": 0.25,
    "bbh": 0.0,
    "boolq": 0.5,
    "cola": 0.5,
    "commonsense_qa": 0.2,
    "copa": 0.5,
    "drop": 0.0,
    "gsm8k": 0.0,
    "hellaswag": 0.25,
    "humaneval": 0.0,
    "jeopardy": 0.0,
    "lambada": 0.0,
    "lambada_openai": 0.0,
    "lambada_standard": 0.0,
    "logiqa": 0.25,
    "logiqa2": 0.25,
    "mathqa": 0.2,
    "mbpp": 0.0,
    "mmlu": 0.25,
    "mmlu_pro": 0.1,
    "mrpc": 0.5,
    "nq_open": 0.0,
    "openbookqa": 0.25,
    "piqa": 0.5,
    "qnli": 0.5,
    "race": 0.25,
    "rte": 0.5,
    "sciq": 0.25,
    "social_iqa": 1 / 3,
    "squadv2": 0.0,
    "sst2": 0.5,
    "swag": 0.25,
    "triviaqa": 0.0,
    "truthfulqa_mc1": 0.25,
    "wic": 0.5,
    "winogrande": 0.5,
    "wsc": 0.5,
    "xstorycloze_en": 0.5,
}


def known(column: str) -> float | None:
    """The chance level of the task that a column is of; None where it is not known.

    Args:
      column: the name of a column, such as acc_piqa.
    """
    task = column
    for prefix in ACCURACY_PREFIXES:
        task = task.removeprefix(prefix)
    return OF_TASKS.get(task)
