"""d3rlpy's module of constants."""

from birl.logging import LoggingStrategy
from birl.models.transformer import PositionEncodingType
from birl.types import ActionSpace

__all__ = ["ActionSpace", "LoggingStrategy", "PositionEncodingType"]
