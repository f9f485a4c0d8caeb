"""Checkpoints as Hugging Face folders and back: transformers computes and writes what jmoe does."""

import contextlib
import json
import os
import pathlib
import shutil
import warnings

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from jmoe import export, huggingface
from jmoe.errors import UserError
from jmoe.model import sampling, sharding
from jmoe.run import checkpoint
from jmoe.text import tokenizer
from tests.jmoe.model.test_model import logits_of, make_params, tiny

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    why = "without torch: exported files are not tested (pip install -e '.[export]')"
    torch = pytest.importorskip("torch", reason=why)
    transformers = pytest.importorskip("transformers", reason=why)

SAYABLE = "--config.model.norm=rms", "--config.model.final_norm=True"


@contextlib.contextmanager
def offline():
    """transformers reads only files; its own deprecations are not ours to mend."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def read(folder, **options):
    """transformers' model of a folder, of which it must know and use every tensor."""
    with offline():
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), output_loading_info=True, **options
        )
    assert not any(told.values()), told
    return model


def logits(model, tokens_BT) -> np.ndarray:
    with offline():
        return model(torch.tensor(np.asarray(tokens_BT))).logits.float().numpy()


def ours(params, tokens_BT, config) -> np.ndarray:
    """Logits with nothing dropped."""
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        placed = jax.tree.map(jnp.asarray, params)
        run = jax.jit(lambda params, tokens_BT: logits_of(params, tokens_BT, config, False, mesh))
        return jax.device_get(run(placed, jnp.asarray(tokens_BT)))


def write(folder, params, config, dtype="float32") -> None:
    values = huggingface.config_json(config.model, config.data.seq_len) | {"torch_dtype": dtype}
    export.write(epath.Path(folder), dict(huggingface.tensors(params, config.model)), dtype)
    (folder / "config.json").write_text(json.dumps(values))


def random_params(config):
    """Larger than the initial ones, so that the logits differ by much."""
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        return jax.tree.map(lambda x: 3 * x, jax.device_get(make_params(config, mesh)))


def rows(*shape):
    return np.random.default_rng(1).integers(0, 257, shape)


@pytest.fixture(scope="module")
def trained(exportable, tmp_path_factory):
    """(workdir, exported folder) of a mixture that was trained for seconds."""
    folder = tmp_path_factory.mktemp("export") / "hf"
    helpers.succeeds("jmoe.export", f"--workdir={exportable}", f"--out={folder}", "--law=joint-moe-2025")
    return exportable, folder


@pytest.mark.parametrize(
    "shape",
    [
        dict(n_experts=1, n_heads=1, d_ff=40, rope_base=500.0),
        dict(n_experts=1, n_heads=4, n_kv_heads=1, head_dim=12, qk_norm="head"),
        dict(n_experts=4, n_heads=4, n_kv_heads=2, head_dim=12, n_dense_blocks=1, d_expert=24, top_k=2),
        dict(n_experts=4, n_dense_blocks=1, d_expert=24, top_k=2, n_shared_experts=2),
        dict(n_experts=4, n_heads=4, n_kv_heads=2, head_dim=6, qk_norm="head", top_k=2, tied_embeddings=True),
        dict(n_experts=4, n_heads=4, n_kv_heads=2, qk_norm="projection", top_k=3, normalize_gates=False, d_expert=24),
    ],
    ids=str,
)
def test_transformers_computes_the_same_logits(shape, tmp_path):
    """And what is read back is the same model."""
    config = tiny(**dict(norm="rms", final_norm=True) | shape)
    params, tokens_BT = random_params(config), rows(2, 48)
    attention = params["blocks"]["attention"]
    for name in {"q_norm", "k_norm"} & attention.keys():
        attention[name] = np.random.default_rng(2).normal(size=attention[name].shape).astype(np.float32)
    write(tmp_path / "hf", params, config)
    expected = ours(params, tokens_BT, config)
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(logits(read(tmp_path / "hf"), tokens_BT), expected, atol=2e-4)
    assert huggingface.model_fields(
        json.loads((tmp_path / "hf/config.json").read_text())
    ) == huggingface.comparable_fields(config.model)
    get = huggingface.reader([*(tmp_path / "hf").glob("*.safetensors")])
    jax.tree.map(np.testing.assert_array_equal, huggingface.params(get, config.model), params)


def test_a_trained_mixture_gives_the_same_logits_and_the_same_text(trained):
    workdir, folder = trained
    _, _, config, params = checkpoint.on_host(epath.Path(workdir), None, None)
    model, tokens_BT = read(folder), rows(2, 32)
    assert type(model).__name__ == "Qwen2MoeForCausalLM" and model.dtype == torch.float32
    np.testing.assert_allclose(logits(model, tokens_BT), ours(params, tokens_BT, config), atol=1e-4)

    prompt = [*b"def main("]
    with offline():
        said = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=60, pad_token_id=256)[0].tolist()
        assert transformers.AutoTokenizer.from_pretrained(folder).decode(said).startswith("def main(")
    greedy = list(sampling.tokens_after(prompt, params, config.model, 60))
    greedy = greedy[: greedy.index(256) + 1] if 256 in greedy else greedy
    assert said == prompt + greedy


def test_the_card_says_what_the_run_was(trained):
    workdir, folder = trained
    result = json.loads((workdir / "branch-16384" / "result.json").read_text())
    card = (folder / "README.md").read_text()
    for fact in (result["corpus_fingerprint"], f"{result['loss']:.4f}", "16,384 tokens", f"{result['n_active']:,}"):
        assert fact in card
    assert "predicted by joint-moe-2025" in card and "outside the fitted range" in card
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 256


def test_a_run_begins_with_the_weights_of_a_folder(trained, tmp_path, text_glob):
    """Out of transformers and back: the same parameters; then jmoe.train goes on from them."""
    workdir, folder = trained
    config = helpers.write_config(tmp_path, text_glob)
    flags = f"--config={config}", f"--workdir={tmp_path / 'run'}", *SAYABLE, "--config.n_tokens=(8192,)"
    error = helpers.fails("jmoe.load", f"--from={folder}", *flags, "--config.model.n_experts=4")
    assert "--config.model.n_experts=8" in error
    flags += ("--config.model.n_experts=8",)
    error = helpers.fails("jmoe.load", f"--from={folder}", *flags, "--config.data.fingerprint=0123456789abcdef")
    assert "Name the text of 0123456789abcdef" in error and "--config.data.fingerprint= (empty)" in error
    helpers.succeeds("jmoe.load", f"--from={folder}", *flags)
    _, _, _, before = checkpoint.on_host(epath.Path(workdir), None, None)
    _, record, _, after = checkpoint.on_host(epath.Path(tmp_path / "run"), "trunk", 0)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert record["n_tokens"] == 0
    assert "has checkpoints already" in helpers.fails("jmoe.load", f"--from={folder}", *flags)
    (tmp_path / "other.txt").write_text(pathlib.Path(os.__file__).read_text())
    error = helpers.fails("jmoe.train", *flags, f"--config.data.path={tmp_path}/other.txt")
    assert f"--config.data.fingerprint={record['corpus_fingerprint']} takes the one before" in error
    helpers.succeeds("jmoe.train", *flags)
    first = json.loads((tmp_path / "run/trunk/metrics.jsonl").read_text().splitlines()[0])
    assert first["cross_entropy"] < 0.9 * np.log(257)  # not that of new weights
    result = json.loads((tmp_path / "run/branch-8192/result.json").read_text())
    assert result["began_with"].startswith(f"{folder}, sha256 ")
    shutil.rmtree(tmp_path / "run/trunk")
    shutil.rmtree(tmp_path / "run/branch-8192")
    assert "began with the weights of" in helpers.fails("jmoe.train", *flags)  # and not with new ones


@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3Moe", "Olmoe"])
def test_what_transformers_makes_is_computed_alike(kind, tmp_path):
    """With the sizes that their own defaults would give otherwise."""
    sizes = dict(vocab_size=257, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    mixture = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    own = {
        "Qwen3": dict(intermediate_size=96, head_dim=12),
        "Qwen3Moe": mixture | dict(intermediate_size=96, norm_topk_prob=True, head_dim=12),
        "Olmoe": mixture | dict(intermediate_size=24, rms_norm_eps=1e-6),
    }[kind]
    with offline():
        torch.manual_seed(0)
        settings = getattr(transformers, f"{kind}Config")(**sizes, **own, initializer_range=0.2, pad_token_id=None)
        theirs = getattr(transformers, f"{kind}ForCausalLM")(settings)
        theirs.save_pretrained(tmp_path / "hf")
    config = tiny(**huggingface.model_fields(json.loads((tmp_path / "hf/config.json").read_text())))
    get = huggingface.reader([*(tmp_path / "hf").glob("*.safetensors")])
    params, tokens_BT = huggingface.params(get, config.model), rows(2, 32)
    np.testing.assert_allclose(ours(params, tokens_BT, config), logits(theirs, tokens_BT), atol=1e-4)


def test_a_dense_folder_of_another_program_becomes_a_mixture(tmp_path, text_glob):
    """A Llama that transformers made; each expert is the dense layer, so that equal gates give its logits."""
    with offline():
        torch.manual_seed(0)
        sizes = dict(vocab_size=257, hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2)
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, initializer_range=0.2))
        llama.save_pretrained(tmp_path / "hf")
    config = tiny(**huggingface.model_fields(json.loads((tmp_path / "hf/config.json").read_text())))
    dense = huggingface.params(huggingface.reader([*(tmp_path / "hf").glob("*.safetensors")]), config.model)
    tokens_BT = rows(2, 32)
    expected = logits(llama, tokens_BT)
    np.testing.assert_allclose(ours(dense, tokens_BT, config), expected, atol=1e-4)

    config.model.n_experts = 4
    mixture = huggingface.upcycled(dense, random_params(config))
    mlp = mixture["blocks"]["mlp"]
    experts = mlp["experts"] | {"down": 4 * mlp["experts"]["down"]}
    blocks = mixture["blocks"] | {"mlp": {"router": 0 * mlp["router"], "experts": experts}}
    np.testing.assert_allclose(ours(mixture | {"blocks": blocks}, tokens_BT, config), expected, atol=1e-4)


def test_what_cannot_be_said_is_refused_by_name(trained, tmp_path):
    with pytest.raises(UserError, match="config.model.norm='layer'"):  # other fields: test_check.py
        huggingface.config_json(tiny(norm="layer", final_norm=True).model, 32)
    theirs = json.loads((trained[1] / "config.json").read_text())
    for change in (
        dict(model_type="mixtral"),
        dict(norm_topk_prob=True),
        dict(shared_expert_intermediate_size=None),  # transformers' default has one
        dict(mlp_only_layers=[1]),
        dict(rms_norm_eps=1e-5),
        dict(qkv_bias=None),  # transformers' default has biases
        dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
        dict(hidden_size=None),
    ):
        with pytest.raises(UserError, match=next(iter(change)).replace("rope_parameters", "rope_type")):
            huggingface.model_fields({name: v for name, v in (theirs | change).items() if v is not None})
    assert "is not empty" in helpers.fails("jmoe.export", f"--workdir={trained[0]}", f"--out={trained[1]}")
    export.write(epath.Path(tmp_path), {"lm_head.weight": np.zeros((3, 2))}, "float32")
    with pytest.raises(UserError, match="is missing"):
        huggingface.params(huggingface.reader([tmp_path / "model.safetensors"]), tiny().model)


def test_parts_of_files_and_bfloat16(tmp_path, monkeypatch):
    config = tiny(n_experts=4, norm="rms", final_norm=True)
    params, tokens_BT = random_params(config), rows(1, 32)
    monkeypatch.setattr(export, "PART_BYTES", 20_000)
    write(tmp_path / "hf", params, config, "bfloat16")
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 3
    rounded = jax.tree.map(lambda x: np.asarray(x.astype(jnp.bfloat16), np.float32), params)
    model = read(tmp_path / "hf", dtype=torch.float32)
    np.testing.assert_allclose(logits(model, tokens_BT), ours(rounded, tokens_BT, config), atol=1e-4)
    assert read(tmp_path / "hf").dtype == torch.bfloat16
    jax.tree.map(np.testing.assert_array_equal, huggingface.params(huggingface.reader(files), config.model), rounded)


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "json"])
def test_tokenizers_give_the_same_ids(kind, vocabularies, documents, tmp_path):
    """Documents with all that is hard in them; and every token gives back its text."""
    made = tokenizer.load(vocabularies[kind])
    for name, text in export.tokenizer_files(made, 128).items():
        (tmp_path / name).write_text(text)
    with offline():
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.eos_token_id == theirs.bos_token_id == made.end_of_text
    assert len(theirs) == made.vocab_size
    for document in documents:
        ids = made.encode(document.encode())[:-1].tolist()
        assert theirs(document)["input_ids"] == ids
        assert theirs.decode(ids) == document
    if kind == "bytes":  # any bytes, also those that are no text: a token is a byte
        characters = theirs.convert_ids_to_tokens(list(range(256)))
        assert len(set(characters)) == 256
        assert [*theirs.convert_tokens_to_ids(characters)] == list(range(256))
