"""Writes the files next to this one with d3rlpy 2.8.1: small models, what they predict, and a dataset in layout 2.1.

Run it in this folder, with d3rlpy installed: ``python write.py``, or ``python write.py NAME …`` for some of the models.
"""

from __future__ import annotations

import sys

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos import (
    AWACConfig,
    BCConfig,
    BCQConfig,
    BEARConfig,
    CalQLConfig,
    CQLConfig,
    CRRConfig,
    DDPGConfig,
    DecisionTransformerConfig,
    DiscreteBCConfig,
    DiscreteBCQConfig,
    DiscreteCQLConfig,
    DiscreteDecisionTransformerConfig,
    DiscreteSACConfig,
    DoubleDQNConfig,
    DQNConfig,
    IQLConfig,
    NFQConfig,
    PLASConfig,
    PLASWithPerturbationConfig,
    PRDCConfig,
    ReBRACConfig,
    SACConfig,
    TACRConfig,
    TD3Config,
    TD3PlusBCConfig,
)
from d3rlpy.dataset import MDPDataset
from d3rlpy.models import (
    IQNQFunctionFactory,
    MeanQFunctionFactory,
    PixelEncoderFactory,
    QRQFunctionFactory,
    SimBaEncoderFactory,
    VectorEncoderFactory,
)
from d3rlpy.preprocessing import (
    MinMaxActionScaler,
    MinMaxObservationScaler,
    PixelObservationScaler,
    StandardObservationScaler,
    StandardRewardScaler,
)

generator = np.random.default_rng(0)
N, OBSERVATION, ACTION = 60, 3, 2
observations = generator.normal(1.0, 2.0, (N, OBSERVATION)).astype(np.float32)
vectors = observations
continuous = generator.uniform(-2.0, 2.0, (N, ACTION)).astype(np.float32)
discrete = generator.integers(0, 3, N)
rewards, terminals = generator.normal(size=N).astype(np.float32), np.arange(N) % 12 == 11
given = np.concatenate([[0.0], rewards[:7]])  # the reward before the first step is 0
small = {"encoder_factory": VectorEncoderFactory([8, 8])}
pair = {"actor_encoder_factory": VectorEncoderFactory([8, 8]), "critic_encoder_factory": VectorEncoderFactory([8, 8])}
triple = {**pair, "imitator_encoder_factory": VectorEncoderFactory([8, 8])}
scaled = {"observation_scaler": StandardObservationScaler(), "action_scaler": MinMaxActionScaler()}
tuned = {"encoder_factory": VectorEncoderFactory([8], activation="tanh", use_layer_norm=True)}
simba = SimBaEncoderFactory(feature_size=8, hidden_size=16, n_blocks=2)
chosen = sys.argv[1:]

MODELS = {
    "dqn": (DQNConfig(batch_size=8, **small), discrete),
    "dqn_qr": (DQNConfig(batch_size=8, q_func_factory=QRQFunctionFactory(n_quantiles=4), **small), discrete),
    "dqn_iqn": (
        DQNConfig(
            batch_size=8, q_func_factory=IQNQFunctionFactory(n_quantiles=4, n_greedy_quantiles=6, embed_size=6), **small
        ),
        discrete,
    ),
    "dqn_tuned": (
        DQNConfig(
            batch_size=8, observation_scaler=MinMaxObservationScaler(), reward_scaler=StandardRewardScaler(), **tuned
        ),
        discrete,
    ),
    "double_dqn": (
        DoubleDQNConfig(batch_size=8, encoder_factory=VectorEncoderFactory([8], use_batch_norm=True)),
        discrete,
    ),
    "discrete_cql": (DiscreteCQLConfig(batch_size=8, n_critics=2, **small), discrete),
    "discrete_bc": (DiscreteBCConfig(batch_size=8, **small), discrete),
    "discrete_sac": (DiscreteSACConfig(batch_size=8, **pair), discrete),
    "sac": (SACConfig(batch_size=8, **pair, **scaled), continuous),
    "sac_qr": (SACConfig(batch_size=8, q_func_factory=QRQFunctionFactory(n_quantiles=4), **pair), continuous / 2),
    "td3": (TD3Config(batch_size=8, **pair), continuous / 2),
    "cql": (CQLConfig(batch_size=8, n_action_samples=2, **pair), continuous / 2),
    "iql": (IQLConfig(batch_size=8, value_encoder_factory=VectorEncoderFactory([8, 8]), **pair), continuous / 2),
    "bc": (BCConfig(batch_size=8, **small), continuous / 2),
    "bc_stochastic": (BCConfig(batch_size=8, policy_type="stochastic", **small), continuous / 2),
    "ddpg": (DDPGConfig(batch_size=8, **pair), continuous / 2),
    "td3_plus_bc": (
        TD3PlusBCConfig(batch_size=8, observation_scaler=StandardObservationScaler(), **pair),
        continuous / 2,
    ),
    "awac": (AWACConfig(batch_size=8, **pair), continuous / 2),
    "crr": (CRRConfig(batch_size=8, n_action_samples=2, **pair), continuous / 2),
    "nfq": (NFQConfig(batch_size=8, **small), discrete),
    "sac_shared": (
        SACConfig(batch_size=8, q_func_factory=MeanQFunctionFactory(share_encoder=True), **pair),
        continuous / 2,
    ),
    "bcq": (BCQConfig(batch_size=8, n_action_samples=4, **triple), continuous / 2),
    "bear": (BEARConfig(batch_size=8, n_action_samples=4, n_target_samples=2, **triple), continuous / 2),
    "plas": (PLASConfig(batch_size=8, warmup_steps=2, **triple), continuous / 2),
    "plas_with_perturbation": (PLASWithPerturbationConfig(batch_size=8, warmup_steps=2, **triple), continuous / 2),
    "discrete_bcq": (DiscreteBCQConfig(batch_size=8, **small), discrete),
    "discrete_bcq_pair": (DiscreteBCQConfig(batch_size=8, n_critics=2, **small), discrete),
    "rebrac": (ReBRACConfig(batch_size=8, **pair), continuous / 2),
    "prdc": (PRDCConfig(batch_size=8, **pair), continuous / 2),
    "cal_ql": (CalQLConfig(batch_size=8, n_action_samples=2, **pair), continuous / 2),
    "tacr": (TACRConfig(batch_size=8, context_size=4, num_layers=1, max_timestep=50, **pair), continuous / 2),
    "discrete_decision_transformer": (
        DiscreteDecisionTransformerConfig(
            batch_size=8, context_size=4, num_heads=2, num_layers=1, max_timestep=50, **small
        ),
        discrete,
    ),
    "global_transformer": (
        DecisionTransformerConfig(
            batch_size=8,
            context_size=4,
            num_layers=1,
            max_timestep=50,
            position_encoding_type=d3rlpy.PositionEncodingType.GLOBAL,
            **small,
        ),
        continuous / 2,
    ),
    "dqn_simba": (DQNConfig(batch_size=8, encoder_factory=simba), discrete),
    "sac_simba": (
        SACConfig(batch_size=8, actor_encoder_factory=simba, critic_encoder_factory=simba),
        continuous / 2,
    ),
    "decision_transformer": (
        DecisionTransformerConfig(batch_size=8, context_size=4, num_heads=2, num_layers=2, max_timestep=50, **small),
        continuous / 2,
    ),
}

images = generator.integers(0, 256, (N, 2, 12, 12), dtype=np.uint8)
pixels = PixelEncoderFactory([[4, 4, 2], [4, 3, 1]], 8, use_batch_norm=True, dropout_rate=0.1)
IMAGES = {
    "pixels": (DQNConfig(batch_size=8, observation_scaler=PixelObservationScaler(), encoder_factory=pixels), discrete),
    "pixels_sac": (
        SACConfig(
            batch_size=8,
            observation_scaler=PixelObservationScaler(),
            actor_encoder_factory=PixelEncoderFactory([[4, 4, 2]], 8),
            critic_encoder_factory=PixelEncoderFactory([[4, 4, 2]], 8),
        ),
        continuous / 2,
    ),
}

for name, (config, actions) in (MODELS | IMAGES).items():
    if name in IMAGES:
        observations = images
    if chosen and name not in chosen:
        continue
    torch.manual_seed(0)
    dataset = MDPDataset(observations, actions, rewards, terminals)
    algorithm = config.create()
    algorithm.build_with_dataset(dataset)
    transformer = name.endswith("transformer") or name == "tacr"
    options = {"n_steps": 20, "n_steps_per_epoch": 20, "show_progress": False}
    options |= {"logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
    algorithm.fit(dataset, **options)
    if name in ("global_transformer", "dqn_simba", "sac_simba"):  # what begins alike moves too little
        for module in vars(algorithm.impl.modules).values():
            for parameter in module.parameters() if isinstance(module, torch.nn.Module) else ():
                parameter.data += 0.3 * torch.randn_like(parameter)
    algorithm.save(f"{name}.d3")
    if transformer:
        sampler = "Greedy" if name.startswith("discrete") else "Identity"
        sampler = getattr(d3rlpy.algos, f"{sampler}TransformerActionSampler")()
        actor = algorithm.as_stateful_wrapper(target_return=5.0, action_sampler=sampler)
        predicted = np.array([actor.predict(x, float(r)) for x, r in zip(observations[:8], given, strict=True)])
        values = np.zeros(8)
    else:
        predicted = algorithm.predict(observations[:8])
        values = np.zeros(8)
        if not name.startswith(("dqn_iqn", "bc", "discrete_bc")):
            values = algorithm.predict_value(observations[:8], actions[:8])
    np.savez(f"{name}.npz", actions=predicted, values=values)

if chosen:
    sys.exit()

np.savez(
    "data.npz",
    observations=vectors[:8],
    images=images[:8],
    rewards=given,
    continuous=continuous[:8],
    discrete=discrete[:8],
)

# A dataset in layout 2.1, with tuple observations, a one-step episode and a truncated end.
pairs = d3rlpy.dataset.create_infinite_replay_buffer(
    [
        d3rlpy.dataset.Episode([vectors[:5], images[:5]], continuous[:5], rewards[:5, None], False),
        d3rlpy.dataset.Episode([vectors[5:6], images[5:6]], continuous[5:6], rewards[5:6, None], True),
        d3rlpy.dataset.Episode([vectors[6:9], images[6:9]], continuous[6:9], rewards[6:9, None], True),
    ]
)
with open("tuples_v2.h5", "w+b") as file:
    pairs.dump(file)
with open("vectors_v2.h5", "w+b") as file:
    MDPDataset(vectors, discrete, rewards, terminals).dump(file)
np.savez("dataset.npz", vectors=vectors, images=images, continuous=continuous, discrete=discrete, rewards=rewards)
