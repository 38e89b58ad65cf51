"""Wang et al., sharpness-aware initialization (SAI): does its headline show, and what causes it?

SAI changes three things at once when its first phase ends: the climb stops, the learning rate falls from 2 to 0.1, and
the noise rises, because the first phase had most of the budget. The controls take them apart.
"""

from __future__ import annotations

from typing import Any

from papers.rows import Arm, Paper, Published, Row, phase


def _row(
    name: str,
    title: str,
    *,
    data: str,
    epsilon: int,
    settings: dict[str, Any],
    published: dict[str, Published],
    **row: Any,
) -> Row:
    """SAI, its baselines and its controls on one data set."""
    epochs, first, clip_norm, portion = (settings[key] for key in ("epochs", "first", "clip_norm", "portion"))
    climb, rest = {"SAT": {"radius": settings["radius"]}}, epochs - first
    steps = settings["steps"]
    sgd, sat, sai = (f"{method}-{data}-eps{epsilon}" for method in ("dp-sgd", "dp-sat", "sai"))
    tight = {"accountant": "PLD"}

    def phases(method: Any, second: float, *, split: bool) -> list[dict[str, Any]]:
        parts = (portion, round(1 - portion, 9)) if split else (None, None)
        clip = clip_norm if split else 0.1
        return [
            phase(method, first, 2.0, clip_norm=clip, portion=parts[0]),
            phase("DPSGD", rest, second, portion=parts[1]),
        ]

    joint = {"budget_split": "joint_ratio"}
    no_climb = {"phase": phases("DPSGD", 0.1, split=True)}
    paper = (
        Arm("dp-sgd-rdp", "DP-SGD, noise by RDP as in the paper", sgd, {}, published["dp-sgd"]),
        Arm("dp-sat-rdp", "DP-SAT, noise by RDP as in the paper", sat, {}, published["dp-sat"]),
    )
    same = row.get("same_network", True)
    arms = (
        Arm("dp-sgd", "DP-SGD", sgd, tight, None if same else published["dp-sgd"]),
        Arm("sai", "SAI as in the paper", sai, {}, published["sai"]),
        Arm("sai-no-climb", "SAI with radius 0", sai, no_climb),
        Arm(
            "dp-sgd-drop",
            "DP-SGD, learning rate 2, then 0.1 from SAI's switch on",
            sgd,
            {**tight, "phase": phases("DPSGD", 0.1, split=False)},
        ),
        Arm("dp-sat", "DP-SAT", sat, tight, None if same else published["dp-sat"]),
        *(paper if same else ()),
        Arm("sai-joint", "SAI, both phases accounted for jointly", sai, joint),
        Arm(
            "sai-joint-no-climb",
            "SAI with radius 0, both phases accounted for jointly",
            sai,
            {**joint, **no_climb},
        ),
        Arm(
            "dp-sgd-cosine",
            "DP-SGD, learning rate 2 to 0.1 along a cosine",
            sgd,
            {
                **tight,
                "phase.0.optimizer.SGD.lr": {"Cosine": {"start": 2.0, "end": 0.1, "steps": steps}},
            },
        ),
        Arm(
            "sat-drop",
            "DP-SAT until SAI's switch, then DP-SGD at learning rate 0.1, DP-SGD's noise throughout",
            sgd,
            {**tight, "phase": phases(climb, 0.1, split=False)},
        ),
        Arm(
            "noise-split",
            "DP-SGD at learning rate 2 throughout, SAI's noise",
            sai,
            {"phase": phases("DPSGD", 2.0, split=True)},
        ),
    )
    parts = (
        ("the drop of the learning rate", "dp-sgd-drop", "dp-sgd"),
        ("SAI's division of the noise, with the drop", "sai-no-climb", "dp-sgd-drop"),
        ("the climb, with both", "sai", "sai-no-climb"),
        ("the division of the noise without the drop", "noise-split", "dp-sgd"),
        ("the climb with the drop, at DP-SGD's noise", "sat-drop", "dp-sgd-drop"),
        ("the climb alone", "dp-sat", "dp-sgd"),
        ("joint accounting", "sai-joint", "sai"),
    )
    return Row(name=name, title=title, arms=arms, parts=parts, baseline="dp-sgd-rdp" if same else "", **row)


_FASHION = {"epochs": 40, "steps": 1200}
_CIFAR = {"epochs": 30, "steps": 750}


def _fashion(epsilon: int, settings: dict[str, Any], published: dict[str, Published]) -> Row:
    return _row(
        f"fashion-mnist-eps{epsilon}",
        f"Fashion-MNIST, tanh CNN of 26,010 parameters, epsilon {epsilon}",
        data="fashion-mnist-tanh-cnn",
        epsilon=epsilon,
        settings={**_FASHION, **settings},
        published=published,
        source="settings of the SAI paper's table for Fashion-MNIST; the numbers are those of another network, DPNAS",
        minutes=12,
        same_network=False,
    )


def _cifar(epsilon: int, settings: dict[str, Any], published: dict[str, Published], **row: Any) -> Row:
    return _row(
        f"cifar10-eps{epsilon}",
        f"CIFAR-10, CNN-Tanh with SELU (550,570 parameters), epsilon {epsilon}",
        data="cifar10-cnn-tanh",
        epsilon=epsilon,
        settings={**_CIFAR, **settings},
        published=published,
        source="the SAI paper's main table at delta 1e-5; its DP-SGD and DP-SAT columns are the DP-SAT paper's",
        minutes=49,
        **row,
    )


PAPER = Paper(
    name="sai",
    title="Wang et al., sharpness-aware initialization (SAI), USENIX Security 2025",
    rows=(
        _fashion(
            1,
            {"first": 15, "clip_norm": 0.1, "radius": 0.05, "portion": 0.8},
            {
                "dp-sgd": Published(84.62, 0.19),
                "dp-sat": Published(85.92, 0.35),
                "sai": Published(86.36, 0.16),
            },
        ),
        _fashion(
            3,
            {"first": 20, "clip_norm": 0.2, "radius": 0.03, "portion": 0.9},
            {
                "dp-sgd": Published(87.97, 0.17),
                "dp-sat": Published(88.60, 0.04),
                "sai": Published(89.05, 0.03),
            },
        ),
        _cifar(
            1,
            {"first": 10, "clip_norm": 0.1, "radius": 0.3, "portion": 0.8},
            {
                "dp-sgd": Published(45.24, 0.42),
                "dp-sat": Published(45.78, 0.48),
                "sai": Published(51.79, 0.66),
            },
        ),
        _cifar(
            2,
            {"first": 10, "clip_norm": 0.2, "radius": 0.05, "portion": 0.9},
            {
                "dp-sgd": Published(56.90, 0.33),
                "dp-sat": Published(58.35, 0.55),
                "sai": Published(60.44, 0.40),
            },
            seeds=(0,),
        ),
        _cifar(
            3,
            {"first": 15, "clip_norm": 0.2, "radius": 0.05, "portion": 0.9},
            {
                "dp-sgd": Published(61.84, 0.48),
                "dp-sat": Published(63.51, 0.40),
                "sai": Published(64.30, 0.12),
            },
            seeds=(0,),
        ),
    ),
)
