"""Write this folder's models and checkpoint; run with birl 0.1.

Usage: python write.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import birl
from birl.dataset import MDPDataset
from birl.logging import NoopAdapterFactory

FOLDER = Path(__file__).parent


def dataset(discrete: bool) -> MDPDataset:
    """Some sixty steps of six episodes."""
    rng = np.random.Generator(np.random.PCG64(0))
    observations = rng.normal(size=(60, 3)).astype(np.float32)
    actions = rng.integers(2, size=60) if discrete else rng.uniform(-1, 1, size=(60, 2)).astype(np.float32)
    rewards = rng.normal(size=60).astype(np.float32)
    return MDPDataset(observations, actions, rewards, (np.arange(60) % 10 == 9).astype(np.float32))


def fit(config: object, n_steps: int, checkpoint: Path | None = None) -> object:
    """Train from the start, or from a checkpoint."""
    birl.seed(0)
    algorithm = config.create()  # type: ignore[attr-defined]
    algorithm.fit(
        dataset(discrete=isinstance(config, birl.algos.DQNConfig)),
        n_steps,
        n_steps_per_epoch=6,
        checkpoint=checkpoint,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    )
    return algorithm


def configs() -> dict[str, object]:
    """The algorithms, as small as they can be."""
    encoder = birl.models.VectorEncoderFactory([8])
    return {
        "sac": birl.algos.SACConfig(
            batch_size=8,
            actor_encoder_factory=encoder,
            critic_encoder_factory=encoder,
            observation_scaler=birl.preprocessing.StandardObservationScaler(),
        ),
        "dqn": birl.algos.DQNConfig(batch_size=8, encoder_factory=encoder, target_update_interval=4),
    }


def main() -> None:
    """Write everything anew."""
    observations = dataset(discrete=True).episodes[0].observations
    for name, config in configs().items():
        algorithm = fit(config, 6)
        algorithm.save(FOLDER / f"{name}.d3")
        np.save(FOLDER / f"{name}.npy", algorithm.predict(observations))
    shutil.rmtree(FOLDER / "run", ignore_errors=True)
    fit(configs()["sac"], 6, FOLDER / "run")
    np.save(FOLDER / "run" / "predictions_after_12.npy", fit(configs()["sac"], 12).predict(observations))


if __name__ == "__main__":
    main()
