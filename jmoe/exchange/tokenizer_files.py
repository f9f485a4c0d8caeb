"""The tokenizer of a run as transformers loads it: tokenizer.json and tokenizer_config.json."""

import json

from jmoe.text.tokenizer import Tokenizer


def files(tokenizer: Tokenizer, seq_len: int) -> dict[str, str]:
    """The files by name. They take text that spells the end-of-text for ordinary text, as training does."""
    import tokenizers

    text = tokenizer.json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(tokenizer.end_of_text)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,  # in training a document follows the end of another
        "eos_token": end,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {"tokenizer.json": text, "tokenizer_config.json": json.dumps(config, indent=2)}
