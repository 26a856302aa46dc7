"""Published hyper-parameters by name, each with its source.

>>> recipe = birl.recipes.find("DQN", "atari")
>>> print(recipe)  # what it sets, and where each number comes from
>>> config = recipe.config()

``birl train DQN --env-id ALE/Breakout-v5 --recipe atari`` sets the options of the command line, too.

Units: PFRL and NNablaRL count environment steps for everything, birl's ``target_update_interval`` counts updates: their
target every 10,000 steps, with an update every 4, is 2,500 updates. A step of an Atari game is four frames.
"""

from __future__ import annotations

from typing import Final

from birl.errors import ConfigError, did_you_mean
from birl.recipes.recipe import Recipe, Setting
from birl.recipes.rows import ROWS

__all__ = ["RECIPES", "Recipe", "Setting", "find", "names"]

RECIPES: Final[dict[tuple[str, str], Recipe]] = {
    (algorithm, name): Recipe(algorithm, name, origin, settings)
    for (algorithm, name), (origin, settings) in ROWS.items()
}
"""All recipes, by the names of algorithm and recipe."""


def find(algorithm: str, name: str) -> Recipe:
    """The recipe of this name.

    Raises:
        ConfigError: if the algorithm has none of this name.
    """
    found = RECIPES.get((algorithm, name))
    if found is None:
        known = names(algorithm)
        others = ", ".join(sorted({owner for owner, _ in RECIPES}))
        has = f"it has: {', '.join(known)}" if known else f"there are some for {others}"
        raise ConfigError(f"{algorithm} has no recipe {name!r}{did_you_mean(name, known) or ';'} {has}")
    return found


def names(algorithm: str) -> list[str]:
    """Names of the recipes of an algorithm."""
    return [name for owner, name in RECIPES if owner == algorithm]
