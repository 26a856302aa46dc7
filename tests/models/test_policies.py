"""Policies whose distribution a factory chooses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from birl.algos import PPOConfig
from birl.errors import ConfigError
from birl.models import (
    BetaFactory,
    CategoricalPolicy,
    DistributionFactory,
    DistributionPolicy,
    NormalFactory,
    NormalPolicy,
    SquashedNormalFactory,
    VectorEncoderFactory,
    policy_of,
)
from birl.models.distributions import Beta, Categorical, Joint, Normal, SquashedNormal
from birl.models.policies import JointPolicy
from birl.spaces import Composite, Continuous, Discrete
from birl.spaces.specs import Spec
from birl.testing import build_algorithm
from birl.types import Inputs

ENCODER = VectorEncoderFactory(hidden_units=[6])


def spec(actions: Any) -> Spec:
    return build_algorithm(PPOConfig(), (3,), actions).spec


CONTINUOUS = spec(Continuous(2))
MIXED = spec(Composite((Continuous(2), Discrete(4), Continuous(1))))
INPUTS = Inputs(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))


def policy(factory: DistributionFactory, of: Spec = CONTINUOUS) -> Any:
    torch.manual_seed(0)
    return policy_of(of, ENCODER, factory)


@pytest.mark.parametrize("factory", [NormalFactory, SquashedNormalFactory])
@pytest.mark.parametrize("std", ["parameter", "spherical", "state", "fixed"])
def test_where_the_standard_deviation_comes_from(factory: Any, std: str) -> None:
    made = policy(factory(std=std, initial_std=0.25))
    found = made(INPUTS)
    assert type(found) is (Normal if factory is NormalFactory else SquashedNormal)
    spread = found.log_std.expand(5, 2)
    if std == "state":
        assert made.log_std is None and len(spread.unique()) == 10
        with torch.no_grad():
            made.linear.weight.zero_(), made.linear.bias.zero_()  # as policies that learn from rollouts begin, nearly
        spread = made(INPUTS).log_std
    torch.testing.assert_close(spread, torch.full((5, 2), math.log(0.25)))
    learned = [name for name, _ in made.named_parameters() if name == "log_std"]
    assert bool(learned) == (std in ("parameter", "spherical"))
    if learned:
        assert made.log_std.shape == ((1,) if std == "spherical" else (2,))
    assert ("log_std" in made.state_dict()) == bool(learned)


def test_standard_deviations_stay_in_their_range() -> None:
    made = policy(NormalFactory(std="state", log_std_range=(-1.0, 0.5)))
    with torch.no_grad():
        made.linear.bias[2:] = torch.tensor([100.0, -100.0])
    torch.testing.assert_close(made(INPUTS).log_std, torch.tensor([[0.5, -1.0]]).expand(5, 2))


def test_the_default_is_the_policy_that_there_was() -> None:
    made, plain = policy(NormalFactory()), NormalPolicy(CONTINUOUS, ENCODER, tanh_mean=False)
    assert type(made) is NormalPolicy and type(policy_of(CONTINUOUS, ENCODER)) is NormalPolicy
    assert made.state_dict().keys() == plain.state_dict().keys() and made.tanh_mean == plain.tanh_mean is False
    assert torch.equal(made.log_std, plain.log_std) and made.log_std_range == plain.log_std_range
    general = DistributionPolicy(CONTINUOUS, ENCODER, NormalFactory(tanh_mean=True))
    general.load_state_dict(made.state_dict())
    tanh = policy(NormalFactory(tanh_mean=True))
    assert torch.equal(general(INPUTS).mean, tanh(INPUTS).mean)
    assert torch.equal(general(INPUTS).mean, made(INPUTS).mean.tanh())


def test_a_beta_policy_has_one_peak() -> None:
    found = policy(BetaFactory())(INPUTS)
    assert isinstance(found, Beta) and found.alpha.shape == found.beta.shape == (5, 2)
    assert (found.alpha > 1).all() and (found.beta > 1).all()
    action, _ = found.sample(50)
    assert action.abs().max() <= 1 and found.mode().abs().max() < 1


@pytest.mark.parametrize(
    ("factory", "kind", "learned"),
    [
        (NormalFactory(), Normal, (3,)),
        (NormalFactory(std="spherical"), Normal, (1,)),
        (NormalFactory(std="fixed", initial_std=0.3), Normal, None),
        (SquashedNormalFactory(), SquashedNormal, None),
        (BetaFactory(), Beta, None),
    ],
)
def test_quantities_next_to_choices_have_it_too(factory: Any, kind: Any, learned: Any) -> None:
    made = policy(factory, MIXED)
    found = made(INPUTS)
    assert isinstance(made, JointPolicy) and isinstance(found, Joint)
    assert [type(part) for part in found.parts] == [kind, Categorical, kind]
    own = dict(made.named_parameters()).get("log_std")
    assert (None if own is None else own.shape) == learned
    action, log_prob = found.sample()
    assert action.shape == (5, 4)
    torch.testing.assert_close(found.log_prob(action), log_prob)
    column = found.parameters()
    assert column.shape == (5, 4 + 4 + 2)
    torch.testing.assert_close(found.with_parameters(column).kl(found), torch.zeros(5), atol=1e-6, rtol=0)
    if own is not None and learned == (3,):  # each part has its own dimensions
        with torch.no_grad():
            own.copy_(torch.tensor([-1.0, -2.0, -3.0]))
        first, _, last = made(INPUTS).parts
        assert first.log_std.tolist() == [-1.0, -2.0] and last.log_std.tolist() == [-3.0]


def test_choices_have_no_such_distribution() -> None:
    assert isinstance(policy(BetaFactory(), spec(Discrete(4))), CategoricalPolicy)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NormalFactory(std="diagonal"), r"NormalFactory.std is 'diagonal'; it must be .*parameter"),
        (lambda: NormalFactory(initial_std=0.0), r"initial_std is 0.0; it must be"),
        (lambda: NormalFactory(initial_std=100.0), r"logarithm 4.61 is outside log_std_range, -20 to 2"),
        (lambda: SquashedNormalFactory(log_std_range=(1.0,)), r"log_std_range is \(1.0,\); it must be two numbers"),
        (lambda: NormalFactory(tanh_mean=1), "NormalFactory.tanh_mean is 1"),
        (lambda: PPOConfig(distribution_factory="gaussian"), "distribution_factory is 'gaussian'.*normal"),
    ],
)
def test_wrong_settings_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "given", [BetaFactory(), NormalFactory(std="fixed", initial_std=0.3), SquashedNormalFactory(log_std_range=(-5, 1))]
)
def test_factories_are_written_and_read(given: DistributionFactory) -> None:
    config = PPOConfig(distribution_factory=given)
    assert PPOConfig.deserialize(config.serialize()).distribution_factory == given
    assert type(PPOConfig(distribution_factory=given.get_type()).distribution_factory) is type(given)


def test_ppo_acts_and_explores_by_it() -> None:
    algorithm = build_algorithm(
        PPOConfig(distribution_factory=BetaFactory(), actor_encoder_factory=ENCODER), (3,), Continuous(2)
    )
    x = INPUTS.observation.numpy()
    found = algorithm.nets.actor(INPUTS)
    torch.testing.assert_close(torch.as_tensor(algorithm.predict(x)), found.mode())
    assert abs(algorithm.sample_action(x)).max() <= 1
