"""Models that others published: what their config.json counts, and what is no config."""

import json

import pytest

from fit.errors import UserError
from fit.shape import like

# (active, total) parameters in billions as their makers print them, which count norms and routers too
PRINTED = {
    "Llama-3.1-8B": (8.03, 8.03),
    "OLMoE-1B-7B": (1.3, 6.92),
    "Mixtral-8x7B": (12.9, 46.7),
    "gpt-oss-20b": (None, 20.9),  # of the active ones they leave out the embedding
    "gpt-oss-120b": (None, 116.8),
    "Qwen3-30B-A3B": (3.3, 30.5),
    "Qwen3-235B-A22B": (22, 235),
    "DeepSeek-V3": (37, 671),
}


@pytest.mark.parametrize("name", like.PUBLISHED)
def test_a_published_model_counts_what_its_makers_say(name):
    known, (active, total) = like.read(name), PRINTED[name]
    assert known.n_total / 1e9 == pytest.approx(total, rel=5e-3)
    assert active is None or known.n_active / 1e9 == pytest.approx(active, rel=0.02)
    mixture = known.architecture()  # its width per block is a whole number, so its counts are near
    assert mixture.n_active(known.d_model, known.whole_experts) == pytest.approx(known.n_active, rel=0.02)
    assert mixture.kv_elements(known.d_model, 1) == pytest.approx(known.cache * known.n_blocks, rel=0.02)


def test_deepseeks_latent_attention_is_counted_weight_by_weight():
    known = like.read("DeepSeek-V3")
    down, up = 7168 * (1536 + 512 + 64), 1536 * 128 * 192 + 512 * 128 * (128 + 128)
    assert known.attention == down + up + 128 * 128 * 7168 and known.cache == 512 + 64
    assert known.whole_experts == 257 / 9 and len(known.notes) == 2


@pytest.mark.parametrize(
    "change, said",
    {
        "no layers": (dict(num_hidden_layers=None), "has no num_hidden_layers"),
        "a text": (dict(hidden_size="2048"), 'hidden_size is "2048", expected a whole number from 1 up'),
        "too many chosen": (dict(num_experts_per_tok=200), "a token chooses 200 of 128 experts"),
        "all blocks dense": (dict(first_k_dense_replace=48), "in 0 blocks"),
    }.values(),
)
def test_what_is_no_config_is_named(tmp_path, change, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(like.PUBLISHED["Qwen3-30B-A3B"] | change))
    with pytest.raises(UserError, match=said):
        like.read(path)
    with pytest.raises(UserError, match="no such file, nor a published model; these are Llama-3.1-8B"):
        like.read("Qwen9")
