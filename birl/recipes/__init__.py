"""Published hyper-parameters by name, each with its source.

>>> recipe = birl.recipes.find("DQN", "atari")
>>> print(recipe)  # its settings, each with its source
>>> config = recipe.config()

``birl train DQN --env-id ALE/Breakout-v5 --recipe atari`` sets the options of the command line, too.

Units: PFRL and NNablaRL count environment steps for everything, birl's ``target_update_interval`` counts updates: their
target every 10,000 steps, with an update every 4, is 2,500 updates. A step of an Atari game is four frames.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any, Final

from birl.errors import ConfigError, did_you_mean
from birl.recipes.recipe import Recipe, Setting

__all__ = ["RECIPES", "Recipe", "Setting", "find", "names"]


def _recipe(algorithm: str, name: str, table: dict[str, Any], shared: dict[str, Any]) -> Recipe:
    """Make a recipe of a table of ``recipes.toml``, whose first lines describe the form."""
    origin, source = table.pop("origin"), table.pop("source", "")
    included, without = table.pop("include", ()), table.pop("without", ())
    updates, interval = table.pop("updates", (1, 1))
    rows = {key: row for each in included for key, row in shared[each].items() if key not in without} | table
    settings = (Setting(key, value, text.format(source=source)) for key, (value, text) in rows.items())
    return Recipe(algorithm, name, origin, tuple(settings), (updates, interval))


def _read() -> dict[tuple[str, str], Recipe]:
    tables = tomllib.loads(resources.files(__name__).joinpath("recipes.toml").read_text(encoding="utf-8"))
    shared = tables.pop("shared")
    names_ = [(algorithm, name) for algorithm, recipes in tables.items() for name in recipes]
    return {key: _recipe(*key, tables[key[0]][key[1]], shared) for key in names_}


RECIPES: Final = _read()
"""All recipes, by the names of algorithm and recipe."""


def find(algorithm: str, name: str) -> Recipe:
    """Find the recipe of an algorithm by its name.

    Raises:
        ConfigError: if the algorithm has no recipe of this name.
    """
    found = RECIPES.get((algorithm, name))
    if found is None:
        known = names(algorithm)
        others = ", ".join(sorted({owner for owner, _ in RECIPES}))
        has = f"it has: {', '.join(known)}" if known else f"there are some for {others}"
        raise ConfigError(f"{algorithm} has no recipe {name!r}{did_you_mean(name, known) or ';'} {has}")
    return found


def names(algorithm: str) -> list[str]:
    """Return the names of the recipes of an algorithm."""
    return [name for owner, name in RECIPES if owner == algorithm]
