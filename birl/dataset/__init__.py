"""Replay buffers and logged data as arrays: storage, samplers, transitions, files, tables."""

from birl.dataset import components as components  # an import path of d3rlpy
from birl.dataset.augmentation import Augmentation, RandomShift
from birl.dataset.base import ReplayBufferBase
from birl.dataset.buffers import BufferProtocol, EpisodicFIFOBuffer, FIFOBuffer, InfiniteBuffer
from birl.dataset.dataset_info import DatasetInfo
from birl.dataset.episode import (
    Episode,
    EpisodeBase,
    PartialTrajectory,
    Signature,
    Transition,
    batch_pad_array,
    batch_pad_observations,
    create_zero_observation,
)
from birl.dataset.episode_generator import EpisodeGenerator
from birl.dataset.hdf5 import dump, load
from birl.dataset.hindsight_sampling import HindsightSampler
from birl.dataset.log_schema import LogSchema
from birl.dataset.logs.export import write_parquet
from birl.dataset.logs.table import from_table
from birl.dataset.mdp_dataset import MDPDataset
from birl.dataset.minibatch import Rows, SequenceMiniBatch, TailMiniBatch, TrajectoryMiniBatch, TransitionMiniBatch
from birl.dataset.mixed_replay_buffer import MixedReplayBuffer
from birl.dataset.prioritized_sampling import PrioritizedSampler
from birl.dataset.recency_sampling import RecentSampler
from birl.dataset.replay_buffer import (
    ReplayBuffer,
    create_fifo_replay_buffer,
    create_infinite_replay_buffer,
)
from birl.dataset.sampling import Sampler, Uniform
from birl.dataset.slicers import BasicTrajectorySlicer, FrameStackTrajectorySlicer, TrajectorySlicerProtocol
from birl.dataset.transitions import (
    BasicTransitionPicker,
    FrameStackTransitionPicker,
    MultiStepFrameStackTransitionPicker,
    MultiStepTransitionPicker,
    SparseRewardTransitionPicker,
    TransitionPickerProtocol,
)
from birl.dataset.validation import detect_action_size, detect_action_space
from birl.dataset.writers import BasicWriterPreprocess, LastFrameWriterPreprocess, WriterPreprocessProtocol
from birl.errors import explain_missing_names
from birl.types import Observation

__all__ = [
    "Augmentation",
    "BasicTrajectorySlicer",
    "BasicTransitionPicker",
    "BasicWriterPreprocess",
    "BufferProtocol",
    "DatasetInfo",
    "Episode",
    "EpisodeBase",
    "EpisodeGenerator",
    "EpisodicFIFOBuffer",
    "FIFOBuffer",
    "FrameStackTrajectorySlicer",
    "FrameStackTransitionPicker",
    "HindsightSampler",
    "InfiniteBuffer",
    "LastFrameWriterPreprocess",
    "LogSchema",
    "MDPDataset",
    "MixedReplayBuffer",
    "MultiStepFrameStackTransitionPicker",
    "MultiStepTransitionPicker",
    "Observation",
    "PartialTrajectory",
    "PrioritizedSampler",
    "RandomShift",
    "RecentSampler",
    "ReplayBuffer",
    "ReplayBufferBase",
    "Rows",
    "Sampler",
    "SequenceMiniBatch",
    "Signature",
    "SparseRewardTransitionPicker",
    "TailMiniBatch",
    "TrajectoryMiniBatch",
    "TrajectorySlicerProtocol",
    "Transition",
    "TransitionMiniBatch",
    "TransitionPickerProtocol",
    "Uniform",
    "WriterPreprocessProtocol",
    "batch_pad_array",
    "batch_pad_observations",
    "create_fifo_replay_buffer",
    "create_infinite_replay_buffer",
    "create_zero_observation",
    "detect_action_size",
    "detect_action_space",
    "dump",
    "from_table",
    "load",
    "write_parquet",
]

explain_missing_names(__name__, __all__)
