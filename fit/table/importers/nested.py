"""Nested dictionaries, such as configs, as one level of names."""

from fit.aliases import Json


def flat(values: Json, separator: str, prefix: str = "") -> Json:
    """{"a/b": value} of {"a": {"b": value}}, where the separator is "/"."""
    flattened = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flattened |= flat(value, separator, f"{prefix}{name}{separator}")
        else:
            flattened[prefix + name] = value
    return flattened
