"""Models that others published: what their config.json counts, and what is no config."""

import json

import pytest

from fit.errors import UserError
from fit.model import reference_model

UNITS = {"B": 1e9, "T": 1e12}


def printed(text):
    """(value, half a unit of the last digit) of a printed size such as 3.3B."""
    digits = text[:-1]
    decimals = len(digits.partition(".")[2])
    return float(digits) * UNITS[text[-1]], 0.5 * 10**-decimals * UNITS[text[-1]]


def assert_as_printed(count, text):
    """To 1%, or as near as the printed digits say."""
    value, rounding = printed(text)
    assert abs(count - value) <= max(0.01 * value, rounding), (count, text)


@pytest.mark.parametrize("name", reference_model.PUBLISHED)
def test_a_published_model_counts_what_its_makers_say(name):
    """The makers' own figures stand in published.json, with what they leave out."""
    known = reference_model.read(name)
    assert reference_model.PUBLISHED[name]["source"]
    published = reference_model.PUBLISHED[name]["published"]
    ends = known.n_embedding * (1 if known.shape.tied_embeddings else 2)
    left_out = {
        "with embedding": 0,
        "without the input embedding": known.n_embedding,
        "without embedding and head": ends,
    }
    less = left_out[published["counts"]]
    total = known.n_total - (less if less == ends else 0) + (known.n_ahead if published.get("ahead") else 0)
    assert_as_printed(total, published["n_total"])
    if "n_active" in published:
        assert_as_printed(known.n_active - less, published["n_active"])
    else:
        assert known.n_active == known.n_total
    mixture = known.architecture()  # its width per block is a whole number, so its counts are near
    assert mixture.n_active(known.shape.d_model, known.whole_experts) == pytest.approx(known.n_active, rel=0.02)
    assert mixture.kv_elements(known.shape.d_model, 1) == pytest.approx(known.cache_elements_per_token, rel=0.02)


def test_linear_attention_keeps_no_cache():
    """Qwen3-Next: 12 of 48 blocks attend fully, with 2 heads of keys and of values, each of 256 numbers."""
    known = reference_model.read("Qwen3-Next-80B-A3B")
    assert known.cache_elements_per_token == 12 * 2 * 2 * 256 and reference_model.LINEAR in known.notes


def test_dense_blocks_between_mixtures_are_counted():
    """Llama 4 Maverick: every second of 48 blocks is dense; a token uses one of 128 experts and one that all use."""
    known = reference_model.read("Llama-4-Maverick")
    shape = known.shape
    assert (shape.n_dense_blocks, shape.n_experts, shape.top_k, shape.n_shared_experts) == (24, 128, 1, 1)
    assert reference_model.ALTERNATE in known.notes


def test_families_that_tie_embeddings_by_default(tmp_path):
    config = {name: value for name, value in reference_model.PUBLISHED["Gemma-3-1B"].items() if name != "published"}
    assert reference_model.read(config).shape.tied_embeddings
    assert not reference_model.read(config | {"model_type": "llama"}).shape.tied_embeddings
    assert not reference_model.read(config | {"tie_word_embeddings": False}).shape.tied_embeddings


def test_deepseeks_latent_attention_is_counted_weight_by_weight():
    known = reference_model.read("DeepSeek-V3")
    down = 7168 * (1536 + 512 + 64)
    up = 1536 * 128 * 192 + 512 * 128 * (128 + 128)
    assert known.shape.attention_weights == down + up + 128 * 128 * 7168 and known.cache == 512 + 64
    assert known.whole_experts == 257 / 9 and len(known.notes) == 2


@pytest.mark.parametrize("change, said", [
    (dict(mamba_d_state=128), "it has state-space layers"),
    (dict(model_type="falcon"), "have two matrices"),
    (dict(hidden_act="relu2"), "have two matrices"),
    (dict(block_configs=[{}]), "its blocks differ from each other"),
    (dict(layer_types=["linear_attention"] * 48), "does not say"),
    (dict(layer_types=["mamba"]), "layers of mamba"),
    (dict(num_hidden_layers=None), "has no num_hidden_layers"),
    (dict(hidden_size="2048"), 'hidden_size is "2048", expected a whole number from 1 up'),
    (dict(num_experts_per_tok=200), "a token chooses 200 of 128 experts"),
    (dict(first_k_dense_replace=48), "in 0 blocks"),
])  # fmt: skip
def test_what_cannot_be_counted_is_refused_with_the_reason(tmp_path, change, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(reference_model.PUBLISHED["Qwen3-30B-A3B"] | change))
    with pytest.raises(UserError, match=said):
        reference_model.read(path)


def test_what_is_no_published_model_is_named():
    with pytest.raises(UserError, match="no such file, nor a published model; these are Llama-3.2-1B"):
        reference_model.read("Qwen9")
