"""A Markdown table of a results file: one line for every run, none averaged away.

python experiments/table.py experiments/results.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import results

HEADINGS = (
    *("data", "epsilon", "method", "epochs", "seed", "noise multiplier", "epsilon spent"),
    *("last epoch", "EMA", "minutes"),
)


def order(result: results.Result) -> tuple:
    """Runs that are to be compared stand together: by data, epsilon, number of epochs, method, seed."""
    settings = result["settings"]
    return tuple(settings[key] for key in ("data", "epsilon", "epochs", "method", "seed"))


def cells(result: results.Result) -> tuple[str, ...]:
    """One run as text; accuracies in percent."""
    settings = result["settings"]
    return (
        settings["data"],
        f"{settings['epsilon']:g}",
        settings["method"],
        str(settings["epochs"]),
        str(settings["seed"]),
        ", then ".join(f"{noise:.3f}" for noise in result["noise_multipliers"]),
        result["stamp"] or f"{result['epsilon']:.3f}",
        f"{100 * result['accuracy_last']:.2f}",
        f"{100 * result['accuracy_ema']:.2f}",
        f"{result['seconds'] / 60:.1f}",
    )


def markdown(found: Sequence[results.Result]) -> str:
    """The whole table, with a line that says what its epsilons mean."""
    if not found:
        return "No runs yet."
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(cells(result) for result in sorted(found, key=order))]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    deltas = ", ".join(sorted({f"{result['settings']['delta']:g}" for result in found}))
    lines += [
        "",
        f"Runs: {len(found)}. Test accuracy in percent. Epsilon is each run's own, at delta {deltas}; unit: one "
        "example; adjacency: add or remove one; Poisson sampling. All runs together cost more than any of them.",
    ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table of the named file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a file that an experiment wrote")
    path = parser.parse_args(words).results
    if not path.is_file():
        sys.exit(f"{path} is not a file; run the experiment first")
    print(markdown(results.read(path)))


if __name__ == "__main__":
    main()
