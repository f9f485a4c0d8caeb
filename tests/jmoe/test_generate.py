"""Text from a model: the cached transformer against the whole one, sampling, characters, the command."""

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from jmoe import generate
from jmoe.errors import UserError
from jmoe.model import sampling, sharding, transformer
from jmoe.model.parameters import parameter_specs
from jmoe.text import tokenizer
from tests.jmoe.model.test_model import GROUPED, ONE_FOR_ALL, logits_of, make_params, tiny, tokens_on

PROMPT = 67  # more than one part of sampling.PROMPT_POSITIONS
T = 72


FINE = dict(n_blocks=3, n_dense_blocks=1, top_k=2, d_expert=24, n_shared_experts=1, balance="bias", scores="sigmoid")


@pytest.mark.parametrize(
    "n_experts, model",
    [
        (4, dict(norm="layer", final_norm=False)),
        (8, dict(norm="rms", final_norm=True) | FINE | GROUPED),
        (1, ONE_FOR_ALL),
    ],
    ids=str,
)
def test_a_position_at_a_time_gives_the_logits_of_all_at_once(n_experts, model):
    """The prompt in parts, then single tokens, against the transformer without a cache."""
    config = tiny(n_experts=n_experts, **model)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = jax.tree.map(lambda x: 3 * x, make_params(config, mesh))  # so that it is sure of something
        tokens_BT = tokens_on(mesh, (1, T))
        expected_TV = jax.device_get(logits_of(params, tokens_BT, config, False, mesh))[0]
    params, tokens, model = jax.device_get(params), np.asarray(tokens_BT)[0].tolist(), FrozenConfigDict(config.model)
    cache = sampling.new_caches(model, T)
    params = transformer.cast(jax.device_put(params), model)
    logits_V, cache = sampling.read_prompt(params, cache, tokens[:PROMPT], model)
    got_TV = [logits_V]
    for t in range(PROMPT, T):
        logits_TV, cache = sampling.forward(params, cache, jnp.asarray(tokens[t : t + 1]), t, model)
        got_TV.append(logits_TV[0])
    assert np.std(expected_TV) > 0.1
    np.testing.assert_allclose(np.array(got_TV), expected_TV[PROMPT - 1 :], atol=1e-4 * np.std(expected_TV))


@pytest.mark.parametrize("n_in_prompt", [1, 30])
def test_a_token_sees_only_its_own_document_where_training_did_so(n_in_prompt):
    """Of five tokens one ends documents, in the prompt and in what is drawn after it: the same draws as from the
    logits of the transformer with documents, all at once."""
    end = 2
    n = 24
    config = tiny(n_experts=4, norm="rms", final_norm=True, vocab_size=5)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = jax.tree.map(lambda x: 3 * x, make_params(config, mesh))
    prompt = [end, *np.random.default_rng(0).integers(0, 5, n_in_prompt - 1).tolist()]

    def drawn(**options):
        return list(sampling.tokens_after(prompt, jax.device_get(params), config.model, n, temperature=1.0, **options))

    answer = drawn(end_of_text=end)

    def logits(params, tokens_BT):
        x_BTD, head_DV, _ = transformer.apply(params, tokens_BT, config, training=False, end_of_text=end)
        return (x_BTD @ head_DV).astype(jnp.float32)

    specs = (parameter_specs(config.model, mesh.shape), sharding.tokens(mesh))
    with jax.set_mesh(mesh):
        of_each = jax.jit(sharding.per_device(logits, mesh, specs, sharding.tokens(mesh)))
        logits_TV = of_each(params, np.array([[*prompt, *answer]], np.int32))[0]
    keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(n)]
    expected = [sampling.choose(logits_TV[n_in_prompt - 1 + i], key, 1.0, 1.0) for i, key in enumerate(keys)]
    assert answer == expected
    assert 1 < answer.count(end) < n - 1
    assert answer != drawn()  # where a token sees all before it


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits_V = jnp.log(jnp.array([0.1, 0.5, 0.15, 0.25]))
    draw = jax.jit(jax.vmap(sampling.choose, in_axes=(None, 0, None, None)))
    keys = jax.random.split(jax.random.key(0), 20_000)

    def share(*settings):
        return np.bincount(draw(logits_V, keys, *settings), minlength=4) / len(keys)

    five_sigma = 5 * 0.5 / len(keys) ** 0.5
    np.testing.assert_allclose(share(1.0, 1.0), [0.1, 0.5, 0.15, 0.25], atol=five_sigma)
    squared = np.array([0.01, 0.25, 0.0225, 0.0625])
    np.testing.assert_allclose(share(0.5, 1.0), squared / squared.sum(), atol=five_sigma)
    np.testing.assert_allclose(share(1.0, 0.6), [0, 2 / 3, 0, 1 / 3], atol=five_sigma)  # two hold 0.6 of it
    assert share(1.0, 0.5)[1] == 1 and share(0.0, 1.0)[1] == 1


def test_characters_are_shown_when_they_are_complete():
    made = tokenizer.load("bytes")
    ids = [*"aé漢".encode(), 0xFF, *b"b", made.end_of_text, *b"after the end"]
    shown = list(made.decoded([ord(">")], ids))
    assert "".join(shown) == "aé漢\ufffdb" and "é" in shown and "漢" in shown


def test_text_follows_its_prompt(exportable):
    def text(**options):
        return "".join(generate.generate(exportable, "def é", 40, **options))

    first = helpers.succeeds("jmoe.generate", f"--workdir={exportable}", "--prompt=def é", "--n=40").stdout
    assert first.startswith("def é") and 10 < len(first) < 60
    assert first == text() + "\n" and text() != text(seed=1)
    greedy = text(temperature=0.0)
    assert greedy == text(temperature=0.0, seed=1) != text()


def test_a_wrong_wish_is_refused_by_name(exportable, tmp_path):
    for options, words in ({"top_p": 0.0}, "--top_p=0.0"), ({"tokenizer": str(tmp_path / "gone.json")}, "gone.json"):
        with pytest.raises(UserError, match=words):
            list(generate.generate(exportable, **options))
