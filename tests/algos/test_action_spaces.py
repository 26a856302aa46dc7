"""Several choices at once, choices and quantities together, and other action spaces, wherever they are taken.

References are plain loops over elements, choices and options, and share no code with birl.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from run.fakes import signal_at

import birl
from birl import algos
from birl.algos import bc, discrete_sac, dqn, impala, ppo
from birl.errors import ActionError, BirlError, ConfigError, ShapeError
from birl.models import C51QFunctionFactory, IQNQFunctionFactory, QRQFunctionFactory, VectorEncoderFactory
from birl.spaces import (
    Composite,
    Continuous,
    Discrete,
    MultiDiscrete,
    action_at,
    actions_from_space,
    flatten_actions,
    parse_actions,
    space_from_actions,
    unflatten_actions,
)
from birl.testing import check_algorithm
from birl.testing.contract import SLOW_CHECKS
from birl.types import MASK, ActionSpace, Batch
from tests.algos.masked_choices import SIZES, check_masked_options_are_never_taken
from tests.tiers import slow_but

QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": birl.logging.NoopAdapterFactory()}
ENCODER = VectorEncoderFactory(hidden_units=[5])
SPACES: dict[str, spaces.Space[Any]] = {
    "several": spaces.MultiDiscrete([3, 4]),
    "several from k": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "table": spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "bits": spaces.MultiBinary(3),
    "one from k": spaces.Discrete(3, start=5),
    "one below 0": spaces.Discrete(3, start=-1),
    "integers": spaces.Box(0, 10, (2,), np.int64),
    "matrix": spaces.Box(-2, 2, (2, 2)),
    "number": spaces.Box(-1, 3, ()),
    "choices": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=1))),
    "dict": spaces.Dict(
        move=spaces.Discrete(3, start=1), force=spaces.Box(0, 5, (2,)), buttons=spaces.MultiDiscrete([2, 5])
    ),
    "nested": spaces.Tuple((spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (1,))), spaces.Discrete(2))),
}


class Strict(gymnasium.Env[Any, Any]):
    """Refuses what is not in its action space."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space, self.taken = space, list[Any]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        action = np.asarray(action) if isinstance(action, np.floating) else action  # as Gymnasium's vectors give it
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(self.steps), False, self.steps >= 7, {}


def configs(space: spaces.Space[Any]) -> list[Any]:
    """Configurations of the algorithms that learn online with these actions."""
    kind = actions_from_space(space).kind
    every = [
        algos.PPOConfig(
            rollout_length=10, n_epochs=1, batch_size=5, actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER
        ),
        algos.DQNConfig(batch_size=4, encoder_factory=ENCODER),
        algos.DPPConfig(batch_size=4, encoder_factory=ENCODER),
        algos.DoubleDQNConfig(batch_size=4, encoder_factory=ENCODER, q_func_factory=IQNQFunctionFactory(n_quantiles=3)),
        algos.DiscreteSACConfig(batch_size=4, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER),
        algos.SACConfig(batch_size=4, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER),
    ]
    return [config for config in every if kind in config.algorithm.actions]


CASES = [
    pytest.param(space, config, id=f"{name}-{config.algorithm.__name__}")
    for name, space in SPACES.items()
    for config in configs(space)
]


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
@pytest.mark.parametrize("n", slow_but([2], [1, 2]))
@pytest.mark.parametrize(("space", "config"), CASES)
def test_environments_are_given_their_own_actions(space: Any, config: Any, n: int, tmp_path: Path) -> None:
    birl.seed(0)
    made = [Strict(space) for _ in range(n)]
    env: Any = made[0] if n == 1 else gymnasium.vector.SyncVectorEnv([lambda each=each: each for each in made])
    algorithm, options = config.create(), dict[str, Any]()
    if not algorithm.learns_from.on_policy:
        options = {"update_start_step": 10, "random_steps": 6}
        options |= {"explorer": algos.ConstantEpsilonGreedy(0.5)} if isinstance(algorithm, algos.DQN) else {}
    algorithm.fit_online(env, n_steps=20, n_steps_per_epoch=20, **options, **QUIET)
    assert algorithm.spec.actions == actions_from_space(space) and all(len(each.taken) == 20 // n for each in made)
    scores = birl.metrics.evaluate(algorithm, Strict(space), n_episodes=1)
    assert scores == [28.0]

    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    rows = algorithm.predict(x)
    batch = unflatten_actions(space, actions_from_space(space).clip(rows))
    assert all(space.contains(action_at(space, batch, index)) for index in range(6))

    algorithm.save(tmp_path / "model.d3")
    loaded = birl.load_learnable(tmp_path / "model.d3")
    assert loaded.spec == algorithm.spec
    np.testing.assert_array_equal(loaded.predict(x), rows)
    if n == 1:
        algorithm.save_policy(tmp_path / "policy.pt2")  # compared with the policy when it is written
        agent = loaded.agent(env=Strict(space))
        assert space.contains(agent.act(x[0]))
        agent.observe(x[1], 1.0, False, False)


def stopped_at(stop: int | None, config: Any, space: Any, n: int, folder: Path) -> Any:
    """The bits after 30 steps with a checkpoint; ``None`` if the run was stopped."""

    birl.seed(0)
    env: Any = Strict(space) if n == 1 else gymnasium.vector.SyncVectorEnv([lambda: Strict(space)] * n)
    algorithm, options = config.create(), dict[str, Any]()
    if not algorithm.learns_from.on_policy:
        buffer = birl.dataset.create_fifo_replay_buffer(25, env=env, lanes=n)
        options = {"update_start_step": 8, "random_steps": 6, "buffer": buffer}
    try:
        algorithm.fit_online(env, n_steps=30, checkpoint=folder, callback=signal_at(stop), **options, **QUIET)
    except SystemExit:
        return None
    return [*algorithm.nets.state_dict().values(), algorithm.predict(np.zeros((1, 3), np.float32))]


RESUMED = [
    (name, config)
    for name in ("one from k", "one below 0", "several from k", "choices", "integers", "dict")
    for config in configs(SPACES[name])[:2]
]


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("name", "config"), RESUMED, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_a_run_that_was_stopped_in_an_episode_goes_on(name: str, config: Any, n: int, tmp_path: Path) -> None:
    expected = stopped_at(None, config, SPACES[name], n, tmp_path / "straight")
    for stop in (4, 18):
        assert stopped_at(stop, config, SPACES[name], n, tmp_path / "stopped") is None
    resumed = stopped_at(None, config, SPACES[name], n, tmp_path / "stopped")
    assert all(np.array_equal(one, other) for one, other in zip(expected, resumed, strict=True))


def test_noise_is_kept_within_the_bounds_of_a_matrix() -> None:
    birl.seed(0)
    low, high = np.array([[-1, -1], [0, 0]], np.float32), np.array([[1, 1], [0.5, 1]], np.float32)
    env = Strict(spaces.Box(low, high))
    algorithm = algos.TD3Config(action_scaler=birl.preprocessing.MinMaxActionScaler(), batch_size=4).create()
    algorithm.fit_online(env, n_steps=20, n_steps_per_epoch=20, explorer=algos.NormalNoise(std=2.0), **QUIET)
    taken = np.stack(env.taken)
    assert (taken == high).any(0).all() and (taken == low).any(0).all()


def test_the_order_of_a_dict_does_not_matter() -> None:
    parts: dict[str, Any] = {"move": spaces.Discrete(3), "force": spaces.Box(0, 5, (2,)), "keys": spaces.MultiBinary(2)}
    written, turned = spaces.Dict(**parts), spaces.Dict(**dict(reversed(parts.items())))
    assert list(written) != list(turned) and actions_from_space(written) == actions_from_space(turned)
    rows = actions_from_space(written).sample(4, np.random.default_rng(0))
    one, other = (unflatten_actions(space, rows) for space in (written, turned))
    for name in parts:
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(one["move"], rows[:, 4])  # the last by name
    np.testing.assert_array_equal(flatten_actions(written, other), rows)


def test_steps_are_stored_as_they_were_taken() -> None:
    space = SPACES["dict"]
    env = Strict(space)
    rng = np.random.default_rng(0)
    buffer = birl.dataset.create_fifo_replay_buffer(100, env=env)
    assert buffer.dataset_info.actions == actions_from_space(space)
    rows = actions_from_space(space).sample(4, rng)
    for row in rows:
        buffer.append(np.zeros(3, np.float32), row, 0.0)
    buffer.clip_episode(False)
    np.testing.assert_array_equal(buffer.episodes[0].actions, rows)
    with pytest.raises(ActionError, match="none of .*integers from 1 to 3"):
        buffer.append(np.zeros(3, np.float32), np.zeros(5), 0.0)


# -- losses against plain references -------------------------------------------------------------------------------


def batch_of(actions: torch.Tensor, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n = len(actions)
    return Batch(
        observation=normal(n, 3),
        action=actions,
        reward=normal(n),
        next_observation=normal(n, 3),
        discount=torch.tensor([0.9, 0.0, 0.9, 0.9, 0.0], dtype=torch.float64),
        weight=torch.ones(n, dtype=torch.float64),
    )


def built(config: Any, actions: Any) -> Any:
    torch.manual_seed(1)
    algorithm = config.create()
    algorithm.create_impl((3,), actions)
    algorithm.nets.double()
    with torch.no_grad():
        for name, parameter in algorithm.nets.named_parameters():
            if "target" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


CHOSEN = torch.tensor([[0, 1, 3], [2, 0, 0], [1, 1, 2], [0, 0, 1], [2, 1, 3]])


def layers(nets: Any, network: str, member: int | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights ``[out, in]`` and biases of a network's two layers."""
    found = {name: p for name, p in nets.named_parameters() if name.startswith(f"{network}.")}
    weights = [p for name, p in found.items() if name.endswith("weight")]
    biases = [p for name, p in found.items() if name.endswith("bias")]
    pairs = []
    for weight, bias in zip(weights, biases, strict=True):
        if weight.dim() == 3:
            weight, bias = weight[member or 0].T, bias[member or 0].reshape(-1)
        pairs.append((weight, bias))
    return pairs


def forward(nets: Any, network: str, x: torch.Tensor, member: int | None = None) -> torch.Tensor:
    (w1, b1), (w2, b2) = layers(nets, network, member)
    return w2 @ torch.relu(w1 @ x + b1) + b2


def q_values(nets: Any, network: str, x: torch.Tensor, member: int | None = None) -> list[torch.Tensor]:
    """Eq. 1 of 1711.08946: for each choice the values of its options."""
    out, found, begin = forward(nets, network, x, member), [], 0
    for size in SIZES:
        advantage = out[begin : begin + size]
        found.append(out[-1] + advantage - sum(advantage) / size)
        begin += size
    return found


def gradients_of(loss: torch.Tensor, nets: Any, network: str) -> list[torch.Tensor]:
    parameters = [p for name, p in nets.named_parameters() if name.startswith(f"{network}.")]
    return list(torch.autograd.grad(loss, parameters, retain_graph=True))


def huber(error: torch.Tensor) -> torch.Tensor:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


@pytest.mark.parametrize("double", [False, True])
def test_branching_q_learning_is_the_papers(double: bool) -> None:
    algorithm = built((algos.DoubleDQNConfig if double else algos.DQNConfig)(encoder_factory=ENCODER), SIZES)
    nets, batch = algorithm.nets, batch_of(CHOSEN)
    losses, errors = [], []
    for i in range(5):
        with torch.no_grad():
            target_values = q_values(nets, "critic_target", batch.next_observation[i])
            chooser = q_values(nets, "critic" if double else "critic_target", batch.next_observation[i])
            best = [max(range(len(options)), key=options.tolist().__getitem__) for options in chooser]
            mean = sum(values[a] for values, a in zip(target_values, best, strict=True)) / len(SIZES)  # eq. 6
            target = batch.reward[i] + batch.discount[i] * mean
        values = q_values(nets, "critic", batch.observation[i])
        error = [values[d][CHOSEN[i, d]] - target for d in range(3)]
        losses.append(sum(huber(each) for each in error) / len(SIZES))  # eq. 7
        errors.append(sum(abs(each.item()) for each in error) / len(SIZES))
    expected = sum(losses) / 5
    loss = (dqn.double_q_loss if double else dqn.q_loss)(nets, batch, algorithm.config)
    torch.testing.assert_close(loss.value, expected)
    torch.testing.assert_close(gradients_of(loss.value, nets, "critic"), gradients_of(expected, nets, "critic"))
    torch.testing.assert_close(loss.compute_priority().tolist(), errors)


@pytest.mark.parametrize(
    "factory", [QRQFunctionFactory(n_quantiles=4), C51QFunctionFactory(n_atoms=5, v_min=-2, v_max=2)]
)
def test_branches_of_distributions_learn_from_the_mean_over_them(factory: Any) -> None:
    algorithm = built(algos.DQNConfig(encoder_factory=ENCODER, q_func_factory=factory, n_critics=2), SIZES)
    nets, batch = algorithm.nets, batch_of(CHOSEN)
    quantiles = isinstance(factory, QRQFunctionFactory)
    levels = 4 if quantiles else 5
    support = torch.linspace(-2, 2, 5, dtype=torch.float64)

    def rows(network: str, x: torch.Tensor, member: int) -> list[torch.Tensor]:
        out, found, begin = forward(nets, network, x, member).reshape(-1, levels), [], 0
        for size in SIZES:
            advantage = out[begin : begin + size]
            found.append(out[-1] + advantage - advantage.mean(0))
            begin += size
        return found

    def mean(row: torch.Tensor) -> torch.Tensor:
        return row.mean() if quantiles else (row.softmax(0) * support).sum()

    total = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        with torch.no_grad():
            both = [rows("critic_target", batch.next_observation[i], member) for member in range(2)]
            of_branches = []
            for d, size in enumerate(SIZES):
                scores = [sum(mean(both[m][d][a]) for m in range(2)).item() for a in range(size)]
                best = scores.index(max(scores))
                lowest = min(range(2), key=lambda m: mean(both[m][d][best]).item())
                row = both[lowest][d][best]
                of_branches.append(row if quantiles else row.softmax(0))
            mixed = sum(of_branches) / 3
            if quantiles:
                target = batch.reward[i] + batch.discount[i] * mixed
            else:
                target = torch.zeros(5, dtype=torch.float64)
                for atom, mass in zip(support, mixed, strict=True):
                    place = ((batch.reward[i] + batch.discount[i] * atom).clamp(-2, 2) + 2) / 1.0
                    lower = min(int(place.floor()), 4)
                    target[lower] += mass * (1 - (place - lower))
                    if lower < 4:
                        target[lower + 1] += mass * (place - lower)
        for member in range(2):
            predicted = rows("critic", batch.observation[i], member)
            for d in range(3):
                row = predicted[d][CHOSEN[i, d]]
                if quantiles:
                    for j in range(4):
                        tau = (j + 0.5) / 4
                        for k in range(4):
                            error = target[k] - row[j]
                            total = total + abs(tau - float(error < 0)) * huber(error) / 4 / 3
                else:
                    total = total - (target * row.log_softmax(0)).sum() / 3
    expected = total / 5
    loss = dqn.q_loss(nets, batch, algorithm.config).value
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients_of(loss, nets, "critic"), gradients_of(expected, nets, "critic"))


def all_actions(nets: Any, network: str, x: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The values of all combinations of options, each the mean of its options' values."""
    values = q_values(nets, network, x)
    return {
        chosen: (sum(values[d][a] for d, a in enumerate(chosen)) / len(SIZES)).item()
        for chosen in itertools.product(*map(range, SIZES))
    }


def boltzmann(values: dict[tuple[int, ...], float], temperature: float) -> dict[tuple[int, ...], float]:
    """Log-probabilities of all combinations."""
    total = math.log(sum(math.exp(value / temperature) for value in values.values()))
    return {chosen: value / temperature - total for chosen, value in values.items()}


def munchausen_target(batch: Batch, i: int, here: Any, there: Any, taken: Any) -> float:
    log_policy = 0.2 * boltzmann(here, 0.2)[taken]
    soft = sum(math.exp(each) * (there[a] - 0.2 * each) for a, each in boltzmann(there, 0.2).items())
    return float(batch.reward[i] + 0.9 * max(log_policy, -0.5) + batch.discount[i] * soft)


def advantage_target(batch: Batch, i: int, here: Any, there: Any, taken: Any) -> float:
    gap = max(here.values()) - here[taken]
    return float(batch.reward[i] - 0.9 * gap + batch.discount[i] * max(there.values()))


def persistent_target(batch: Batch, i: int, here: Any, there: Any, taken: Any) -> float:
    gap, other = (max(values.values()) - values[taken] for values in (here, there))
    other = other if batch.discount[i] > 0 else 0.0
    return float(batch.reward[i] - 0.9 * min(gap, other) + batch.discount[i] * max(there.values()))


def preference_target(batch: Batch, i: int, here: Any, there: Any, taken: Any) -> float:
    value, following = (
        sum(math.exp(each) * values[a] for a, each in boltzmann(values, 0.5).items()) for values in (here, there)
    )
    return float(batch.reward[i] + here[taken] - value + batch.discount[i] * following)


def log_sum_target(batch: Batch, i: int, here: Any, there: Any, taken: Any) -> float:
    value, following = (
        0.5 * math.log(sum(math.exp(each / 0.5) for each in values.values())) for values in (here, there)
    )
    return float(batch.reward[i] + here[taken] - value + batch.discount[i] * following)


MUNCHAUSEN: Any = {"entropy_temperature": 0.2, "clipping_value": -0.5}
JOINT: dict[str, tuple[Any, Any]] = {
    "Munchausen": (algos.MunchausenDQNConfig(encoder_factory=ENCODER, **MUNCHAUSEN), munchausen_target),
    "AL": (algos.ALConfig(encoder_factory=ENCODER), advantage_target),
    "PAL": (algos.PALConfig(encoder_factory=ENCODER), persistent_target),
    "DPP": (algos.DPPConfig(encoder_factory=ENCODER, inverse_temperature=2.0), preference_target),
    "DPP log sum exp": (
        algos.DPPConfig(encoder_factory=ENCODER, inverse_temperature=2.0, operator="log_sum_exp"),
        log_sum_target,
    ),
}


@pytest.mark.parametrize("name", JOINT)
def test_policies_and_gaps_of_branches_are_those_of_all_combinations(name: str) -> None:
    """Branches make targets with sums over their options, the reference with sums over all 24 combinations."""
    config, make = JOINT[name]
    algorithm = built(config, SIZES)
    nets, batch = algorithm.nets, batch_of(CHOSEN)
    loss = config.algorithm.steps[0].loss(nets, batch, config)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        here, there = (all_actions(nets, "critic_target", x[i]) for x in (batch.observation, batch.next_observation))
        target = make(batch, i, here, there, tuple(CHOSEN[i].tolist()))
        values = q_values(nets, "critic", batch.observation[i])
        expected = expected + sum(huber(values[d][CHOSEN[i, d]] - target) for d in range(3)) / 15
    torch.testing.assert_close(loss.value, expected)
    torch.testing.assert_close(gradients_of(loss.value, nets, "critic"), gradients_of(expected, nets, "critic"))


def log_softmaxes(out: torch.Tensor) -> list[torch.Tensor]:
    found, begin = [], 0
    for size in SIZES:
        found.append(out[begin : begin + size] - out[begin : begin + size].exp().sum().log())
        begin += size
    return found


def test_discrete_sac_has_a_distribution_for_each_choice() -> None:
    algorithm = built(
        algos.DiscreteSACConfig(actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER, initial_temperature=0.3),
        SIZES,
    )
    nets, batch = algorithm.nets, batch_of(CHOSEN)
    critic, actor, entropies = [], [], []
    for i in range(5):
        with torch.no_grad():
            log_probs = log_softmaxes(forward(nets, "actor", batch.next_observation[i]))
            both = [q_values(nets, "critic_target", batch.next_observation[i], m) for m in range(2)]
            value = bonus = 0.0
            for d, size in enumerate(SIZES):
                means = [(log_probs[d].exp() * both[m][d]).sum() for m in range(2)]
                lowest = [min(both[0][d][a], both[1][d][a]) for a in range(size)]
                del means
                value = value + sum(log_probs[d][a].exp() * lowest[a] for a in range(size)) / 3
                bonus = bonus - sum(log_probs[d][a].exp() * log_probs[d][a] for a in range(size))
            target = batch.reward[i] + batch.discount[i] * (value + 0.3 * bonus)
        for m in range(2):
            values = q_values(nets, "critic", batch.observation[i], m)
            critic.append(sum((values[d][CHOSEN[i, d]] - target) ** 2 for d in range(3)) / 3)
        log_probs = log_softmaxes(forward(nets, "actor", batch.observation[i]))
        with torch.no_grad():
            both = [q_values(nets, "critic", batch.observation[i], m) for m in range(2)]
        loss = entropy = torch.zeros((), dtype=torch.float64)
        for d, size in enumerate(SIZES):
            for a in range(size):
                p = log_probs[d][a].exp()
                loss = loss + p * (0.3 * log_probs[d][a] - min(both[0][d][a], both[1][d][a]))
                entropy = entropy - p * log_probs[d][a]
        actor.append(loss)
        entropies.append(entropy.item())
    made = discrete_sac.critic_loss(nets, batch, algorithm.config).value
    torch.testing.assert_close(made, sum(critic) / 5)
    torch.testing.assert_close(gradients_of(made, nets, "critic"), gradients_of(sum(critic) / 5, nets, "critic"))
    found = discrete_sac.actor_loss(nets, batch, algorithm.config)
    torch.testing.assert_close(found.value, sum(actor) / 5)
    torch.testing.assert_close(gradients_of(found.value, nets, "actor"), gradients_of(sum(actor) / 5, nets, "actor"))
    torch.testing.assert_close(found.share["policy_entropy"].tolist(), entropies)
    assert nets.target_entropy == pytest.approx(0.98 * math.log(3 * 2 * 4))


ROWS = torch.tensor([[2, 0.3, -0.4, 1], [0, -1.2, 0.8, 0], [1, 0.0, 2.0, 1], [1, 0.5, 0.5, 0], [2, 0, 0, 1]])
MIXED = Composite((Discrete(3), Continuous(2), Discrete(2)))


def joint_log_prob(out: torch.Tensor, log_std: torch.Tensor, row: torch.Tensor, tanh: bool) -> tuple[Any, Any]:
    """Log-probability and entropy of a row of `MIXED` actions."""
    total, entropy = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for logits, column in ((out[:3], 0), (out[5:], 3)):
        log_probs = logits - logits.exp().sum().log()
        total = total + log_probs[int(row[column])]
        entropy = entropy - (log_probs.exp() * log_probs).sum()
    for j in range(2):
        mean = out[3 + j].tanh() if tanh else out[3 + j]
        deviation = log_std[j].exp()
        total = total - 0.5 * ((row[1 + j] - mean) / deviation) ** 2 - log_std[j] - 0.5 * math.log(2 * math.pi)
        entropy = entropy + 0.5 + 0.5 * math.log(2 * math.pi) + log_std[j]
    return total, entropy


def test_behaviour_cloning_maximises_the_likelihood_of_all_parts() -> None:
    algorithm = built(algos.BCConfig(encoder_factory=ENCODER), MIXED)
    nets, batch = algorithm.nets, batch_of(ROWS.double())
    log_std = nets.actor.log_std
    terms = [joint_log_prob(forward(nets, "actor", batch.observation[i]), log_std, ROWS[i], True)[0] for i in range(5)]
    loss = bc.imitation_loss(nets, batch, algorithm.config).value
    torch.testing.assert_close(loss, -sum(terms) / 5)
    torch.testing.assert_close(gradients_of(loss, nets, "actor"), gradients_of(-sum(terms) / 5, nets, "actor"))


def test_discrete_behaviour_cloning_of_several_choices() -> None:
    algorithm = built(algos.DiscreteBCConfig(encoder_factory=ENCODER, beta=0.5), SIZES)
    nets, batch = algorithm.nets, batch_of(CHOSEN)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        out = forward(nets, "actor", batch.observation[i])
        log_probs = log_softmaxes(out)
        expected = expected - sum(log_probs[d][CHOSEN[i, d]] for d in range(3)) + 0.5 * (out**2).sum() / 9
    loss = bc.cross_entropy(nets, batch, algorithm.config).value
    torch.testing.assert_close(loss, expected / 5)
    torch.testing.assert_close(gradients_of(loss, nets, "actor"), gradients_of(expected / 5, nets, "actor"))


@pytest.mark.parametrize("actions", [SIZES, MIXED], ids=["several", "mixed"])
def test_ppo_clips_one_ratio_of_all_parts(actions: Any) -> None:
    config = algos.PPOConfig(
        actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER, normalize_advantage=False, entropy_coefficient=0.1
    )
    algorithm = built(config, actions)
    nets = algorithm.nets
    rows = ROWS.double() if actions is MIXED else CHOSEN
    with torch.no_grad():
        for parameter in nets.actor.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    batch = batch_of(rows)
    extra = {name: torch.linspace(-1, 1, 5, dtype=torch.float64) for name in ("advantage", "return", "value")}
    batch.extra.update(extra, log_prob=torch.full((5,), -3.0, dtype=torch.float64))
    expected = torch.zeros((), dtype=torch.float64)

    def tanh_forward(network: str, x: torch.Tensor) -> torch.Tensor:
        (w1, b1), (w2, b2) = layers(nets, network)
        return w2 @ (w1 @ x + b1).tanh() + b2

    encoder_tanh = nets.actor.encoder.layers[0].activation is torch.tanh
    run = tanh_forward if encoder_tanh else (lambda network, x: forward(nets, network, x))
    for i in range(5):
        out = run("actor", batch.observation[i])
        if actions is MIXED:
            log_prob, entropy = joint_log_prob(out, nets.actor.log_std, ROWS[i], False)
        else:
            log_probs = log_softmaxes(out)
            log_prob = sum(log_probs[d][CHOSEN[i, d]] for d in range(3))
            entropy = -sum((each.exp() * each).sum() for each in log_probs)
        ratio, advantage = (log_prob + 3.0).exp(), extra["advantage"][i]
        gain = min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        error = (run("value", batch.observation[i])[0] - extra["return"][i]) ** 2
        expected = expected - gain + 0.5 * error - 0.1 * entropy
    made = ppo.loss(nets, batch, config).value
    torch.testing.assert_close(made, expected / 5)
    torch.testing.assert_close(gradients_of(made, nets, "actor"), gradients_of(expected / 5, nets, "actor"))


@pytest.mark.parametrize("actions", [SIZES, MIXED], ids=["several", "mixed"])
def test_impala_corrects_by_one_ratio_of_all_parts(actions: Any) -> None:
    """V-trace of single steps, which are terminal: the error is ``rho (r - V)``."""
    config = algos.IMPALAConfig(actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER, clip_rho=0.6, clip_c=0.6)
    algorithm = built(config, actions)
    nets, batch = algorithm.nets, batch_of(ROWS.double() if actions is MIXED else CHOSEN)

    def joint(i: int) -> tuple[Any, Any]:
        out = forward(nets, "actor", batch.observation[i])
        if actions is MIXED:
            return joint_log_prob(out, nets.actor.log_std, ROWS[i], False)
        log_probs = log_softmaxes(out)
        entropy = -sum((each.exp() * each).sum() for each in log_probs)
        return sum(log_probs[d][CHOSEN[i, d]] for d in range(3)), entropy

    with torch.no_grad():
        old, before = nets.actor(batch.inputs).parameters(), [joint(i)[0] for i in range(5)]
        for parameter in nets.actor.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    expected, ratios = torch.zeros((), dtype=torch.float64), []
    for i in range(5):
        (now, entropy), value = joint(i), forward(nets, "value", batch.observation[i])[0]
        ratios.append(float((now - before[i]).exp().detach()))
        error = min(ratios[-1], 0.6) * (batch.reward[i] - value.detach())
        expected = expected - error * now + 0.5 * (value.detach() + error - value) ** 2 - 0.01 * entropy
    assert min(ratios) < 0.6 < max(ratios), ratios
    single = replace(batch, discount=torch.zeros(5).double(), extra={"policy": old}).map(lambda x: x.unsqueeze(0))
    made = impala.loss(nets, replace(single, is_first=torch.ones(1, 5).bool()), config).value
    torch.testing.assert_close(made, expected)
    for network in ("actor", "value"):
        torch.testing.assert_close(gradients_of(made, nets, network), gradients_of(expected, nets, network))


# -- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        algos.DQNConfig(),
        algos.DoubleDQNConfig(q_func_factory=C51QFunctionFactory(n_atoms=5)),
        algos.DiscreteSACConfig(),
        algos.DiscreteBCConfig(),
        algos.PPOConfig(),
    ],
    ids=lambda config: config.algorithm.__name__,
)
def test_masked_options_are_never_taken(config: Any) -> None:
    check_masked_options_are_never_taken(config)


def test_masked_options_are_not_learned_from() -> None:
    algorithm = algos.DQNConfig().create()
    torch.manual_seed(0)
    algorithm.create_impl({"x": (3,), MASK: (9,)}, SIZES)
    mask = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 0]] * 5)
    observation = {"x": torch.randn(5, 3), MASK: mask}
    batch = Batch(
        observation=observation,
        action=CHOSEN * 0 + torch.tensor([0, 0, 1]),
        reward=torch.zeros(5),
        next_observation=observation,
        discount=torch.ones(5),
        weight=torch.ones(5),
    )
    target = algorithm.nets.critic_target(batch.next_inputs)
    with torch.no_grad():
        before = target.gather(target.best()).min().backup(batch.reward, batch.discount).values
        output = algorithm.nets.critic_target.head.linear
        for option in (1, 4, 5, 8):  # made attractive, without moving the mean of a choice's advantages
            output.bias[..., option] += 9.0
        for option, by in ((2, -9.0), (3, -9.0), (6, -9.0), (7, -9.0)):
            output.bias[..., option] += by
        shifted = algorithm.nets.critic_target(batch.next_inputs)
        best = shifted.best()
        after = shifted.gather(best).min().backup(batch.reward, batch.discount).values
    allowed = mask.bool()
    for begin, column in zip((0, 3, 5), best.T, strict=True):
        assert allowed[torch.arange(5), begin + column].all()
    assert (after <= before + 1e-5).all()


# -- data, files, spaces ---------------------------------------------------------------------------------------------


def logged(n: int = 30) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(n, 3)).astype(np.float32),
        "rewards": np.zeros(n),
        "terminals": np.arange(n) % 10 == 9,
    }


ACTIONS: dict[str, Any] = {
    "several": np.random.default_rng(1).integers([3, 4], size=(30, 2)),
    "one from k": np.random.default_rng(1).integers(5, 8, size=30),
    "dict": {
        "move": np.random.default_rng(1).integers(1, 4, size=30),
        "force": np.random.default_rng(2).uniform(0, 5, size=(30, 2)),
        "buttons": np.random.default_rng(3).integers([2, 5], size=(30, 2)),
    },
}


@pytest.mark.parametrize("name", ACTIONS)
def test_logs_of_a_space_are_kept_and_learned_from(name: str, tmp_path: Path) -> None:
    space = SPACES[name]
    dataset = birl.dataset.MDPDataset(actions=ACTIONS[name], action_size=space, **logged(), storage=tmp_path / "steps")
    actions = actions_from_space(space)
    assert dataset.dataset_info.actions == actions
    dataset.dump(tmp_path / "steps.h5")
    for loaded in (
        birl.dataset.ReplayBuffer.load(tmp_path / "steps.h5"),
        birl.dataset.ReplayBuffer.open(tmp_path / "steps"),
    ):
        assert loaded.dataset_info.actions == actions
        rows = np.concatenate([episode.actions for episode in loaded.episodes])
        np.testing.assert_allclose(rows, flatten_actions(space, ACTIONS[name]), rtol=1e-6)
    config = {"several": algos.DiscreteBCConfig, "one from k": algos.DQNConfig, "dict": algos.BCConfig}[name]
    scaler = {"action_scaler": birl.preprocessing.MinMaxActionScaler()} if name == "dict" else {}
    algorithm = config(batch_size=8, encoder_factory=ENCODER, **scaler).create()
    algorithm.fit(loaded, n_steps=3, n_steps_per_epoch=3, **QUIET)
    rows = algorithm.predict(logged()["observations"])
    assert actions.first_outside(rows) is None
    if name == "dict":  # quantities are scaled, choices are not
        np.testing.assert_array_equal(algorithm.action_scaler.minimum[[0, 1, 4]], -1)
        np.testing.assert_allclose(algorithm.action_scaler.maximum[2:4], ACTIONS[name]["force"].max(0), rtol=1e-6)


def test_several_choices_are_found_in_data_if_they_are_said_to_be() -> None:
    arrays = logged()
    with pytest.raises(ActionError, match="for several choices per step give action_space=ActionSpace.MULTI_DISCRETE"):
        birl.dataset.MDPDataset(actions=ACTIONS["several"], **arrays)
    for given in ({"action_space": ActionSpace.MULTI_DISCRETE}, {"action_size": [3, 4]}, {"action_size": (3, 4)}):
        dataset = birl.dataset.MDPDataset(actions=ACTIONS["several"], **given, **arrays)
        assert dataset.dataset_info.actions == MultiDiscrete((3, 4))
    again = birl.dataset.ReplayBuffer(
        birl.dataset.InfiniteBuffer(), episodes=dataset.episodes, action_space=ActionSpace.MULTI_DISCRETE
    )
    assert again.dataset_info.actions == MultiDiscrete((3, 4))
    with pytest.raises(ActionError, match=r"action \[\d, 3\] at step \d+ is none of integers from \[0, 0\] to \["):
        birl.dataset.MDPDataset(actions=ACTIONS["several"], action_size=[3, 3], **arrays)
    with pytest.raises(ShapeError, match="give action_size= the action space, too"):
        birl.dataset.MDPDataset(actions=ACTIONS["dict"], **arrays)
    with pytest.raises(ActionError, match="action 2 .* none of integers from 5 to 7|none of integers from 5 to 7"):
        birl.dataset.MDPDataset(actions=ACTIONS["several"][:, 0], action_size=SPACES["one from k"], **arrays)
    with pytest.raises(ShapeError, match="'force' of .* is missing|must have a part for each"):
        some = {"move": ACTIONS["dict"]["move"], "buttons": ACTIONS["dict"]["buttons"], "x": ACTIONS["dict"]["move"]}
        birl.dataset.MDPDataset(actions=some, action_size=SPACES["dict"], **arrays)


def test_parts_without_bounds_are_taken_as_they_are(tmp_path: Path) -> None:
    space = spaces.Dict(aim=spaces.Box(-np.inf, np.inf, (1,)), force=spaces.Box(0, 10, (1,)), move=spaces.Discrete(2))
    birl.seed(0)
    env = Strict(space)
    ppo = algos.PPOConfig(rollout_length=8, actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER).create()
    ppo.build_with_env(env)
    with torch.no_grad():
        ppo.nets.actor.linear.bias[:2] += torch.tensor([7.0, 7.0])
    rows = ppo.predict(np.zeros((1, 3), np.float32))
    assert 5 < rows[0, 0] < 9 and rows[0, 1] == 10  # of a range from 0 to 10
    ppo.fit_online(env, n_steps=8, n_steps_per_epoch=8, **QUIET)
    assert min(float(action["aim"][0]) for action in env.taken) > 1
    ppo.save(tmp_path / "model.d3")
    ppo.save_policy(tmp_path / "policy.pt")
    again = birl.load_learnable(tmp_path / "model.d3")
    x = np.zeros((1, 3), np.float32)
    np.testing.assert_array_equal(again.predict(x), ppo.predict(x))
    aim, force, _ = again.agent().act(x[0])  # without env= it knows of bounds what the model does
    assert aim[0] > 2 and 0 <= force[0] <= 10


def test_choices_are_whole_numbers_wherever_they_come_from() -> None:
    buffer = birl.dataset.create_fifo_replay_buffer(9, env=Strict(SPACES["dict"]))
    buffer.append(np.zeros(3, np.float32), np.array([0, 3, 4, 0.5, 1], np.float32), 0.0)
    for wrong in ([0.25, 3, 4, 0.5, 1], [0, 3.5, 4, 0.5, 1], [0, 3, 4, 0.5, 1.5]):
        with pytest.raises(ActionError, match="is none of integers from 0 to 1"):
            buffer.append(np.zeros(3, np.float32), np.array(wrong, np.float32), 0.0)
    assert buffer.storage.steps.sum() == 1
    dqn = algos.DQNConfig().create()
    dqn.create_impl((3,), SIZES)
    dqn.predict_value(np.zeros((2, 3), np.float32), np.array([[1.0, 1.0, 3.0]] * 2))
    with pytest.raises(ActionError, match="must be integers from"):
        dqn.predict_value(np.zeros((2, 3), np.float32), np.array([[1.0, 0.5, 3.0]] * 2))
    with pytest.raises(ActionError, match="the action space is Text"):
        birl.dataset.MDPDataset(actions=ACTIONS["several"], action_size=spaces.Text(3), **logged())


@pytest.mark.parametrize("name", SPACES)
def test_what_stands_for_actions_is_read_back(name: str) -> None:
    actions = actions_from_space(SPACES[name])
    assert parse_actions(actions.size_argument, actions.kind) == actions
    assert parse_actions(SPACES[name]) == actions and parse_actions(actions) == actions
    low, high = actions.bounds or (-1, 1)
    assert actions_from_space(space_from_actions(actions, low, high)) == actions
    rows = actions.sample(50, np.random.default_rng(0))
    assert actions.first_outside(rows) is None
    batch = unflatten_actions(SPACES[name], rows)
    assert all(SPACES[name].contains(action_at(SPACES[name], batch, index)) for index in range(50))
    np.testing.assert_allclose(flatten_actions(SPACES[name], batch).reshape(rows.shape), rows)
    stored = torch.as_tensor(rows).reshape(50, *actions.storage_spec.shape)
    chosen = actions.from_stored(stored)
    assert chosen.shape == (50, *actions.shape)
    torch.testing.assert_close(actions.to_environment(chosen).reshape(stored.shape), stored, check_dtype=False)
    assert actions.as_input(chosen).shape == (50, actions.size)
    assert actions.greedy(torch.randn(50, actions.size)).shape == (50, *actions.shape)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (0, ActionSpace.DISCRETE),
        (2.5, ActionSpace.CONTINUOUS),
        (True, ActionSpace.DISCRETE),
        ([3, 0], None),
        ([], None),
        ([3, True], None),
        ({"size": [3, 4], "start": [1]}, None),
        ({"size": 3}, None),
        ({"parts": []}, None),
        ({"parts": [{"kind": 3, "size": 2}]}, None),
        ({"parts": [{"kind": 4, "size": [2]}]}, None),
        ("text", None),
        (None, None),
        (3, None),
        ([3, 4], ActionSpace.DISCRETE),
        (spaces.Discrete(3), ActionSpace.CONTINUOUS),
    ],
)
def test_what_stands_for_no_actions_is_refused(given: Any, kind: ActionSpace | None) -> None:
    with pytest.raises(ConfigError, match="action_size is"):
        parse_actions(given, kind)


def test_spaces_that_no_algorithm_takes_are_named() -> None:
    with pytest.raises(ActionError, match=r"the action space is Text.*, in Dict.*it must be Discrete, Box"):
        actions_from_space(spaces.Dict(say=spaces.Text(3), move=spaces.Discrete(2)))
    with pytest.raises(ConfigError, match="SAC takes continuous actions only; use DiscreteSAC"):
        algos.SACConfig().create().build_with_env(Strict(SPACES["several"]))
    with pytest.raises(ConfigError, match="takes discrete or multi-discrete actions only; use one of A2C, .*BC, .*PPO"):
        algos.DQNConfig().create().build_with_env(Strict(SPACES["dict"]))
    with pytest.raises(BirlError, match="discrete_action is False"):
        algos.PPOConfig().create().create_impl((3,), [3, 4], discrete_action=False)


class Matching(gymnasium.Env[Any, Any]):
    """Each of several digits is shown and must be chosen: the reward is the share of those that are."""

    def __init__(self, choices: int, options: int) -> None:
        self.observation_space = spaces.Box(0, 1, (choices,))
        self.action_space = spaces.MultiDiscrete([options] * choices)
        self.choices, self.options = choices, options

    def _show(self) -> Any:
        self.digits = self.np_random.integers(self.options, size=self.choices)
        return (self.digits / (self.options - 1)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        reward = float(np.mean(action == self.digits))
        self.steps += 1
        return self._show(), reward, False, self.steps == 10, {}


@pytest.mark.slow
def test_branches_learn_their_own_digits_in_seconds() -> None:
    birl.seed(1)
    env = Matching(3, 2)
    algorithm = algos.DQNConfig(
        learning_rate=3e-3, gamma=0.0, target_update_interval=100, encoder_factory=VectorEncoderFactory([32])
    ).create()
    explorer = algos.ConstantEpsilonGreedy(0.3)
    algorithm.fit_online(env, n_steps=1200, n_steps_per_epoch=1200, explorer=explorer, random_steps=200, **QUIET)
    assert np.mean(birl.metrics.evaluate(algorithm, env, n_episodes=5)) > 8.5  # random: 5


SMALL = {
    "DQN": algos.DQNConfig(batch_size=8, encoder_factory=ENCODER, target_update_interval=2),
    "DoubleDQN": algos.DoubleDQNConfig(batch_size=8, encoder_factory=ENCODER, n_critics=2, target_update_interval=2),
    "DiscreteSAC": algos.DiscreteSACConfig(
        batch_size=8, actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER, target_update_interval=2
    ),
    "DiscreteBC": algos.DiscreteBCConfig(batch_size=8, encoder_factory=ENCODER),
    "PPO": algos.PPOConfig(
        batch_size=8, n_epochs=2, actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER, rollout_length=20
    ),
    "IMPALA": algos.IMPALAConfig(
        batch_size=8, actor_encoder_factory=ENCODER, value_encoder_factory=ENCODER, rollout_length=20
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_contract_holds_for_several_choices(name: str) -> None:
    check_algorithm(SMALL[name], action_size=[3, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_slow_contract_holds_for_several_choices(name: str) -> None:
    check_algorithm(SMALL[name], action_size=[3, 2], checks=list(SLOW_CHECKS))


@pytest.mark.slow
def test_compiled_updates_of_choices_and_quantities_are_the_eager_ones() -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))
    rows = np.column_stack([np.arange(30) % 3, np.random.default_rng(0).uniform(-1, 1, (30, 2))]).astype(np.float32)
    found = []
    for compiled in (False, True):
        birl.seed(0)
        dataset = birl.dataset.MDPDataset(actions=rows, action_size=space, **logged())
        algorithm = algos.BCConfig(
            batch_size=8, encoder_factory=ENCODER, optim_factory=birl.optimizers.SGDFactory(), compile_graph=compiled
        ).create()
        algorithm.fit(dataset, n_steps=6, n_steps_per_epoch=6, **QUIET)
        found.append([parameter.detach().clone() for parameter in algorithm.nets.parameters()])
    torch.testing.assert_close(*found)


class Reach(gymnasium.Env[Any, Any]):
    """Eight coordinates that are to be moved to 0, each by one of eleven steps: 214 million actions."""

    observation_space = spaces.Box(-1, 1, (8,))
    action_space = spaces.MultiDiscrete([11] * 8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.uniform(-1, 1, 8)
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.place = np.clip(self.place + 0.06 * (action - 5), -1, 1)
        self.steps += 1
        return self.place.astype(np.float32), 1 - float(np.abs(self.place).mean()), False, self.steps == 20, {}


@pytest.mark.slow
def test_branches_learn_to_move_eight_coordinates() -> None:
    birl.seed(1)
    config = algos.DoubleDQNConfig(
        learning_rate=1e-3,
        batch_size=64,
        gamma=0.9,
        target_update_interval=200,
        encoder_factory=VectorEncoderFactory([64, 64]),
    )
    algorithm, explorer = config.create(), algos.LinearDecayEpsilonGreedy(1.0, 0.05, 5000)
    options = {"random_steps": 500, "update_start_step": 500, **QUIET}
    algorithm.fit_online(Reach(), n_steps=10_000, n_steps_per_epoch=10_000, explorer=explorer, **options)
    outputs = algorithm.nets.critic.head.linear.weight.shape[-1]
    assert outputs == 8 * 11 + 1
    assert np.mean(birl.metrics.evaluate(algorithm, Reach(), n_episodes=20)) > 15  # at random 9.5, at best 19.4


GRU = birl.models.GRUEncoderFactory(hidden_size=4)
PADDED = [
    pytest.param(spaces.Discrete, 3, algos.DQNConfig(batch_size=4, encoder_factory=GRU), id="DQN"),
    pytest.param(spaces.Discrete, 3, algos.DiscreteBCConfig(batch_size=4, encoder_factory=GRU), id="DiscreteBC"),
    pytest.param(spaces.Discrete, 3, algos.DiscreteDecisionTransformerConfig(batch_size=4, context_size=5), id="DT"),
    pytest.param(spaces.MultiDiscrete, [3, 4], algos.DQNConfig(batch_size=4, encoder_factory=GRU), id="branches"),
]


@pytest.mark.parametrize("start", [2, -7])
@pytest.mark.parametrize(("space", "sizes", "config"), PADDED)
def test_padding_is_no_action_wherever_choices_begin(space: Any, sizes: Any, config: Any, start: int) -> None:
    """Sequences are padded with zeros: what is learned does not depend on where actions begin to count."""
    rows = np.random.default_rng(0).integers(0, sizes, (30, np.size(sizes)))
    steps = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)

    def learned(begin: int) -> Any:
        birl.seed(0)
        given = space(sizes, start=begin * np.ones_like(sizes) if np.ndim(sizes) else begin)
        ends = np.arange(30) % 3 == 2
        dataset = birl.dataset.MDPDataset(steps, rows + begin, np.arange(30) % 2, ends, action_size=given)
        algorithm = config.create()
        algorithm.fit(dataset, n_steps=3, n_steps_per_epoch=3, **QUIET)
        return algorithm.learner.nets.state_dict()

    plain, moved = learned(0), learned(start)
    assert all(torch.equal(plain[name], moved[name]) for name in plain)


@pytest.mark.filterwarnings("ignore::birl.errors.ActionRangeWarning")
def test_padding_next_to_quantities() -> None:
    parts = (np.arange(30) % 3 + 2, np.linspace(-1, 1, 30, dtype=np.float32)[:, None])
    given = spaces.Tuple((spaces.Discrete(3, start=2), spaces.Box(-1, 1, (1,))))
    steps, ends = np.random.default_rng(1).normal(size=(30, 2)), np.arange(30) % 3 == 2
    dataset = birl.dataset.MDPDataset(steps, parts, np.zeros(30), ends, action_size=given)
    cloning = algos.BCConfig(batch_size=4, encoder_factory=GRU).create()
    cloning.fit(dataset, n_steps=3, n_steps_per_epoch=3, **QUIET)
    actions = cloning.learner.spec.actions
    stored = torch.tensor([[2.0, 0.5], [4.0, -1.0], [0.0, 0.0]])
    assert actions.from_stored(stored).tolist() == [[0, 0.5], [2, -1], [0, 0]]
    assert actions.to_environment(actions.from_stored(stored[:2])).tolist() == stored[:2].tolist()
