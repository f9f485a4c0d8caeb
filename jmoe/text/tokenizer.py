"""Text to token ids: bytes, GPT-2's byte-pair encoding by tiktoken, or any tokenizer.json by tokenizers.

Text that spells a special token is encoded as ordinary text; the end-of-text token only follows a document.

Axis legend: N tokens of one document, its end-of-text included; V tokens of the vocabulary.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, UInt, UInt16

from jmoe.errors import UserError, needed_package

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"  # as tiktoken caches it
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_SIZE = 50_257  # the end-of-text is the last token; the size is needed before the file is read
BYTE_PAIRS = (".bpe", ".txt")
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]")  # what a tokenizer.json may call it
PART = 400_000  # characters encoded at once: a longer run of spaces overflows the stack of tiktoken's pattern

EncodePart = Callable[[str], Int[np.ndarray, " N"]]  # text -> ids


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary, and how text becomes its ids."""

    name: str
    rules: str  # names everything that the ids depend on
    vocab_size: int
    end_of_text: int
    sha256: str  # of the vocabulary; empty for bytes
    encode_part: EncodePart | None  # None for bytes
    json: Callable[[], str]  # the text of a tokenizer.json that encodes and decodes alike

    @property
    def dtype(self) -> np.dtype:
        return token_dtype(self.vocab_size)

    def encode(self, document: bytes) -> UInt[np.ndarray, " N"]:
        """Ids of a document and its end-of-text. Bytes that aren't UTF-8 become U+FFFD, except with `bytes`."""
        if self.encode_part is None:
            parts = [np.frombuffer(document, np.uint8)]
        else:
            text = document.decode("utf-8", "replace")
            parts = [self.encode_part(text[i : i + PART]) for i in range(0, len(text), PART)]
        return np.concatenate([*parts, [self.end_of_text]], dtype=self.dtype, casting="unsafe")

    def decoded(self, prompt: Sequence[int], tokens: Iterable[int]) -> Iterator[str]:
        """Yields the text of tokens as they come, in complete characters, up to an end-of-text.

        Args:
          prompt: Ids before `tokens`; their text is not yielded.
          tokens: Ids to decode.
        """
        tokenizers: Any = needed_package("tokenizers", "what the model writes")
        decoder = tokenizers.Tokenizer.from_str(self.json())

        def text_of(ids: list[int]) -> str:
            return decoder.decode(ids, skip_special_tokens=False)

        ids = list(prompt)
        shown = text_of(ids)
        for token in tokens:
            if token == self.end_of_text:
                break
            ids.append(token)
            text = text_of(ids)
            if not text.endswith("\ufffd"):  # perhaps a part of a character
                yield text[len(shown) :]
                shown = text
        yield text_of(ids)[len(shown) :]

    def byte_lengths(self) -> UInt16[np.ndarray, " V"]:
        """UTF-8 bytes that each token encodes, 0 for the end-of-text.

        Exact for byte-level vocabularies. Others usually write a space as U+2581, a part of a word as ## and a byte as
        <0x0A>.
        """
        tokenizers: Any = needed_package("tokenizers", "tokenizer.json")
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

    def describe(self) -> dict[str, Any]:
        """Its entry in a manifest: name, vocab_size, end_of_text, sha256."""
        return {name: getattr(self, name) for name in ("name", "vocab_size", "end_of_text", "sha256")}


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 where every id fits, else uint32; little-endian wherever it is written."""
    return np.dtype("<u2" if vocab_size < 65_536 else "<u4")


def load(name: str, end_of_text: str = "") -> Tokenizer:
    """Loads the tokenizer that `config.data.tokenizer` names.

    Args:
      name: "bytes", "gpt2", the path of a tokenizer.json, or of a byte-pair vocabulary as GPT-2 ships it (vocab.bpe,
        also known as merges.txt).
      end_of_text: The token that ends a document, for a tokenizer.json in which that is none of END_OF_TEXT.

    Raises:
      UserError: The name is unknown, a file is missing or damaged, a vocabulary can't be downloaded, or no token ends a
        document.
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
        return Tokenizer("bytes", "bytes, end-of-text 256", 257, 256, "", None, _bytes_json)
    if name == "gpt2":
        return _published_gpt2()
    return _byte_pairs(pathlib.Path(name).name, _read(name), name)


def is_of(name: str, description: dict[str, Any]) -> bool:
    """Whether config.data.tokenizer=`name` is the tokenizer that a manifest describes; its file may be missing."""
    if name in ("bytes", "gpt2"):
        return description["name"] == name
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        content = path.read_bytes()
        spellings = [content, _canonical(_merges(content))] if name.endswith(BYTE_PAIRS) else [content]
        return description["sha256"] in [hashlib.sha256(spelling).hexdigest() for spelling in spellings]
    if description["name"] == "gpt2" and name.endswith(BYTE_PAIRS):
        return True
    return path.name == description["name"]


def _read(name: str) -> bytes:
    """The content of the file that config.data.tokenizer names."""
    try:
        return pathlib.Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"config.data.tokenizer={name!r} cannot be read: {error.strerror}") from None


def _published_gpt2() -> Tokenizer:
    """GPT-2's own tokenizer. It reads the vocabulary when it first encodes text: text prepared earlier needs none."""

    @functools.cache
    def loaded() -> Tokenizer:
        return _byte_pairs("gpt2", _download_gpt2())

    def encode_part(text: str) -> Int[np.ndarray, " N"]:
        encode = loaded().encode_part
        assert encode is not None
        return encode(text)

    def as_json() -> str:
        return loaded().json()

    end = GPT2_SIZE - 1
    return Tokenizer("gpt2", _byte_pair_rules(GPT2_SHA256, end), GPT2_SIZE, end, GPT2_SHA256, encode_part, as_json)


def _download_gpt2() -> bytes:
    """GPT-2's vocab.bpe from tiktoken's cache ($TIKTOKEN_CACHE_DIR), else downloaded into it."""
    load: Any = needed_package("tiktoken.load", "config.data.tokenizer=gpt2")
    requests: Any = needed_package("requests", "config.data.tokenizer=gpt2")
    try:
        return load.read_file_cached(GPT2_URL, GPT2_SHA256)
    except (requests.RequestException, OSError, ValueError) as error:
        raise UserError(
            "config.data.tokenizer=gpt2 needs GPT-2's vocabulary, which is not in tiktoken's cache and cannot be "
            f"downloaded ({type(error).__name__}): name a local copy by --config.data.tokenizer=/PATH/vocab.bpe (also "
            "known as merges.txt), or use --config.data.tokenizer=bytes"
        ) from None


def _merges(vocabulary: bytes) -> list[tuple[int, str]]:
    """(number of the line, its text) of each merge in a vocabulary; lines may end in LF or CRLF."""
    lines = vocabulary.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    return [(i, line) for i, line in enumerate(lines, 1) if line and not (i == 1 and line.startswith("#version"))]


def _canonical(merges: list[tuple[int, str]]) -> bytes:
    """The merges as GPT-2's own file writes them, so that equal vocabularies have equal hashes."""
    return "\n".join(["#version: 0.2", *(line for _, line in merges), ""]).encode()


def _byte_pair_rules(sha256: str, end_of_text: int) -> str:
    return f"gpt2 byte pairs {sha256[:16]}, end-of-text {end_of_text}, parts of {PART}"


def _byte_pairs(name: str, vocabulary: bytes, path: str = GPT2_URL) -> Tokenizer:
    """GPT-2's encoding over `vocabulary`: a pair of parts for each line, in the order of merging."""
    tiktoken: Any = needed_package("tiktoken", f"config.data.tokenizer={path!r}")
    openai_public: Any = needed_package("tiktoken_ext.openai_public", f"config.data.tokenizer={path!r}")
    merges = _merges(vocabulary)
    sha256 = hashlib.sha256(_canonical(merges)).hexdigest()
    ranks = _ranks(merges, path)
    end = len(ranks)
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=openai_public.r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT[0]: end}
    )

    def encode_part(text: str) -> Int[np.ndarray, " N"]:
        return encoding.encode_to_numpy(text, disallowed_special=())

    def as_json() -> str:
        pairs = [tuple(line.split(" ")) for _, line in merges]
        tokens = [*_characters().values(), *map("".join, pairs)]
        return _byte_level_json({token: i for i, token in enumerate(tokens)}, pairs)

    name = "gpt2" if sha256 == GPT2_SHA256 else name
    return Tokenizer(name, _byte_pair_rules(sha256, end), end + 1, end, sha256, encode_part, as_json)


def _ranks(merges: list[tuple[int, str]], path: str) -> dict[bytes, int]:
    """Id by the bytes of a token, of single bytes and of the merges in their order."""
    byte_of = {character: byte for byte, character in _characters().items()}
    ranks = {bytes([byte]): rank for rank, byte in enumerate(_characters())}
    for number, line in merges:
        try:
            first, second = line.split(" ")
            ranks[bytes(byte_of[character] for character in first + second)] = len(ranks)
        except (ValueError, KeyError):
            raise UserError(
                f"config.data.tokenizer={path!r}, line {number}: {line[:40]!r} is not two parts of a GPT-2 vocabulary"
            ) from None
    return ranks


def _characters() -> dict[int, str]:
    """The printable character that GPT-2's files write for each byte, in the order of GPT-2's ids.

    It is the byte's own character if that is printable, else one from U+0100 on.
    """
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def _bytes_json() -> str:
    """tokenizer.json of the tokenizer "bytes"."""
    return _byte_level_json({token: byte for byte, token in _characters().items()}, [])


def _byte_level_json(vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]]) -> str:
    """tokenizer.json of a byte-level vocabulary; the end-of-text has the id after the last one.

    If there are merges it splits text as GPT-2 does.
    """
    tokenizers: Any = needed_package("tokenizers", "tokenizer.json")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(merges))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT[0], special=True)])
    return tokenizer.to_str()


def _tokenizer_json(path: str, end_of_text: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, which never truncates or pads."""
    content = _read(path)
    tokenizers: Any = needed_package("tokenizers", f"config.data.tokenizer={path!r}")
    try:
        settings = json.loads(content)
        vocabulary = tokenizers.Tokenizer.from_buffer(content).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises nothing more precise
        reason = " ".join(str(error).split())
        raise UserError(f"config.data.tokenizer={path!r} is no tokenizer.json: {reason}") from None
    end_token = _end_token(vocabulary, end_of_text, path)
    end = vocabulary[end_token]
    for token in settings.get("added_tokens") or ():
        if token["content"] == end_token:
            token["special"] = True  # only special tokens can be encoded as ordinary text
    if '"ByteLevel"' in json.dumps(settings.get("pre_tokenizer")) and not settings.get("decoder"):
        settings["decoder"] = json.loads(tokenizers.decoders.ByteLevel().__getstate__())
    text_of_json = json.dumps(settings | {"truncation": None, "padding": None}, ensure_ascii=False)
    encoder = tokenizers.Tokenizer.from_str(text_of_json)
    encoder.encode_special_tokens = True

    def encode_part(text: str) -> Int[np.ndarray, " N"]:
        (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, np.uint32)

    def as_json() -> str:
        return text_of_json

    sha256 = hashlib.sha256(content).hexdigest()
    rules = f"tokenizer.json {sha256[:16]}, end-of-text {end}, parts of {PART}"
    vocab_size = max(vocabulary.values()) + 1
    return Tokenizer(pathlib.Path(path).name, rules, vocab_size, end, sha256, encode_part, as_json)


def _end_token(vocabulary: dict[str, int], end_of_text: str, path: str) -> str:
    """The token that ends a document: `end_of_text`, or the only one of END_OF_TEXT in the vocabulary."""
    candidates = (end_of_text,) if end_of_text else END_OF_TEXT
    known = [token for token in candidates if token in vocabulary]
    if len(known) == 1:
        return known[0]
    if end_of_text:
        fault = f"no token {end_of_text!r}"
    else:
        fault = f"{len(known)} of the tokens {', '.join(END_OF_TEXT)}"
    raise UserError(
        f"config.data.tokenizer={path!r} has {fault}; name the one that ends a document by config.data.end_of_text"
    )
