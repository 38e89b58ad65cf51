"""The papers' networks. None has BatchNorm, none moves a tensor in place, and units never mix."""

from saltflat.models.cnn import cnn_tanh, digits_cnn, emnist_cnn, maps_cnn, tanh_cnn_mnist, tutorial_cnn
from saltflat.models.common import parameter_count
from saltflat.models.dpnas import dpnas_cifar, dpnas_fmnist, dpnas_mnist
from saltflat.models.language import next_word_loss, next_word_lstm, next_word_mlp
from saltflat.models.mlp import linear, mlp, mlp_cifar, mlp_mnist, transfer_head
from saltflat.models.resnet import gn_resnet18, gnresnet10, resnet9
from saltflat.models.vit import small_vit
from saltflat.models.wrn import ScaledStdConv2d, wrn_16_4, wrn_40_4

__all__ = [
    "ScaledStdConv2d",
    "cnn_tanh",
    "digits_cnn",
    "dpnas_cifar",
    "dpnas_fmnist",
    "dpnas_mnist",
    "emnist_cnn",
    "gn_resnet18",
    "gnresnet10",
    "linear",
    "maps_cnn",
    "mlp",
    "mlp_cifar",
    "mlp_mnist",
    "next_word_loss",
    "next_word_lstm",
    "next_word_mlp",
    "parameter_count",
    "resnet9",
    "small_vit",
    "tanh_cnn_mnist",
    "transfer_head",
    "tutorial_cnn",
    "wrn_16_4",
    "wrn_40_4",
]
