"""Options that factories refuse when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from birl import models
from birl.errors import ConfigError, ShapeError
from birl.models.transformer import ContinuousDecisionTransformer
from birl.spaces import Continuous
from birl.spaces.specs import Spec

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamFactory", {"betas": (0.9, 1.0)}),
        ("AdamFactory", {"eps": 0.0}),
        ("AdamWFactory", {"weight_decay": NAN}),
        ("SGDFactory", {"momentum": -1.0}),
        ("RMSpropFactory", {"alpha": 1.0}),
        ("AdamFactory", {"clip_grad_norm": "a"}),
        ("WarmupSchedulerFactory", {"warmup_steps": 1.5}),
        ("C51QFunctionFactory", {"v_min": float("-inf")}),
        ("MeanQFunctionFactory", {"share_encoder": "x"}),
        ("VectorEncoderFactory", {"hidden_units": 256}),
        ("VectorEncoderFactory", {"hidden_units": None}),
        ("VectorEncoderFactory", {"dropout_rate": "a"}),
        ("DefaultEncoderFactory", {"use_batch_norm": "no"}),
        ("PixelEncoderFactory", {"filters": [5]}),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        getattr(models, name)(**options)


@pytest.mark.parametrize("shape", [(0,), (-3,), (1, 0, 84)])
def test_empty_observations(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=">= 1"):
        models.DefaultEncoderFactory().create(shape)


def test_transformers_take_no_recurrent_encoder() -> None:
    spec = Spec((3,), Continuous(2))
    with pytest.raises(ConfigError, match="LSTMEncoderFactory"):
        ContinuousDecisionTransformer(spec, models.LSTMEncoderFactory(), 5, 10)
