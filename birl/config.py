"""Configurations of algorithms: frozen dataclasses that validate their fields.

A field declares its meaning and limits with `field`. Checks, error messages and the tables of the documentation use
them. Base classes such as `ActorCriticConfig` declare the fields that several algorithms share.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass
from enum import Enum
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from birl.checks import Allowed, Limits, check, named_arguments
from birl.errors import ConfigError, argument_here
from birl.files.serializable import Serializable, to_python
from birl.habits import explain_attributes, value_hint
from birl.models import DefaultEncoderFactory, EncoderFactory, MeanQFunctionFactory, QFunctionFactory
from birl.models.loss_addon import LossAddOn
from birl.optimizers import AdamFactory, OptimizerFactory
from birl.preprocessing import ActionScaler, ObservationScaler, RewardScaler

__all__ = [
    "ActorCriticConfig",
    "AlgorithmConfig",
    "Hyperparameter",
    "ImitatorConfig",
    "NetworkConfig",
    "PolicyConfig",
    "ResetConfig",
    "SharedFields",
    "TemperatureConfig",
    "ValueConfig",
    "config",
    "field",
    "hyperparameters",
    "rate",
]

T = TypeVar("T")
Annotation: TypeAlias = Hashable  # a type, or its text


@dataclass(frozen=True)
class Hyperparameter:
    """The meaning of a config field (one sentence), its allowed values, and the type of the items of a tuple."""

    meaning: str
    allowed: Allowed
    items: type[Serializable] | None = None


@overload
def field(
    default: Callable[[], T], meaning: str = ..., *, like: type[Any] | None = ..., **limits: Unpack[Limits]
) -> T: ...


@overload
def field(default: T, meaning: str = ..., *, like: type[Any] | None = ..., **limits: Unpack[Limits]) -> T: ...


def field(default: object, meaning: str = "", *, like: type[Any] | None = None, **limits: Unpack[Limits]) -> object:
    """Declare a config field with its meaning and limits.

    For example ``tau: float = field(0.005, "Share of the online network.", low=0, high=1)``. To change only the default
    of an inherited field, write ``tau: float = 0.01``: it inherits its meaning and limits.

    Args:
        default: the default, or a function that makes a default for each config.
        meaning: one sentence. If empty, the field inherits its meaning and limits.
        like: a config class, not a base class, whose field of the same name gives the meaning and limits.
        **limits: limits of the values of the declared type; see `birl.checks.Limits`.
    """
    metadata: dict[str, Any] = {"meaning": meaning, "like": like, "limits": limits}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rate(default: float, of: str) -> float:
    """Declare a learning rate of the networks that ``of`` names."""
    return field(default, f"Learning rate of {of}. 0 leaves it unchanged.", low=0)


def _describe_fields(cls: type[Any]) -> None:
    """Attach a `Hyperparameter` to each field that a class defines. Users may omit the meanings in their classes."""
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        value = vars(cls).get(name, MISSING)
        item: dataclasses.Field[Any] = (
            value if isinstance(value, dataclasses.Field) else dataclasses.field(default=value)
        )
        metadata: Mapping[str, Any] = item.metadata
        found: Hyperparameter | None = None
        if metadata.get("meaning"):
            found = Hyperparameter(
                metadata["meaning"], _allowed(cls, annotation, metadata["limits"]), _item_type(cls, annotation)
            )
        else:
            for base in (metadata["like"],) if metadata.get("like") else cls.__mro__[1:]:
                found = found or hyperparameters(base).get(name)
            if "limits" in metadata and (found is None or metadata["limits"]):
                raise ConfigError(f"{cls.__name__}.{name} has no meaning: give field(...) a sentence as well")
        found = found or _undocumented(cls, annotation)
        if found is not None:
            if hasattr(Serializable, name) or name in _RESERVED:
                raise ConfigError(
                    f"{cls.__name__}.{name} hides an attribute of every configuration: give it another name"
                )
            _check_default(f"{cls.__name__}.{name}", item, found)
            kind = "default" if item.default_factory is MISSING else "default_factory"
            setattr(cls, name, dataclasses.field(**{kind: getattr(item, kind)}, metadata={"hyperparameter": found}))


def _undocumented(cls: type[Any], annotation: Annotation) -> Hyperparameter | None:
    """Describe a field without a meaning: it takes its type if JSON can hold it, else anything. No field: ``None``."""
    try:
        allowed = _allowed(cls, annotation, {})
    except NameError:  # a type that is defined in the scope of the class, but not in its module
        allowed = _ANYTHING
    kind: Any = allowed.kind
    if kind is ClassVar:
        return None
    checked = isinstance(kind, UnionType) or (isinstance(kind, type) and issubclass(kind, _CHECKED))
    return Hyperparameter("", allowed if checked else _ANYTHING)


SCALERS: Final = ("observation_scaler", "action_scaler", "reward_scaler")
"""Fields of every configuration whose values have a state."""
_ANYTHING: Final = Allowed(object, optional=True)
_RESERVED: Final = ("algorithm", "copy", "create", "documentation", "optimizer", "set_algorithm")
_CHECKED: Final = (bool, int, float, str, Sequence, Mapping, Enum, Serializable)


def _check_default(name: str, item: dataclasses.Field[Any], row: Hyperparameter) -> None:
    """Check the default of a field when its class is defined."""
    if item.default is not MISSING:
        row.allowed.check(f"the default of {name}", item.default)
    elif item.default_factory is not MISSING:
        row.allowed.check(f"the default of {name}", item.default_factory())


@functools.cache
def _resolve_type(annotation: Annotation, module: str) -> object:
    """Resolve an annotation of a module."""
    return get_type_hints(type("Holder", (), {"__annotations__": {"it": annotation}, "__module__": module}))["it"]


def _allowed(cls: type[Any], annotation: Annotation, limits: Limits) -> Allowed:
    """Return the allowed values of a field: those of its declared type within the limits."""
    declared = _resolve_type(annotation, cls.__module__)
    union: tuple[Any, ...] = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    kinds = [get_origin(each) or each for each in union if each is not NoneType]
    kind = kinds[0] if limits or not all(isinstance(each, type) for each in kinds) else functools.reduce(or_, kinds)
    return Allowed(kind, optional=NoneType in union, **limits)


def _item_type(cls: type[Any], annotation: Annotation) -> type[Serializable] | None:
    """Return the type of the items of a tuple, if it is `Serializable`."""
    declared = _resolve_type(annotation, cls.__module__)
    for each in (declared, *get_args(declared)):
        inner = get_args(each)[:1] if get_origin(each) is tuple else ()
        if inner and isinstance(inner[0], type) and issubclass(inner[0], Serializable):
            return inner[0]
    return None


def hyperparameters(config_class: type[Any]) -> dict[str, Hyperparameter]:
    """Return the descriptions of the fields of a configuration, by name."""
    items: Mapping[str, dataclasses.Field[Any]] = getattr(config_class, "__dataclass_fields__", {})
    found = {name: item.metadata.get("hyperparameter") for name, item in items.items()}
    return {name: row for name, row in found.items() if row is not None}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a frozen keyword-only dataclass whose unknown arguments get a helpful `ConfigError`."""
    _describe_fields(cls)
    cls = dataclass(frozen=True, kw_only=True, repr=False, eq=False)(
        cls
    )  # generated __repr__ and __eq__ would slow down the import
    init: Callable[..., None] = cls.__init__
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(init)
    def checked_init(self: object, *args: object, **kwargs: object) -> None:
        if args:
            hint = "".join(dict.fromkeys(map(value_hint, args)))
            raise ConfigError(f"{cls.__name__} takes keyword arguments only{hint}. Fields: {', '.join(names)}")
        rows = hyperparameters(cls)
        init(self, **{name: _convert(f"{cls.__name__}.{name}", rows, value) for name, value in kwargs.items()})

    cls.__init__ = checked_init  # type: ignore[method-assign]
    cls.__setattr__ = _refuse_assignment  # type: ignore[assignment]
    return cls


def _convert(name: str, rows: Mapping[str, Hyperparameter], value: object) -> object:
    """Check the value of a field. Convert text to members of enumerations and short forms to factories."""
    row = rows[name.rpartition(".")[2]]
    kind, value = row.allowed.kind, to_python(value)
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, str):
        value = _enum_member(name, kind, value)
    elif isinstance(kind, type) and issubclass(kind, Serializable):
        try:
            value = kind.from_shorthand(value)
        except ConfigError as error:
            raise ConfigError(f"{name} is {value!r:.80}: {error}") from error
    elif kind is tuple and isinstance(value, list):  # as in JSON
        value = tuple(value)
    if row.items is not None and isinstance(value, tuple):
        value = tuple(check(f"an item of {name}", row.items.from_shorthand(item), row.items) for item in value)
    hint = _schedule_hint(name.rpartition(".")[2], rows) if callable(value) and kind in (int, float) else ""
    if kind is tuple and isinstance(value, str):
        words, last = re.findall(r"[\w.-]+", value), name.rpartition(".")[2]
        hint = f": {tuple(words)!r:.200}, or on the command line --set '{last}={json.dumps(words):.200}'"
    return row.allowed.check(name, value, f"{hint}. ({row.meaning})" if row.meaning else hint)


def _schedule_hint(name: str, rows: Mapping[str, Hyperparameter]) -> str:
    """Return where the schedule of a number belongs, for users who give a function."""
    linear = "birl.optimizers.LinearSchedulerFactory(duration)"
    if f"{name}_schedule" in rows:
        return f"; a schedule is {name}_schedule={linear}"
    optimizer = name.replace("learning_rate", "optim_factory")
    if optimizer == name or optimizer not in rows:
        return "; birl has no schedule of it, and retune(…) changes it between runs"
    adam = f"birl.optimizers.AdamFactory(lr_scheduler_factory={linear})"
    return f"; a schedule belongs to the optimiser: {optimizer}={adam}"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    """Raise an error that says how to change a field."""
    fields = hyperparameters(type(self))
    hint = "" if name in fields else argument_here(name, fields)
    raise ConfigError(
        f"{type(self).__name__} is immutable, and {name} cannot be set{hint or '.'} Make a changed copy with "
        f"dataclasses.replace(config, {name}={value!r:.40}), or call algo.replace_config({name}={value!r:.40}) before "
        f"the algorithm has networks, algo.retune({name}={value!r:.40}) after"
    )


@explain_attributes("config")
@config
class AlgorithmConfig(Serializable):
    """Fields that every algorithm has.

    Encoders, Q-functions, optimisers and scalers have short forms, as on the command line: ``"qr"`` for a
    `QRQFunctionFactory` with its defaults, ``[64, 64]`` for an encoder with two dense layers of this size.

    Raises:
        ConfigError: if a field is unknown, of the wrong type or out of range.
    """

    algorithm: ClassVar[type[Any]]

    batch_size: int = field(256, "Number of transitions (or sequences) in a minibatch.", low=1)
    gamma: float = field(0.99, "Discount factor of one environment step.", low=0, high=1)
    observation_keys: tuple[str, ...] | None = field(
        None,
        "Names of the parts of dict and tuple observations that networks read, such as `('image', 'robot.joints')`; "
        "all if `None`.",
    )
    observation_scaler: ObservationScaler | None = field(
        None,
        "Scaling of observations. Networks that are built for an environment with images of bytes get a "
        "`PixelObservationScaler` if it is `None`.",
    )
    action_scaler: ActionScaler | None = field(
        None,
        "Scaling of continuous actions to [-1, 1]. Networks that are built for an environment with other bounds get a "
        "`MinMaxActionScaler` if it is `None`.",
    )
    reward_scaler: RewardScaler | None = field(None, "Scaling of rewards.")
    compile_graph: bool | str = field(
        "auto",
        "Whether to compile the whole update into one program, which takes up to a minute; `'auto'` leaves it out of "
        "short runs.",
        choices=("auto",),
    )
    loss_addons: tuple[LossAddOn, ...] | None = field(
        None, "Terms that are added to losses, such as `(birl.algorithm.RewardPredictor(),)`."
    )
    sequence_length: int = field(20, "Number of steps in a training sequence (recurrent encoders only).", low=1)
    burn_in: int = field(0, "Number of leading steps that only warm up the recurrent state.", low=0)

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse classes without the decorator `config`."""
        if not hasattr(vars(cls).get("__init__"), "__wrapped__"):
            raise ConfigError(
                f"{cls.__name__} is not decorated, so its fields are not checked: write @birl.algorithm.config "
                "above the class"
            )
        return super().__new__(cls, **kwargs)

    def __post_init__(self) -> None:
        """Check several fields together, in subclasses. Each field has been checked already."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__qualname__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_params() == other.get_params()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(tuple(self.get_params().values()))

    @classmethod
    def set_algorithm(cls, algorithm: type[Any]) -> None:
        """Register this as the configuration of an algorithm; files then refer to it by the name of the algorithm."""
        other: Any = vars(cls).get("algorithm", algorithm)  # running a notebook cell again defines the class again
        if (other.__module__, other.__qualname__) != (algorithm.__module__, algorithm.__qualname__):
            name = algorithm.__name__
            raise ConfigError(
                f"{cls.__name__} is the configuration of {other.__name__}; give {name} its own: class "
                f"{name}Config({cls.__name__})"
            )
        cls.algorithm = algorithm
        cls._known[cls.get_type()] = cls

    @classmethod
    def get_type(cls) -> str:
        """Return the class name without ``Config``; empty for base classes of shared fields."""
        return cls.__name__.removesuffix("Config") if hasattr(cls, "algorithm") else ""

    @named_arguments
    def create(self, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
        """Create the algorithm.

        Args:
            device: ``False`` or ``None`` for the CPU, ``True`` for the first GPU, an integer for that GPU, or a
                torch device string such as ``"cuda"`` or ``"cpu:0"``.
            enable_ddp: make ``enable_ddp=True`` the default of `fit`, as in newer versions of d3rlpy.
        """
        return self.algorithm(self, device, enable_ddp)

    def optimizer(self, learning_rate: str, optim_factory: str) -> tuple[float, OptimizerFactory]:
        """Return the learning rate and the factory of an optimiser, from the fields of these names.

        Override this if other fields complete the factory, for example with a schedule.
        """
        return getattr(self, learning_rate), getattr(self, optim_factory)

    def copy(self) -> Self:
        """Return a deep copy, so that an algorithm that fits its scalers leaves the original unchanged."""
        return deepcopy(self)

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Build a configuration from its JSON form. It may omit the kinds of factories, as in d3rlpy."""
        if isinstance(data, dict) and isinstance(data.get("params"), dict):
            rows = hyperparameters(cls._known.get(data.get("type", ""), cls))
            params = {name: _add_kind(rows.get(name), value) for name, value in data["params"].items()}
            data = {"type": data.get("type"), "params": params}
        return super().deserialize(data)

    @classmethod
    def documentation(cls) -> list[tuple[str, Any, str, str]]:
        """Return a row for each field: name, default, allowed values, meaning."""
        rows, described = [], hyperparameters(cls)
        for item in dataclasses.fields(cls):
            value = item.default if item.default_factory is MISSING else item.default_factory()
            row = described.get(item.name)
            rows.append((item.name, value, str(row.allowed if row else item.type), row.meaning if row else ""))
        return rows


def _add_kind(row: Hyperparameter | None, value: object) -> object:
    """Add the kind of the field's declared type to the JSON form of a factory."""
    if not isinstance(value, dict) or "type" not in value or "kind" in value:
        return value
    if row is None or not issubclass(row.allowed.kind, Serializable):
        return value
    return {"kind": row.allowed.kind.__name__, **value}


def _enum_member(name: str, kind: type[Enum], value: str) -> Enum:
    """Return the member of an enumeration with this value."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(item.value) for item in kind)
        raise ConfigError(f"{name} is {value!r}; it must be one of {known}") from None


@config
class NetworkConfig(AlgorithmConfig):
    """Fields of algorithms with one network and one optimiser."""

    learning_rate: float = rate(1e-3, "the network")
    optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the network.")
    encoder_factory: EncoderFactory = field(DefaultEncoderFactory, "Encoder of the network.")


@config
class ResetConfig(AlgorithmConfig):
    """Fields of value-based algorithms, whose networks can be reset at intervals."""

    reset_interval: int | None = field(
        None,
        "Number of updates between resets, which reinitialise heads, targets and optimisers, and encoders in part; "
        "never if `None`.",
        low=1,
    )
    reset_share: float | None = field(
        None,
        "Share of the old parameters in a reset of encoders, the rest is new parameters; 0.5 if `None`.",
        low=0,
        high=1,
    )


@config
class ValueConfig(ResetConfig, NetworkConfig):
    """Fields of algorithms that learn Q-functions but no policy."""

    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, "Form of the Q-function: mean, QR, IQN or C51.")
    n_critics: int = field(1, "Number of Q-functions in the ensemble.", low=1)


@config
class PolicyConfig(AlgorithmConfig):
    """Fields of algorithms with a policy and a value function, each with its own optimiser."""

    actor_learning_rate: float = rate(3e-4, "the policy")
    critic_learning_rate: float = rate(3e-4, "the Q-functions (and the state-value function)")
    actor_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the policy.")
    critic_optim_factory: OptimizerFactory = field(
        AdamFactory, "Optimiser of the Q-functions (and the state-value function)."
    )
    actor_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, "Encoder of the policy.")
    critic_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, "Encoder of the Q-functions.")


@config
class ActorCriticConfig(ResetConfig, PolicyConfig):
    """Fields of algorithms with a policy, Q-functions and target networks that follow slowly."""

    q_func_factory: QFunctionFactory = field(MeanQFunctionFactory, like=ValueConfig)
    n_critics: int = field(2, like=ValueConfig)
    tau: float = field(0.005, "Share of the online network in each soft target update.", low=0, high=1)


@config
class TemperatureConfig(AlgorithmConfig):
    """Fields of algorithms that learn the temperature of an entropy bonus."""

    temp_learning_rate: float = rate(3e-4, "the temperature")
    temp_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the temperature.")
    initial_temperature: float = field(1.0, "Temperature at the start.", above=0)
    log_temperature_loss: bool = field(
        False,
        "Whether the loss is linear in the logarithm of the temperature, so that steps do not shrink with it.",
    )
    target_entropy: float | None = field(
        None, "Target entropy of the policy, in nats; the value of the paper if `None`."
    )


@config
class ImitatorConfig(AlgorithmConfig):
    """Fields of algorithms whose policy stays near a learned imitation of the logged actions."""

    imitator_learning_rate: float = rate(1e-3, "the imitator of the logged actions")
    imitator_optim_factory: OptimizerFactory = field(AdamFactory, "Optimiser of the imitator of the logged actions.")
    imitator_encoder_factory: EncoderFactory = field(
        DefaultEncoderFactory, "Encoder of the imitator of the logged actions."
    )
    lam: float = field(0.75, "Weight of the lowest Q-value in targets; the highest has the rest.", low=0, high=1)


@config
class SharedFields:
    """Fields that algorithms of different kinds share; each takes single ones: ``field(…, like=SharedFields)``."""

    value_encoder_factory: EncoderFactory = field(DefaultEncoderFactory, "Encoder of the state-value function.")
    target_update_interval: int = field(8000, "Number of updates between hard copies to the target network.", low=1)
    update_actor_interval: int = field(
        2,
        "Number of critic updates for each update of the policy (and of the targets that are delayed with it).",
        low=1,
    )
    max_weight: float = field(100.0, "Largest advantage weight.", above=0)
    beta: float = field(0.5, "Weight of the Kullback-Leibler divergence in the imitator's loss.", low=0)
    action_flexibility: float = field(0.05, "Largest absolute change of an imitated action.", low=0)


def read_json_config(path: str | Path) -> dict[str, Any]:
    """Read the ``params.json`` of a run.

    Raises:
        ForeignFileError: if the file is something else.
        FileError: if it cannot be read.
    """
    from birl.errors import ForeignFileError
    from birl.files import open_binary
    from birl.files.reading import MAX_JSON_BYTES, bytes_left, read_exactly

    with open_binary(path) as (file, label):
        text = read_exactly(file, min(bytes_left(file), MAX_JSON_BYTES), label)
    try:
        data = json.loads(text)
        known = {key: data[key] for key in ("config", "observation_shape", "action_size")}
        # missing in d3rlpy's files
        return {**known, "discrete_action": data.get("discrete_action"), "choices": data.get("choices")}
    except UnicodeDecodeError as error:
        raise ForeignFileError(
            f"{path} is not a params.json of a training run, because it is not text; birl.load_learnable reads a "
            "saved model"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignFileError(f"{path} is not a params.json of a training run: {error}") from error
