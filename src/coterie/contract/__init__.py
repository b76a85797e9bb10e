"""What an algorithm sees: Algorithm, Server, Site, payloads, and the registry. No engine code."""

from coterie.contract.algorithm import Algorithm, GlobalModel
from coterie.contract.payload import Broadcast, Mixture, Pick, ToPeers, broadcast, mixture, pick, to_peers
from coterie.contract.predictor import Predictor
from coterie.contract.registry import algorithm_class, available_algorithms, make_algorithm, register
from coterie.contract.server import Answers, Server
from coterie.contract.site import LocalContext, Site

__all__ = [
    "Algorithm", "Answers", "Broadcast", "GlobalModel", "LocalContext", "Mixture", "Pick", "Predictor", "Server",
    "Site", "ToPeers", "algorithm_class", "available_algorithms", "broadcast", "make_algorithm", "mixture", "pick",
    "register", "to_peers",
]  # fmt: skip
