"""Metrics of a run, written to files, TensorBoard, W&B and MLflow."""

from birl.errors import explain_missing_names
from birl.logging.adapters import CombineAdapter, CombineAdapterFactory, NoopAdapter, NoopAdapterFactory
from birl.logging.file_adapter import FileAdapter, FileAdapterFactory
from birl.logging.logger import LOG, BirlLogger, LoggerAdapter, LoggerAdapterFactory, LoggingStrategy
from birl.logging.mlflow_adapter import MLflowAdapter, MLflowAdapterFactory
from birl.logging.tensorboard_adapter import TensorboardAdapter, TensorboardAdapterFactory
from birl.logging.wandb_adapter import WanDBAdapter, WanDBAdapterFactory

__all__ = [
    "LOG",
    "BirlLogger",
    "CombineAdapter",
    "CombineAdapterFactory",
    "FileAdapter",
    "FileAdapterFactory",
    "LoggerAdapter",
    "LoggerAdapterFactory",
    "LoggingStrategy",
    "MLflowAdapter",
    "MLflowAdapterFactory",
    "NoopAdapter",
    "NoopAdapterFactory",
    "TensorboardAdapter",
    "TensorboardAdapterFactory",
    "WanDBAdapter",
    "WanDBAdapterFactory",
]

explain_missing_names(__name__, __all__)
