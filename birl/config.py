"""Algorithm configurations: frozen dataclasses that check themselves.

`HYPERPARAMETERS` is the only place where a hyper-parameter is described. Every field of every configuration has a row
in it (a test sees to that); the row gives its allowed values and its sentence in the documentation. Where papers use
one name for different things, a row belongs to one algorithm: ``"DiscreteBC.beta"``.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from birl.errors import ConfigError
from birl.files.named import Serializable, encode
from birl.models import EncoderFactory, OptimizerFactory, QFunctionFactory
from birl.models.transformer import PositionEncodingType
from birl.preprocessing import ActionScaler, ObservationScaler, RewardScaler


@dataclass(frozen=True)
class Hyperparameter:
    """What a hyper-parameter means and which values it takes.

    Attributes:
        meaning: one sentence.
        type: the Python type (``int`` is accepted where ``float`` is asked for).
        low, high: allowed range, ends included unless ``open`` says otherwise.
        open: which ends are excluded: ``""``, ``"low"``, ``"high"`` or ``"both"``.
        choices: allowed values, if there are only some.
        optional: whether ``None`` is allowed.
        besides: a further value, not of ``type``.
    """

    meaning: str
    type: type
    low: float = -math.inf
    high: float = math.inf
    open: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    besides: str | None = None

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        name = self.type.__name__
        words = f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
        if self.low > -math.inf:
            words += f" {'>' if self.open in ('low', 'both') else '>='} {self.low:g}"
        if self.high < math.inf:
            joint = " and" if self.low > -math.inf else ""
            words += f"{joint} {'<' if self.open in ('high', 'both') else '<='} {self.high:g}"
        words += f" or {self.besides!r}" if self.besides is not None else ""
        return words + (" or None" if self.optional else "")

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is allowed."""
        if value is None:
            return self.optional
        if self.besides is not None and value == self.besides:
            return True
        if self.type in (int, float):
            if isinstance(value, bool) or not isinstance(value, int if self.type is int else (int, float)):
                return False
            above = value > self.low if self.open in ("low", "both") else value >= self.low
            below = value < self.high if self.open in ("high", "both") else value <= self.high
            return math.isfinite(value) and above and below
        return isinstance(value, self.type) and (not self.choices or value in self.choices)


def _rate(of: str) -> Hyperparameter:
    return Hyperparameter(f"Learning rate of {of}. 0 keeps it as it is.", float, 0)


def _optimizer(of: str) -> Hyperparameter:
    return Hyperparameter(f"Optimiser of {of}.", OptimizerFactory)


def _encoder(of: str) -> Hyperparameter:
    return Hyperparameter(f"Encoder of {of}.", EncoderFactory)


def _count(meaning: str) -> Hyperparameter:
    return Hyperparameter(meaning, int, 1)


def _probability(meaning: str) -> Hyperparameter:
    return Hyperparameter(meaning, float, 0, 1, "high")



HYPERPARAMETERS: dict[str, Hyperparameter] = {
    # every algorithm
    "batch_size": _count("Number of transitions (or sequences) in a minibatch."),
    "gamma": Hyperparameter("Discount factor of one environment step.", float, 0, 1),
    "observation_scaler": Hyperparameter("Scaling of observations.", ObservationScaler, optional=True),
    "action_scaler": Hyperparameter("Scaling of continuous actions to [-1, 1].", ActionScaler, optional=True),
    "reward_scaler": Hyperparameter("Scaling of rewards.", RewardScaler, optional=True),
    "compile_graph": Hyperparameter(
        "Whether the whole update is compiled into one program, which takes up to a minute and is left out of short "
        "runs by `'auto'`.",
        bool,
        besides="auto",
    ),
    # learning rates, optimisers, encoders
    "learning_rate": _rate("the network"),
    "actor_learning_rate": _rate("the policy"),
    "critic_learning_rate": _rate("the Q-functions (and the state-value function)"),
    "temp_learning_rate": _rate("the temperature"),
    "alpha_learning_rate": _rate("the conservative weight"),
    "optim_factory": _optimizer("the network"),
    "actor_optim_factory": _optimizer("the policy"),
    "critic_optim_factory": _optimizer("the Q-functions (and the state-value function)"),
    "temp_optim_factory": _optimizer("the temperature"),
    "alpha_optim_factory": _optimizer("the conservative weight"),
    "encoder_factory": _encoder("the network"),
    "actor_encoder_factory": _encoder("the policy"),
    "critic_encoder_factory": _encoder("the Q-functions"),
    "value_encoder_factory": _encoder("the state-value function"),
    # value functions
    "q_func_factory": Hyperparameter("Form of the Q-function: mean, QR, IQN or C51.", QFunctionFactory),
    "n_critics": _count("Number of Q-functions in the ensemble."),
    "tau": Hyperparameter("Share of the online network in each soft target update.", float, 0, 1),
    "target_update_interval": _count("Number of updates between hard copies to the target network."),
    "FQE.n_action_samples": Hyperparameter(
        "Number of actions drawn from the policy at each next observation, or 0 for its greedy action.", int, 0
    ),
    "target_smoothing_sigma": Hyperparameter("Standard deviation of the target policy's noise.", float, 0),
    "target_smoothing_clip": Hyperparameter("Largest absolute target policy noise.", float, 0),
    "update_actor_interval": _count("Number of critic updates for one update of the policy and the targets."),
    # policies
    "initial_temperature": Hyperparameter("Temperature at the start.", float, 0, open="low"),
    "policy_type": Hyperparameter("Form of the policy.", str, choices=("deterministic", "stochastic")),
    # policies near the data
    "imitator_learning_rate": _rate("the imitator of the data's actions"),
    "imitator_optim_factory": _optimizer("the imitator of the data's actions"),
    "imitator_encoder_factory": _encoder("the imitator of the data's actions"),
    "lam": Hyperparameter("Share of the lowest Q-value in targets; the rest is that of the highest.", float, 0, 1),
    "beta": Hyperparameter("Weight of the Kullback-Leibler divergence in the imitator's loss.", float, 0),
    "action_flexibility": Hyperparameter("Largest absolute change of an imitated action.", float, 0),
    "rl_start_step": Hyperparameter("Number of updates before policy and Q-functions begin to learn.", int, 0),
    "PLAS.warmup_steps": Hyperparameter("Number of updates in which only the imitator learns.", int, 0),
    "BEAR.warmup_steps": Hyperparameter("Number of updates in which the policy only nears the imitator.", int, 0),
    "BEAR.alpha_learning_rate": _rate("the multiplier of the discrepancy"),
    "BEAR.alpha_optim_factory": _optimizer("the multiplier of the discrepancy"),
    "BEAR.initial_alpha": Hyperparameter("Multiplier of the discrepancy at the start.", float, 0, open="low"),
    "BEAR.alpha_threshold": Hyperparameter("Discrepancy from the imitator at which its multiplier stays.", float),
    "BEAR.n_action_samples": _count("Number of the policy's actions of which the greedy policy takes the best one."),
    "n_target_samples": _count("Number of the target policy's actions of which targets take the best one."),
    "n_mmd_action_samples": _count("Number of actions of policy and imitator whose discrepancy is measured."),
    "mmd_kernel": Hyperparameter("Kernel of the discrepancy.", str, choices=("laplacian", "gaussian")),
    "mmd_sigma": Hyperparameter("Half of the distance at which the kernel is 1/e.", float, 0, open="low"),
    "vae_kl_weight": Hyperparameter("Weight of the divergence in the loss of BEAR's imitator.", float, 0),
    "BCQ.n_action_samples": _count("Number of imitated actions of which the best one is taken."),
    "DiscreteBCQ.beta": Hyperparameter("Weight of the penalty on large logits of the imitator.", float, 0),
    "DiscreteBCQ.action_flexibility": Hyperparameter(
        "Smallest probability of an action that is considered, relative to the most probable one.", float, 0, 1
    ),
    "share_encoder": Hyperparameter("Whether the imitator shares the encoder of the first Q-function.", bool),
    "DiscreteBC.beta": Hyperparameter("Weight of the penalty on large logits.", float, 0),
    "distribution": Hyperparameter("Distribution of random actions.", str, choices=("uniform", "normal")),
    "normal_std": Hyperparameter("Standard deviation of normal random actions.", float, 0, open="low"),
    # conservative and implicit Q-learning
    "alpha": Hyperparameter("Weight of the conservative loss.", float, 0),
    "actor_beta": Hyperparameter("Weight of the squared distance to the data's action in the policy's loss.", float, 0),
    "critic_beta": Hyperparameter("Weight of the squared distance to the data's next action in targets.", float, 0),
    "TD3PlusBC.alpha": Hyperparameter("Weight of the scaled Q-value against the cloning error.", float, 0),
    "PRDC.alpha": Hyperparameter("Weight of the scaled Q-value against the distance to the data.", float, 0),
    "PRDC.beta": Hyperparameter("Factor of states in distances between states and actions.", float, 0),
    "initial_alpha": Hyperparameter("Adjustable weight of the conservative loss at the start.", float, 0, open="low"),
    "alpha_threshold": Hyperparameter("Gap of Q-values at which the conservative weight stays.", float),
    "conservative_weight": Hyperparameter("Constant factor of the conservative loss.", float, 0),
    "n_action_samples": _count("Number of actions sampled from each proposal."),
    "soft_q_backup": Hyperparameter("Whether the target has SAC's entropy bonus.", bool),
    "max_q_backup": Hyperparameter("Whether the target takes the best of several sampled actions.", bool),
    "mode_q_backup": Hyperparameter("Whether the target takes the policy's mode instead of a sampled action.", bool),
    "expectile": Hyperparameter("Expectile of the state-value regression.", float, 0, 1, "both"),
    "weight_temp": Hyperparameter("Inverse temperature of the advantage weights.", float, 0),
    "AWAC.lam": Hyperparameter("Temperature of the advantage weights.", float, 0, open="low"),
    "AWAC.n_action_samples": _count("Number of actions sampled from the policy for the value of a state."),
    "CRR.beta": Hyperparameter("Temperature of advantage weights and of the choice of actions.", float, 0, open="low"),
    "CRR.n_action_samples": _count("Number of the policy's actions to compare with, and to choose from."),
    "CRR.update_actor_interval": _count("Number of critic updates for one update of the policy."),
    "EDAC.eta": Hyperparameter("Weight of the similarity of the critics' gradients.", float, 0),
    "advantage_type": Hyperparameter("Value that an advantage compares with.", str, choices=("mean", "max")),
    "weight_type": Hyperparameter("Form of the advantage weights.", str, choices=("exp", "binary")),
    "target_update_type": Hyperparameter(
        "Whether targets are copies (every `target_update_interval`) or follow slowly (with `tau`).",
        str,
        choices=("hard", "soft"),
    ),
    "max_weight": Hyperparameter("Largest advantage weight.", float, 0, open="low"),
    # advantage-weighted regression
    "AWR.batch_size": _count("Number of states whose returns one iteration learns from."),
    "AWR.critic_encoder_factory": _encoder("the state-value function, which is AWR's only critic"),
    "batch_size_per_update": _count("Number of states in each minibatch of an iteration, at most `batch_size`."),
    "n_actor_updates": _count("Number of the policy's minibatches in an iteration."),
    "n_critic_updates": _count("Number of the state-value function's minibatches in an iteration."),
    "AWR.lam": Hyperparameter("Lambda of the TD(lambda) returns: 0 for one step, 1 for whole episodes.", float, 0, 1),
    "AWR.beta": Hyperparameter("Temperature of the advantage weights, in units of the return.", float, 0, open="low"),
    # recurrence
    "sequence_length": _count("Number of steps in a training sequence (recurrent encoders only)."),
    "burn_in": Hyperparameter("Number of leading steps that only warm up the recurrent state.", int, 0),
    # on-policy
    "rollout_length": _count("Number of steps each environment makes between updates."),
    "n_epochs": _count("Number of passes over a rollout."),
    "gae_lambda": Hyperparameter("Decay of generalised advantage estimation.", float, 0, 1),
    "clip_range": Hyperparameter("Clip range of the policy's probability ratio.", float, 0, open="low"),
    "value_clip_range": Hyperparameter("Clip range of the change in value.", float, 0, open="low", optional=True),
    "value_coefficient": Hyperparameter("Weight of the value loss.", float, 0),
    "entropy_coefficient": Hyperparameter("Weight of the entropy bonus.", float, 0),
    "normalize_advantage": Hyperparameter("Whether advantages are standardised in each minibatch.", bool),
    # transformers
    "context_size": _count("Number of steps that the transformer sees."),
    "max_timestep": _count("Largest step number in an episode; later ones share its embedding."),
    "num_heads": _count("Number of attention heads."),
    "num_layers": _count("Number of attention blocks."),
    "attn_dropout": _probability("Dropout probability of attention weights."),
    "resid_dropout": _probability("Dropout probability of residual branches."),
    "embed_dropout": _probability("Dropout probability of embeddings."),
    "activation_type": Hyperparameter("Activation inside the blocks.", str, choices=("relu", "gelu", "tanh", "swish")),
    "embed_activation_type": Hyperparameter(
        "Activation of tokens before their positions are added.", str, choices=("relu", "gelu", "tanh", "swish")
    ),
    "position_encoding_type": Hyperparameter("Position encoding.", PositionEncodingType),
    "layer_norm_eps": Hyperparameter("Added to the variance in the layer norms of blocks.", float, 0),
    "warmup_steps": Hyperparameter("Number of updates over which the learning rate rises.", int, 0),
    "TACR.alpha": Hyperparameter("Weight of the Q-values, divided by their mean size, in the policy's loss.", float, 0),
    "warmup_tokens": Hyperparameter("Number of tokens over which the learning rate rises.", int, 0),
    "final_tokens": _count("Number of tokens at which the learning rate has fallen to its end."),
    "clip_grad_norm": Hyperparameter("Largest gradient norm.", float, 0, open="low", optional=True),
    "compile": Hyperparameter("Older name of `compile_graph`.", bool),
}

T = TypeVar("T")


def row_name(config_class: type[Any], field: str) -> str | None:
    """Name of a field's row in `HYPERPARAMETERS`: the algorithm's own, else its base's, else the common one."""
    for cls in config_class.__mro__:
        own = f"{cls.__name__.removesuffix('Config')}.{field}"
        if own in HYPERPARAMETERS:
            return own
    return field if field in HYPERPARAMETERS else None


def default(factory: Callable[[], T]) -> T:
    """A config field whose default is made by ``factory`` for each config."""
    return field(default_factory=factory)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a frozen keyword-only dataclass whose unknown arguments get a helpful `ConfigError`."""
    cls = dataclass(frozen=True, kw_only=True)(cls)
    plain: Callable[..., None] = cls.__init__
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]

    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in names]
        if args or unknown:
            what = f"has no field {unknown[0]!r}" if unknown else "takes keyword arguments only"
            near = difflib.get_close_matches(unknown[0], names, 1) if unknown else []
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"{cls.__name__} {what}{hint} Fields: {', '.join(names)}")
        plain(self, **kwargs)

    checked_init.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    checked_init.__wrapped__ = plain  # type: ignore[attr-defined]
    checked_init.__name__ = "__init__"
    cls.__init__ = checked_init  # type: ignore[method-assign]
    return cls


# Which kind of factory a field holds: lets params.json files be read that do not name the kind.
_FIELD_KINDS: tuple[tuple[str, type[Serializable]], ...] = (
    ("encoder_factory", EncoderFactory),
    ("q_func_factory", QFunctionFactory),
    ("optim_factory", OptimizerFactory),
    ("observation_scaler", ObservationScaler),
    ("action_scaler", ActionScaler),
    ("reward_scaler", RewardScaler),
)


@config
class AlgorithmConfig(Serializable):
    """Fields that every algorithm has. See `HYPERPARAMETERS` for what each field means and allows.

    Raises:
        ConfigError: if a field is unknown, of the wrong type or out of range.
    """

    algorithm: ClassVar[type[Any]]  # set by Algorithm.__init_subclass__

    batch_size: int = 256
    gamma: float = 0.99
    observation_scaler: ObservationScaler | None = None
    action_scaler: ActionScaler | None = None
    reward_scaler: RewardScaler | None = None
    compile_graph: bool | str = "auto"
    sequence_length: int = 20
    burn_in: int = 0

    def __post_init__(self) -> None:
        self.plain_numbers()
        for item in dataclasses.fields(self):
            value, name = getattr(self, item.name), row_name(type(self), item.name)
            if name is None:  # a user's own algorithm may have fields that birl does not know
                continue
            row = HYPERPARAMETERS[name]
            if row.type is PositionEncodingType and isinstance(value, str):
                value = _position_encoding(value)
                object.__setattr__(self, item.name, value)
            if not row.accepts(value):
                raise ConfigError(
                    f"{type(self).__name__}.{item.name} is {value!r}; it must be {row.allowed}. ({row.meaning})"
                )

    @classmethod
    def get_type(cls) -> str:
        """Name of the algorithm: the class name without ``Config``."""
        return cls.__name__.removesuffix("Config") if cls is not AlgorithmConfig else ""

    def create(self, device: bool | int | str | None = False, enable_ddp: bool = False) -> Any:
        """Make the algorithm.

        Args:
            device: ``False`` or ``None`` for the CPU, ``True`` for the first GPU, an integer for that GPU, or a
                torch device string such as ``"cuda"`` or ``"cpu:0"``.
            enable_ddp: whether `fit` always has ``enable_ddp=True``, which newer versions of d3rlpy say here.
        """
        return self.algorithm(self, device, enable_ddp)

    def copy(self) -> Self:
        """A copy that shares nothing: scalers fitted for one algorithm leave the original untouched."""
        return deepcopy(self)

    def serialize(self) -> dict[str, Any]:
        """``{"type": algorithm, "params": {...}}``; nested factories likewise."""
        return {"type": self.get_type(), "params": encode(self.get_params())}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Inverse of `serialize`; also reads d3rlpy's form, which does not name the kinds of factories."""
        params = data.get("params") if isinstance(data, dict) else None
        if isinstance(params, dict):
            params = {name: _with_kind(name, value) for name, value in params.items()}
            data = {"type": data.get("type"), "params": params}
        return super().deserialize(data)

    @classmethod
    def documentation(cls) -> list[tuple[str, Any, str, str]]:
        """One row per field: name, default, allowed values, meaning. The documentation's tables come from here."""
        rows = []
        for item in dataclasses.fields(cls):
            row = HYPERPARAMETERS[row_name(cls, item.name) or item.name]
            made = item.default_factory is not dataclasses.MISSING
            value = item.default_factory() if made else item.default  # type: ignore[operator]
            rows.append((item.name, value, row.allowed, row.meaning))
        return rows


def _with_kind(name: str, value: Any) -> Any:
    if isinstance(value, dict) and "type" in value and "kind" not in value:
        for suffix, kind in _FIELD_KINDS:
            if name.endswith(suffix):
                return {"kind": kind.__name__, **value}
    return value


def _position_encoding(value: str) -> PositionEncodingType:
    try:
        return PositionEncodingType(value)
    except ValueError:
        known = ", ".join(repr(item.value) for item in PositionEncodingType)
        raise ConfigError(f"position_encoding_type is {value!r}; it must be one of {known}") from None


def read_json_config(path: str | Path) -> dict[str, Any]:
    """Read a run's ``params.json``.

    Raises:
        ForeignFileError: if it is not one.
    """
    import json

    from birl.errors import ForeignFileError

    try:
        data = json.loads(Path(path).read_text())
        known = {key: data[key] for key in ("config", "observation_shape", "action_size")}
        return {**known, "discrete_action": data.get("discrete_action")}  # d3rlpy's files do not say it
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ForeignFileError(f"{path} is not a params.json of a training run: {error}") from error
