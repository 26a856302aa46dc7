"""Environments: making, seeding, checking, wrapping, and stepping one or many of them in the same way."""

from birl.actions import sample_actions
from birl.envs.atari import Atari, AtariPreprocessing, make_atari
from birl.envs.checker import check_environment
from birl.envs.elsewhere import Elsewhere
from birl.envs.making import as_environment, make_env, reset_generator, seed_env
from birl.envs.stepper import Step, Stepper
from birl.envs.wrappers import ActionMask, ChannelFirst, FrameStack, GoalConcatWrapper
from birl.spaces import environment_spec, number_of_environments, single_spaces

__all__ = [
    "ActionMask",
    "Atari",
    "AtariPreprocessing",
    "ChannelFirst",
    "Elsewhere",
    "FrameStack",
    "GoalConcatWrapper",
    "Step",
    "Stepper",
    "as_environment",
    "check_environment",
    "environment_spec",
    "make_atari",
    "make_env",
    "number_of_environments",
    "reset_generator",
    "sample_actions",
    "seed_env",
    "single_spaces",
]
