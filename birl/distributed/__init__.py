"""Data-parallel training and remote workers.

In data-parallel training, several processes train one set of parameters, each on its own data. Start one process for
each device, for instance with ``torchrun --nproc-per-node 2 train.py``::

    rank = birl.distributed.init_process_group("nccl")  # "gloo" on CPUs
    algorithm = birl.algos.CQLConfig().create(device=rank)
    algorithm.fit(dataset, n_steps=100_000, enable_ddp=True)
    birl.distributed.destroy_process_group()

Each process samples minibatches of ``batch_size``. The gradients of every step are averaged before they are applied,
which gives the same update as the concatenated minibatches.

`birl.distributed.worker_pool` supervises the workers of online runs: collectors, replay shards and learners.
"""

from birl.distributed.ddp import AverageGradients, data_parallel, destroy_process_group, init_process_group
from birl.errors import explain_missing_names

__all__ = ["AverageGradients", "data_parallel", "destroy_process_group", "init_process_group"]

explain_missing_names(__name__, __all__)
