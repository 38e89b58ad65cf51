"""``saltflat budget``: what a run costs, the noise that a budget asks for, the steps that it affords.

The accountants are imported inside the commands, so that help and mistakes in flags answer at once.
"""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.screen import screen
from saltflat.errors import AccountingError, SettingError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

group = typer.Typer(
    help="Privacy budgets: what a run costs, how much noise it needs, how long it may last.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add ``budget`` and its commands to ``app``."""
    app.add_typer(group, name="budget")


class Split(str, Enum):
    """How phases share a budget."""

    joint_ratio = "joint_ratio"
    joint_share = "joint_share"
    sequential = "sequential"


Rate = Annotated[
    float | None,
    typer.Option(help="The probability that a unit joins a step: expected batch / number of units."),
]
Size = Annotated[
    int | None, typer.Option(help="The declared number of units; with --batch, in the place of --rate.")
]
Batch = Annotated[float | None, typer.Option(help="The expected number of units in a step.")]
Epochs = Annotated[float | None, typer.Option(help="How often each unit is used, in the place of --steps.")]
Delta = Annotated[
    float, typer.Option(help="The delta of (epsilon, delta); about 1 / (10 x units), e.g. 1e-6.")
]
Epsilon = Annotated[float | None, typer.Option(help="The epsilon to spend; or give --advantage.")]
Advantage = Annotated[
    float | None,
    typer.Option(
        help="In the place of --epsilon: the most by which any attack's true positive rate may pass its false positive "
        "rate, such as 0.1."
    ),
]
Priors = Annotated[
    list[float] | None,
    typer.Option(
        "--prior",
        help="The probability, before an attack, that the unit was used; what becomes of it is printed. Repeatable.",
    ),
]
Noise = Annotated[float, typer.Option(help="The noise multiplier: sigma divided by the clip norm.")]
MaybeNoise = Annotated[
    float | None,
    typer.Option(help="The noise multiplier: sigma divided by the clip norm. Goes with --steps."),
]
MaybeSteps = Annotated[int | None, typer.Option(help="The number of steps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
NoisyPhases = Annotated[
    list[str] | None,
    typer.Option(
        "--phase", metavar="STEPS:NOISE", help="A phase with its own noise; repeat for more phases."
    ),
]
SharedPhases = Annotated[
    list[str] | None,
    typer.Option(
        "--phase", metavar="STEPS:SHARE", help="A phase and its share of the budget; shares sum to 1."
    ),
]
HowSplit = Annotated[
    Split,
    typer.Option(
        help="sequential: each phase alone, epsilons add up. joint_ratio: the same ratios, accounted "
        "together, so less noise. joint_share: shares of the cost itself."
    ),
]


@group.command()
def epsilon(
    delta: Delta,
    rate: Rate = None,
    noise: MaybeNoise = None,
    steps: MaybeSteps = None,
    size: Size = None,
    batch: Batch = None,
    epochs: Epochs = None,
    phase: NoisyPhases = None,
    prior: Priors = None,
    as_json: AsJson = False,
) -> None:
    """What a run costs: epsilon at this delta, and what an attacker may learn of one unit.

    Examples:

        saltflat budget epsilon --rate 0.004266667 --noise 1.1 --steps 14062 --delta 1e-5

        saltflat budget epsilon --size 60000 --batch 256 --epochs 60 --noise 1.1 --delta 1e-5

        saltflat budget epsilon --rate 0.04 --delta 1e-5 --phase 250:1.54 --phase 500:14.0

        saltflat budget epsilon --rate 0.04 --noise 2 --steps 750 --delta 1e-5 --prior 0.001
    """
    from saltflat.privacy.accounting import bounds
    from saltflat.privacy.accounting.splits import phases_event

    rate = _rate(rate, size, batch)
    phases = [*_plain_phase(_steps(steps, epochs, rate), noise), *_pairs("--phase", phase, "STEPS:NOISE")]
    if not phases:
        raise SettingError(
            "no steps were given: add --steps or --epochs, and --noise; or --phase STEPS:NOISE"
        )
    event = phases_event(rate, [sigma for _, sigma in phases], [count for count, _ in phases])
    found = bounds.bound(event, delta)
    facts = {
        "epsilon": found.epsilon,
        "accountant": found.accountant,
        "epsilon_rdp": bounds.rdp_epsilon(event, delta),
        "epsilon_unamplified": bounds.epsilon_unamplified(event, delta),
        **_risk(event, prior),
    }
    _answer({**facts, **_context(event, delta)}, as_json, _epsilon_lines)


@group.command()
def noise(
    delta: Delta,
    epsilon: Epsilon = None,
    advantage: Advantage = None,
    rate: Rate = None,
    steps: MaybeSteps = None,
    size: Size = None,
    batch: Batch = None,
    epochs: Epochs = None,
    phase: SharedPhases = None,
    split: HowSplit = Split.joint_ratio,
    as_json: AsJson = False,
) -> None:
    """The noise multiplier of each phase that spends epsilon, or the membership advantage, and not more.

    Examples:

        saltflat budget noise --epsilon 2 --delta 1e-5 --rate 0.04 --steps 750

        saltflat budget noise --epsilon 2 --delta 1e-5 --size 50000 --batch 2000 --epochs 30

        saltflat budget noise --epsilon 2 --delta 1e-5 --rate 0.04 --phase 250:0.9 --phase 500:0.1

        saltflat budget noise --advantage 0.1 --delta 1e-5 --rate 0.04 --steps 750
    """
    from saltflat.privacy.accounting import bounds
    from saltflat.privacy.accounting.calibration import noise_for
    from saltflat.privacy.accounting.splits import SPLITS, phases_event

    target = _one_target(epsilon, advantage)
    rate = _rate(rate, size, batch)
    phases = [*_plain_phase(_steps(steps, epochs, rate), 1.0), *_pairs("--phase", phase, "STEPS:SHARE")]
    if not phases:
        raise SettingError(
            "no steps were given: add --steps or --epochs, or --phase STEPS:SHARE for each phase"
        )
    counts, shares = [count for count, _ in phases], [share for _, share in phases]
    if epsilon is not None:
        noises = SPLITS[split.value](epsilon=epsilon, delta=delta, rate=rate, steps=counts, shares=shares)
    elif len(counts) > 1:
        raise SettingError(
            "shares of several phases divide epsilon: give --epsilon, or one phase and --advantage"
        )
    else:
        noises = (noise_for(advantage=advantage, rate=rate, steps=counts[0]),)
    event = phases_event(rate, noises, counts)
    facts = {
        "noise": list(noises),
        "steps": counts,
        "split": split.value,
        "target": target,
        "epsilon": bounds.epsilon(event, delta),
        **_risk(event),
    }
    _answer({**facts, **_context(event, delta)}, as_json, _noise_lines)


@group.command()
def plan(
    delta: Delta,
    noise: Noise,
    epsilon: Epsilon = None,
    advantage: Advantage = None,
    rate: Rate = None,
    size: Size = None,
    batch: Batch = None,
    as_json: AsJson = False,
) -> None:
    """How many steps and epochs a budget affords at this noise, and what more or less noise would change.

    Example:

        saltflat budget plan --epsilon 2 --delta 1e-5 --rate 0.04 --noise 2.35
    """
    from saltflat.privacy.accounting import bounds
    from saltflat.privacy.accounting.calibration import steps_for
    from saltflat.privacy.accounting.events import phase_event

    target = _one_target(epsilon, advantage)
    limit = {"epsilon": epsilon, "delta": delta} if epsilon is not None else {"advantage": advantage}
    rate = _rate(rate, size, batch)
    steps = steps_for(**limit, rate=rate, noise_multiplier=noise)
    rows = [_plan_row(limit, rate, factor * noise) for factor in (0.7, 0.85, 1.0, 1.2, 1.5)]
    event = phase_event(rate, noise, steps)
    facts = {
        "steps": steps,
        "epochs": steps * rate,
        "target": target,
        "epsilon": bounds.epsilon(event, delta) if epsilon is None else epsilon,
        **_risk(event),
        "noise": noise,
        "table": rows,
    }
    _answer({**facts, **_context(event, delta)}, as_json, _plan_lines)


def _one_target(epsilon: float | None, advantage: float | None) -> str:
    """The target in words, for a table; exactly one of the two is given."""
    if epsilon is None and advantage is None:
        raise SettingError("no target was given: add --epsilon or --advantage")
    if epsilon is not None and advantage is not None:
        raise SettingError("--epsilon and --advantage both decide the noise; leave one of them out")
    return f"advantage {advantage:g}" if epsilon is None else f"epsilon {epsilon:g}"


def _risk(event: DpEvent, priors: list[float] | None = None) -> dict[str, Any]:
    """What an attacker may learn of one unit at most."""
    from saltflat.privacy.accounting import risk

    found = risk.tradeoff(event)
    return {
        "advantage": found.advantage,
        "right_guesses": found.accuracy,
        "true_positives": [[rate, found.true_positives(rate)] for rate in risk.RATES],
        "posteriors": [[prior, found.posterior(prior)] for prior in priors or risk.PRIORS],
        "risk_source": found.source,
    }


def _plan_row(limit: dict[str, Any], rate: float, noise: float) -> dict[str, Any]:
    from saltflat.privacy.accounting.calibration import steps_for

    try:
        steps = steps_for(**limit, rate=rate, noise_multiplier=noise)
    except AccountingError:
        steps = 0
    return {"noise": noise, "steps": steps, "epochs": steps * rate}


def _rate(rate: float | None, size: int | None, batch: float | None) -> float:
    """The sampling rate: as given, or the expected batch's part of the declared size."""
    if rate is not None:
        if size is not None or batch is not None:
            raise SettingError("--rate is --batch / --size: give it, or these two, not both")
        return rate
    if size is None or batch is None:
        raise SettingError("no sampling rate was given: add --rate, or --size and --batch")
    if size < 1 or not 0 < batch <= size:
        raise SettingError(f"--batch lies above 0 and is at most --size; got {batch:g} of {size}")
    return batch / size


def _steps(steps: int | None, epochs: float | None, rate: float) -> int | None:
    """The steps: as given, or those of so many epochs, as a run of that length would take them."""
    if epochs is None:
        return steps
    if steps is not None:
        raise SettingError("--epochs and --steps say the same: give one of them")
    if not 0 < epochs < math.inf or not 0 < rate <= 1:
        raise SettingError(f"--epochs must be above 0, and finite; got {epochs:g} at rate {rate:g}")
    return max(1, round(epochs / rate))


def _plain_phase(steps: int | None, value: float | None) -> list[tuple[int, float]]:
    if steps is None and value is not None and value != 1.0:
        raise SettingError("--noise was given without --steps: give both, or use --phase STEPS:NOISE")
    if steps is not None and value is None:
        raise SettingError("--steps was given without --noise: give both, or use --phase STEPS:NOISE")
    return [] if steps is None or value is None else [(steps, value)]


def _pairs(flag: str, texts: list[str] | None, form: str) -> list[tuple[int, float]]:
    """``250:0.9`` as (250, 0.9)."""
    pairs = []
    for text in texts or []:
        steps, _, value = text.partition(":")
        try:
            pairs.append((int(steps), float(value)))
        except ValueError:
            raise SettingError(f"{flag} {text} is not {form}: write for example {flag} 250:0.9") from None
    return pairs


def _context(event: DpEvent, delta: float) -> dict[str, Any]:
    """What every epsilon must be read with."""
    from saltflat.privacy.accounting.events import ADD_REMOVE, adjacency_words, describe_sampling

    return {
        "delta": delta,
        "unit": "one example (whatever is sampled and clipped as one)",
        "adjacency": adjacency_words(ADD_REMOVE),
        "sampling": describe_sampling(event),
    }


def _answer(facts: dict[str, Any], as_json: bool, lines: Any) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return

    console = screen(highlight=False, soft_wrap=True)
    for line in lines(facts):
        console.print(line)
    console.print(
        f"[dim]at delta {facts['delta']:g}; unit: {facts['unit']}; adjacency: {facts['adjacency']}; "
        f"{facts['sampling']}[/dim]"
    )


def _epsilon_lines(facts: dict[str, Any]) -> list[Any]:
    from saltflat.privacy.limits import rounded_up

    up = lambda key: rounded_up(facts[key], 4)
    return [
        f"epsilon [bold]{up('epsilon')}[/bold]  ({facts['accountant']})",
        f"second opinion {up('epsilon_rdp')} (RDP); without the help of sampling {up('epsilon_unamplified')}",
        *_risk_lines(facts),
    ]


def _risk_lines(facts: dict[str, Any]) -> list[str]:
    """The same in sentences, rounded up."""
    from saltflat.privacy.limits import rounded_up

    percent = lambda share: f"{rounded_up(100 * share)} %"
    found = ", ".join(f"{percent(true)} at {100 * false:g} %" for false, true in facts["true_positives"])
    beliefs = ", ".join(f"{percent(after)} from {100 * before:g} %" for before, after in facts["posteriors"])
    return [
        f"an attacker guesses whether one unit was used right in at most {percent(facts['right_guesses'])} of cases "
        f"(advantage {rounded_up(facts['advantage'])}; 50 % is a coin flip)",
        f"true positive rate at most {found} false positives; posterior at 1 % false positives at most {beliefs}",
    ]


def _noise_lines(facts: dict[str, Any]) -> list[Any]:
    from saltflat.privacy.limits import rounded_up

    phases = zip(facts["noise"], facts["steps"], strict=True)
    lines = [f"noise [bold]{rounded_up(sigma, 4)}[/bold] for {steps} steps" for sigma, steps in phases]
    how = f" (split: {facts['split']})" if len(facts["steps"]) > 1 else ""
    return [*lines, f"together epsilon {rounded_up(facts['epsilon'], 4)}{how}", *_risk_lines(facts)]


def _plan_lines(facts: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    table = Table("noise", "steps", "epochs", title=f"what {facts['target']} affords", title_style="")
    for row in facts["table"]:
        table.add_row(f"{row['noise']:.4g}", str(row["steps"] or "none"), f"{row['epochs']:.4g}")
    return [f"[bold]{facts['steps']}[/bold] steps, {facts['epochs']:.4g} epochs", *_risk_lines(facts), table]
