"""The transformer against a plain NumPy one in float64, counts, causality, and equality across meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from ml_collections import FrozenConfigDict

from configs import deepseek_v3_like, olmoe, quickstart, qwen3_moe
from jmoe.config import check, counts
from jmoe.model import embedding, loss, parameters, sampling, sharding, transformer
from jmoe.model.remat import REMAT
from jmoe.run import step


def tiny(n_experts=1, **model):
    config = quickstart.get_config()
    config.model.update(dict(d_model=32, n_blocks=2, n_heads=2, n_experts=n_experts, group_tokens=64) | model)
    config.data.seq_len = 32
    config.batch_tokens = ((0, 512),)
    return config


def make_params(config, mesh):
    """The initial parameters on a mesh, made weight by weight on one device: one program of all takes a second to
    compile, and meshes and configs share those of weights."""
    with jax.set_mesh(sharding.make_mesh(tiny(), jax.devices()[:1])):
        params = parameters.init_params(config)
    return jax.device_put(params, parameters.parameter_shardings(mesh, config.model))


def tokens_on(mesh, shape, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 257, shape)
    return jax.device_put(jnp.asarray(tokens, jnp.int32), NamedSharding(mesh, sharding.tokens(mesh)))


def train_steps(config, mesh, n_steps, rate=1e-2):
    """(metrics of each step, parameters, optimizer state at the end) on random rows of a small config."""
    found = []
    with jax.set_mesh(mesh):
        params = make_params(config, mesh)
        opt_state = jax.jit(step.make_optimizer(config).init)(params)
        train_step = step.make_train_step(config, mesh)
        types = jax.tree.map(jax.typeof, (params, opt_state))
        assert types == jax.tree.map(jax.typeof, step.abstract_state(config, mesh))
        n_rows = config.batch_tokens[0][1] // config.data.seq_len
        for i in range(n_steps):
            batch = tokens_on(mesh, (n_rows, config.data.seq_len + 1), i)
            params, opt_state, metrics = train_step(params, opt_state, batch, np.float32(rate))
            found.append(jax.device_get(metrics))
    assert jax.tree.map(jax.typeof, (params, opt_state)) == types, "the second step is compiled again"
    return found, *jax.device_get((params, opt_state))


def logits_of(params, tokens_BT, config, training, mesh):
    """Float32 logits_BTV."""

    def local(params, tokens_BT):
        x_BTD, head_DV, _ = transformer.apply(params, tokens_BT, config, training)
        return (x_BTD @ head_DV).astype(jnp.float32)

    specs = parameters.parameter_specs(config.model, mesh.shape), sharding.TOKENS
    return sharding.per_device(local, mesh, specs, sharding.TOKENS)(params, tokens_BT)


def numpy_dense(y_TD, b):
    gate = y_TD @ b["gate"]
    return (gate / (1 + np.exp(-gate)) * (y_TD @ b["up"])) @ b["down"]


def numpy_transformer(params, tokens_BT, model, feed_forward=numpy_dense):
    """Logits of the transformer, one row, one head, one position at a time where it matters.

    feed_forward(y_TD, weights of the block's mlp): of one row, what is added to the residual.
    """
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def rms_norm(x, scale):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def norm(x, weights):
        if model.norm == "rms":
            return rms_norm(x, weights["scale"])
        x = x - np.mean(x, -1, keepdims=True)
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5) * weights["scale"] + weights["bias"]

    h, k = model.n_heads, model.head_dim or model.d_model // model.n_heads
    w = h // (model.n_kv_heads or h)  # heads of queries that share one of keys and values

    def turn(vectors):
        return np.array([rotate(vector, t, model.rope_base) for t, vector in enumerate(vectors)])

    logits = []
    for row in tokens_BT:
        x = p["embed"][row]
        stacks = [p[name] for name in ("dense_blocks", "blocks") if name in p]
        for b in [
            jax.tree.map(lambda weight, i=i: weight[i], s) for s in stacks for i in range(len(s["mlp_norm"]["scale"]))
        ]:
            y, a = norm(x, b["attention_norm"]), b["attention"]
            weights = (
                np.moveaxis(a["qkv"], 1, 0) if "qkv" in a else (a["q"][:, 0], *np.moveaxis(a["kv"], 1, 0))
            )  # [D, heads, K] each
            q, key, v = (np.einsum("td,dhk->thk", y, weight) for weight in weights)
            if model.qk_norm == "head":
                q, key = rms_norm(q, a["q_norm"]), rms_norm(key, a["k_norm"])
            if model.qk_norm == "projection":

                def flat(y, row=row):
                    return y.reshape(len(row), -1)

                q, key = (
                    rms_norm(flat(y), a[f"{name}_norm"].ravel()).reshape(y.shape) for name, y in (("q", q), ("k", key))
                )
            heads = np.zeros_like(q)
            for j in range(h):
                qj, kj, vj = turn(q[:, j]), turn(key[:, j // w]), v[:, j // w]
                for t in range(len(row)):
                    score = np.exp(qj[t] @ kj[: t + 1].T / np.sqrt(k))
                    heads[t, j] = score / score.sum() @ vj[: t + 1]
            x = x + np.einsum("thk,hkd->td", heads, a["out"])
            x = x + feed_forward(norm(x, b["mlp_norm"]), b["mlp"])
        head = p["embed"].T if model.tied_embeddings else p["head"]
        logits.append((rms_norm(x, p["final_norm"]["scale"]) if model.final_norm else x) @ head)
    return np.array(logits)


def rotate(vector, t, base):
    """RoPE as complex numbers."""
    half = len(vector) // 2
    z = vector[:half] + 1j * vector[half:]
    z = z * np.exp(1j * t * base ** (-np.arange(half) * 2 / len(vector)))
    return np.concatenate([z.real, z.imag])


def with_random_norms(path, x):
    """Biases and the norms of queries and keys, which start at one value, become random."""
    random = path[-1].key in ("bias", "q_norm", "k_norm")
    return jax.random.normal(jax.random.key(1), x.shape) if random else x


def leaves_by_name(params):
    """{name of the last attribute: array} of the blocks' weights."""
    return {path[-1].key: x for path, x in jax.tree_util.tree_leaves_with_path(params["blocks"])}


GROUPED = dict(n_heads=4, n_kv_heads=2, head_dim=12, qk_norm="head", tied_embeddings=True)
ONE_FOR_ALL = dict(n_heads=4, n_kv_heads=1, qk_norm="projection")


@pytest.mark.parametrize(
    "model",
    [
        dict(norm="layer", final_norm=False),
        dict(norm="rms", final_norm=True),
        dict(norm="rms", final_norm=True) | GROUPED,
        dict(norm="layer", final_norm=True) | ONE_FOR_ALL,
        dict(n_heads=4, head_dim=6),
    ],
    ids=str,
)
def test_dense_logits_equal_numpy(model):
    config = tiny(**model)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = jax.tree.map(lambda x: 3 * x, make_params(config, mesh))  # larger weights show more
        params = jax.tree_util.tree_map_with_path(with_random_norms, params)
        tokens = tokens_on(mesh, (2, 24))
        logits = jax.jit(lambda params, tokens: logits_of(params, tokens, config, True, mesh))(params, tokens)
    expected = numpy_transformer(jax.device_get(params), np.asarray(tokens), config.model)
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("n_experts", [1, 8])
def test_initial_weights_have_the_recipes_spread(n_experts):
    """std = sqrt(0.1 / fan_in) cut at 0.2: fan_in is d_model, all experts' d_ff for what they write, 1 for a token."""
    config = tiny(n_experts, d_model=64, n_heads=4, final_norm=False)
    d, f = config.model.d_model, config.model.d_ff
    fan_in = dict(qkv=d, out=d, gate=d, up=d, router=d, down=n_experts * f)
    params = jax.device_get(parameters.init_params(config))
    blocks = leaves_by_name(params)
    for name, fan in [(name, fan) for name, fan in fan_in.items() if name in blocks]:
        few = 1 / np.sqrt(blocks[name].size)
        np.testing.assert_allclose(blocks[name].std(), np.sqrt(0.1 / fan), rtol=0.02 + few, err_msg=name)
        assert abs(blocks[name].mean()) < 4 * np.sqrt(0.1 / fan) * few, name
    np.testing.assert_allclose(params["head"].std(), np.sqrt(0.1 / d), rtol=0.02)
    # a normal of std 0.316 cut at 0.2 is nearly flat: its own std by quadrature
    x = np.linspace(-0.2, 0.2, 100_001)
    density = np.exp(-(x**2) / (2 * 0.1))
    np.testing.assert_allclose(params["embed"].std(), np.sqrt(np.sum(x**2 * density) / np.sum(density)), rtol=0.01)
    assert (
        0.199 < np.abs(params["embed"]).max() <= 0.2
        and max(np.abs(w).max() for w in (blocks["qkv"], blocks["up"])) < 0.2
    )
    for name in ("attention_norm", "mlp_norm"):
        assert (params["blocks"][name]["scale"] == 1).all() and (params["blocks"][name]["bias"] == 0).all()
    assert len({float(w.flat[0]) for w in (blocks["qkv"], blocks["gate"], blocks["up"], blocks["down"])}) == 4
    assert "final_norm" not in params


def test_parameters_of_grouped_attention_are_counted():
    """By hand: d 32, 4 heads of 12 with 2 for keys and values, 2 blocks, d_ff 96, 257 tokens, tied."""
    model = tiny(norm="rms", final_norm=True, d_ff=96, **GROUPED).model
    block = 32 * 4 * 12 + 2 * 32 * 2 * 12 + 4 * 12 * 32 + 3 * 32 * 96
    assert counts.n_active(model) == counts.n_total(model) == 2 * block + 257 * 32
    assert counts.n_active(model, embedding=False) == counts.n_total(model, embedding=False) == 2 * block
    assert counts.n_exact(model) == counts.n_total(model) + 2 * (2 * 32 + 2 * 12) + 32
    assert counts.n_exact(model, dict(data=2, expert=1, model=2)) == (
        2 * (block // 4 + 2 * 32 + 2 * 12) + 257 * 32 // 2 + 32
    )
    flops = counts.matmul_flops_per_token(model, 64)
    assert flops == dict(parameters=6 * counts.n_active(model), attention=12 * 2 * 4 * 12 * 64, router=0)
    ((keys, values),) = sampling.new_caches(FrozenConfigDict(model), 1_000).values()
    assert keys.size + values.size == counts.kv_elements(model, keys.shape[2]) == 2 * 2 * 1_280 * 2 * 12


@pytest.mark.parametrize("config", [quickstart, olmoe, qwen3_moe, deepseek_v3_like])
def test_the_transformer_is_a_flax_module_that_knows_its_weights(config):
    """Their number and how they are stored, as counts without jax has them; parts merge to the same module."""
    config = config.get_config()
    built = nnx.eval_shape(lambda: transformer.Transformer(config.model, nnx.Rngs(params=0)))
    graphdef, state = nnx.split(built, nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(state)) == counts.n_exact(config.model)
    specs = nnx.to_pure_dict(nnx.get_partition_spec(state))

    def full(spec, x):
        return (*spec, *[None] * (x.ndim - len(spec)))

    shapes = nnx.to_pure_dict(state)
    as_stored = jax.tree.map(full, parameters.parameter_specs(config.model, {}), shapes)
    assert as_stored == jax.tree.map(full, specs, shapes)
    assert jax.tree.structure(nnx.merge(graphdef, state)) == jax.tree.structure(built)


def test_a_transformer_can_be_made_shown_and_called_by_itself():
    config = tiny(n_experts=4)
    model = jax.jit(lambda: transformer.Transformer(config.model, nnx.Rngs(params=jax.random.key(config.seed))))()
    nnx.display(model)
    assert "blocks=Block(" in str(model) and "mlp=MoE(" in str(model)
    assert "out_sharding=(None, 'expert', 'data', 'model')" in str(model)
    tokens_BT = jnp.arange(32)[None]
    x_BTD, head_DV, _, _ = jax.jit(lambda model: model(tokens_BT, training=False))(model)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = make_params(config, mesh)
        expected = jax.jit(lambda params: logits_of(params, tokens_BT, config, False, mesh))(params)
    np.testing.assert_allclose(x_BTD @ head_DV, expected, rtol=1e-5, atol=1e-5)


def billions(n):
    return round(n / 1e9, 1)


@pytest.mark.parametrize("config, n_active, n_total", [(olmoe, 1.3, 6.9), (qwen3_moe, 3.3, 30.5)])
def test_named_models_have_the_published_sizes(config, n_active, n_total):
    """In billions: Muennighoff et al. 2024, Tab. 1; the model card of Qwen3-30B-A3B."""
    config = config.get_config()
    check.check_config(config)
    assert (billions(counts.n_active(config.model)), billions(counts.n_total(config.model))) == (n_active, n_total)


def test_deepseek_v3_has_the_published_sizes_but_for_attention():
    """671B, 37B active, with DeepSeek-V3's own attention (DeepSeek-AI 2024, Sec. 4.2) counted by hand in its place."""
    config = deepseek_v3_like.get_config()
    check.check_config(config)
    model = config.model
    queries = 7_168 * 1_536 + 1_536 * 128 * (128 + 64)
    keys_values = 7_168 * (512 + 64) + 512 * 128 * (128 + 128)
    latent = 61 * (queries + keys_values + 128 * 128 * 7_168)
    ours = counts.n_exact(model, roles=("attention",))
    assert round((counts.n_total(model) - ours + latent) / 1e9) == 671
    assert round((counts.n_active(model) - ours + latent) / 1e9) == 37
    experts = counts.n_exact(model, roles=("expert",))
    assert experts == 58 * 256 * 3 * 7_168 * 2_048  # 58 layers of 256 as wide as published
    assert (billions(counts.n_active(model)), billions(counts.n_total(model))) == (41.3, 674.7)  # as its file says


@functools.cache
def history(n_experts, n_devices, expert=1, model=1, **fields):
    """The metrics of five steps."""
    config = tiny(n_experts, **dict(d_model=64, n_heads=8) | fields)
    config.mesh.expert, config.mesh.model = expert, model
    return train_steps(config, sharding.make_mesh(config, jax.devices()[:n_devices]), 5)[0]


# expert and model axes of eight devices; the rest is data
@pytest.mark.parametrize(
    "n_experts, expert, model, fields, narrowest",
    [
        (1, 2, 4, dict(n_kv_heads=4, qk_norm="head"), 128),
        (8, 2, 2, dict(n_kv_heads=2, head_dim=12, qk_norm="projection", tied_embeddings=True), 128),
        (8, 2, 1, dict(d_model=36, n_heads=3), 128),  # which does not divide over data and expert
        (8, 2, 1, {}, 8),  # rows of the embedding are exchanged, as of wide models
    ],
)
def test_the_mesh_changes_nothing(n_experts, expert, model, fields, narrowest, monkeypatch):  # noqa: PLR0913
    """Five steps on eight devices equal five on one: same losses, same drops. Of the layer alone test_moe.py tries more
    meshes."""
    monkeypatch.setattr(embedding, "NARROWEST", narrowest)
    histories = history(n_experts, 1, **fields), history(n_experts, 8, expert, model, **fields)
    for one, eight in zip(*histories, strict=True):
        assert one.keys() == eight.keys()
        for name in one.keys() - {"layers"}:
            rtol = 1e-5 if name in ("loss", "cross_entropy", "drop_rate") else 1e-4
            np.testing.assert_allclose(eight[name], one[name], rtol=rtol, err_msg=name)
        if n_experts > 1:
            np.testing.assert_array_equal(eight["layers"]["drop_rate"], one["layers"]["drop_rate"])
    if n_experts > 1:
        assert histories[0][0]["drop_rate"] > 0


@pytest.mark.parametrize("d_model, n_shares", [(32, 8), (36, 4)])
def test_parameters_made_on_a_mesh_rest_spread_over_it(d_model, n_shares):
    """Four devices of data times two of expert; 36 divides over the former alone. Values are those of one device."""
    config = tiny(8, d_model=d_model, n_heads=2)
    config.mesh.expert = 2
    mesh = sharding.make_mesh(config)
    placed = parameters.parameter_shardings(mesh, config.model)
    with jax.set_mesh(mesh):
        params = jax.jit(lambda: parameters.init_params(config), out_shardings=placed)()
    alone = parameters.init_params(config)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), params, alone)
    experts = params["blocks"]["mlp"]["experts"]
    for weights in (experts["gate"], experts["down"]):
        assert weights.addressable_shards[0].data.size * 8 == weights.size
    for weights in (params["embed"], params["head"], params["blocks"]["attention"]["out"]):
        assert weights.addressable_shards[0].data.size * n_shares == weights.size


@pytest.mark.parametrize("n_tokens, vocab_size, n_chunks", [(48, 257, 1), (48, 257, 6), (30, 11, 5)])
def test_chunked_cross_entropy_equals_the_plain_one(monkeypatch, n_tokens, vocab_size, n_chunks):
    """Value and gradient, in as many chunks as the limit on logits asks for."""
    monkeypatch.setattr(loss, "LOGITS_BYTES", n_tokens // n_chunks * vocab_size * 4)
    keys = jax.random.split(jax.random.key(0), 3)
    x_ND = jax.random.normal(keys[0], (n_tokens, 4))
    head_DV = jax.random.normal(keys[1], (4, vocab_size))
    target_N = jax.random.randint(keys[2], (n_tokens,), 0, vocab_size)

    def plain(x, head):
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x @ head, target_N))

    def chunked(x, head):
        return loss.mean_cross_entropy(x, head, target_N)

    assert f"length={n_chunks}" in str(jax.make_jaxpr(chunked)(x_ND, head_DV)).replace(" ", "")
    expected, gradient = jax.jit(jax.value_and_grad(lambda *a: 3 * plain(*a), argnums=(0, 1)))(x_ND, head_DV)
    got, got_gradient = jax.jit(jax.value_and_grad(lambda *a: 3 * chunked(*a), argnums=(0, 1)))(x_ND, head_DV)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    for a, b in zip(got_gradient, gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        jax.jit(loss.cross_entropy)(x_ND, head_DV, target_N),
        optax.softmax_cross_entropy_with_integer_labels(x_ND @ head_DV, target_N),
        rtol=1e-5,
    )


def test_the_log_sum_exp_in_one_pass_is_that_of_float64():
    """Of logits near and far from each other, of the smallest and largest ones, and of one that is minus infinity."""
    logits_NV = np.random.default_rng(0).normal(size=(6, 300)) * np.array([[1], [30], [1000], [1], [0], [0]])
    logits_NV[3, 7] = -np.inf
    logits_NV[4] = -3e38
    logits_NV[5] = 2e4
    logits_NV = logits_NV.astype(np.float32)
    expected = np.logaddexp.reduce(logits_NV.astype(np.float64), axis=1)
    np.testing.assert_allclose(jax.jit(loss.logsumexp_in_one_pass)(logits_NV), expected, rtol=3e-7)


def test_the_z_loss_of_the_logits_equals_the_plain_one(monkeypatch):
    """Value, parts and gradient, in six chunks."""
    monkeypatch.setattr(loss, "LOGITS_BYTES", 8 * 257 * 4)
    keys = jax.random.split(jax.random.key(0), 3)
    x_ND = 3 * jax.random.normal(keys[0], (48, 4))
    head_DV = jax.random.normal(keys[1], (4, 257))
    target_N = jax.random.randint(keys[2], (48,), 0, 257)

    def plain(x, head):
        logits = x @ head
        lse = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
        nats = jnp.mean(lse - logits[jnp.arange(48), target_N])
        z = jnp.mean(lse**2)
        return 3 * (nats + 0.01 * z), (nats, z)

    def chunked(x, head):
        total, nats, z = loss.cross_entropy_and_z(x, head, target_N, 0.01)
        return 3 * total, (nats, z)

    expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1), has_aux=True))(x_ND, head_DV)
    got = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1), has_aux=True))(x_ND, head_DV)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_the_z_loss_is_a_part_of_the_loss_on_any_mesh():
    config = tiny(4)
    batch = tokens_on(sharding.make_mesh(config, jax.devices()[:1]), (16, 33))
    found = []
    for n_devices, config.mesh.model, config.loss.logit_z in ((1, 1, 0.0), (1, 1, 0.5), (8, 2, 0.5)):
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        with jax.set_mesh(mesh):
            rows = jax.device_put(batch, NamedSharding(mesh, sharding.TOKENS))
            compute = jax.jit(functools.partial(loss.loss_fn, config=config, mesh=mesh))
            found.append(compute(make_params(config, mesh), rows))
    (without, plain_metrics), (one, metrics), (spread, spread_metrics) = jax.device_get(found)
    assert "logit_z" not in plain_metrics
    assert metrics["cross_entropy"] == pytest.approx(plain_metrics["cross_entropy"], rel=1e-6)
    assert one == pytest.approx(without + 0.5 * metrics["logit_z"], rel=1e-6)
    assert metrics["logit_z"] == pytest.approx(np.log(257) ** 2, rel=0.1)  # of a model that knows nothing yet
    assert spread == pytest.approx(one, rel=1e-5)
    assert spread_metrics["logit_z"] == pytest.approx(metrics["logit_z"], rel=1e-5)


def test_the_gradient_of_the_loss_is_the_numerical_one():
    """Of every parameter of a dense model; of a layer of experts, see test_moe.py."""
    config = tiny(d_model=16, **GROUPED)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        # larger weights show more; larger queries and keys would make the loss too crooked to measure its slope
        def doubled(path, x):
            return x if path[-1].key in ("q_norm", "k_norm") else 2 * x

        params = jax.tree_util.tree_map_with_path(doubled, make_params(config, mesh))
        batch = tokens_on(mesh, (16, 33))
        both = jax.jit(jax.value_and_grad(lambda p: loss.loss_fn(p, batch, config, mesh)[0]))
        grads = jax.device_get(both(params)[1])
        rng = np.random.default_rng(0)
        for path, grad in jax.tree_util.tree_leaves_with_path(grads):
            noise = rng.normal(size=grad.shape)
            direction = np.float32(grad / np.linalg.norm(grad) + noise / np.linalg.norm(noise))

            def shifted(size, path=path, direction=direction):
                return jax.tree_util.tree_map_with_path(lambda p, x: x + size * direction if p == path else x, params)

            numerical = (both(shifted(1e-2))[0] - both(shifted(-1e-2))[0]) / 2e-2
            np.testing.assert_allclose(numerical, np.sum(grad * direction), rtol=0.02, atol=1e-4, err_msg=str(path))


def test_what_is_saved_for_the_backward_pass_changes_nothing():
    grads = []
    for remat, unroll in [*((remat, False) for remat in REMAT), ("full", True)]:  # test_mixtures.py unrolls "dots"
        config = tiny(4)
        config.remat, config.unroll = remat, unroll
        mesh = sharding.make_mesh(config, jax.devices()[:1])
        with jax.set_mesh(mesh):
            params, batch = make_params(config, mesh), tokens_on(mesh, (16, 33))

            def loss_of(params, batch=batch, config=config, mesh=mesh):
                return loss.loss_fn(params, batch, config, mesh)[0]

            grads.append(jax.jit(jax.grad(loss_of))(params))
    for other in grads[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads[0], other)


def test_the_loss_by_position_equals_numpys_on_any_mesh():
    """Of rows of which one counts nothing, by parts of a row that hold twice as many positions each."""
    config = tiny()
    found = []
    for model in (1, 2):
        config.mesh.model = model
        mesh = sharding.make_mesh(config, jax.devices()[: 2 * model])
        with jax.set_mesh(mesh):
            params = make_params(config, mesh)
            batch = tokens_on(mesh, (4, 33))
            weight = jax.device_put(jnp.array([1.0, 1.0, 0.0, 1.0]), NamedSharding(mesh, sharding.TOKENS))
            found.append(step.mean_losses(step.make_eval_step(config, mesh), params, [(batch, weight)]))
    logits_BTV = numpy_transformer(params, np.asarray(batch)[:, :-1], config.model)
    top_BT = logits_BTV.max(-1)
    log_sum_BT = np.log(np.exp(logits_BTV - top_BT[..., None]).sum(-1)) + top_BT
    nats_BT = log_sum_BT - np.take_along_axis(logits_BTV, np.asarray(batch)[:, 1:, None], -1)[..., 0]
    nats_T = nats_BT[[0, 1, 3]].mean(0)
    ends = {"loss_1_2": nats_T[:2], "loss_3_4": nats_T[2:4], "loss_5_8": nats_T[4:8], "loss_9_16": nats_T[8:16]}
    expected = {name: part.mean() for name, part in (ends | {"loss_17_32": nats_T[16:]}).items()}
    for mean, by_position in found:
        assert mean == pytest.approx(nats_T.mean(), rel=1e-5)
        assert by_position == pytest.approx(expected, rel=1e-5)
