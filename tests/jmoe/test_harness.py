"""lm-evaluation-harness on an exported folder, offline, on tasks made of local files: its numbers are our own."""

import json
import math
import warnings

import numpy as np
import pytest

from tests.jmoe.model.test_model import tiny

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    why = "without torch: exported models are not evaluated (pip install -e '.[export]')"
    for package in ("torch", "transformers", "accelerate", "lm_eval"):
        pytest.importorskip(package, reason=why)
    from tests.jmoe.test_export import ours, random_params, write

from jmoe.export import tokenizer_files
from jmoe.text import tokenizer

END = 256
CHOICES = [
    {"context": "import o", "choices": ["s", "perator", "ss"], "answer": 0},
    {"context": "def é", "choices": ["(x):", " = 1"], "answer": 1},
    {"context": "for i in", "choices": [" range", "x"], "answer": 0},
]
TEXTS = ["x = 1\n", "a line that is longer than the thirty-two bytes of a row: é, 漢, and 64 in all"[:60]]

CHOICE_TASK = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
TEXT_TASK = """
task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}, {{metric: byte_perplexity}}]
"""


def log_likelihoods(params, config, pairs) -> list[float]:
    """Nats of each continuation after its context, by our decoder."""
    rows = [[*context, *continuation] for context, continuation in pairs]
    length = max(map(len, rows))
    padded = np.array([row + [0] * (length - len(row)) for row in rows])
    logits_BTV = ours(params, padded, config).astype(np.float64)
    log_p_BTV = logits_BTV - np.log(np.sum(np.exp(logits_BTV), axis=-1, keepdims=True))
    return [
        sum(log_p_BTV[b, t - 1, row[t]] for t in range(len(context), len(row)))
        for b, ((context, _), row) in enumerate(zip(pairs, rows, strict=True))
    ]


def rows_of(text: bytes, length: int):
    """A text that begins after an end-of-text in full rows: (what comes before, what is predicted)."""
    tokens = [END, *text]
    for first in range(1, len(tokens), length):
        part = tokens[first : first + length]
        yield tokens[max(0, first + len(part) - length - 1) : first], part


def write_tasks(folder) -> None:
    (folder / "tasks").mkdir()
    documents = {"choice": CHOICES, "text": [{"text": text} for text in TEXTS]}
    for (name, lines), task in zip(documents.items(), (CHOICE_TASK, TEXT_TASK), strict=True):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"tasks/{name}.yaml").write_text(task.format(file=file))


def test_the_harness_gives_our_log_likelihoods(tmp_path, monkeypatch):
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    config = tiny(n_experts=4, norm="rms", final_norm=True)
    params = random_params(config)
    write(tmp_path / "hf", params, config)
    for name, text in tokenizer_files(tokenizer.load("bytes"), config.data.seq_len).items():
        (tmp_path / "hf" / name).write_text(text)
    write_tasks(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lm_eval
        from lm_eval.tasks import TaskManager

        found = lm_eval.simple_evaluate(
            model="hf",
            model_args=f"pretrained={tmp_path / 'hf'},dtype=float32",
            tasks=["local_choice", "local_text"],
            task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
            device="cpu",
            bootstrap_iters=0,
        )

    pairs = [(line["context"].encode(), choice.encode()) for line in CHOICES for choice in line["choices"]]
    expected = log_likelihoods(params, config, pairs)
    got = [response[0][0] for sample in found["samples"]["local_choice"] for response in sample["resps"]]
    np.testing.assert_allclose(np.array(got, float), expected, atol=1e-3)
    best, right = iter(expected), []
    for line in CHOICES:
        right.append(np.argmax([next(best) for _ in line["choices"]]) == line["answer"])
    assert found["results"]["local_choice"]["acc,none"] == pytest.approx(np.mean(right))

    assert len(TEXTS[0].encode()) < config.data.seq_len < len(TEXTS[1].encode())
    rows = [row for text in TEXTS for row in rows_of(text.encode(), config.data.seq_len)]
    nats = -sum(log_likelihoods(params, config, rows))
    bits = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert found["results"]["local_text"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
    assert found["results"]["local_text"]["byte_perplexity,none"] == pytest.approx(2**bits, rel=1e-4)
