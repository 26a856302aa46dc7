"""The decision transformer: causality, padding, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from birl.errors import ConfigError
from birl.models import (
    CausalTransformer,
    ContinuousDecisionTransformer,
    DiscreteDecisionTransformer,
    PositionEncodingType,
    VectorEncoderFactory,
)
from birl.spaces import Continuous, Discrete
from birl.spaces.specs import Spec

B, L, A = 3, 5, 2


@pytest.fixture(params=list(PositionEncodingType), ids=lambda kind: kind.value)
def model(request: pytest.FixtureRequest) -> ContinuousDecisionTransformer:
    torch.manual_seed(0)
    model = ContinuousDecisionTransformer(
        Spec((4,), Continuous(A)),
        VectorEncoderFactory([16], exclude_last_activation=True),
        context_size=L,
        max_timestep=20,
        num_heads=2,
        num_layers=2,
        position_encoding_type=request.param,
    )
    for parameter in model.parameters():  # large enough that every path shows
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def window() -> dict[str, Tensor]:
    return {
        "observations": torch.randn(B, L, 4),
        "actions": torch.randn(B, L, A),
        "returns_to_go": torch.randn(B, L, 1),
        "timesteps": torch.arange(1, L + 1).repeat(B, 1),
    }


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize(
    ("changed", "first"), [("observations", 3), ("returns_to_go", 3), ("actions", 4)], ids=lambda value: str(value)
)
def test_an_action_depends_on_the_past_and_not_on_the_future(
    model: ContinuousDecisionTransformer, changed: str, first: int, with_mask: bool
) -> None:
    inputs = window()
    mask = torch.ones(B, L) if with_mask else None
    before = model(**inputs, mask=mask)
    inputs[changed] = inputs[changed].clone()
    inputs[changed][:, 3] += 1.0
    after = model(**inputs, mask=mask)
    assert before.shape == (B, L, A) and before.abs().max() <= 1
    assert torch.allclose(before[:, :first], after[:, :first], atol=1e-6)
    assert all(not torch.allclose(before[:, t], after[:, t], atol=1e-4) for t in range(first, L))


def test_padding_is_not_seen_and_a_shorter_window_is_the_same(model: ContinuousDecisionTransformer) -> None:
    inputs = window()
    mask = torch.ones(B, L)
    mask[:, :2] = 0
    padded = model(**inputs, mask=mask)
    assert torch.isfinite(padded).all()
    other = {name: value.clone() for name, value in inputs.items()}
    for name in ("observations", "actions", "returns_to_go"):
        other[name][:, :2] = 100.0
    other["timesteps"][:, :2] = 0
    assert torch.allclose(padded[:, 2:], model(**other, mask=mask)[:, 2:], atol=1e-5)
    short = model(**{name: value[:, 2:] for name, value in inputs.items()})
    assert torch.allclose(padded[:, 2:], short, atol=1e-5)
    (gradient,) = torch.autograd.grad(padded[:, 2:].sum(), model.linear.weight)
    assert torch.isfinite(gradient).all()


def test_a_full_mask_is_no_mask(model: ContinuousDecisionTransformer) -> None:
    inputs = window()
    assert torch.allclose(model(**inputs), model(**inputs, mask=torch.ones(B, L)), atol=1e-5)


def test_timesteps_matter_and_late_ones_share_an_encoding(model: ContinuousDecisionTransformer) -> None:
    inputs = window()
    steps = inputs.pop("timesteps")
    assert not torch.allclose(model(**inputs, timesteps=steps), model(**inputs, timesteps=steps + 1), atol=1e-4)
    last = torch.full_like(steps, 20)
    assert torch.equal(model(**inputs, timesteps=last), model(**inputs, timesteps=last + 1000))


def test_the_order_of_equal_tokens_matters_by_position_only() -> None:
    torch.manual_seed(0)
    model = ContinuousDecisionTransformer(Spec((4,), Continuous(A)), VectorEncoderFactory([8]), L, 20).eval()
    inputs = window()
    for name in ("observations", "actions", "returns_to_go"):
        inputs[name] = inputs[name][:, :1].expand_as(inputs[name])
    inputs["timesteps"] = torch.ones(B, L, dtype=torch.int64)
    same = model(**inputs)
    inputs["timesteps"] = torch.arange(L).repeat(B, 1)
    assert not torch.allclose(same, model(**inputs), atol=1e-6)


def test_dropout_only_in_training(model: ContinuousDecisionTransformer) -> None:
    inputs = window()
    assert torch.equal(model(**inputs), model(**inputs))
    model.train()
    assert not torch.equal(model(**inputs), model(**inputs))


def test_compiled_gradients_add_no_rows_in_any_order(model: ContinuousDecisionTransformer) -> None:
    """The gradient of a lookup would: compiled for several threads or a GPU, it uses atomic additions."""
    inputs, operators = window(), set[str]()

    def record(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        operators.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(lambda: model(**inputs).sum(), fullgraph=True, backend=aot_autograd(fw_compiler=record))
    compiled().backward()
    traced = make_fx(lambda: torch.autograd.grad(model(**inputs).sum(), list(model.parameters())))()
    operators.update(str(node.target) for node in traced.graph.nodes)
    assert any("mm" in name for name in operators)
    assert not [name for name in operators if "embedding" in name or "index_put" in name or "scatter" in name]


def test_loss_is_one_graph_and_reaches_every_parameter(model: ContinuousDecisionTransformer) -> None:
    inputs, mask = window(), torch.ones(B, L)
    mask[0, :2] = 0

    def loss() -> Tensor:
        error = (model(**inputs, mask=mask) - inputs["actions"]).square().mean(-1)
        return (error * mask).sum() / mask.sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")()
    assert torch.allclose(compiled, loss(), atol=1e-6)
    gradients = torch.autograd.grad(loss(), list(model.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("kind", list(PositionEncodingType), ids=lambda kind: kind.value)
def test_discrete_logits_depend_on_the_past_and_not_on_padding(kind: PositionEncodingType) -> None:
    torch.manual_seed(0)
    encoder = VectorEncoderFactory([16])
    model = DiscreteDecisionTransformer(
        Spec((4,), Discrete(3)), encoder, L, 20, 2, 2, position_encoding_type=kind, embed_activation="tanh"
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        model.linear.weight.mul_(10)
    inputs, mask = window(), torch.ones(B, L)
    inputs["actions"] = torch.randint(0, 3, (B, L))
    before = model(**inputs, mask=mask)
    assert before.shape == (B, L, 3) and before.abs().max() > 1  # logits are not squashed
    other = {**inputs, "actions": inputs["actions"].clone()}
    other["actions"][:, 3] = (other["actions"][:, 3] + 1) % 3
    after = model(**other, mask=mask)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4], after[:, 4], atol=1e-4)
    mask[:, :2] = 0
    short = model(**{name: value[:, 2:] for name, value in inputs.items()})
    assert torch.allclose(model(**inputs, mask=mask)[:, 2:], short, atol=1e-5)


def test_heads_must_divide_the_features() -> None:
    with pytest.raises(ConfigError, match="num_heads is 3.*16 features"):
        ContinuousDecisionTransformer(Spec((4,), Continuous(A)), VectorEncoderFactory([16]), L, 20, num_heads=3)


def padded() -> tuple[CausalTransformer, Tensor, Tensor]:
    """A small transformer, tokens, and which of them are real: all but the first two."""
    torch.manual_seed(0)
    valid = torch.ones(B, L, dtype=torch.bool)
    valid[:, :2] = False
    return CausalTransformer(8, 2, 2).eval(), torch.randn(B, L, 8), valid


def test_padding_sees_itself_alone() -> None:
    # exported graphs have a plain softmax, which gives NaN for a token that sees nothing
    model, tokens, valid = padded()
    output = model(tokens, valid)
    assert torch.allclose(output[:, :1], model(tokens[:, :1]), atol=1e-6)
    assert torch.allclose(output[:, 1:2], model(tokens[:, 1:2]), atol=1e-6)


def test_only_wanted_tokens_are_computed_at_the_end() -> None:
    model, tokens, valid = padded()
    rows: list[int] = []
    model.blocks[1].mlp_in.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
    for seen in (None, valid):
        for wanted in (slice(1, None, 3), slice(2, 3), slice(None)):
            everything, some = model(tokens, seen), model(tokens, seen, wanted)
            assert torch.allclose(some, everything[:, wanted], atol=1e-6)
            assert rows[-1] == some.shape[1]
            ours = torch.autograd.grad(some.square().sum(), list(model.parameters()))
            theirs = torch.autograd.grad(everything[:, wanted].square().sum(), list(model.parameters()))
            for mine, other in zip(ours, theirs, strict=True):
                assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("discrete", [False, True])
def test_only_blocks_and_positions_begin_as_gpt2(discrete: bool) -> None:
    # as in the paper's code: what embeds returns and observations begins as torch has it, ten times as large
    spec = Spec((3,), Discrete(2) if discrete else Continuous(2))
    make = DiscreteDecisionTransformer if discrete else ContinuousDecisionTransformer
    net = make(spec, VectorEncoderFactory([64]), context_size=4, max_timestep=100)
    small = {name for name, weight in net.named_parameters() if weight.dim() > 1 and 0.01 < weight.std() < 0.03}
    small -= {"block_embedding"}
    everything = {name for name, weight in net.named_parameters() if weight.dim() > 1}
    started = {"position_embedding.weight"} | {name for name in everything if name.startswith("transformer.")}
    started |= {"action_embedding.weight", "linear.weight"} if discrete else set()
    assert small == started
    assert net.return_token.weight.std() > 0.4  # uniform in [-1, 1]
