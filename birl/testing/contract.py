"""What every algorithm must keep, as checks that can be run on any configuration, yours included."""

from __future__ import annotations

import copy
import dataclasses
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from birl.algorithm.algorithm import load_learnable
from birl.algorithm.sequence import GreedyTransformerActionSampler
from birl.dataset import MDPDataset
from birl.engine import HardCopy, Loss, Polyak
from birl.engine.phase import due_at
from birl.errors import UnsupportedError, require
from birl.models import (
    C51QFunctionFactory,
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    QFunctionFactory,
    QRQFunctionFactory,
)
from birl.models.layers import EnsembleLinear, Members
from birl.models.recurrent import RecurrentMembers
from birl.preprocessing import MinMaxActionScaler
from birl.run.protocols import Rollout
from birl.seeding import seed as seed_everything
from birl.types import ActionSpace, Array, Batch, Tree, is_shape, tree_map

_EPISODE = 5  # steps of every episode of the data
_LANES = 4  # environments of a rollout


@dataclass(frozen=True)
class _Subject:
    """What is checked: a configuration and what its networks are built for."""

    config: Any
    observation_shape: Any
    action_size: int
    discrete: bool
    seed: int

    @property
    def data(self) -> str:
        return str(self.config.algorithm.data)

    def with_config(self, **fields: Any) -> _Subject:
        """The same with other fields, as far as the configuration has them."""
        known = {item.name for item in dataclasses.fields(self.config)}
        return replace(self, config=replace(self.config, **{k: v for k, v in fields.items() if k in known}))

    def has(self, field: str) -> bool:
        return any(item.name == field for item in dataclasses.fields(self.config))

    def build(self, seed: int | None = None) -> Any:
        """An algorithm, fresh from a seed."""
        seed_everything(self.seed if seed is None else seed)
        algorithm = self.config.create()
        algorithm.create_impl(self.observation_shape, self.action_size, discrete_action=self.discrete)
        return algorithm

    def inputs(self, algorithm: Any, count: int) -> list[Any]:
        """``count`` minibatches or rollouts."""
        generator = np.random.default_rng(self.seed)
        if self.data == "rollout":
            return [self._rollout(algorithm, generator) for _ in range(count)]
        dataset = self.dataset(generator)
        return [algorithm.sample_minibatch(dataset) for _ in range(count)]

    def update(self, algorithm: Any, item: Any) -> dict[str, Tensor]:
        """Learn from one of `inputs`."""
        learn = algorithm.update_rollout if self.data == "rollout" else algorithm.update
        return learn(item)  # type: ignore[no-any-return]

    def batches(self, algorithm: Any, item: Any) -> list[Batch]:
        """The engine's batches that one of `inputs` becomes, without any learning."""
        seen: list[Batch] = []
        original, step = algorithm.engine.update, algorithm.engine.grad_step

        def see(batch: Batch, only: Sequence[str] | None = None) -> dict[str, Tensor]:
            seen.append(batch)
            return {}

        algorithm.engine.update = see
        algorithm.engine.grad_step = 720720 - 1  # before an update in which every phase is due: batches may know that
        try:
            self.update(algorithm, item)
        finally:
            algorithm.engine.update, algorithm.engine.grad_step = original, step
        return seen

    def dataset(self, generator: np.random.Generator, episodes: int = 12, marked: bool = False) -> MDPDataset:
        """Random episodes, every second one truncated. Marked observations say their episode and step."""
        count = episodes * _EPISODE
        last = np.arange(count) % _EPISODE == _EPISODE - 1
        truncated = last & (np.arange(count) // _EPISODE % 2 == 1)
        shape = self.observation_shape
        observation = _random(generator, shape, count)
        following = tree_map(lambda x: np.concatenate([x[1:], x[:1]]), observation)
        ends = _random(generator, shape, count)
        following = tree_map(lambda x, end: np.where(_like(last, x), end, x), following, ends)
        if marked:
            step, episode = np.arange(count) % _EPISODE, np.arange(count) // _EPISODE
            observation = np.stack([episode, step, np.zeros(count)], -1).astype(np.float32)
            following = np.stack([episode, step + 1, np.zeros(count)], -1).astype(np.float32)
        return MDPDataset(
            observation,
            self._actions(generator, (count,), column=True),
            generator.normal(size=count).astype(np.float32),
            (last & ~truncated).astype(np.float32),
            truncated.astype(np.float32),
            action_space=ActionSpace.DISCRETE if self.discrete else ActionSpace.CONTINUOUS,
            action_size=self.action_size,
            next_observations=following,
        )

    def _actions(self, generator: np.random.Generator, lead: tuple[int, ...], column: bool = False) -> Array:
        if self.discrete:
            return generator.integers(self.action_size, size=(*lead, 1) if column else lead)
        return generator.uniform(-0.9, 0.9, (*lead, self.action_size)).astype(np.float32)

    def _rollout(self, algorithm: Any, generator: np.random.Generator, marked: bool = False) -> Rollout:
        length = 4 * _EPISODE
        lead = (length, _LANES)
        last = np.broadcast_to((np.arange(length) % _EPISODE == _EPISODE - 1)[:, None], lead)
        odd = np.broadcast_to((np.arange(length) // _EPISODE % 2 == 1)[:, None], lead)
        observation = _random(generator, self.observation_shape, *lead)
        following = tree_map(lambda x: np.concatenate([x[1:], x[:1]]), observation)
        ends = _random(generator, self.observation_shape, *lead)
        following = tree_map(lambda x, end: np.where(_like(last, x), end, x), following, ends)
        if marked:
            step = np.broadcast_to((np.arange(length) % _EPISODE)[:, None], lead)
            episode = np.arange(length)[:, None] // _EPISODE * _LANES + np.arange(_LANES)
            observation = np.stack([episode, step, np.zeros(lead)], -1).astype(np.float32)
            following = np.stack([episode, step + 1, np.zeros(lead)], -1).astype(np.float32)
        extra = {}
        if algorithm.engine.recurrent:
            extra = {
                f"state.{name}": np.zeros((*lead, algorithm.nets.get_submodule(name).state_size), np.float32)
                for name in algorithm.engine.recurrent
            }
        return Rollout(
            observation=observation,
            action=self._actions(generator, lead),
            reward=generator.normal(size=lead).astype(np.float32),
            next_observation=following,
            terminated=last & ~odd,
            truncated=last & odd,
            is_first=np.broadcast_to((np.arange(length) % _EPISODE == 0)[:, None], lead),
            valid=np.ones(lead, bool),
            extra=extra,
        )

    def observations(self, count: int, size: float = 1.0) -> Tree:
        """Random observations ``[count, …]``."""
        generator = np.random.default_rng(self.seed + 1)
        return tree_map(lambda x: x * np.float32(size), _random(generator, self.observation_shape, count))

    def contexts(self, algorithm: Any, count: int) -> tuple[Tree, Array, Array, Array]:
        """Random contexts of a sequence model, of different lengths."""
        generator, length = np.random.default_rng(self.seed + 2), algorithm.config.context_size
        end = np.arange(count)[:, None] + 1
        timestep = np.maximum(end + np.arange(length) - (length - 1), 0)
        return (
            _random(generator, self.observation_shape, count, length),
            self._actions(generator, (count, length), column=True),
            generator.normal(size=(count, length, 1)).astype(np.float32),
            timestep.astype(np.int64),
        )

    def act(self, algorithm: Any, x: Tree, greedy: bool = True) -> Array:
        """Actions for the first steps of episodes."""
        if self.data == "trajectory":
            rows = [tree_map(lambda leaf, i=i: leaf[i], x) for i in range(len(next(iter(_leaves(x)))))]
            sampler = GreedyTransformerActionSampler() if self.discrete else None
            return np.stack([algorithm.as_stateful_wrapper(1.0, sampler).predict(row, 0.0) for row in rows])
        return algorithm.predict(x) if greedy else algorithm.sample_action(x)  # type: ignore[no-any-return]


def _leaves(tree: Tree) -> Iterator[Any]:
    from birl.types import tree_leaves

    return tree_leaves(tree)


def _random(generator: np.random.Generator, shape: Any, *lead: int) -> Tree:
    if is_shape(shape):
        return generator.normal(size=(*lead, *shape)).astype(np.float32)
    if isinstance(shape, dict):
        return {key: _random(generator, item, *lead) for key, item in shape.items()}
    return tuple(_random(generator, item, *lead) for item in shape)


def _like(flags: Array, x: Array) -> Array:
    return flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))


def _snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _changed(before: dict[str, Tensor], module: nn.Module) -> list[str]:
    return [name for name, tensor in module.state_dict().items() if not _same(before[name], tensor)]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two states differ."""
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return [f"{path}: other keys"]
        return [line for key in a for line in _differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, Tensor | np.ndarray):
        same = _same(torch.as_tensor(a), torch.as_tensor(b))
        return [] if same else [path]
    return [] if a == b else [f"{path}: {a!r} and {b!r}"]


# Random draws that can be replayed for a part of a batch: the gradient of a half must be taken at the same noise.

_DRAWS = (
    torch.rand,
    torch.randn,
    torch.rand_like,
    torch.randn_like,
    torch.randint,
    torch.normal,
    torch.bernoulli,
    Tensor.exponential_,
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.bernoulli_,
)


class _Noise(TorchFunctionMode):
    def __init__(self, replay: list[Tensor] | None = None, part: slice = slice(None)) -> None:
        super().__init__()
        self.draws: list[Tensor] = [] if replay is None else replay
        self.replaying, self.part, self.position = replay is not None, part, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _DRAWS:
            return result
        if not self.replaying:
            self.draws.append(result.detach().clone())
            return result
        drawn = self.draws[self.position]
        self.position += 1
        for dim, (whole, wanted) in enumerate(zip(drawn.shape, result.shape, strict=True)):
            if whole != wanted:
                drawn = drawn[(slice(None),) * dim + (self.part,)]
        return result.copy_(drawn)


class _NoReads(TorchFunctionMode):
    """Raises where a value is brought to the host: on a GPU every such read waits for the device."""

    _READS = tuple(
        getattr(Tensor, name)
        for name in ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__")
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self._READS, f"a loss reads a tensor on the host: Tensor.{func.__name__}"
        return func(*args, **(kwargs or {}))


# -- the checks ----------------------------------------------------------------------------------------------------


def _same_seed_same_result(subject: _Subject) -> None:
    states = []
    for seed in (subject.seed, subject.seed, subject.seed + 1):
        algorithm = subject.build(seed)
        for item in subject.inputs(algorithm, 3):
            subject.update(algorithm, item)
        states.append(algorithm.get_state())
    differing = _differences(states[0], states[1])
    assert not differing, f"two runs of one seed differ in {differing[:5]}"
    assert _differences(states[0]["engine"]["nets"], states[2]["engine"]["nets"]), "two seeds give the same networks"


def _save_load_continue(subject: _Subject) -> None:
    algorithm = subject.build()
    items = subject.inputs(algorithm, 6)
    for item in items[:3]:
        subject.update(algorithm, item)
    file = io.BytesIO()
    algorithm.save(file)
    state, rng = copy.deepcopy(algorithm.get_state()), torch.get_rng_state()
    for item in items[3:]:
        subject.update(algorithm, item)
    expected = algorithm.get_state()
    expected_actions = subject.act(algorithm, subject.observations(5))

    file.seek(0)
    loaded = load_learnable(file)
    assert loaded.config.serialize() == algorithm.config.serialize(), "the loaded configuration is another one"
    assert loaded.grad_step == state["engine"]["grad_step"], f"grad_step is {loaded.grad_step} after loading"
    restored = subject.build(subject.seed + 1)
    restored.set_state(state)
    for name, other in (("load", loaded), ("set_state", restored)):
        torch.set_rng_state(rng)
        for item in items[3:]:
            subject.update(other, item)
        differing = _differences(expected, other.get_state())
        assert not differing, f"after {name} training goes on differently in {differing[:5]}"
        torch.set_rng_state(rng)
        actions = subject.act(other, subject.observations(5))
        assert np.array_equal(expected_actions, actions), f"after {name} the policy acts differently"


def _gradient_split(subject: _Subject) -> None:
    algorithm = subject.with_config(normalize_advantage=False).build()  # it would be another one in each half
    for batch in _batches(subject, algorithm)[:2]:
        axis = 1 if batch.is_first is not None else 0
        batch = batch.map(_doubles)
        # weights of 0 would make the halves count unlike numbers of real steps
        batch = replace(batch, weight=torch.ones_like(batch.weight), state=_double_states(batch))
        size = batch.reward.shape[axis] // 2
        parts = [slice(0, size), slice(size, 2 * size)]
        if subject.data == "trajectory":  # nothing follows the last step of a window: it counts where its episode ends
            batch.discount[:, -1] = 0
        whole = _part(batch, slice(0, 2 * size), axis)
        algorithm.nets.double()
        for phase in algorithm.engine.phases:
            noise = _Noise()
            with noise:
                full, _ = algorithm.engine.compute_gradients(phase, whole)
            halves = []
            for part in parts:
                with _Noise(noise.draws, part):
                    halves.append(algorithm.engine.compute_gradients(phase, _part(whole, part, axis))[0])
            off = {}
            for name, gradient in full.items():
                error = float((gradient - (halves[0][name] + halves[1][name]) / 2).abs().max())
                if error > 1e-6 * (1 + float(gradient.abs().max())):
                    off[name] = error
            if phase.splits:
                assert not off, (
                    f"phase {phase.name!r}: the gradient of {max(off, key=off.__getitem__)} is {max(off.values()):.1e} "
                    "off the mean of two half batches"
                )
            else:
                assert off, f"phase {phase.name!r} says splits=False, but its gradient is the mean of half batches'"


def _part(batch: Batch, part: slice, axis: int) -> Batch:
    index = (slice(None),) * axis + (part,)
    state = None if batch.state is None else {name: value[part] for name, value in batch.state.items()}
    return replace(batch.map(lambda x: x[index]), state=state)


def _double_states(batch: Batch) -> dict[str, Tensor] | None:
    return None if batch.state is None else {name: value.double() for name, value in batch.state.items()}


def _doubles(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _batches(subject: _Subject, algorithm: Any) -> list[Batch]:
    batches = subject.batches(algorithm, subject.inputs(algorithm, 1)[0])
    assert batches, "an update gave the engine no batch"
    return batches


def _q_functions(subject: _Subject) -> None:
    if not subject.has("q_func_factory"):
        return
    heads: tuple[QFunctionFactory, ...] = (
        MeanQFunctionFactory(),
        QRQFunctionFactory(n_quantiles=5),
        IQNQFunctionFactory(n_quantiles=5, n_greedy_quantiles=4, embed_size=6),
        C51QFunctionFactory(n_atoms=11),
        MeanQFunctionFactory(share_encoder=True),
    )
    for head in heads:
        # a target network is one with a target: everything trained must move within two updates
        algorithm = subject.with_config(q_func_factory=head, update_actor_interval=1).build()
        before = _snapshot(algorithm.nets)
        for item in subject.inputs(algorithm, 2):
            metrics = subject.update(algorithm, item)
            bad = [name for name, value in metrics.items() if not bool(torch.isfinite(value))]
            assert not bad, f"{head}: {bad} are not finite"
        trained = {name for phase in algorithm.engine.phases for name in algorithm.engine.parameters[phase.name]}
        still = trained - set(_changed(before, algorithm.nets))
        assert not still, f"{head}: no gradient step moved {sorted(still)}"
        x = subject.observations(5)
        value = algorithm.predict_value(x, subject.act(algorithm, x))
        assert value.shape == (5,) and np.isfinite(value).all(), f"{head}: predict_value gave {value!r}"


def _metrics(subject: _Subject) -> None:
    algorithm = subject.with_config(update_actor_interval=1).build()
    for item in subject.inputs(algorithm, 2):
        metrics = subject.update(algorithm, item)
        assert metrics, "an update gave no metrics"
        for name, value in metrics.items():
            assert isinstance(name, str) and isinstance(value, Tensor), f"metric {name!r} is a {type(value).__name__}"
            assert value.dim() == 0, f"metric {name!r} has shape {tuple(value.shape)}, not that of a scalar"
            assert not value.requires_grad, f"metric {name!r} holds on to the graph of its loss"
            assert value.device == algorithm.torch_device, f"metric {name!r} is on {value.device}"
            assert bool(torch.isfinite(value)), f"metric {name!r} is {float(value)}"


def _phases_stay_in_their_networks(subject: _Subject) -> None:
    algorithm = subject.build()
    batch = _batches(subject, algorithm)[0]
    for phase in algorithm.engine.phases:
        own = tuple(f"{module}." for module in phase.trained)
        before = _snapshot(algorithm.nets)
        gradients, loss = algorithm.engine.compute_gradients(phase, batch)
        changed = _changed(before, algorithm.nets)
        assert not changed, f"the loss of phase {phase.name!r} changes {changed[:3]}"
        strange = [name for name in gradients if not name.startswith(own)]
        assert not strange, f"phase {phase.name!r} has gradients for {strange[:3]}"
        assert isinstance(loss, Loss) and loss.value.dim() == 0, f"phase {phase.name!r} has no scalar loss"
        silent = [name for name, gradient in gradients.items() if not bool(gradient.abs().sum() > 0)]
        assert not silent, f"phase {phase.name!r} has zero gradients for {silent[:3]}"
        algorithm.engine.apply_gradients(phase, gradients)
        strange = [name for name in _changed(before, algorithm.nets) if not name.startswith(own)]
        assert not strange, f"phase {phase.name!r} changes {strange[:3]}, which it does not train"
        left = [name for name, parameter in algorithm.nets.named_parameters() if parameter.grad is not None]
        assert not left, f"phase {phase.name!r} leaves gradients in {left[:3]}"


def _losses_read_nothing(subject: _Subject) -> None:
    algorithm = subject.build()
    batch = _batches(subject, algorithm)[0]
    for phase in algorithm.engine.phases:
        with _NoReads():
            algorithm.engine.compute_gradients(phase, batch)


def _batches_stay_as_they_are(subject: _Subject) -> None:
    algorithm = subject.build()
    batch = _batches(subject, algorithm)[0]
    before = batch.map(lambda x: x.clone())
    algorithm.engine.update(batch)
    differing = [
        name
        for name in ("action", "reward", "discount", "weight")
        if not torch.equal(getattr(before, name), getattr(batch, name))
    ]
    assert not differing, f"an update changes its batch: {differing}"


def _targets_follow(subject: _Subject) -> None:
    algorithm = subject.with_config(target_update_interval=3, tau=0.25).build()
    engine = algorithm.engine
    for target in engine.targets:
        source, own = (engine.nets.get_submodule(name) for name in (target.source, target.target))
        assert not _differences(_snapshot(source), _snapshot(own)), f"{target.target} does not begin as {target.source}"
        asking = [name for name, parameter in own.named_parameters() if parameter.requires_grad]
        assert not asking, f"{target.target} has trainable parameters {asking[:3]}"
    for batch in [batch for item in subject.inputs(algorithm, 7) for batch in subject.batches(algorithm, item)[:1]]:
        before = [_snapshot(engine.nets.get_submodule(target.target)) for target in engine.targets]
        engine.update(batch)
        due = due_at(engine.grad_step, engine.phases, engine.targets, engine.config).targets
        for target, old in zip(engine.targets, before, strict=True):
            source, own = (engine.nets.get_submodule(name) for name in (target.source, target.target))
            if target not in due:
                changed = _changed(old, own)
                assert not changed, f"{target.target} changes in update {engine.grad_step}, when it is not due"
                continue
            assert _changed(old, own), f"{target.target} does not change in update {engine.grad_step}, when it is due"
            if not isinstance(target, HardCopy | Polyak):
                continue
            tau = getattr(engine.config, target.tau) if isinstance(target, Polyak) else 1.0
            for name, tensor in own.state_dict().items():
                expected = (1 - tau) * old[name] + tau * source.state_dict()[name]
                assert torch.allclose(tensor, expected, atol=1e-6), f"{target.target}.{name} is not where it should be"


def _actions_in_bounds(subject: _Subject) -> None:
    low, high = np.array([-3.0] * subject.action_size), np.array([5.0] * subject.action_size)
    config = subject
    if not subject.discrete:
        scaler = MinMaxActionScaler(minimum=low.astype(np.float32), maximum=high.astype(np.float32))
        config = subject.with_config(action_scaler=scaler)
    algorithm = config.build()
    for item in config.inputs(algorithm, 2):
        config.update(algorithm, item)
    for size in (1.0, 1e3):
        x = subject.observations(64, size)
        for greedy in (True, False):
            if subject.data == "trajectory" and not greedy:
                continue
            action = subject.act(algorithm, x, greedy)
            if subject.discrete:
                assert action.shape == (64,) and action.dtype.kind == "i", f"actions are {action.dtype}{action.shape}"
                inside = (action >= 0) & (action < subject.action_size)
            else:
                assert action.shape == (64, subject.action_size), f"actions have shape {action.shape}"
                inside = (action >= low - 1e-5) & (action <= high + 1e-5)
            assert inside.all(), f"an action is out of bounds: {action[~inside][:3]}"


def _padding_is_ignored(subject: _Subject) -> None:
    algorithm = subject.build()
    batch = _batches(subject, algorithm)[0]
    weight = batch.weight.clone()
    if subject.data == "trajectory":
        weight[:, :2], axis = 0, 1  # windows are padded in front
        rows = slice(0, 2)
    else:
        weight[-2:], axis = 0, 0
        rows = slice(len(weight) - 2, len(weight))
    index = (slice(None),) * axis + (rows,)
    generator = torch.Generator().manual_seed(1)

    def garbage(x: Tensor) -> Tensor:
        x = x.clone()
        if x.is_floating_point():
            x[index] = torch.randn(x[index].shape, generator=generator)
        return x

    results = []
    for _ in range(2):
        changed = replace(batch.map(garbage), weight=weight)
        state = torch.get_rng_state()
        results.append([algorithm.engine.compute_gradients(phase, changed)[0] for phase in algorithm.engine.phases])
        torch.set_rng_state(state)
    for phase, first, second in zip(algorithm.engine.phases, *results, strict=True):
        for name in first:
            error = float((first[name] - second[name]).abs().max())
            assert error <= 1e-6, (
                f"phase {phase.name!r}: what stands in padding moves the gradient of {name} by {error:.1e}"
            )


def _episodes_stay_apart(subject: _Subject) -> None:
    subject = replace(subject, observation_shape=(3,)).with_config(observation_scaler=None, reward_scaler=None)
    algorithm = subject.build()
    generator = np.random.default_rng(subject.seed)
    gamma = subject.config.gamma
    if subject.data == "rollout":
        _rollout_episodes_stay_apart(subject, algorithm, generator)
    items: list[Any]
    if subject.data == "rollout":
        items = [subject._rollout(algorithm, generator, marked=True)]
    else:
        dataset = subject.dataset(generator, marked=True)
        items = [algorithm.sample_minibatch(dataset) for _ in range(5)]
    for batch in [batch for item in items for batch in subject.batches(algorithm, item)]:
        real = batch.weight > 0
        episode, step = batch.observation[..., 0], batch.observation[..., 1]
        if batch.next_observation is not None:
            following = batch.next_observation
            assert bool((following[..., 0] == episode)[real].all()), "a transition leads from one episode into another"
            distance = following[..., 1] - step
            terminated = (following[..., 1] == _EPISODE) & (episode // _group(subject) % 2 == 0)
            expected = torch.where(terminated, 0.0, torch.as_tensor(gamma, dtype=torch.float32) ** distance)
            assert torch.allclose(batch.discount[real], expected[real]), (
                "a truncated step is not bootstrapped, or a terminated one is"
            )
        if batch.weight.dim() == 2:  # sequences: time first; windows: batch first
            lead = 1 if subject.data == "trajectory" else 0
            episode, step, real = (x.movedim(lead, 0) for x in (episode, step, real))
            joined = real[1:] & real[:-1]
            if batch.is_first is not None:
                joined = joined & ~batch.is_first[1:]
            crossing = joined & ((episode[1:] != episode[:-1]) | (step[1:] != step[:-1] + 1))
            assert not bool(crossing.any()), "a sequence goes from one episode into the next without a reset"


def _group(subject: _Subject) -> int:
    return _LANES if subject.data == "rollout" else 1


def _rollout_episodes_stay_apart(subject: _Subject, algorithm: Any, generator: np.random.Generator) -> None:
    """What comes after the end of an episode must not reach the steps before it."""
    rollout = subject._rollout(algorithm, generator)
    later = np.arange(len(rollout.reward))[:, None] >= 2 * _EPISODE  # the second episode ends by truncation
    other = replace(
        rollout,
        reward=np.where(later, rollout.reward + 10, rollout.reward).astype(np.float32),
        observation=np.where(later[..., None], rollout.observation + 1, rollout.observation).astype(np.float32),
        next_observation=np.where(later[..., None], rollout.next_observation + 1, rollout.next_observation).astype(
            np.float32
        ),
    )
    extras = []
    for item in (rollout, other):
        torch.manual_seed(0)
        batches = subject.batches(algorithm, item)
        early = {}
        for batch in batches[: len(batches) // subject.config.n_epochs if subject.has("n_epochs") else None]:
            flat = batch.observation.flatten(0, -2)
            for name, value in batch.extra.items():
                for key, number in zip(flat, value.flatten(), strict=True):
                    early[name, tuple(key.tolist())] = float(number)
        extras.append(early)
    keys = [tuple(float(v) for v in row) for row in rollout.observation[: 2 * _EPISODE].reshape(-1, 3)]
    for name in {name for name, _ in extras[0]}:
        for key in keys:
            first, second = extras[0].get((name, key)), extras[1].get((name, key))
            assert first is not None and second is not None, "a step of a rollout is not learned from"
            assert abs(first - second) <= 1e-5, f"{name!r} of a step depends on the next episode ({first} and {second})"


def _zero_learning_rate(subject: _Subject) -> None:
    rates = {item.name: 0.0 for item in dataclasses.fields(subject.config) if item.name.endswith("learning_rate")}
    assert rates, "no field ends in learning_rate"
    algorithm = subject.with_config(**rates, target_update_interval=1, update_actor_interval=1).build()
    before = _snapshot(algorithm.nets)
    for item in subject.inputs(algorithm, 3):
        subject.update(algorithm, item)
    changed = _changed(before, algorithm.nets)
    assert not changed, f"with learning rate 0 these change: {changed[:5]}"


def _members_differ(subject: _Subject) -> None:
    algorithm = subject.with_config(n_critics=3).build()
    for name, module in algorithm.nets.named_modules():
        members: list[list[Tensor]] = []
        if isinstance(module, EnsembleLinear):
            members = [[module.weight[k], module.bias[k]] for k in range(module.weight.shape[0])]
        elif isinstance(module, Members | RecurrentMembers):
            members = [list(member.parameters()) for member in module.members]
        for i, first in enumerate(members):
            for second in members[:i]:
                alike = [a for a, b in zip(first, second, strict=True) if a.numel() > 1 and torch.equal(a, b)]
                assert not alike, f"two members of {name} begin with equal parameters"


def _export(suffix: str) -> Callable[[_Subject], None]:
    def check(subject: _Subject) -> None:
        algorithm = subject.build()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"policy{suffix}"
            if algorithm.engine.recurrent:
                try:
                    algorithm.save_policy(path)
                except UnsupportedError:
                    assert not list(Path(folder).iterdir()), "a refused export leaves a file"
                    return
                raise AssertionError("a policy with a memory was exported without it")
            for item in subject.inputs(algorithm, 2):
                subject.update(algorithm, item)
            algorithm.save_policy(path)
            for rows in (1, 37):
                if subject.data == "trajectory":
                    x = subject.contexts(algorithm, rows)
                    expected = algorithm.predict_context(*x)
                    expected = expected.argmax(-1) if subject.discrete else expected
                    got = _run_export(path, x, _context_names(x))
                else:
                    x = subject.observations(rows)
                    expected, got = algorithm.predict(x), _run_export(path, x)
                assert got.shape == expected.shape, f"an exported policy gives {got.shape} instead of {expected.shape}"
                assert np.allclose(got, expected, atol=1e-5), f"{suffix}: an exported policy acts differently"

    return check


def _context_names(context: Tree) -> list[str]:
    observations = [f"observation_{index}" for index, _ in enumerate(_leaves(context[0]))]
    return [*observations, "action", "return_to_go", "timestep"]


def _run_export(path: Path, x: Tree, names: Sequence[str] | None = None) -> Array:
    leaves = list(_leaves(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit says that it is deprecated
        if path.suffix == ".pt":
            return torch.jit.load(path)(*map(torch.from_numpy, leaves)).detach().numpy()  # type: ignore[no-any-return]
        if path.suffix == ".pt2":
            return torch.export.load(path).module()(*map(torch.from_numpy, leaves)).detach().numpy()  # type: ignore[no-any-return]
        session = require("onnxruntime", "onnx").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = names or [f"input_{index}" for index, _ in enumerate(leaves)]
        return session.run(None, dict(zip(names, leaves, strict=True)))[0]  # type: ignore[no-any-return]


def _compiled_equals_eager(subject: _Subject) -> None:
    nets, metrics = [], []
    for compiled in (False, True):
        algorithm = subject.with_config(compile_graph=compiled, compile=False).build()
        torch._dynamo.utils.counters.clear()
        for item in subject.inputs(algorithm, 4):
            torch.manual_seed(0)
            metrics.append(subject.update(algorithm, item))
        nets.append(_snapshot(algorithm.nets))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert algorithm.engine.compiled, "compile_graph=True, but nothing is compiled"
    assert graphs <= 2, f"{graphs} programs for one update: something is compiled again and again"
    for name, tensor in nets[0].items():
        error = float((tensor - nets[1][name]).abs().max())
        assert error <= 2e-4, f"compiled, {name} differs by {error:.1e}"


CHECKS: dict[str, Callable[[_Subject], None]] = {
    "actions_in_bounds": _actions_in_bounds,
    "batches_stay_as_they_are": _batches_stay_as_they_are,
    "episodes_stay_apart": _episodes_stay_apart,
    "export_torchscript": _export(".pt"),
    "gradient_split": _gradient_split,
    "losses_read_nothing": _losses_read_nothing,
    "members_differ": _members_differ,
    "metrics": _metrics,
    "padding_is_ignored": _padding_is_ignored,
    "phases_stay_in_their_networks": _phases_stay_in_their_networks,
    "q_functions": _q_functions,
    "same_seed_same_result": _same_seed_same_result,
    "save_load_continue": _save_load_continue,
    "targets_follow": _targets_follow,
    "zero_learning_rate": _zero_learning_rate,
}
"""The checks by name."""

SLOW_CHECKS: dict[str, Callable[[_Subject], None]] = {
    "compiled_equals_eager": _compiled_equals_eager,
    "export_onnx": _export(".onnx"),
    "export_torch": _export(".pt2"),
}
"""Checks that take long, or need the extra ``onnx``."""


def check_algorithm(
    config: Any,
    *,
    observation_shape: Any = (3,),
    action_size: int = 2,
    discrete_action: bool | None = None,
    checks: Sequence[str] | None = None,
    seed: int = 0,
) -> list[str]:
    """Check that an algorithm keeps what all algorithms keep.

    Args:
        config: configuration, with small networks and a small ``batch_size`` to be quick, and without dropout or batch
            norm (their randomness and their statistics depend on the batch).
        observation_shape: what networks are built for.
        action_size: number of action dimensions or of discrete actions.
        discrete_action: only for algorithms that can do both.
        checks: names from `CHECKS` and `SLOW_CHECKS`; all of `CHECKS` by default.
        seed: of parameters and data.

    Returns:
        The names of the checks that were made.

    Raises:
        AssertionError: naming the check and what is wrong.
    """
    space = config.algorithm.action_space
    discrete = bool(discrete_action) if space is ActionSpace.BOTH else space is ActionSpace.DISCRETE
    subject = _Subject(config, observation_shape, action_size, discrete, seed)
    known = {**CHECKS, **SLOW_CHECKS}
    names = list(CHECKS) if checks is None else list(checks)
    for name in names:
        if name not in known:
            raise ValueError(f"no check is called {name!r}. Known: {', '.join(sorted(known))}")
        try:
            known[name](subject)
        except AssertionError as error:
            raise AssertionError(f"{type(config).__name__}, check {name!r}: {error}") from error
    return names
