"""Clients on other machines: Flower carries messages; clip, sum, noise, sampling and record are the house's own.

Everything but `client_app`, `GridPost` and `flower` works without Flower being installed.
"""

from saltflat.federated.flower.client import Answering, client_app
from saltflat.federated.flower.post import GridPost
from saltflat.federated.flower.quiet import flower
from saltflat.federated.flower.remote import Fleet, Remote, over_flower
from saltflat.federated.flower.wire import Packed, Post, Question, Reply

__all__ = [
    "Answering",
    "Fleet",
    "GridPost",
    "Packed",
    "Post",
    "Question",
    "Remote",
    "Reply",
    "client_app",
    "flower",
    "over_flower",
]
