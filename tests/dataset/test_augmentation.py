"""Random shifts, against padding and cropping image by image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import birl
from birl import algos
from birl.dataset import MDPDataset, MixedReplayBuffer, PrioritizedSampler, RandomShift
from birl.dataset.arrays import TorchPlace
from birl.dataset.views import SequenceView, TransitionView
from birl.errors import ConfigError, UnsupportedError
from birl.files import load_archive, save_archive
from birl.logging import NoopAdapterFactory
from birl.models import LSTMEncoderFactory, PixelEncoderFactory
from birl.seeding import seed as seed_everything

pytestmark = pytest.mark.filterwarnings("ignore::birl.errors.ObservationRangeWarning")  # bytes are compared

PAD, HIGH, WIDE = 3, 10, 8
SHIFT = RandomShift(PAD)


def images(count: int = 60) -> Any:
    return np.random.default_rng(0).integers(1, 256, (count, 2, HIGH, WIDE), dtype=np.uint8)


def data(observations: Any = None, augmentation: Any = SHIFT, **options: Any) -> MDPDataset:
    seen = images() if observations is None else observations
    return MDPDataset(
        seen, np.arange(60) % 3, np.arange(60.0), np.arange(60) % 20 == 19, augmentation=augmentation, **options
    )


def shifted(image: Any, down: int, right: int) -> Any:
    """What is seen of an image with its border repeated, from a window that is moved."""
    padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)), mode="edge")
    return padded[:, PAD + down : PAD + down + HIGH, PAD + right : PAD + right + WIDE]


def batch_of(dataset: Any, drawn: Any, encoder: Any = None, **options: Any) -> Any:
    encoder = encoder or PixelEncoderFactory([[4, 3, 1]], 8)
    algorithm = algos.DQNConfig(batch_size=16, encoder_factory=encoder, **options).create()
    algorithm.build_with_dataset(dataset)
    return algorithm.learner.batch(drawn)


@pytest.mark.parametrize("near", [False, True])
def test_each_image_is_shifted_by_itself_on_its_way_to_the_networks(near: bool) -> None:
    dataset = data(sampler=PrioritizedSampler() if near else None)
    reader = dataset.reader.mirrored(TorchPlace(torch.device("cpu"))) if near else dataset.reader
    drawn = reader.sample(TransitionView(), 300)
    stored = images()
    own = np.asarray(drawn.rewards)[:, 0].astype(int)
    np.testing.assert_array_equal(np.asarray(drawn.observations), stored[own])  # until then nothing is changed
    batch, numbers = batch_of(dataset, drawn), drawn.augmented
    assert numbers.shape == (300, 2, 2) and set(np.unique(numbers)) == set(range(-PAD, PAD + 1))
    assert (numbers[:, 0] != numbers[:, 1]).any(1).mean() > 0.9
    for row, step in enumerate(own):
        np.testing.assert_array_equal(batch.observation[row].numpy(), shifted(stored[step], *numbers[row, 0]))
        if step % 20 != 19:
            np.testing.assert_array_equal(
                batch.next_observation[row].numpy(), shifted(stored[step + 1], *numbers[row, 1])
            )


def test_all_steps_of_a_sequence_are_shifted_alike() -> None:
    dataset, stored = data(), images()
    drawn = dataset.reader.sample(SequenceView(4, 1), 30)
    encoder = LSTMEncoderFactory(hidden_size=4)
    batch = batch_of(dataset, drawn, encoder, sequence_length=4)
    for row in range(30):
        first = int(drawn.rewards[1, row, 0])
        assert (drawn.augmented[0, row, 0] == drawn.augmented[0, row, 1]).all()
        for step in range(4):
            if drawn.masks[step + 1, row]:
                image = shifted(stored[first + step], *drawn.augmented[0, row, 0])
                np.testing.assert_array_equal(batch.observation[step, row].numpy(), image)


def test_what_is_no_image_stays_as_it_is() -> None:
    seen = {"camera": images(), "speed": np.random.default_rng(1).random((60, 3)).astype(np.float32)}
    drawn = data(seen).reader.sample(TransitionView(), 20)
    tensors = {name: torch.as_tensor(value) for name, value in drawn.observations.items()}
    changed = drawn.augmentation(tensors, torch.as_tensor(drawn.augmented[:, 0]))
    assert (changed["camera"] != tensors["camera"]).any()
    assert torch.equal(changed["speed"], tensors["speed"])


def test_shifts_are_part_of_the_readers_state(tmp_path: Path) -> None:
    dataset = data()
    dataset.reader.sample(TransitionView(), 5)
    save_archive(tmp_path / "state", "test", {}, dataset.get_state(contents=False))
    expected = dataset.reader.sample(TransitionView(), 5).augmented
    again = data()
    again.set_state(load_archive(tmp_path / "state", "test")[1])
    np.testing.assert_array_equal(again.reader.sample(TransitionView(), 5).augmented, expected)


def test_a_run_that_is_resumed_shifts_alike(tmp_path: Path) -> None:
    def run(folder: str, stop: int, go_on: bool = False, augmentation: Any = SHIFT) -> str:
        seed_everything(1)
        config = algos.DQNConfig(batch_size=8, encoder_factory=PixelEncoderFactory([[4, 3, 1]], 8))
        algorithm = config.create()
        algorithm.fit(
            data(augmentation=augmentation), 6, n_steps_per_epoch=2, checkpoint=tmp_path / folder, go_on=go_on,
            epoch_callback=lambda algo, epoch, step: step < stop,
            logger_adapter=NoopAdapterFactory(), show_progress=False,
        )  # fmt: skip
        return repr(algorithm.get_state())

    whole = run("whole", 9)
    run("parts", 4)
    assert run("parts", 9, go_on=True) == whole
    assert run("plain", 9, augmentation=None) != whole


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="pad is 0"):
        RandomShift(0)
    with pytest.raises(ConfigError, match=r"images \(channels, height, width\); observations have the shape \(3,\)"):
        data(np.zeros((60, 3), np.float32))
    with pytest.raises(ConfigError, match="augmentation is 3"):
        data(augmentation=3)
    with pytest.raises(UnsupportedError, match="windows of trajectories"):
        data().sample_trajectory_batch(2, 3)
    with pytest.raises(ConfigError, match="give both the same one"):
        MixedReplayBuffer(data(), data(augmentation=None), 0.5)
    mixed = MixedReplayBuffer(data(), data(), 0.5).reader.sample(TransitionView(), 6)
    assert mixed.augmented.shape == (6, 2, 2) and mixed.augmentation == RandomShift(PAD)


def test_many_seeds_learn_what_each_learns_alone() -> None:
    config = algos.DQNConfig(batch_size=8, encoder_factory=PixelEncoderFactory([[4, 3, 1]], 8))
    options: Any = {"n_steps": 4, "logger_adapter": NoopAdapterFactory(), "show_progress": False}
    together = birl.fit_many(config, data(), seeds=(1, 5), **options)
    for seed, one in zip((1, 5), together, strict=True):
        birl.seed(seed)
        dataset, alone = data(), config.create()
        alone.fit(dataset, **options)
        for name, value in alone.learner.nets.state_dict().items():
            torch.testing.assert_close(one.learner.nets.state_dict()[name], value, rtol=1e-3, atol=1e-4)
