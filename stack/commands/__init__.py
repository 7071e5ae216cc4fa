"""The user commands: everything that `holdfast` does over the api."""

from stack.commands.registry import register as register
