"""Text from a checkpoint, printed as it comes: python -m jmoe.generate --workdir=DIR --prompt='def main('.

The model drops no token and keeps the keys and values of the tokens it has read. The text ends after --n tokens, or
where the model ends the document.
"""

import os
import sys

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.model import cached
from jmoe.run import saved
from jmoe.storage import files as storage

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run, local or gs://.")
PROMPT = flags.DEFINE_string("prompt", "", "Beginning of the text. Default: the beginning of a document.")
N = flags.DEFINE_integer("n", 256, "Maximum number of tokens to generate.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "Sampling temperature; 0: the likeliest token.", lower_bound=0.0)
TOP_P = flags.DEFINE_float("top_p", 1.0, "Sample only from the likeliest tokens that together hold this probability.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
SEGMENT = flags.DEFINE_string("segment", None, "trunk or branch-N. Default: the last branch that has a checkpoint.")
STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint. Default: the newest.")
TOKENIZER = flags.DEFINE_string("tokenizer", None, "Path of the run's tokenizer, if its file has moved.")


def main(_):
    if not 0 < TOP_P.value <= 1:
        raise UserError(f"--top_p={TOP_P.value} must be above 0 and at most 1")
    _, _, config, params = saved.on_host(storage.absolute(WORKDIR.value), SEGMENT.value, STEP.value)
    tokenizer = saved.tokenizer_of(config, TOKENIZER.value)
    ids = tokenizer.encode(os.fsencode(PROMPT.value))[:-1].tolist() or [tokenizer.end_of_text]
    if len(ids) + N.value > config.data.seq_len:
        print(
            f"note: the model was trained on rows of {config.data.seq_len} tokens; what comes after them is worse",
            file=sys.stderr,
        )
    sampling = dict(temperature=TEMPERATURE.value, top_p=TOP_P.value, seed=SEED.value)
    tokens = cached.tokens_after(ids, params, config.model, N.value, **sampling)
    sys.stdout.reconfigure(errors="surrogateescape")  # a prompt of any bytes
    print(PROMPT.value, end="", flush=True)
    for text in tokenizer.decoded(ids, tokens):
        print(text, end="", flush=True)
    print()


def run():
    flags.mark_flag_as_required("workdir")
    cli.run(main)


if __name__ == "__main__":
    run()
