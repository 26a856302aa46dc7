"""What observations, actions and masks are, as values.

A kind of actions is a value that answers for its actions: how data store them, what networks read and put out, how they
are drawn and checked. `actions_of` reads it from environments, `actions_told` from arguments and files. Another kind
is a class here and a line in both; heads and distributions for it are in `birl.models`.

An action has three forms. Environments take it, and data store it, in their own numbers, one ``leaf`` for each step.
Policies give it in ``shape``: choices counted from 0. Networks have ``size`` outputs for it, and read as many numbers
of one.
"""

from __future__ import annotations

from birl.spaces.action_serialization import KINDS, actions_in, actions_told
from birl.spaces.actions import Continuous, Discrete, all_finite
from birl.spaces.composite_actions import Actions, Composite, MultiDiscrete, masks_of_choices
from birl.spaces.environment_actions import (
    actions_of,
    allowed_actions,
    as_rows,
    check_actions,
    environment_actions,
    one_of,
    open_masks,
    sample_actions,
    space_of,
)

__all__ = [
    "KINDS",
    "Actions",
    "Composite",
    "Continuous",
    "Discrete",
    "MultiDiscrete",
    "actions_in",
    "actions_of",
    "actions_told",
    "all_finite",
    "allowed_actions",
    "as_rows",
    "check_actions",
    "environment_actions",
    "masks_of_choices",
    "one_of",
    "open_masks",
    "sample_actions",
    "space_of",
]
