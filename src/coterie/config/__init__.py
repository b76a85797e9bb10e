"""Validated configuration: a YAML file, a preset or a mapping in, precise errors out."""

from coterie.config.reading import load_config, parse_config
from coterie.config.schema import (
    RECIPE,
    AlgorithmEntry,
    Config,
    ModelConfig,
    NewcomersConfig,
    ParticipationConfig,
    RangeConfig,
    RayConfig,
    ScheduleConfig,
    SitesConfig,
    TrainingConfig,
    TuneConfig,
)

__all__ = [
    "RECIPE",
    "AlgorithmEntry",
    "Config",
    "ModelConfig",
    "NewcomersConfig",
    "ParticipationConfig",
    "RangeConfig",
    "RayConfig",
    "ScheduleConfig",
    "SitesConfig",
    "TrainingConfig",
    "TuneConfig",
    "load_config",
    "parse_config",
]
