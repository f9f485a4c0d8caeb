"""Text to token ids: bytes, GPT-2's byte-pair encoding by tiktoken, or any tokenizer.json by tokenizers.

Text that spells a special token is encoded as ordinary text; only the end of a document is an end-of-text.

Axis legend: n tokens of one document, its end-of-text included.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable

import numpy as np

from jmoe.cli import UserError

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"  # as tiktoken caches it
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")  # looked for in a tokenizer.json
PART = 400_000  # characters encoded at once: beyond, long runs of spaces overflow the stack of tiktoken's pattern


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """`encode` turns a document's bytes into ids; `rules` says everything that they depend on."""

    name: str
    rules: str
    vocab_size: int
    end_of_text: int
    sha256: str  # of the vocabulary file; empty for bytes
    encode_part: Callable

    @property
    def dtype(self):
        return token_dtype(self.vocab_size)

    def encode(self, document: bytes) -> np.ndarray:
        """Ids [n] of a document and its end-of-text. Bytes that are no UTF-8 become U+FFFD, except for `bytes`."""
        if self.name == "bytes":
            parts = [np.frombuffer(document, np.uint8)]
        else:
            text = document.decode("utf-8", "replace")
            parts = [self.encode_part(text[i : i + PART]) for i in range(0, len(text), PART)]
        return np.concatenate([*parts, [self.end_of_text]], dtype=self.dtype, casting="unsafe")

    def describe(self) -> dict:
        """For a manifest: name, vocab_size, end_of_text, sha256."""
        return {name: getattr(self, name) for name in ("name", "vocab_size", "end_of_text", "sha256")}


def token_dtype(vocab_size: int):
    """uint16 where every id fits, else uint32; little-endian wherever it is written."""
    return np.dtype("<u2" if vocab_size < 65_536 else "<u4")


def load(name: str, end_of_text: str = "") -> Tokenizer:
    """The tokenizer that `config.data.tokenizer` names; `end_of_text` is the token that ends a document.

    Args:
      name: "bytes", "gpt2", the path of a tokenizer.json, or of a byte-pair vocabulary as GPT-2 ships it (vocab.bpe,
        also known as merges.txt).
      end_of_text: for a tokenizer.json whose end-of-text is none of END_OF_TEXT.

    Raises:
      UserError: an unknown name, a file that is missing or damaged, no vocabulary to be had, no end-of-text.
    """
    if name == "bytes":
        made = Tokenizer("bytes", "bytes, end-of-text 256", 257, 256, "", None)
    elif name == "gpt2":
        made = _byte_pairs("gpt2", _published_gpt2())
    elif name.endswith((".bpe", ".txt")):
        made = _byte_pairs(pathlib.Path(name).name, _read(name), name)
    elif name.endswith(".json"):
        return _tokenizer_json(name, end_of_text)
    else:
        raise UserError(
            f"config.data.tokenizer={name!r} is none of bytes, gpt2, the path of a tokenizer.json, or of a vocabulary "
            "as GPT-2 ships it (vocab.bpe or merges.txt)"
        )
    if end_of_text:
        raise UserError(
            f"config.data.end_of_text={end_of_text!r} is for a tokenizer.json; "
            f"config.data.tokenizer={name!r} has its own end-of-text"
        )
    return made


def _read(name: str) -> bytes:
    try:
        return pathlib.Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"config.data.tokenizer={name!r} cannot be read: {error.strerror}") from None


def _published_gpt2() -> bytes:
    """GPT-2's vocab.bpe from tiktoken's cache ($TIKTOKEN_CACHE_DIR), else downloaded into it."""
    import requests
    import tiktoken.load

    try:
        return tiktoken.load.read_file_cached(GPT2_URL, GPT2_SHA256)
    except (requests.RequestException, OSError, ValueError) as error:
        raise UserError(
            "config.data.tokenizer=gpt2 needs GPT-2's vocabulary, which is not in tiktoken's cache and cannot be "
            f"downloaded ({type(error).__name__}): name a local copy by --config.data.tokenizer=/PATH/vocab.bpe (also "
            "known as merges.txt), or use --config.data.tokenizer=bytes"
        ) from None


def _byte_pairs(name: str, vocabulary: bytes, path: str = GPT2_URL) -> Tokenizer:
    """GPT-2's encoding over `vocabulary`: a pair of parts for each line, in the order of merging."""
    import tiktoken
    from tiktoken_ext import openai_public

    sha256 = hashlib.sha256(vocabulary).hexdigest()
    # GPT-2's files write each byte as a printable character: itself where it is one, else one from U+0100 on
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    ranks = {bytes([b]): rank for rank, b in enumerate(printable + others)}
    for number, line in enumerate(vocabulary.decode("utf-8", "replace").split("\n"), 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        try:
            first, second = line.split(" ")
            ranks[bytes(byte_of[c] for c in first + second)] = len(ranks)
        except (ValueError, KeyError):
            raise UserError(
                f"config.data.tokenizer={path!r}, line {number}: {line[:40]!r} is not two parts of a GPT-2 vocabulary"
            ) from None
    end = len(ranks)
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=openai_public.r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end}
    )

    def encode(text):
        return encoding.encode_to_numpy(text, disallowed_special=())

    rules = f"gpt2 byte pairs {sha256[:16]}, end-of-text {end}, parts of {PART}"
    return Tokenizer("gpt2" if sha256 == GPT2_SHA256 else name, rules, end + 1, end, sha256, encode)


def _tokenizer_json(path: str, end_of_text: str) -> Tokenizer:
    import tokenizers

    content = _read(path)
    try:
        settings = json.loads(content)
        vocabulary = tokenizers.Tokenizer.from_buffer(content).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises nothing more precise
        reason = " ".join(str(error).split())
        raise UserError(f"config.data.tokenizer={path!r} is no tokenizer.json: {reason}") from None
    found = [token for token in ([end_of_text] if end_of_text else END_OF_TEXT) if token in vocabulary]
    if len(found) != 1:
        raise UserError(
            f"config.data.tokenizer={path!r} has "
            + (f"no token {end_of_text!r}" if end_of_text else f"{len(found)} of the tokens {', '.join(END_OF_TEXT)}")
            + "; name the one that ends a document by config.data.end_of_text"
        )
    end, vocab_size = vocabulary[found[0]], max(vocabulary.values()) + 1
    for token in settings.get("added_tokens") or ():
        if token["content"] == found[0]:
            token["special"] = True  # only special tokens can be told to stay ordinary text
    encoder = tokenizers.Tokenizer.from_str(json.dumps(settings))
    encoder.encode_special_tokens = True
    encoder.no_truncation()
    encoder.no_padding()

    def encode(text):
        return np.array(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32)

    sha256 = hashlib.sha256(content).hexdigest()
    rules = f"tokenizer.json {sha256[:16]}, end-of-text {end}, parts of {PART}"
    return Tokenizer(pathlib.Path(path).name, rules, vocab_size, end, sha256, encode)
