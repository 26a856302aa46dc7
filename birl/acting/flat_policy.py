"""A fast path for small policies: only their matrix products and activations, without modules."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from birl.acting.policy import PolicyFunction, deterministic_action, mode_action, q_action, q_scores, sampled_action
from birl.models import (
    CategoricalPolicy,
    DeterministicPolicy,
    DiscreteQFunction,
    NormalPolicy,
    SquashedNormalPolicy,
)
from birl.models.encoder_modules import VectorEncoder
from birl.models.heads import MeanHead
from birl.models.layers import DenseLayer, EnsembleLinear, Members
from birl.preprocessing.units import Units, copy_array
from birl.spaces.observations import Numbers
from birl.types import ActionSpace, Array, ArrayOrTensor, Networks

# Policy functions of the last linear layer's output, each for one class of networks. `FlatPolicy` makes no
# distribution and computes no log-probability. ``ops`` is torch for batches and numpy for one observation; both draw
# the same numbers.


def _random_like(like: ArrayOrTensor, draw: Callable[[Tensor], Tensor]) -> ArrayOrTensor:
    return draw(torch.empty_like(like)) if isinstance(like, Tensor) else draw(torch.empty(1, len(like))).numpy()[0]


def _squashed_mode(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return ops.tanh(output[..., : output.shape[-1] // 2])


def _squashed_sample(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    size = output.shape[-1] // 2
    mean, log_std = output[..., :size], output[..., size:]
    return ops.tanh(mean + ops.exp(log_std.clip(*network.log_std_range)) * _random_like(mean, Tensor.normal_))


def _normal_mode(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return ops.tanh(output) if network.tanh_mean else output


def _normal_sample(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    log_std = network.log_std if ops is torch else network.log_std.detach().numpy()
    deviation = ops.exp(log_std.clip(*network.log_std_range))
    return _normal_mode(ops, network, output) + deviation * _random_like(output, Tensor.normal_)


def _categorical_sample(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return (output - ops.log(_random_like(output, Tensor.exponential_))).argmax(-1)


def _tanh(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return ops.tanh(output)


def _highest(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return output.argmax(-1)


def _output(ops: ModuleType, network: Networks, output: ArrayOrTensor) -> ArrayOrTensor:
    return output


_FromOutput = Callable[[ModuleType, Networks, ArrayOrTensor], ArrayOrTensor]
_FROM_OUTPUT: dict[tuple[Any, type[nn.Module]], _FromOutput] = {
    (mode_action, SquashedNormalPolicy): _squashed_mode,
    (mode_action, NormalPolicy): _normal_mode,
    (mode_action, CategoricalPolicy): _highest,
    (sampled_action, SquashedNormalPolicy): _squashed_sample,
    (sampled_action, NormalPolicy): _normal_sample,
    (sampled_action, CategoricalPolicy): _categorical_sample,
    (deterministic_action, DeterministicPolicy): _tanh,
    (q_action, DiscreteQFunction): _highest,
    (q_scores, DiscreteQFunction): _output,
}
_IN_PLACE: dict[Any, Callable[[Array], Any]] = {
    torch.relu: lambda x: np.maximum(x, 0.0, out=x),
    torch.tanh: lambda x: np.tanh(x, out=x),
}
_EVERY_HOOK, _EVERY_PRE_HOOK = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
_SMALL = 2**18
"""Largest number of weights for which numpy multiplies a single vector in the calling thread."""


def _memory_of(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride()


class FlatPolicy:
    """A policy of dense layers over vector observations, reduced to matrix products. Use `of` to make one.

    For one observation, a small policy spends most of its time on overhead around its matrix products. This form
    computes the same actions as the policy function, up to rounding. It shares the parameters instead of copying them,
    and callers check `current` before every call: it is false if modules or their memory have changed. The result does
    not depend on the mode of the networks. numpy multiplies single observations, because its BLAS takes half of torch's
    time for them. The object is immutable, so threads can share it.

    Attributes:
        nets: the networks of the policy.
    """

    def __init__(self, nets: nn.Module, from_output: _FromOutput, parts: _PolicyLayers) -> None:
        self.nets, self._network, self._links = nets, parts.network, parts.links
        self._from_output = from_output
        self._numbers = isinstance(parts.network.spec.observations, Numbers)
        last = parts.last._parameters
        self._layers = [(layer.activation, linear["weight"], linear["bias"]) for layer, linear in parts.layers]
        self._siblings = parts.siblings
        weight, bias = last["weight"], last["bias"]
        if type(parts.last) is EnsembleLinear:
            weight, bias = weight.detach()[0].t(), bias.detach()[0, 0]
        self._last = weight, bias
        linears = [*(linear for _, linear in parts.layers), last]
        self._memory = [
            (each, name, each[name], _memory_of(each[name])) for each in linears for name in ("weight", "bias")
        ]
        tensors = [tensor for _, *pair in self._layers for tensor in pair] + [weight, bias]
        small = all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() <= _SMALL for x in tensors)
        self._arrays: list[tuple[Any, Array, Array]] | None = None
        if small and all(activation in _IN_PLACE for activation, *_ in self._layers):
            arrays = [(_IN_PLACE[activation], w, b) for activation, w, b in self._layers] + [(None, weight, bias)]
            self._arrays = [(activation, w.detach().numpy(), b.detach().numpy()) for activation, w, b in arrays]

    @classmethod
    def of(cls, nets: nn.Module, name: str, function: PolicyFunction[Any]) -> FlatPolicy | None:
        """Return the flat form of a policy function.

        Args:
            nets: the networks.
            name: name of the policy's network.
            function: the policy function.

        Returns:
            The policy, or ``None`` if the function or network is not one of birl's, or its encoder has other modules
            than dense layers without normalisation, dropout and hooks.
        """
        network: Any = nets._modules.get(name)
        from_output = None if network is None else _FROM_OUTPUT.get((function, type(network)))
        if from_output is None:
            return None
        if network.spec.actions.kind not in ActionSpace.BOTH:
            return None
        shape = network.spec.observation_shape
        parts = _PolicyLayers(nets, name)
        if not (isinstance(shape, tuple) and len(shape) == 1 and isinstance(shape[0], int)) or not parts.supported:
            return None
        policy = cls(nets, from_output, parts)
        return policy if policy.current else None

    @property
    def current(self) -> bool:
        """Whether modules and parameters are the same as at first, and no module has hooks or overridden methods."""
        if _EVERY_HOOK or _EVERY_PRE_HOOK or len(self._siblings) != len(self._layers):
            return False
        for siblings, name, module, kind, attributes, after, activation in self._links:
            if siblings.get(name) is not module or type(module) is not kind or after:
                return False
            if attributes.get("activation") is not activation:
                return False
            if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]:
                return False
            if "forward" in attributes or "encode" in attributes:
                return False
        for parameters, name, parameter, place in self._memory:
            if parameters.get(name) is not parameter or _memory_of(parameter) != place:
                return False
        return True

    def __call__(self, units: Units, observation: Array) -> Tensor:
        """Return actions ``[B, A]`` in the policy's range, or int64 ``[B]``, for observations ``[B, F]``.

        Args:
            units: the algorithm's scalers.
            observation: float array, unscaled.
        """
        unscaled = observation.dtype == np.float32 and units.observation_scaler is None and self._numbers
        if unscaled and len(observation) == 1 and self._arrays is not None:
            return self._single_action(observation[0], self._arrays)
        if unscaled and observation.flags.writeable and units.device.type == "cpu":
            x = torch.from_numpy(observation)
        else:
            x = units.observation(copy_array(observation))  # a user's scaler may write to it
        with torch.inference_mode():
            for activation, weight, bias in self._layers:
                x = activation(F.linear(x, weight, bias))
            return torch.as_tensor(self._from_output(torch, self._network, F.linear(x, *self._last)))

    def _single_action(self, x: Array, arrays: list[tuple[Any, Array, Array]]) -> Tensor:
        for activation, weight, bias in arrays:
            x = weight.dot(x)
            x += bias
            if activation is not None:
                activation(x)
        return torch.from_numpy(np.asarray(self._from_output(np, self._network, x))[None])


class _PolicyLayers:
    """The modules between an observation and the last linear layer, in order.

    Attributes:
        network: the whole network.
        layers: the dense layers, each with the parameters of its linear module.
        last: the last linear layer.
        links: for each module, its parent's modules, its name, itself, its class and attributes; for dense layers also
            the modules after the linear one, and the activation.
        siblings: the modules of the encoder's stack of layers, which later changes show in.
        supported: whether the network has no other modules.
    """

    def __init__(self, nets: nn.Module, name: str) -> None:
        self.links: list[tuple[Any, ...]] = []
        self.siblings: dict[str, Any] = {}
        self.layers: list[tuple[Any, Any]] = []
        self.network = self._child(nets, name)
        encoder = self._child(self.network, "encoder")
        if type(encoder) is Members and len(encoder.members) == 1:
            encoder = self._child(self._child(encoder, "members"), "0")
        head = self._child(self.network, "head") if "head" in self.network._modules else self.network
        self.last = self._child(head, "linear")
        self.supported = type(encoder) is VectorEncoder and type(head) in (MeanHead, type(self.network))
        self.supported &= type(self.last) is nn.Linear or (
            type(self.last) is EnsembleLinear and self.last.weight.shape[0] == 1 and self.last.noise is None
        )
        if self.supported:
            layers = self._child(encoder, "layers")
            self.siblings = layers._modules
            for key in self.siblings:
                layer = self._child(layers, key)
                linear = self._child(layer, "linear") if type(layer) is DenseLayer else None
                self.supported &= type(linear) is nn.Linear
                self.layers.append((layer, getattr(linear, "_parameters", {})))
            tensors = [linear for _, linear in self.layers] + [self.last._parameters]
            self.supported &= all(set(each) == {"weight", "bias"} and None not in each.values() for each in tensors)

    def _child(self, parent: Any, name: str) -> Any:
        module: Any = parent._modules.get(name)
        if module is not None:
            attributes, after = vars(module), module.after._modules if type(module) is DenseLayer else None
            activation = attributes.get("activation")
            self.links.append((parent._modules, name, module, type(module), attributes, after, activation))
        return module
