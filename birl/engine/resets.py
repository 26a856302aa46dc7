"""Resets: networks that begin anew, in part, while what they have seen is kept."""

from __future__ import annotations

import torch
from torch import nn

from birl.engine.train_state import TrainState


@torch.no_grad()
def reset(trained: TrainState, fresh: nn.Module, share: float | None) -> None:
    """Bring all trained networks to, or towards, new ones (Schwarzer et al. 2023, arXiv:2305.19452, section 3).

    Encoders are shrunk and perturbed: ``share * old + (1 - share) * new``. Everything else begins anew, optimisers
    and running statistics of layers included; schedules go on. Target networks begin as copies. (The paper also begins
    anew the dense layer after the convolutions, which is a part of encoders here, and its schedules of n-step returns
    and of the discount.)

    Args:
        trained: the networks.
        fresh: newly made networks of the same kind.
        share: of the old parameters of encoders; 0.5 if ``None``.
    """
    share = 0.5 if share is None else share
    names = {id(tensor): name for own in trained.parameters.values() for name, tensor in own.items()}  # each once
    for name in names.values():
        parameter, new = trained.nets.get_parameter(name), fresh.get_parameter(name)
        kept = share if name.partition(".")[2].startswith("encoder.") else 0.0
        parameter.copy_(kept * parameter + (1 - kept) * new)
    learned = {name.partition(".")[0] for name in names.values()}
    for name, buffer in trained.nets.named_buffers():
        if name.partition(".")[0] in learned:
            buffer.copy_(fresh.get_buffer(name))
    for step in trained.targets:
        source, target = (trained.nets.get_submodule(each) for each in (step.source, step.target))
        target.load_state_dict(source.state_dict())
    trained.forget_moments()
