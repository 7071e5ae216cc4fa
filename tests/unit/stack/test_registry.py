"""The lines that `holdfast --help` shows for commands that it does not import."""

from __future__ import annotations

import inspect

import pytest

from stack.commands.registry import USER_COMMANDS, load_command


@pytest.mark.parametrize("name", USER_COMMANDS)
def test_the_help_of_a_command_is_its_own(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    first_paragraph = inspect.cleandoc(command.help).split("\n\n")[0]
    assert " ".join(first_paragraph.split()) == USER_COMMANDS[name].help
