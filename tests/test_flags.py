"""Flags that cannot be meant: given as nothing, as no number, as a place that is none. One check for every command."""

import helpers
import pytest
from absl import flags

from fit import __main__ as command_line
from jmoe import cli
from jmoe.errors import UserError


def given(*arguments) -> flags.FlagValues:
    """Flags of every kind that the commands have, as these arguments set them."""
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    flags.DEFINE_string("prompt", "", "", flag_values=values)
    flags.DEFINE_string("config.data.path", "books", "", flag_values=values)
    flags.DEFINE_multi_string("job", None, "", flag_values=values)
    flags.DEFINE_float("watch", None, "", 0.1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "", flag_values=values)
    values(["command", *arguments])
    return values


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workdir="], "--workdir= is empty"),
        (["--workdir", " "], "--workdir= is empty"),
        (["--job=a", "--job="], "--job= is empty"),
        (["--workdir", "--seed=3"], "--workdir has no value: what follows it is --seed=3"),
        (["--workdir=http://127.0.0.1/x"], "--workdir=http://127.0.0.1/x: expected a path on this machine, or gs://"),
        (["--workdir=gs:/bucket/x"], "--workdir=gs:/bucket/x: expected"),
        (["--workdir=gs://"], "--workdir=gs://: expected"),
        (["--watch=nan"], "--watch=nan is no finite number"),
        (["--watch=inf"], "--watch=inf is no finite number"),
    ],
)
def test_what_no_flag_can_be_is_refused_by_name(arguments, words):
    with pytest.raises(UserError, match=words):
        cli.check_flags(given(*arguments))


@pytest.mark.parametrize(
    "argument", "--workdir=--odd --workdir=gs://b/x --prompt= --prompt=http://x --config.data.path= --job=--x".split()
)
def test_what_a_flag_can_be_passes(argument):
    cli.check_flags(given(argument))
    cli.check_flags(given())


def test_an_unset_variable_of_the_shell_starts_and_stops_nothing(capsys):
    assert "--job= is empty" in helpers.fails("launch.cancel", "--workdir=.", "--job=")
    assert command_line.run(["law", "--runs= "]) == 2
    assert "--runs= is empty" in capsys.readouterr().err
