"""Where metrics, parameters and models of a run are written."""

from birl.logging.adapters import CombineAdapter, CombineAdapterFactory, NoopAdapter, NoopAdapterFactory
from birl.logging.file_adapter import FileAdapter, FileAdapterFactory
from birl.logging.logger import LOG, BirlLogger, LoggerAdapter, LoggerAdapterFactory
from birl.logging.tensorboard_adapter import TensorboardAdapter, TensorboardAdapterFactory

__all__ = [
    "LOG",
    "BirlLogger",
    "CombineAdapter",
    "CombineAdapterFactory",
    "FileAdapter",
    "FileAdapterFactory",
    "LoggerAdapter",
    "LoggerAdapterFactory",
    "NoopAdapter",
    "NoopAdapterFactory",
    "TensorboardAdapter",
    "TensorboardAdapterFactory",
]
