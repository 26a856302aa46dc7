"""What the flags of a row of a storage say."""

TERMINATED = 1  # the environment ended the episode with this step
TRUNCATED = 2  # the episode was cut after this step
FINAL = 4  # no step: the row after the last step of an episode, or a row not in use
NO_NEXT = 8  # the observation after this step is not known (yet): the step is no transition
FIRST = 16  # first step of an episode
HEAD = 32  # the steps before this one, in the same episode, have been evicted
UNKNOWN = 64  # on final rows: the final observation is not known, zeros stand for it

NO_TRANSITION = FINAL | NO_NEXT  # flags of rows that cannot be drawn as transitions
