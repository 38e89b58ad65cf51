"""Federated training: one unit is a whole client, and only a clipped difference of weights leaves it."""

from saltflat.federated.clients import Client, Clients
from saltflat.federated.contribution import PerClient, per_client
from saltflat.federated.legacy import per_tensor
from saltflat.federated.local import Blur, Climb, Feedback, Local
from saltflat.federated.measured import Clipped, clipping_of
from saltflat.federated.partition import (
    IID,
    Dirichlet,
    DirichletEqual,
    Partition,
    by_column,
    dirichlet,
    dirichlet_equal,
    iid,
)
from saltflat.federated.shares import InShares, share_of, top_up

__all__ = [
    "IID",
    "Blur",
    "Client",
    "Clients",
    "Climb",
    "Clipped",
    "Dirichlet",
    "DirichletEqual",
    "Feedback",
    "InShares",
    "Local",
    "Partition",
    "PerClient",
    "by_column",
    "clipping_of",
    "dirichlet",
    "dirichlet_equal",
    "iid",
    "per_client",
    "per_tensor",
    "share_of",
    "top_up",
]
