"""Worker processes and transports between them; data-parallel training.

Start one process for each device, for instance with ``torchrun --nproc-per-node 2 train.py``::

    rank = birl.distributed.init_process_group("nccl")  # "gloo" on CPUs
    algorithm = birl.algos.CQLConfig().create(device=rank)
    algorithm.fit(dataset, n_steps=100_000, enable_ddp=True)
    birl.distributed.destroy_process_group()

Each process draws minibatches of ``batch_size``; the gradients of every step are averaged before the optimisers see
them, so that an update is that of the joined minibatches.

`workers` has the processes of `birl.run.asynchronous`, which one owner tells what to do.
"""

from birl.distributed.ddp import AverageGradients, destroy_process_group, init_process_group, joined

__all__ = ["AverageGradients", "destroy_process_group", "init_process_group", "joined"]
