"""Flags of the rows of a storage, one byte per row."""

TERMINATED = 1  # the environment ended the episode with this step
TRUNCATED = 2  # the episode was cut after this step
FINAL = 4  # not a step: the row after the last step of an episode, or an unused row
NO_NEXT = 8  # the observation after this step is not known (yet), so the step is no transition
FIRST = 16  # first step of an episode
HEAD = 32  # the earlier steps of the episode have been evicted
UNKNOWN = 64  # on final rows: the final observation is not known, and zeros are stored

NO_TRANSITION = FINAL | NO_NEXT  # flags of rows that cannot be sampled as transitions
