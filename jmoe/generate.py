"""Text from a checkpoint, printed as it comes: python -m jmoe.generate --workdir=DIR --prompt='def main('.

The model drops no token and keeps the keys and values of the tokens it has read. The text ends after --n tokens, or
where the model ends the document. A model that was trained with config.data.document_mask sees the current document
alone, as in training.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from absl import flags
from etils import epath

from jmoe import cli
from jmoe.errors import UserError
from jmoe.model import sampling
from jmoe.run import checkpoint
from jmoe.storage import files as storage


def main(_: list[str]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a prompt of any bytes
    options = flags.FLAGS.flag_values_dict()
    names = ("workdir", "prompt", "n", "segment", "step", "tokenizer", "temperature", "top_p", "seed")
    for text in generate(**{name: options[name] for name in names}):
        print(text, end="", flush=True)
    print()


def generate(
    workdir: str | epath.Path,
    prompt: str = "",
    n: int = 256,
    segment: str | None = None,
    step: int | None = None,
    tokenizer: str | None = None,
    **options: Any,
) -> Iterator[str]:
    """Yields the prompt and then the text after it, piece by piece: "".join(generate("runs/one", "def ")).

    Args:
      workdir: Of the run.
      prompt: The beginning of the text.
      n: The most tokens after it.
      segment, step: Choose a checkpoint, as the command's flags.
      tokenizer: Path of the run's tokenizer, if its file has moved.
      options: Temperature (0.8), top_p (1.0) and seed (0).

    Raises:
      UserError: No such checkpoint, a damaged one, no tokenizer, or a top_p that is not above 0 and at most 1.
    """
    options = {"temperature": 0.8, "top_p": 1.0, "seed": 0, **options}
    if not 0 < options["top_p"] <= 1:
        raise UserError(f"--top_p={options['top_p']} must be above 0 and at most 1")
    _, _, config, params = checkpoint.on_host(storage.absolute(workdir), segment, step)
    text = checkpoint.tokenizer_of(config, tokenizer)
    ids = text.encode(os.fsencode(prompt))[:-1].tolist() or [text.end_of_text]
    if len(ids) + n > config.data.seq_len:
        rows = f"rows of {config.data.seq_len} tokens"
        print(f"note: the model was trained on {rows}; what comes after them is worse", file=sys.stderr)
    if config.data.document_mask:
        options["end_of_text"] = text.end_of_text
    yield prompt
    yield from text.decoded(ids, sampling.tokens_after(ids, params, config.model, n, **options))


if __name__ == "__main__":
    cli.define_checkpoint()
    flags.DEFINE_string("prompt", "", "Beginning of the text. Default: the beginning of a document.")
    flags.DEFINE_integer("n", 256, "Maximum number of tokens to generate.", lower_bound=1)
    flags.DEFINE_float("temperature", 0.8, "Sampling temperature; 0: the likeliest token.", lower_bound=0.0)
    flags.DEFINE_float("top_p", 1.0, "Sample only from the likeliest tokens that together hold this probability.")
    flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
    flags.DEFINE_string("tokenizer", None, "Path of the run's tokenizer, if its file has moved.")
    cli.run(main)
