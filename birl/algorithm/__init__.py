"""The class that users hold, and what it is made of."""

from birl.algorithm.algorithm import Algorithm, load_learnable
from birl.algorithm.population import fit_many
from birl.algorithm.sequence import TransformerAlgorithm

__all__ = ["Algorithm", "TransformerAlgorithm", "fit_many", "load_learnable"]
