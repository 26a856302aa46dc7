"""The group ``birl ope``: commands that evaluate policies import PyTorch, those about tables and tests do not."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from birl.cli import online_test, slates, watch

_LIGHT: Final = typer.Typer(add_completion=False, rich_markup_mode=None)
_LIGHT.command(short_help="Sample size and stopping rule of an online test.")(online_test.plan)
_LIGHT.command(short_help="Decision of a running online test, at any time.")(online_test.read)
_LIGHT.command(short_help="New logs of a shipped policy, compared with what was certified.")(watch.watch)
_LIGHT.command(short_help="Verdict on a policy of slates or rankings.")(slates.slates)


class _OpeCommands(TyperGroup):
    """The commands of `birl.cli.ope`, which is imported when one of them is used, and the light ones."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict(typer.main.get_group(_LIGHT).commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        return self.commands.get(cmd_name) or self._heavy().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*self._heavy().list_commands(ctx), *self.commands]

    def _heavy(self) -> Any:
        return typer.main.get_group(import_module("birl.cli.ope").app)


app = typer.Typer(cls=_OpeCommands, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """From logs to a decision."""
