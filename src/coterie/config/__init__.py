"""Validated configuration: a YAML file, a preset or a mapping in, precise errors out."""

from coterie.config.reading import load_config, parse_config
from coterie.config.schema import (
    RECIPE,
    AlgorithmEntry,
    Config,
    GuardConfig,
    MlflowConfig,
    ModelConfig,
    NewcomersConfig,
    ParticipationConfig,
    RangeConfig,
    RayConfig,
    ScheduleConfig,
    SitesConfig,
    TrackingConfig,
    TrainingConfig,
    TuneConfig,
    WandbConfig,
)

__all__ = [
    "RECIPE",
    "AlgorithmEntry",
    "Config",
    "GuardConfig",
    "MlflowConfig",
    "ModelConfig",
    "NewcomersConfig",
    "ParticipationConfig",
    "RangeConfig",
    "RayConfig",
    "ScheduleConfig",
    "SitesConfig",
    "TrackingConfig",
    "TrainingConfig",
    "TuneConfig",
    "WandbConfig",
    "load_config",
    "parse_config",
]
