"""Text to token ids: bytes, GPT-2's byte-pair encoding by tiktoken, or any tokenizer.json by tokenizers.

Text that spells a special token is encoded as ordinary text; the end-of-text token only stands after a document.

Axis legend: n tokens of one document, its end-of-text included.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable

import numpy as np

from jmoe.errors import UserError, needed_package

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"  # as tiktoken caches it
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_SIZE = 50_257  # the end-of-text is the last token; the size is needed before the file is read
BYTE_PAIRS = (".bpe", ".txt")
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")  # what a tokenizer.json may call it
PART = 400_000  # characters encoded at once: a longer run of spaces overflows the stack of tiktoken's pattern


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """`encode` turns a document's bytes into ids; `rules` names everything that the ids depend on."""

    name: str
    rules: str
    vocab_size: int
    end_of_text: int
    sha256: str  # of the vocabulary; empty for bytes
    encode_part: Callable  # text -> ids
    json: Callable  # () -> the text of a tokenizer.json that encodes and decodes alike

    @property
    def dtype(self):
        return token_dtype(self.vocab_size)

    def encode(self, document: bytes) -> np.ndarray:
        """Ids [n] of a document and its end-of-text. Bytes that aren't UTF-8 become U+FFFD, except with `bytes`."""
        if self.name == "bytes":
            parts = [np.frombuffer(document, np.uint8)]
        else:
            text = document.decode("utf-8", "replace")
            parts = [self.encode_part(text[i : i + PART]) for i in range(0, len(text), PART)]
        return np.concatenate([*parts, [self.end_of_text]], dtype=self.dtype, casting="unsafe")

    def decoded(self, prompt, tokens):
        """Yields the text of `tokens`, which follow those of `prompt`, in complete characters up to an end-of-text."""
        tokenizers = needed_package("tokenizers", "what the model writes")
        decoder = tokenizers.Tokenizer.from_str(self.json())
        text_of = lambda ids: decoder.decode(ids, skip_special_tokens=False)
        ids, shown = list(prompt), text_of(list(prompt))
        for token in tokens:
            if token == self.end_of_text:
                break
            ids.append(token)
            text = text_of(ids)
            if not text.endswith("\ufffd"):  # perhaps a part of a character
                yield text[len(shown) :]
                shown = text
        yield text_of(ids)[len(shown) :]

    def byte_lengths(self) -> np.ndarray:
        """UTF-8 bytes that each token stands for, uint16 [vocab_size], 0 for the end-of-text: exact for byte-level
        vocabularies. Others usually write a space as U+2581, a part of a word as ## and a byte as <0x0A>."""
        tokenizers = needed_package("tokenizers", "tokenizer.json")
        text = self.json()
        settings = json.loads(text)
        byte_level = '"ByteLevel"' in json.dumps([settings.get("pre_tokenizer"), settings.get("decoder")])
        added = {token["content"] for token in settings.get("added_tokens") or ()}
        lengths = np.zeros(self.vocab_size, np.uint16)
        for token, i in tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True).items():
            if byte_level and token not in added:
                lengths[i] = len(token)  # a character for each byte
            elif re.fullmatch(r"<0x[0-9A-F]{2}>", token):
                lengths[i] = 1
            else:
                lengths[i] = len(token.removeprefix("##").replace("\u2581", " ").encode())
        lengths[self.end_of_text] = 0
        return lengths

    def describe(self) -> dict:
        """Its entry in a manifest: name, vocab_size, end_of_text, sha256."""
        return {name: getattr(self, name) for name in ("name", "vocab_size", "end_of_text", "sha256")}


def token_dtype(vocab_size: int):
    """uint16 where every id fits, else uint32; little-endian wherever it is written."""
    return np.dtype("<u2" if vocab_size < 65_536 else "<u4")


def load(name: str, end_of_text: str = "") -> Tokenizer:
    """The tokenizer that `config.data.tokenizer` names: "bytes", "gpt2", the path of a tokenizer.json, or of a
    byte-pair vocabulary as GPT-2 ships it (vocab.bpe, also known as merges.txt).

    `end_of_text` names the token that ends a document, for a tokenizer.json in which that is none of END_OF_TEXT.
    Raises UserError for an unknown name, a missing or damaged file, a vocabulary that can't be had, or no end-of-text.
    """
    if name.endswith(".json"):
        return _tokenizer_json(name, end_of_text)
    if name not in ("bytes", "gpt2") and not name.endswith(BYTE_PAIRS):
        raise UserError(
            f"config.data.tokenizer={name!r} is none of bytes, gpt2, the path of a tokenizer.json, or of a vocabulary "
            "as GPT-2 ships it (vocab.bpe or merges.txt)"
        )
    if end_of_text:
        raise UserError(
            f"config.data.end_of_text={end_of_text!r} is for a tokenizer.json; "
            f"config.data.tokenizer={name!r} has its own end-of-text"
        )
    if name == "bytes":
        as_json = lambda: _byte_level_json({token: byte for byte, token in _characters().items()}, [])
        return Tokenizer("bytes", "bytes, end-of-text 256", 257, 256, "", None, as_json)
    return _published_gpt2() if name == "gpt2" else _byte_pairs(pathlib.Path(name).name, _read(name), name)


def is_of(name: str, described: dict) -> bool:
    """Whether config.data.tokenizer=`name` is the tokenizer that a manifest describes; its file may be missing."""
    if name in ("bytes", "gpt2"):
        return described["name"] == name
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        content = path.read_bytes()
        spellings = [content, _canonical(_merges(content))] if name.endswith(BYTE_PAIRS) else [content]
        return described["sha256"] in [hashlib.sha256(spelling).hexdigest() for spelling in spellings]
    return path.name == described["name"] or (described["name"] == "gpt2" and name.endswith(BYTE_PAIRS))


def _read(name: str) -> bytes:
    try:
        return pathlib.Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"config.data.tokenizer={name!r} cannot be read: {error.strerror}") from None


def _published_gpt2() -> Tokenizer:
    """GPT-2's own tokenizer. It reads the vocabulary when it first encodes text: text prepared earlier needs none."""
    made = functools.cache(lambda: _byte_pairs("gpt2", _download_gpt2()))
    late = lambda name: lambda *args: getattr(made(), name)(*args)
    end = GPT2_SIZE - 1
    rules = _byte_pair_rules(GPT2_SHA256, end)
    return Tokenizer("gpt2", rules, GPT2_SIZE, end, GPT2_SHA256, late("encode_part"), late("json"))


def _download_gpt2() -> bytes:
    """GPT-2's vocab.bpe from tiktoken's cache ($TIKTOKEN_CACHE_DIR), else downloaded into it."""
    load = needed_package("tiktoken.load", "config.data.tokenizer=gpt2")
    requests = needed_package("requests", "config.data.tokenizer=gpt2")
    try:
        return load.read_file_cached(GPT2_URL, GPT2_SHA256)
    except (requests.RequestException, OSError, ValueError) as error:
        raise UserError(
            "config.data.tokenizer=gpt2 needs GPT-2's vocabulary, which is not in tiktoken's cache and cannot be "
            f"downloaded ({type(error).__name__}): name a local copy by --config.data.tokenizer=/PATH/vocab.bpe (also "
            "known as merges.txt), or use --config.data.tokenizer=bytes"
        ) from None


def _merges(vocabulary: bytes) -> list[tuple[int, str]]:
    """(number, text) of the lines of a vocabulary that hold merges; lines may end in LF or CRLF."""
    lines = vocabulary.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    return [(i, line) for i, line in enumerate(lines, 1) if line and not (i == 1 and line.startswith("#version"))]


def _canonical(merges) -> bytes:
    """The merges as GPT-2's own file writes them, so that equal vocabularies have equal hashes."""
    return "\n".join(["#version: 0.2", *(line for _, line in merges), ""]).encode()


def _byte_pair_rules(sha256: str, end_of_text: int) -> str:
    return f"gpt2 byte pairs {sha256[:16]}, end-of-text {end_of_text}, parts of {PART}"


def _byte_pairs(name: str, vocabulary: bytes, path: str = GPT2_URL) -> Tokenizer:
    """GPT-2's encoding over `vocabulary`: a pair of parts for each line, in the order of merging."""
    tiktoken = needed_package("tiktoken", f"config.data.tokenizer={path!r}")
    openai_public = needed_package("tiktoken_ext.openai_public", f"config.data.tokenizer={path!r}")
    merges = _merges(vocabulary)
    sha256 = hashlib.sha256(_canonical(merges)).hexdigest()
    byte_of = {character: byte for byte, character in _characters().items()}
    ranks = {bytes([b]): rank for rank, b in enumerate(_characters())}
    for number, line in merges:
        try:
            first, second = line.split(" ")
            ranks[bytes(byte_of[c] for c in first + second)] = len(ranks)
        except (ValueError, KeyError):
            raise UserError(
                f"config.data.tokenizer={path!r}, line {number}: {line[:40]!r} is not two parts of a GPT-2 vocabulary"
            ) from None
    end = len(ranks)
    pattern, special = openai_public.r50k_pat_str, {END_OF_TEXT[0]: end}
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    encode = lambda text: encoding.encode_to_numpy(text, disallowed_special=())
    name = "gpt2" if sha256 == GPT2_SHA256 else name

    def as_json():
        pairs = [tuple(line.split(" ")) for _, line in merges]
        ids = [*_characters().values(), *map("".join, pairs)]
        return _byte_level_json({token: i for i, token in enumerate(ids)}, pairs)

    return Tokenizer(name, _byte_pair_rules(sha256, end), end + 1, end, sha256, encode, as_json)


def _characters() -> dict[int, str]:
    """The printable character that GPT-2's files write for each byte, in the order of GPT-2's ids: the byte's own
    if that is printable, else one from U+0100 on."""
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def _byte_level_json(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> str:
    """tokenizer.json of a byte-level vocabulary. If there are merges it splits text as GPT-2 does; the end-of-text has
    the id after the last one."""
    tokenizers = needed_package("tokenizers", "tokenizer.json")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(merges))
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT[0], special=True)])
    return made.to_str()


def _tokenizer_json(path: str, end_of_text: str) -> Tokenizer:
    content = _read(path)
    tokenizers = needed_package("tokenizers", f"config.data.tokenizer={path!r}")
    try:
        settings = json.loads(content)
        vocabulary = tokenizers.Tokenizer.from_buffer(content).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises nothing more precise
        reason = " ".join(str(error).split())
        raise UserError(f"config.data.tokenizer={path!r} is no tokenizer.json: {reason}") from None
    ends = [token for token in ([end_of_text] if end_of_text else END_OF_TEXT) if token in vocabulary]
    if len(ends) != 1:
        raise UserError(
            f"config.data.tokenizer={path!r} has "
            + (f"no token {end_of_text!r}" if end_of_text else f"{len(ends)} of the tokens {', '.join(END_OF_TEXT)}")
            + "; name the one that ends a document by config.data.end_of_text"
        )
    end, vocab_size = vocabulary[ends[0]], max(vocabulary.values()) + 1
    for token in settings.get("added_tokens") or ():
        if token["content"] == ends[0]:
            token["special"] = True  # only special tokens can be encoded as ordinary text
    if '"ByteLevel"' in json.dumps(settings.get("pre_tokenizer")) and not settings.get("decoder"):
        settings["decoder"] = json.loads(tokenizers.decoders.ByteLevel().__getstate__())
    made = json.dumps(settings | {"truncation": None, "padding": None}, ensure_ascii=False)
    encoder = tokenizers.Tokenizer.from_str(made)
    encoder.encode_special_tokens = True
    encode = lambda text: np.array(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32)
    sha256 = hashlib.sha256(content).hexdigest()
    rules = f"tokenizer.json {sha256[:16]}, end-of-text {end}, parts of {PART}"
    return Tokenizer(pathlib.Path(path).name, rules, vocab_size, end, sha256, encode, lambda: made)
