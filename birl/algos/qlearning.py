"""d3rlpy's path to algorithms: every name here is one of `birl.algos`."""

from importlib import import_module


def __getattr__(name: str) -> object:
    if name.startswith("__"):  # no package: below it, files would be imported a second time
        raise AttributeError(name)
    return getattr(import_module("birl.algos"), name)
