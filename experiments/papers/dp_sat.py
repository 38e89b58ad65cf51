"""Park et al., DP-SAT: how much of its gain is sharpness, and how much the drift of the public code?

The public code adds the climb anew for every physical batch and takes it off once. So it asks at up to three climbs
(`SAT(drift=3)`), and the weights keep two of them (`AntiNoise`). Both halves are needed to be that code.
"""

from __future__ import annotations

from papers.rows import Arm, Paper, Published, Row

_SGD, _SAT = "dp-sgd-cifar10-cnn-tanh-eps3", "dp-sat-cifar10-cnn-tanh-eps3"
_KEPT = {"AntiNoise": {"optimizer": {"SGD": {"lr": 2.0, "momentum": 0.9}}, "distance": 0.1}}

PAPER = Paper(
    name="dp-sat",
    title="Park et al., Differentially Private Sharpness-Aware Training, ICML 2023",
    rows=(
        Row(
            name="drift-cifar10-eps3",
            title="CIFAR-10, CNN-Tanh with SELU (550,570 parameters), epsilon 3, noise by RDP as in the paper",
            source="the DP-SAT paper's main table",
            minutes=49,
            seeds=(0,),
            parts=(
                ("the climb", "dp-sat", "dp-sgd"),
                ("the code's drift on top of the climb", "dp-sat-drift", "dp-sat"),
                ("the drift alone", "anti-noise", "dp-sgd"),
            ),
            arms=(
                Arm("dp-sgd", "DP-SGD", _SGD, {}, Published(61.84, 0.48)),
                Arm("dp-sat", "DP-SAT, radius 0.05", _SAT, {}, Published(63.51, 0.40)),
                Arm(
                    "dp-sat-drift",
                    "DP-SAT with the public code's drift: 3 physical batches, 2 climbs kept",
                    _SAT,
                    {
                        "phase.0.method": {"SAT": {"radius": 0.05, "drift": 3}},
                        "phase.0.optimizer": _KEPT,
                    },
                ),
                Arm("anti-noise", "DP-SGD with the drift alone", _SGD, {"phase.0.optimizer": _KEPT}),
            ),
        ),
        Row(
            name="dp-sam-cifar10-eps1",
            title="DP-SAM on CIFAR-10, CNN-Tanh with SELU (550,570 parameters), epsilon 1",
            source="the DP-SAT paper's first table; its second one, for DPNAS, contradicts it",
            minutes=49,
            parts=(
                ("DP-SAM for 7.07 epochs", "dp-sam", "dp-sgd"),
                ("all 30 epochs, charged jointly", "dp-sam-joint", "dp-sam"),
            ),
            arms=(
                Arm("dp-sgd", "DP-SGD", "dp-sgd-cifar10-cnn-tanh-eps1", {}, Published(45.24, 0.42)),
                Arm(
                    "dp-sam",
                    "DP-SAM, DP-SGD's noise for 7.07 epochs, as the paper charges it",
                    "dp-sam-cifar10-cnn-tanh-eps1",
                    {},
                    Published(44.30, 1.16),
                ),
                Arm(
                    "dp-sam-joint",
                    "DP-SAM, 30 epochs, both answers of a step charged as one release",
                    "dp-sam-cifar10-cnn-tanh-joint-eps1",
                ),
            ),
        ),
    ),
)
