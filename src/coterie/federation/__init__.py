"""Federations: client data, where they come from and how they are divided."""

from coterie.federation.arrays import federation_of
from coterie.federation.build import build_federation
from coterie.federation.config import FederationConfig
from coterie.federation.data import ClientData
from coterie.federation.datasets import available_sources
from coterie.federation.federation import Federation
from coterie.federation.partition import available_rules

__all__ = [
    "ClientData",
    "Federation",
    "FederationConfig",
    "available_rules",
    "available_sources",
    "build_federation",
    "federation_of",
]
