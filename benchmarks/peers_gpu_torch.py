"""Transformers' side of benchmarks/peers_gpu.py, which starts this with the folder of task.json and batches.npy.

It imports neither jax nor jmoe, so that any Python with torch and transformers can run it. It reports once its model is
compiled, then answers "turn", "profile" and "memory" on standard input.
"""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch.nn.utils import parametrize

TOP_KERNELS = 12


class Rounded(torch.nn.Module):
    """Rounds the weights of experts to bfloat16, as autocast rounds those of other layers.

    Autocast does not round grouped products, and torch.compile accepts them only in bfloat16.
    """

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight in bfloat16; its gradient is in float32."""
        return weight.to(torch.bfloat16)


def model_of(task: dict) -> tuple[torch.nn.Module, str]:
    """transformers' model with the task's sizes in float32, and the name of its attention."""
    attention = "sdpa"
    if torch.cuda.is_available() and transformers.utils.is_flash_attn_2_available():
        attention = "flash_attention_2"
    n_experts = task["n_experts"]
    fields = dict(
        vocab_size=task["vocab_size"],
        hidden_size=task["d_model"],
        intermediate_size=task["d_ff"],
        num_hidden_layers=task["n_blocks"],
        num_attention_heads=task["n_heads"],
        num_key_value_heads=task["n_heads"],
        head_dim=task["d_model"] // task["n_heads"],
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=None,
        attn_implementation=attention,
    )
    width = task["d_expert"] or task["d_ff"]
    routed = dict(num_experts_per_tok=task["top_k"], output_router_logits=True)
    if n_experts == 1:
        config = transformers.LlamaConfig(**fields)
        return transformers.LlamaForCausalLM(config), attention
    routed["experts_implementation"] = "grouped_mm"
    if n_experts <= 8:
        fields["intermediate_size"] = width
        config = transformers.MixtralConfig(**fields, **routed, num_local_experts=n_experts)
        return transformers.MixtralForCausalLM(config), attention
    config = transformers.Qwen3MoeConfig(**fields, **routed, num_experts=n_experts, moe_intermediate_size=width)
    return transformers.Qwen3MoeForCausalLM(config), attention


def round_experts(model: torch.nn.Module) -> None:
    """Makes the model round all stacked weights of experts where it uses them."""
    for module in model.modules():
        for name in ("gate_up_proj", "down_proj"):
            weight = module._parameters.get(name)
            if weight is not None and weight.ndim == 3:
                parametrize.register_parametrization(module, name, Rounded(), unsafe=True)


class Trainer:
    """Steps of AdamW over the batches.

    Attributes:
      rows_at_once: rows of a batch whose activations are in memory together.
    """

    def __init__(self, model: torch.nn.Module, batches: torch.Tensor, task: dict) -> None:
        self.device = batches.device
        self.rows_at_once = batches.shape[1]
        self._model = torch.compile(model) if self.device.type == "cuda" else model
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=task["learning_rate"], betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self._dtype = getattr(torch, task["dtype"])
        self._batches = batches
        self._turn = task["turn"]
        self._n_steps = 0

    def step(self) -> torch.Tensor:
        """One step over a batch, rows_at_once of it at a time; returns the loss of its last part."""
        batch = self._batches[self._n_steps % len(self._batches)]
        self._n_steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        parts = batch.split(self.rows_at_once)
        for part in parts:
            enabled = self._dtype != torch.float32
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled):
                loss = self._model(input_ids=part, labels=part).loss
            (loss / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        return loss.detach()

    def compile(self) -> None:
        """Makes the first steps, with as many rows at once as the card holds."""
        while True:
            try:
                for _ in range(2):  # the second holds the optimizer's moments too
                    self.step()
                self.synchronize()
                return
            except torch.cuda.OutOfMemoryError:
                if self.rows_at_once == 1:
                    raise
            self.rows_at_once //= 2
            self._optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def turn(self) -> dict:
        """Trains the task's `turn` steps: {seconds, loss of the last}."""
        begin = time.perf_counter()
        for _ in range(self._turn):
            loss = self.step()
        value = float(loss)
        self.synchronize()
        return {"seconds": time.perf_counter() - begin, "loss": value}

    def profile(self) -> dict:
        """The longest kernels of a step: their names and milliseconds."""
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            self.step()
            self.synchronize()
        averages = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
        longest = [
            {"kernel": event.key[:120], "times": event.count, "ms": event.self_device_time_total / 1e3}
            for event in averages[:TOP_KERNELS]
        ]
        return {"span ms": sum(event.self_device_time_total for event in averages) / 1e3, "longest": longest}

    def synchronize(self) -> None:
        """Waits for the card."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Compiles the model, then answers commands."""
    folder = pathlib.Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(float(os.environ["PEER_MEMORY_SHARE"]))
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model, attention = model_of(task)
    model.to(device).train()
    if device.type == "cuda" and task["n_experts"] > 1:
        round_experts(model)
    batches = torch.from_numpy(np.load(folder / "batches.npy")[:, :, :-1].astype(np.int64)).to(device)
    trainer = Trainer(model, batches, task)
    trainer.compile()
    experts = ""
    if task["n_experts"] > 1:
        experts = f", experts {getattr(model.config, '_experts_implementation', None) or 'eager'}"
    say(
        {
            "tokens_at_once": trainer.rows_at_once * batches.shape[2],
            "software": f"torch {torch.__version__}, transformers {transformers.__version__}, attention {attention}"
            f"{experts}",
        }
    )
    answers: dict[str, Callable[[], object]] = {
        "turn": trainer.turn,
        "profile": trainer.profile,
        "memory": lambda: torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }
    for line in sys.stdin:
        say(answers[line.strip()]())


def say(value: object) -> None:
    """Answers on standard output, where other packages may print lines of their own."""
    print(f"@{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
