"""How the fragments of collectors are put into the player that stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from birl.envs import Step
from birl.run.agent_core import AgentCore, SelectedActions, scatter_rows
from birl.run.workers.collector_worker import Fragment
from birl.types import Array, Tree, tree_map

Store = Callable[[AgentCore, list[tuple[Any, Fragment]], int | None], None]
"""Stores fragments, each of the lanes ``[k]`` or of all (``None``): ``(player, fragments, most)``."""


def append_by_lane(player: AgentCore, fragments: list[tuple[Array | None, Fragment]], most: int | None) -> None:
    """Store fragments one after another."""
    for lanes, fragment in fragments:
        player.record(*_parts(fragment.rows), None if most is None else most - player.uncounted_steps, lanes)


def join(player: Any, fragments: list[tuple[Array | None, Fragment]], most: int | None) -> None:
    """Store fragments side by side, as rows of all environments.

    A fragment that is shorter than others goes on with its last row, which is not valid there.
    """
    with player.recording_fragment():
        for t in range(max(len(fragment.rows["valid"]) for _, fragment in fragments)):
            whole: Tree = None
            for lanes, fragment in fragments:
                last = len(fragment.rows["valid"]) - 1
                row = _at(fragment.rows, min(t, last))
                row["valid"] = row["valid"] & (t <= last)
                if whole is None:
                    whole = row if lanes is None else scatter_rows(row, lanes, player.n)
                else:
                    tree_map(lambda out, part, lanes=lanes: out.__setitem__(lanes, part), whole, row)
            player.record(*_parts(whole), None if most is None else most - player.uncounted_steps)


def _at(rows: dict[str, Tree], t: int) -> Any:
    return tree_map(lambda column: column[t], rows)


def _parts(row: dict[str, Any]) -> tuple[SelectedActions, Step]:
    selected = SelectedActions(**{name: row[name] for name in SelectedActions._fields})
    return selected, Step(**{name: row[name] for name in Step._fields[:-1]}, returns={})
