"""Configurations check themselves, say what is wrong, and survive JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import birl
from birl import algos, ope
from birl.cli.train import configure
from birl.config import AlgorithmConfig, config, field, hyperparameters
from birl.errors import BirlError, ConfigError
from birl.models import (
    EncoderFactory,
    GRUEncoderFactory,
    PositionEncodingType,
    QFunctionFactory,
    QRQFunctionFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
)
from birl.optimizers import AdamFactory, AdamWFactory, OptimizerFactory, WarmupSchedulerFactory
from birl.preprocessing import MinMaxActionScaler, StandardObservationScaler

NAMED = [(module, name) for module in (algos, ope) for name in module.__all__ if name.endswith("Config")]
CONFIGS = sorted((getattr(module, name) for module, name in NAMED), key=lambda c: c.__name__)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.__name__)
def test_every_field_is_described_and_its_default_is_allowed(config):
    for name, default, allowed, meaning in config.documentation():
        assert hyperparameters(config)[name].allowed.accepts(default), name
        assert allowed
        assert meaning.endswith(".")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.__name__)
def test_json_round_trip(config):
    original = config(gamma=0.5, observation_scaler=StandardObservationScaler(mean=[1.0, 2.0], std=[3.0, 4.0]))
    text = json.dumps(original.serialize())
    again = AlgorithmConfig.deserialize(json.loads(text))
    assert type(again) is config
    assert json.dumps(again.serialize()) == text
    assert again.gamma == 0.5


def test_nested_factories_come_back_as_what_they_were():
    config = algos.SACConfig(
        actor_encoder_factory=GRUEncoderFactory(hidden_size=7),
        critic_encoder_factory=VectorEncoderFactory(hidden_units=[3, 4], activation="tanh"),
        q_func_factory=QRQFunctionFactory(n_quantiles=5),
        critic_optim_factory=AdamFactory(clip_grad_norm=0.1, lr_scheduler_factory=WarmupSchedulerFactory(9)),
        action_scaler=MinMaxActionScaler(minimum=[-2.0], maximum=[2.0]),
    )
    again = AlgorithmConfig.deserialize(json.loads(json.dumps(config.serialize())))
    for name in ("actor_encoder_factory", "critic_encoder_factory", "q_func_factory", "critic_optim_factory"):
        assert getattr(again, name) == getattr(config, name), name
    assert again.action_scaler == config.action_scaler


def test_files_that_do_not_name_the_kind_of_a_factory_are_read():
    data = algos.DQNConfig().serialize()
    for value in data["params"].values():
        if isinstance(value, dict):
            value.pop("kind")
    assert AlgorithmConfig.deserialize(data) == algos.DQNConfig()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"learning_rat": 1.0}, ["learning_rat", "did you mean 'learning_rate'", "gamma"]),
        ({"gamma": 1.5}, ["gamma", "1.5", ">= 0 and <= 1"]),
        ({"gamma": float("nan")}, ["gamma", "nan"]),
        ({"batch_size": 0}, ["batch_size", "0", "an int >= 1"]),
        ({"batch_size": 32.0}, ["batch_size", "32.0", "an int"]),
        ({"batch_size": True}, ["batch_size", "True"]),
        ({"n_critics": -1}, ["n_critics", "-1"]),
        ({"learning_rate": -1e-3}, ["learning_rate", "-0.001", ">= 0"]),
        ({"encoder_factory": "vectr"}, ["DQNConfig.encoder_factory", "'vectr'", "did you mean 'vector'", "pixel"]),
        ({"encoder_factory": 64}, ["encoder_factory is 64", "EncoderFactory"]),
        ({"encoder_factory": [64, 0]}, ["encoder_factory is [64, 0]", "ints >= 1"]),
        ({"q_func_factory": None}, ["q_func_factory", "None"]),
        ({"q_func_factory": QRQFunctionFactory}, ["q_func_factory", "give an object, QRQFunctionFactory(…)"]),
        ({"q_func_factory": {"type": "qr", "params": {"n_quantile": 3}}}, ["did you mean 'n_quantiles'"]),
        ({"optim_factory": "torch"}, ["DQNConfig.optim_factory is 'torch'", "optim_cls"]),
        ({"lr": 3}, ["'lr'", "here that is 'learning_rate'"]),
        ({"target_update_interval": 0}, ["target_update_interval"]),
    ],
)
def test_bad_fields_are_refused_with_value_range_and_remedy(fields, words):
    with pytest.raises(ConfigError) as error:
        algos.DQNConfig(**fields)
    for word in words:
        assert word in str(error.value)


def test_a_name_that_is_near_is_suggested() -> None:
    with pytest.raises(ConfigError, match="'lr'; here that is 'actor_learning_rate' and 'critic_learning_rate'."):
        algos.IQLConfig(lr=3)
    with pytest.raises(ConfigError, match="has no field 'hidden_unit'; did you mean 'hidden_units'?"):
        VectorEncoderFactory(hidden_unit=[3])
    with pytest.raises(ConfigError, match="StandardObservationScaler has no field 'means'; did you mean 'mean'?"):
        StandardObservationScaler(means=[0.0])


def test_factories_may_be_given_in_short() -> None:
    """As on the command line; files and checks see the objects."""
    short = {
        "actor_encoder_factory": [64, 32],
        "critic_encoder_factory": "simba",
        "q_func_factory": "qr",
        "actor_optim_factory": "adam_w",
        "critic_optim_factory": {"type": "adam", "params": {"eps": 1e-3}},
        "action_scaler": "min_max",
    }
    long = {
        "actor_encoder_factory": VectorEncoderFactory([64, 32]),
        "critic_encoder_factory": SimBaEncoderFactory(),
        "q_func_factory": QRQFunctionFactory(),
        "actor_optim_factory": AdamWFactory(),
        "critic_optim_factory": AdamFactory(eps=1e-3),
        "action_scaler": MinMaxActionScaler(),
    }
    assert algos.SACConfig(**short).serialize() == algos.SACConfig(**long).serialize()
    algorithm = algos.SACConfig().create()
    algorithm.replace_config(**short)
    assert algorithm.config == algos.SACConfig(**long)
    words = [f"{name}={json.dumps(value) if not isinstance(value, str) else value}" for name, value in short.items()]
    assert configure(algos.SAC, words).serialize() == algos.SACConfig(**long).serialize()


def test_only_one_kind_of_target() -> None:
    with pytest.raises(ConfigError, match="soft_q_backup and max_q_backup exclude each other"):
        birl.algos.CQLConfig(soft_q_backup=True, max_q_backup=True)
    for name in ("soft_q_backup", "max_q_backup"):
        assert birl.algos.CalQLConfig(**{name: True}).mode_q_backup  # it need not be set to False


def test_numbers_of_numpy_become_plain_ones():
    config = algos.DQNConfig(
        batch_size=np.int64(256),
        gamma=np.float32(0.5),
        encoder_factory=VectorEncoderFactory(hidden_units=[np.int64(8)], dropout_rate=np.float32(0.5)),
        q_func_factory=QRQFunctionFactory(n_quantiles=np.int64(5)),
        optim_factory=AdamFactory(lr_scheduler_factory=WarmupSchedulerFactory(np.int64(9))),
    )
    assert type(config.batch_size) is int and type(config.gamma) is float
    assert type(config.encoder_factory.hidden_units[0]) is type(config.q_func_factory.n_quantiles) is int
    assert AlgorithmConfig.deserialize(json.loads(json.dumps(config.serialize()))) == config
    assert GRUEncoderFactory(hidden_size=np.int64(7)).hidden_size == 7
    with pytest.raises(ConfigError, match="batch_size is 0"):
        algos.DQNConfig(batch_size=np.int64(0))


@config
class OwnConfig(algos.SACConfig):
    """As a user might derive one."""

    tau: float = 0.5
    actor_optim_factory: OptimizerFactory = field(lambda: AdamFactory(eps=1e-3))
    share: float | None = field(None, "Share of something.", above=0, below=1)
    kind: PositionEncodingType = field(PositionEncodingType.SIMPLE, "Kind of something.")
    expectile: float = field(0.9, like=algos.IQLConfig)
    notes: Sequence[str] = ()
    plain: list[int] = dataclasses.field(default_factory=lambda: [1])
    count: int = 1
    either: int | str | None = None
    sizes: tuple[int, ...] = (1,)
    head: QFunctionFactory = dataclasses.field(default_factory=QRQFunctionFactory)
    anything: Any = None
    constant: ClassVar[int] = 3


def test_a_redefined_field_keeps_meaning_and_limits():
    own, base = hyperparameters(OwnConfig), hyperparameters(algos.SACConfig)
    assert (own["tau"], own["actor_optim_factory"]) == (base["tau"], base["actor_optim_factory"])
    assert (OwnConfig().tau, OwnConfig().actor_optim_factory, OwnConfig().plain) == (0.5, AdamFactory(eps=1e-3), [1])
    assert own["expectile"] == hyperparameters(algos.IQLConfig)["expectile"] and OwnConfig().expectile == 0.9
    with pytest.raises(ConfigError, match=r"^OwnConfig.tau is 2; it must be a float >= 0 and <= 1. \(Share of"):
        OwnConfig(tau=2)
    with pytest.raises(ConfigError, match=r"^OwnConfig.expectile is 1; it must be a float > 0 and < 1. \(Expectile"):
        OwnConfig(expectile=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"notes": 5}, "^OwnConfig.notes is 5; it must be a Sequence$"),
        ({"plain": "1"}, "^OwnConfig.plain is '1'; it must be a list$"),
        ({"count": 2.5}, "^OwnConfig.count is 2.5; it must be an int$"),
        ({"count": float("nan")}, "OwnConfig.count"),
        ({"either": 2.5}, r"^OwnConfig.either is 2.5; it must be an int \| str or None$"),
        ({"sizes": 3}, "OwnConfig.sizes is 3; it must be a tuple"),
        ({"head": "qrr"}, "OwnConfig.head is 'qrr': .*did you mean 'qr'"),
    ],
)
def test_a_users_fields_are_checked_without_a_meaning_too(fields, message):
    with pytest.raises(ConfigError, match=message):
        OwnConfig(**fields)


def test_a_users_field_may_hold_what_its_type_allows():
    own = OwnConfig(count=np.int64(3), either="a", sizes=[1, 2], anything=object, head="qr", notes=["x"])
    assert (own.count, own.either, own.sizes, own.notes, own.head) == (3, "a", (1, 2), ["x"], QRQFunctionFactory())
    assert OwnConfig(either=None).either is None and OwnConfig.constant == 3


def test_a_users_own_checks_need_not_call_ours():
    @config
    class WithChecks(algos.SACConfig):
        def __post_init__(self):
            assert isinstance(self.q_func_factory, QRQFunctionFactory)  # not its short form

    assert WithChecks(q_func_factory="qr").tau == 0.005
    with pytest.raises(ConfigError, match="tau is 2"):
        WithChecks(q_func_factory="qr", tau=2)


def test_a_forgotten_decorator_is_noticed():
    class Forgotten(algos.SACConfig):
        new: int = 3

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Plain(algos.SACConfig):
        tau: float = 3

    for made in (Forgotten, Plain):
        with pytest.raises(ConfigError, match=f"{made.__name__} is not decorated, .* @birl.algorithm.config above"):
            made()


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        ("int", "3", "^the default of XConfig.new is '3'; it must be an int$"),
        ("float", None, "^the default of XConfig.new is None; it must be a float$"),
        ("float", field(2.0, "A share.", high=1), "^the default of XConfig.new is 2.0; it must be a float <= 1$"),
        ("list", dataclasses.field(default_factory=dict), "^the default of XConfig.new is {}; it must be a list$"),
    ],
)
def test_an_impossible_default_is_refused_when_the_class_is_defined(annotation, default, message):
    with pytest.raises(ConfigError, match=message):
        config(type("XConfig", (AlgorithmConfig,), {"__annotations__": {"new": annotation}, "new": default}))


def test_a_field_may_not_hide_a_part_of_every_configuration():
    with pytest.raises(ConfigError, match="XConfig.copy hides an attribute of every configuration"):
        config(type("XConfig", (AlgorithmConfig,), {"__annotations__": {"copy": "int"}, "copy": 3}))


def test_choices_of_a_users_field():
    assert OwnConfig(kind="global").kind is PositionEncodingType.GLOBAL
    rows = {name: row for name, *row in OwnConfig.documentation()}
    assert rows["share"] == [None, "a float > 0 and < 1 or None", "Share of something."]
    assert rows["plain"] == [[1], "a list", ""]
    with pytest.raises(ConfigError, match="kind is 'curved'; it must be one of 'simple', 'global'"):
        OwnConfig(kind="curved")


@pytest.mark.parametrize("given", [field(1.0), field(1.0, low=0), field(1.0, like=algos.SACConfig)])
def test_a_field_without_meaning_is_refused_when_the_class_is_defined(given):
    with pytest.raises(ConfigError, match=r"^XConfig.new has no meaning"):
        config(type("XConfig", (AlgorithmConfig,), {"__annotations__": {"new": "float"}, "new": given}))


def test_positional_arguments_are_refused():
    with pytest.raises(ConfigError, match="keyword"):
        algos.DQNConfig(32)


def test_choices_are_listed():
    with pytest.raises(ConfigError, match="'deterministic', 'stochastic'"):
        algos.BCConfig(policy_type="greedy")


def test_a_config_is_frozen():
    with pytest.raises(ConfigError, match=r"gamma cannot be set. .*dataclasses.replace\(config, gamma=0.1\).*algo"):
        algos.DQNConfig().gamma = 0.1
    with pytest.raises(ConfigError, match="gama cannot be set; did you mean 'gamma'?"):
        algos.DQNConfig().gama = 0.1
    assert dataclasses.replace(algos.DQNConfig(), gamma=0.1).gamma == 0.1


def test_an_algorithm_leaves_the_users_scaler_alone():
    scaler = MinMaxActionScaler()
    config = algos.SACConfig(action_scaler=scaler)
    sac = config.create()
    sac.action_scaler._set([-1.0], [1.0])
    assert not scaler.built
    assert sac.action_scaler.built


def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(ConfigError, match="DiscreteCQL"):
        AlgorithmConfig.deserialize({"type": "Nonsense", "params": {}})


def test_all_public_names_exist_and_are_sorted():
    for module in (birl, algos):
        for name in module.__all__:
            assert getattr(module, name) is not None
    assert issubclass(ConfigError, BirlError)


def test_configurations_compare_by_class_and_fields() -> None:
    config = algos.SACConfig(tau=0.1)
    assert config == algos.SACConfig(tau=0.1) and hash(config) == hash(algos.SACConfig(tau=0.1))
    assert config != algos.SACConfig() and config != algos.TD3Config(tau=0.1) and config != "SAC"
    assert repr(config).startswith("SACConfig(batch_size=256, ") and ", tau=0.1," in repr(config)


class Undeclared(EncoderFactory, type="undeclared"):
    """A factory whose argument no file contains."""

    def __init__(self, act: str = "relu") -> None:
        self.act = act


class Declared(EncoderFactory, type="declared_params"):
    """A factory that says which arguments recreate it."""

    def __init__(self, act: str = "relu") -> None:
        self.act = act

    def get_params(self) -> dict[str, Any]:
        return {"act": self.act}


class Wider(VectorEncoderFactory, type="wider"):
    """A factory that derives from a dataclass, but has other arguments."""

    def __init__(self, width: int = 3) -> None:
        super().__init__([width])


class Fixed(VectorEncoderFactory, type="fixed_width"):
    """A factory that derives from a dataclass, but has no arguments."""

    def __init__(self) -> None:
        super().__init__([7])


class Forwarding(VectorEncoderFactory, type="forwarding"):
    """A factory with the arguments of its base class."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Undeclared("tanh"), "Undeclared.__init__ takes act, .*dataclass.*get_params"),
        (Wider(5), "Wider.__init__ takes width, "),
        (Fixed(), "Fixed.__init__ does not take hidden_units, "),
    ],
)
def test_arguments_that_files_would_lose_are_refused_when_a_run_starts(factory: Any, message: str) -> None:
    algorithm = algos.DQNConfig(encoder_factory=factory).create()
    dataset = birl.testing.random_dataset(action_size=2, discrete_action=True)
    with pytest.raises(ConfigError, match=message):
        algorithm.fit(dataset, n_steps=1)
    assert algorithm.grad_step == 0


def test_arguments_of_own_factories_are_loaded() -> None:
    for factory in (Declared("tanh"), Forwarding(hidden_units=[5])):
        data = algos.DQNConfig(encoder_factory=factory).serialize()
        loaded: Any = algos.DQNConfig.deserialize(json.loads(json.dumps(data))).encoder_factory
        assert vars(loaded) == vars(factory)
