"""Wang et al., DPLIS: does smoothing gain, and how much of it is the summed gradients of the released code?

Clipping a sum of K gradients to C is clipping their mean to C / K with steps K times as large. The control does that
without smoothing.
"""

from __future__ import annotations

from papers.rows import Arm, Paper, Published, Row

LR = 0.1536


def _row(network: str, recipe: str, published: tuple[float, float, float], minutes: float) -> Row:
    def smoothed(reach: float, *, total: bool) -> dict[str, object]:
        return {"phase.0.method": {"DPLIS": {"lr": LR, "copies": 10, "reach": reach, "total": total}}}

    none, r10, r40 = published
    return Row(
        name=f"mnist-{network}",
        title=f"MNIST, {network}, 6,057 steps at noise 1.1 (epsilon 1.99 as printed, 1.51 by PLD)",
        source="the DPLIS paper's Table 2, single runs",
        minutes=minutes,
        parts=(
            ("smoothing at R 10", "mean-r10", "none"),
            ("smoothing at R 40", "mean-r40", "none"),
            ("the sum without smoothing", "rescaled", "none"),
            ("smoothing at R 10 on top of the sum", "sum-r10", "rescaled"),
            ("smoothing at R 40 on top of the sum", "sum-r40", "rescaled"),
        ),
        arms=(
            Arm("none", "DP-SGD", recipe, {"phase.0.method": "DPSGD"}, Published(none)),
            Arm("mean-r10", "DPLIS, mean, R 10", recipe, smoothed(10.0, total=False), Published(r10)),
            Arm("mean-r40", "DPLIS, mean, R 40", recipe, smoothed(40.0, total=False), Published(r40)),
            Arm("sum-r10", "DPLIS, sum as in the released code, R 10", recipe, smoothed(10.0, total=True)),
            Arm("sum-r40", "DPLIS, sum as in the released code, R 40", recipe, smoothed(40.0, total=True)),
            Arm(
                "rescaled",
                "DP-SGD, clip norm 0.1 and learning rate 1.536: the sum without smoothing",
                recipe,
                {
                    "phase.0.method": "DPSGD",
                    "phase.0.clip_norm": 0.1,
                    "phase.0.optimizer.SGD.lr": 10 * LR,
                },
            ),
        ),
    )


PAPER = Paper(
    name="dplis",
    title="Wang et al., DPlis, PoPETs 2021",
    rows=(
        _row("tutorial_cnn", "dplis-mnist-cnn", (95.08, 96.62, 97.31), minutes=60),
        _row("mlp_mnist", "dplis-mnist-mlp", (92.60, 92.66, 93.58), minutes=40),
    ),
)
