"""Conversion of d3rlpy's models, which `birl.compat.d3rlpy_pickles` reads without running code."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from birl.algorithm import Algorithm
from birl.algorithm.building import checked_spec
from birl.algorithm.persistence import planned_networks, rebuild
from birl.compat.d3rlpy_pickles import read_outer, read_torch
from birl.config import AlgorithmConfig
from birl.errors import UnsupportedError
from birl.files import open_binary, parse_json
from birl.files.reading import bytes_left, read_exactly
from birl.files.state_restore import convert_to_corrupt_error
from birl.models import NormalPolicy
from birl.optimizers.saved_state import refuse_nonfinite
from birl.types import JSONValue, tree_of_json

CONVERTIBLE: Final = (
    *("AWAC", "BC", "BEAR", "CQL", "CalQL", "CRR", "DDPG", "DQN", "DecisionTransformer", "DiscreteBC", "DiscreteBCQ"),
    *("DiscreteCQL", "DiscreteDecisionTransformer", "DiscreteSAC", "DoubleDQN", "IQL", "NFQ", "PRDC", "ReBRAC", "SAC"),
    *("TACR", "TD3", "TD3PlusBC"),
)
"""Algorithms whose models can be converted."""

_ACTING_OTHERWISE: Final = ("BCQ", "PLAS", "PLASWithPerturbation")
"""Algorithms whose decoder ends with a tanh, which d3rlpy applies in updates but not when it selects actions."""

_Tensors = dict[str, Tensor]

_MODULES: Final = {
    "imitator": "actor",
    "log_alpha": "alpha",
    "log_temp": "temperature",
    "policy": "actor",
    "q_funcs": "critic",
    "targ_policy": "actor_target",
    "targ_q_funcs": "critic_target",
    "transformer": "transformer",
    "vae_decoder": "vae_decoder",
    "vae_encoder": "vae_encoder",
    "value_func": "value",
}
_TRANSFORMER: Final = (
    (r"_position_encoding\._(embed|global_position_embedding)\.", "position_embedding."),
    (r"_position_encoding\._block_position_embedding\._parameter", "block_embedding"),
    (r"_embed_ln\.", "token_norm."),
    (r"_gpt2\._transformer\.(\d+)\._attention\._proj\.", r"transformer.blocks.\1.attention_out."),
    (r"_gpt2\._transformer\.(\d+)\._attention\._([qkv])\.", r"transformer.blocks.\1.query_key_value.\2."),
    (r"_gpt2\._transformer\.(\d+)\._mlp\._l1\.", r"transformer.blocks.\1.mlp_in."),
    (r"_gpt2\._transformer\.(\d+)\._mlp\._l2\.", r"transformer.blocks.\1.mlp_out."),
    (r"_gpt2\._transformer\.(\d+)\._layer_norm1\.", r"transformer.blocks.\1.attention_norm."),
    (r"_gpt2\._transformer\.(\d+)\._layer_norm2\.", r"transformer.blocks.\1.mlp_norm."),
    (r"_gpt2\._layer_norm\.", "transformer.norm."),
    (r"_rtg_embed\.", "return_token."),
    (r"_action_embed\.", "action_token."),
    (r"_output\.", "linear."),
)

_SIMBA: Final = re.compile(r"_encoder\._layers\.(\d+)\._layers\.([013])\.(\w+)")
"""Name of a layer in a block: the block's number, counted from 1, and the layer's number."""


def read_d3rlpy(fname: str | os.PathLike[str], device: bool | int | str | None = False) -> Algorithm[Any, Any]:
    """Read a model that d3rlpy 2 saved with ``save``. Import `birl.algos` first: algorithms are found by name.

    Configuration, scalers, networks and targets are converted. Policies and values predict the same, with these
    exceptions: greedy actions of BEAR and CRR are random in d3rlpy. Values of an IQN head differ a little, and greedy
    actions may differ too, because birl's fixed levels are midpoints and d3rlpy's range from 0 to 1. BC's
    ``sample_action`` samples, while d3rlpy's returns the greedy action. Moments of the optimisers are not converted:
    training continues with new ones. The file has no step counter.

    Args:
        fname: path of the ``.d3`` file.
        device: see `birl.config.AlgorithmConfig.create`.

    Returns:
        The algorithm.

    Raises:
        ForeignFileError: if the file is of another kind, or its pickle names any other object. No code has run then.
        CorruptFileError: if the file is damaged.
        UnsupportedError: if the algorithm or a network cannot be converted.
    """
    with convert_to_corrupt_error(fname, "it is not a model that d3rlpy 2 saved"):
        with open_binary(fname) as (file, label):
            content = read_outer(read_exactly(file, bytes_left(file), label), fname)
        described = parse_json(content["config"].encode(), str(fname))
        config = _config(described["config"])
        shape, action_size = tree_of_json(described["observation_shape"]), int(described["action_size"])
        sizes = {"observation_shape": shape, "action_size": action_size}
        spec = checked_spec(config.algorithm.definition(), shape, action_size, None)
        modules = read_torch(content["torch"], fname)
        planned = planned_networks(config, spec, sum(len(each) for each in modules.values()))
        found = _converted(modules, planned, fname)
        refuse_nonfinite("parameter", found)
        algorithm: Algorithm[Any, Any] = rebuild({"config": config.serialize(), **sizes}, device)
        for name, part in algorithm.nets.named_modules():
            if isinstance(part, NormalPolicy):  # the sigmoid of d3rlpy's parameter is the position in the range
                low, high = part.log_std_range
                found[f"{name}.log_std"] = low + (high - low) * found[f"{name}.log_std"].sigmoid()
        algorithm.nets.load_state_dict({**algorithm.nets.state_dict(), **found})
    return algorithm


# -- configuration ---------------------------------------------------------------------------------------------


def _config(data: dict[str, Any]) -> AlgorithmConfig:
    name = data["type"].replace("_", "").lower()
    known = {cls.lower(): cls for cls in CONVERTIBLE}
    if name in map(str.lower, _ACTING_OTHERWISE):
        raise UnsupportedError(
            f"models of {data['type']!r} cannot be converted: d3rlpy omits the tanh of their decoder when it selects "
            "actions, so birl would select others. Train again with birl, or export the policy with d3rlpy"
        )
    if name not in known:
        raise UnsupportedError(f"models of {data['type']!r} cannot be converted; those of {', '.join(CONVERTIBLE)} can")
    cls = AlgorithmConfig.named(known[name])
    params = {key: _value(value) for key, value in data["params"].items()}
    fields = {field.name for field in dataclasses.fields(cls)}
    if "layer_norm_eps" in fields:
        params["layer_norm_eps"] = 3e-3  # d3rlpy's constant
    for key, value in (("clip_grad_norm", None), ("warmup_steps", 0)):
        if key in fields and "transformer" in name:  # in newer files they belong to the optimiser factory
            params.setdefault(key, value)
    lacking = {key: value for key, value in params.items() if key not in fields}
    if any(lacking.values()):  # zero and False have no effect
        raise UnsupportedError(f"birl's {known[name]} has no {lacking!s:.200}: this model cannot be converted")
    kept = {key: value for key, value in params.items() if key in fields}
    return cls.deserialize({"type": known[name], "params": kept})


def _value(value: JSONValue) -> JSONValue:
    """Convert d3rlpy's JSON to birl's: ``none`` becomes ``None``, and fields give schedules and scalers their kind."""
    if isinstance(value, dict):
        if value.get("type") == "none":
            return None
        found: dict[str, Any] = {key: _value(item) for key, item in value.items()}
        if isinstance(found.get("lr_scheduler_factory"), dict):
            found["lr_scheduler_factory"] = {"kind": "LRSchedulerFactory", **found["lr_scheduler_factory"]}
        if "observation_scalers" in found:
            found["observation_scalers"] = [
                None if item is None else {"kind": "ObservationScaler", **item} for item in found["observation_scalers"]
            ]
        return found
    return [_value(item) for item in value] if isinstance(value, list) else value


# -- networks --------------------------------------------------------------------------------------------------


def _converted(content: Mapping[str, Any], wanted: Mapping[str, Tensor], fname: object) -> _Tensors:
    """Rename and reshape the tensors of d3rlpy's networks for birl's networks.

    Args:
        content: tensors of each network by name.
        wanted: birl's tensors by name, of which only the shapes matter.
        fname: path of the file, for messages.

    Raises:
        UnsupportedError: if a tensor of birl has no counterpart, or a tensor of d3rlpy is left over.
    """
    found: _Tensors = {}
    for name, given in content.items():
        if name.endswith("optim"):
            continue
        target = _MODULES.get(name)
        if name == "imitator" and any(key.startswith("imitator.") for key in wanted):
            target = name  # in behaviour cloning the imitator is the policy
        if name == "transformer" and any(key.startswith("actor.") for key in wanted):
            target = "actor"
        if target is None:
            raise UnsupportedError(f"{fname} has a network {name!r}, which birl lacks: this model cannot be converted")
        if name.startswith(("targ_", "log_")) and not any(key.startswith(f"{target}.") for key in wanted):
            continue  # AWAC's temperature and NFQ's target are never used
        if name == "transformer":
            found |= _transformer(given, target, wanted)
        elif name.startswith("log_"):
            found[f"{target}.raw"] = given["_parameter"].reshape(())
        elif name.endswith("q_funcs"):
            found |= _ensemble(given, target, wanted)
        else:
            found |= {f"{target}.{key}": tensor for key, tensor in _network(given).items()}
    for key in wanted:
        if key not in found and key.startswith("actor_target."):  # d3rlpy uses the policy in its place
            found[key] = found[key.replace("actor_target.", "actor.", 1)]
    drawn = [key for key in wanted if "." not in key]  # random numbers that are drawn once
    found = {key: tensor for key, tensor in found.items() if not _is_shared(key, tensor, found, wanted)}
    shapes, expected = ({key: tensor.shape for key, tensor in each.items()} for each in (found, wanted))
    wrong = [key for key in {**wanted, **found} if shapes.get(key) != expected.get(key) and key not in drawn]
    if wrong:
        raise UnsupportedError(f"{fname} has networks of another form than birl's: {', '.join(wrong[:5])} do not agree")
    return found


def _is_shared(key: str, tensor: Tensor, found: _Tensors, wanted: Mapping[str, Tensor]) -> bool:
    """Return whether a tensor is the copy of the critic's encoder that d3rlpy saves with discrete BCQ's imitator."""
    if key in wanted or not key.startswith("imitator.encoder."):
        return False
    critic = found.get(key.replace("imitator.encoder.", "critic.encoder.members.0.", 1))
    if critic is None:  # the encoders of all critics are stacked
        stacked = found.get(key.replace("imitator.", "critic.", 1))
        return stacked is not None and torch.equal(stacked[0], _stackable(tensor))
    return torch.equal(critic, tensor)


def _network(given: Mapping[str, Tensor], head: str = "") -> _Tensors:
    """Rename the tensors of one network: an encoder, and the layers after it, whose names get the prefix ``head``."""
    found: _Tensors = {}
    if any(_SIMBA.fullmatch(name) for name in given):
        given, found = _simba(given)
    for part, place in (("_layers", "layers.{}"), ("_cnn_layers", "convolutions.{}"), ("_last_layers", "dense")):
        found |= _layers(given, f"_encoder.{part}.", place)
    for key in ("weight", "bias"):
        for source, name in (("_fc", "linear"), ("_embed", "embedding")):
            if f"{source}.{key}" in given:
                found[f"{head}{name}.{key}"] = given[f"{source}.{key}"]
        if f"_mu.{key}" in given:
            both = [given[name] for name in (f"_mu.{key}", f"_logstd.{key}") if name in given]
            found[f"{head}linear.{key}"] = torch.cat(both)
    if "_logstd" in given:
        found[f"{head}log_std"] = given["_logstd"].reshape(-1)
    known = re.compile(
        r"_encoder\._(layers|cnn_layers|last_layers)\.\d+\.\w+|_(fc|embed|mu|logstd)\.(weight|bias)|_logstd"
    )
    odd = [name for name in given if not known.fullmatch(name)]
    if odd:
        raise UnsupportedError(f"a network has {', '.join(odd[:5])}, which birl's encoders do not: convert it by hand")
    return found


def _simba(given: Mapping[str, Tensor]) -> tuple[_Tensors, _Tensors]:
    """Split off a SimBa encoder (a linear layer, residual blocks and a norm) from the other tensors."""
    rest: _Tensors = {}
    found: _Tensors = {}
    for name, tensor in given.items():
        if block := _SIMBA.fullmatch(name):
            part = {"0": "norm", "1": "expand.linear", "3": "contract.linear"}[block[2]]
            found[f"encoder.blocks.{int(block[1]) - 1}.{part}.{block[3]}"] = tensor
        elif outer := re.fullmatch(r"_encoder\._layers\.(\d+)\.(\w+)", name):
            found[f"encoder.{'embedding.linear' if outer[1] == '0' else 'norm'}.{outer[2]}"] = tensor
        else:
            rest[name] = tensor
    return rest, found


def _layers(given: Mapping[str, Tensor], prefix: str, place: str) -> _Tensors:
    """Renumber layers: d3rlpy also counts activations, and in birl a norm belongs to the linear layer before it."""
    numbers = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in given if name.startswith(prefix)})
    found: _Tensors = {}
    layer, norm = -1, 0
    for number in numbers:
        tensors = _below(given, f"{prefix}{number}.")
        if tensors["weight"].dim() > 1:
            layer, norm = layer + 1, 0
            name = place.format(layer) if place.startswith("convolutions") else f"{place.format(layer)}.linear"
        else:
            after = f"after.{layer}" if place.startswith("convolutions") else f"{place.format(layer)}.after"
            name, norm = f"{after}.{norm}", norm + 1
        found |= {f"encoder.{name}.{key}": tensor for key, tensor in tensors.items()}
    return found


def _below(given: Mapping[str, Tensor], prefix: str) -> _Tensors:
    """Return the tensors whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)}


def _ensemble(given: Mapping[str, Tensor], target: str, wanted: Mapping[str, Tensor]) -> _Tensors:
    """Arrange critics as birl stores them: stacked, or separately if their encoders cannot be stacked."""
    count = 1 + max(int(name.split(".")[0]) for name in given)
    members = [_network(_below(given, f"{index}."), "head.") for index in range(count)]
    found: _Tensors = {}
    for name in members[0]:
        stacked = f"{target}.{name}"
        if stacked in wanted and wanted[stacked].dim() == members[0][name].dim():
            found[stacked] = members[0][name]  # a shared encoder
        elif stacked in wanted:
            found[stacked] = torch.stack([_stackable(member[name]) for member in members])
        else:
            for index, member in enumerate(members):
                found[stacked.replace(".encoder.", f".encoder.members.{index}.", 1)] = member[name]
    return found


def _stackable(tensor: Tensor) -> Tensor:
    return tensor.t() if tensor.dim() == 2 else tensor.unsqueeze(0)


def _transformer(given: Mapping[str, Tensor], target: str, wanted: Mapping[str, Tensor]) -> _Tensors:
    found: _Tensors = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in given.items():
        if name.endswith("._attention._mask"):
            continue
        for pattern, place in _TRANSFORMER:
            new, matched = re.subn(f"^{pattern}", place, name)
            if matched:
                break
        else:
            if not name.startswith("_encoder."):
                raise UnsupportedError(f"a transformer has {name}, which birl's does not: convert it by hand")
            continue
        if split := re.fullmatch(r"(.*query_key_value)\.([qkv])\.(\w+)", new):
            parts.setdefault(f"{split[1]}.{split[3]}", {})[split[2]] = tensor
        else:
            found[new] = tensor
    found |= {name: torch.cat([part[key] for key in "qkv"]) for name, part in parts.items()}
    found |= _network({name: tensor for name, tensor in given.items() if name.startswith("_encoder.")})
    found = {f"{target}.{name}": tensor for name, tensor in found.items()}
    if f"{target}.action_token.weight" in found and f"{target}.action_embedding.weight" in wanted:
        found[f"{target}.action_embedding.weight"] = found.pop(f"{target}.action_token.weight")
    block = f"{target}.block_embedding"
    if block in found:  # d3rlpy uses one row per step, birl one per token: three per step
        rows = found[block].squeeze(0)
        found[block] = rows[: len(rows) // 3].repeat_interleave(3, 0)
    positions = f"{target}.position_embedding.weight"
    if positions in found and positions in wanted:  # d3rlpy never uses its last row
        found[positions] = found[positions][: len(wanted[positions])]
    return found
