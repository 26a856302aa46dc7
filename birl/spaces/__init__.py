"""Kinds, shapes and bounds of observations, actions and masks, and how to store and check them.

A kind of actions (`Continuous`, `Discrete`, `MultiDiscrete`, `Composite`) knows how data store its actions, what
networks read and output, and how to sample, clip and check them. A leaf of observations (`Numbers`, `Choices`) does the
same for observations; a `Spec` holds both. `actions_from_space` reads actions from environments, `parse_actions` from
arguments and files, `infer_actions` from logs. A new kind is a class here and a line in each of these functions; its
heads and distributions are in `birl.models`.

An action has three forms. Environments and data use the environment's numbers, an array of ``storage_spec`` per step.
Policies use ``shape``, with options numbered from 0. Networks have ``size`` outputs and inputs.
"""

from __future__ import annotations

from typing import Final

from birl.errors import explain_missing_names
from birl.spaces.action_spaces import (
    KINDS,
    action_at,
    actions_from_space,
    check_actions,
    fill_empty_masks,
    flatten_actions,
    infer_actions,
    parse_actions,
    read_action_mask,
    sample_actions,
    space_from_actions,
    unflatten_actions,
)
from birl.spaces.actions import (
    Actions,
    Composite,
    Continuous,
    Discrete,
    MultiDiscrete,
    all_finite,
    choice_masks,
    first_not_finite,
)
from birl.spaces.observations import (
    Choices,
    Numbers,
    ObservationLeaf,
    infer_observations,
    observations_from_spaces,
    parse_observations,
)
from birl.spaces.specs import Spec, environment_spec

__all__ = [
    "KINDS",
    "Actions",
    "Choices",
    "Composite",
    "Continuous",
    "Discrete",
    "MultiDiscrete",
    "Numbers",
    "ObservationLeaf",
    "Spec",
    "action_at",
    "actions_from_space",
    "all_finite",
    "check_actions",
    "choice_masks",
    "environment_spec",
    "fill_empty_masks",
    "first_not_finite",
    "flatten_actions",
    "infer_actions",
    "infer_observations",
    "observations_from_spaces",
    "parse_actions",
    "parse_observations",
    "read_action_mask",
    "sample_actions",
    "space_from_actions",
    "unflatten_actions",
]

RENAMED: Final = {
    "actions_told": "birl.spaces.parse_actions",
    "actions_in": "birl.spaces.infer_actions",
    "actions_of": "birl.spaces.actions_from_space",
    "allowed_actions": "birl.spaces.read_action_mask",
    "as_rows": "birl.spaces.flatten_actions",
    "environment_actions": "birl.spaces.unflatten_actions",
    "one_of": "birl.spaces.action_at",
    "open_masks": "birl.spaces.fill_empty_masks",
    "space_of": "birl.spaces.space_from_actions",
}


explain_missing_names(__name__, __all__, RENAMED)
