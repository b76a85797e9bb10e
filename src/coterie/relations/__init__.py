"""Relations between clients: pure functions on matrices, without servers, files or configuration."""

from coterie.relations.ablations import gradient_similarity, parameter_similarity, random_similarity
from coterie.relations.attention import attention, cosine_attention, effective_alpha
from coterie.relations.balance import balanced_cross_entropy, balancing_offsets
from coterie.relations.client_graph import ClientGraph
from coterie.relations.clusters import (
    bipartition,
    cluster_shares,
    descend,
    membership,
    name_order,
    seed_centres,
    shuffled_groups,
)
from coterie.relations.distances import cosines, cross_distances, median_distance, squared_distances
from coterie.relations.laplacian import covariance_step, gram, laplacian_step, largest_degree, task_covariance
from coterie.relations.low_rank import LowRank, low_rank_factors, low_rank_propagation
from coterie.relations.many import FOR_MANY, no_propagation, solver_for
from coterie.relations.mixing import adam, benefits, positive_shares, softmax_slope
from coterie.relations.neighbours import Neighbours, neighbour_graph
from coterie.relations.newcomers import with_newcomer
from coterie.relations.posterior import heaviest, owner_shares, posterior, responsibilities, track_losses
from coterie.relations.propagation import (
    propagate_iteratively,
    propagation_matrix,
    restrict,
    row_stochastic,
    similarity_graph,
    taking_rows,
)
from coterie.relations.sampling import epsilon_greedy
from coterie.relations.subspaces import joint_matrix, principal_subspace, subspace_similarity
from coterie.relations.weights import inverse_distance_weights, mean_self_weight, normalised

__all__ = [
    "FOR_MANY",
    "ClientGraph",
    "LowRank",
    "Neighbours",
    "adam",
    "attention",
    "balanced_cross_entropy",
    "balancing_offsets",
    "benefits",
    "bipartition",
    "cluster_shares",
    "cosine_attention",
    "cosines",
    "covariance_step",
    "cross_distances",
    "descend",
    "effective_alpha",
    "epsilon_greedy",
    "gradient_similarity",
    "gram",
    "heaviest",
    "inverse_distance_weights",
    "joint_matrix",
    "laplacian_step",
    "largest_degree",
    "low_rank_factors",
    "low_rank_propagation",
    "mean_self_weight",
    "median_distance",
    "membership",
    "name_order",
    "neighbour_graph",
    "no_propagation",
    "normalised",
    "owner_shares",
    "parameter_similarity",
    "positive_shares",
    "posterior",
    "principal_subspace",
    "propagate_iteratively",
    "propagation_matrix",
    "random_similarity",
    "responsibilities",
    "restrict",
    "row_stochastic",
    "seed_centres",
    "shuffled_groups",
    "similarity_graph",
    "softmax_slope",
    "solver_for",
    "squared_distances",
    "subspace_similarity",
    "taking_rows",
    "task_covariance",
    "track_losses",
    "with_newcomer",
]
