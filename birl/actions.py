"""Former path of `birl.spaces`: importing a name from here raises an error with its new path."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # questions of the import system and of tools that walk over packages
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    raise ImportError(f"birl.actions is birl.spaces now: write `from birl.spaces import {name}`", name=__name__)
