"""lm-evaluation-harness on an exported folder, offline, on a task made of a local file: its numbers are our own."""

import json
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

CHOICES = [
    {"context": "import o", "choices": ["s", "perator", "ss"], "answer": 0},
    {"context": "def é", "choices": ["(x):", " = 1"], "answer": 1},
    {"context": "for i in", "choices": [" range", "x"], "answer": 0},
]
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


def test_the_harness_gives_our_log_likelihoods(tmp_path, monkeypatch):
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    config = tiny(n_experts=4, norm="rms", final_norm=True)
    params = random_params(config)
    write(tmp_path / "hf", params, config)
    for name, text in tokenizer_files(tokenizer.load("bytes"), config.data.seq_len).items():
        (tmp_path / "hf" / name).write_text(text)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "choice.jsonl").write_text("".join(json.dumps(line) + "\n" for line in CHOICES))
    (tmp_path / "tasks/choice.yaml").write_text(CHOICE_TASK.format(file=tmp_path / "choice.jsonl"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lm_eval
        from lm_eval.tasks import TaskManager

        found = lm_eval.simple_evaluate(
            model="hf",
            model_args=f"pretrained={tmp_path / 'hf'},dtype=float32",
            tasks=["local_choice"],
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
