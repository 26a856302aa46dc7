"""Makes the Minari datasets next to this file.

Needs ``pip install 'minari[create,hdf5]' pillow``, and is run in ``tests/dataset``:

MINARI_DATASETS_PATH=$PWD/../data/minari PYTHONPATH=. python ../data/minari/record.py
"""

from __future__ import annotations

import gymnasium
import minari
import numpy as np
import recorded_envs

for kind in recorded_envs.KINDS:
    env = minari.DataCollector(gymnasium.make(f"recorded/{kind}-v0"))
    for ending in (None, 0, 2):  # cut by the time limit after 4 steps; terminated by the first; by the third
        env.reset(seed=0)
        for step in range(4):
            discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
            action = int(step == ending) if discrete else np.float32([step == ending])
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    about = {"algorithm_name": "none", "code_permalink": "none", "author": "none", "author_email": "none"}
    env.create_dataset(f"recorded/{kind}-v0", **about)
    env.close()
