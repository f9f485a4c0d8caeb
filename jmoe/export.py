"""A checkpoint as a folder that Hugging Face's transformers loads: python -m jmoe.export --workdir=DIR --out=DIR.

Writes model.safetensors, config.json, generation_config.json, the tokenizer and a model card: Llama or Qwen3 for a
dense model, Qwen2-MoE, Qwen3-MoE or OLMoE for a mixture. Refused, since transformers has no counterpart: a model with
LayerNorm, no norm before its head, sigmoid scores, bias balancing, or shared experts plus norms of queries and keys.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import json

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.exchange import card, layout, tensor_files, tensors
from jmoe.run import saved
from jmoe.storage import files as storage
from jmoe.text import tokenizer


def main(_):
    asked = flags.FLAGS.flag_values_dict()
    which = {name: asked[name] for name in ("segment", "step", "dtype", "tokenizer", "law")}
    export(asked["workdir"], asked["out"], **which)
    print(f"wrote {storage.absolute(asked['out'])}")


def export(workdir, out, segment=None, step=None, dtype="float32", **options) -> None:
    """Writes the folder `out`, config.json last, so that a folder with a config.json is complete. Both folders are
    local or gs://. `segment` and `step` choose a checkpoint as in saved.find; `options`: `tokenizer`, a path in place
    of config.data.tokenizer, and `law`, as in card.card.

    UserError where the checkpoint does not exist or is damaged, transformers cannot compute the model, the tokenizer is
    missing or not the run's, or `out` is not empty.
    """
    workdir, out = storage.absolute(workdir), storage.absolute(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out={out} is not empty")
    folder, record, config, params = saved.on_host(workdir, segment, step, layout.check)
    values = layout.config_json(config.model, config.data.seq_len)
    made = saved.tokenizer_of(config, options.get("tokenizer"))
    result = storage.read_sealed(folder.parent.parent / "result.json")
    if result and result["n_tokens"] != record["n_tokens"]:
        result = None
    ids = {"bos_token_id": made.end_of_text, "eos_token_id": made.end_of_text}
    texts = tokenizer_files(made, config.data.seq_len) | {
        "README.md": card.card(str(out), record, config, result, options.get("law")),
        "generation_config.json": json.dumps(ids, indent=2),
        "config.json": json.dumps(values | ids | {"torch_dtype": dtype}, indent=2),
    }
    tensor_files.write(out, dict(tensors.tensors(params, config.model)), dtype)
    for name, text in texts.items():
        storage.write_whole(out / name, text)


def tokenizer_files(made: tokenizer.Tokenizer, seq_len: int) -> dict[str, str]:
    """A tokenizer as transformers loads it, {name of a file: its text}. It takes text that spells the end-of-text for
    ordinary text, as training does."""
    import tokenizers

    text = made.json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(made.end_of_text)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,  # in training a document follows the end of another
        "eos_token": end,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {"tokenizer.json": text, "tokenizer_config.json": json.dumps(config, indent=2)}


if __name__ == "__main__":
    cli.define_checkpoint()
    flags.DEFINE_string("out", None, "Folder to write, new or empty, local or gs://.", required=True)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Type of the weights in the file.")
    flags.DEFINE_string("tokenizer", None, "Path of the run's tokenizer, if its file has moved.")
    flags.DEFINE_string("law", None, "A law.json or a published law; the model card shows its prediction.")
    cli.run(main)
