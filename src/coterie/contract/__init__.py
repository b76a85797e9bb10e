"""What an algorithm sees: Algorithm, Server, Site, payloads, and the registry. No engine code."""

from coterie.contract.acquaintances import Acquaintances
from coterie.contract.algorithm import Algorithm, GlobalModel
from coterie.contract.claims import Anchored, Claims, Federated, Limit, Situation, Traffic, unchanged
from coterie.contract.options import option
from coterie.contract.payload import Broadcast, Mixture, Pick, ToPeers, broadcast, mixture, pick, to_peers
from coterie.contract.predictor import Predictor
from coterie.contract.registry import (
    algorithm_class,
    alias,
    available_algorithms,
    build_algorithm,
    make_algorithm,
    register,
)
from coterie.contract.server import Answers, Server
from coterie.contract.site import LocalContext, Site

__all__ = [
    "Acquaintances", "Algorithm", "Anchored", "Answers", "Broadcast", "Claims", "Federated", "GlobalModel", "Limit",
    "LocalContext", "Mixture", "Pick", "Predictor", "Server", "Site", "Situation", "ToPeers", "Traffic",
    "algorithm_class", "alias", "available_algorithms", "broadcast", "build_algorithm", "make_algorithm", "mixture",
    "option", "pick", "register", "to_peers", "unchanged",
]  # fmt: skip
