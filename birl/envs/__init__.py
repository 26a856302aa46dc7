"""Environments: construction, wrappers, checks, and one stepper for single and vector ones."""

from birl.envs.atari import Atari, AtariPreprocessing, make_atari
from birl.envs.checker import check_environment
from birl.envs.construction import as_environment, make_env, reset_generator, seed_env
from birl.envs.external import ExternalEnv
from birl.envs.stepper import EndedEpisode, Step, Stepper
from birl.envs.time_limits import TruncationAsTermination
from birl.envs.wrappers import ActionMask, ChannelFirst, FrameStack, GoalConcatWrapper
from birl.errors import explain_missing_names
from birl.spaces import sample_actions
from birl.spaces.specs import environment_spec, number_of_environments, single_spaces

__all__ = [
    "ActionMask",
    "Atari",
    "AtariPreprocessing",
    "ChannelFirst",
    "EndedEpisode",
    "ExternalEnv",
    "FrameStack",
    "GoalConcatWrapper",
    "Step",
    "Stepper",
    "TruncationAsTermination",
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


explain_missing_names(__name__, __all__, {"Elsewhere": "birl.envs.ExternalEnv"})
