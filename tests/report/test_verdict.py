"""The first screen: which is better, how sure, at what cost, which is flatter; and no more than the tests show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from folders import NOISE, RATE, STEPS, without_pictures, write_evaluation, write_landscape, write_run
from scipy import stats

from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.history import epsilon_of
from saltflat.privacy.record.ledger import Ledger
from saltflat.report.card import card
from saltflat.report.folder import gather
from saltflat.report.groups import grouped
from saltflat.report.page import page
from saltflat.report.verdict import Verdict, verdicts


def judged(
    path: Path, right: np.ndarray, *, sharp: float = 1.0, method: str = "dp-sat", seed: int = 0
) -> Path:
    """A run that is right on these test examples, and as steep as that."""
    made = without_pictures(write_landscape(write_run(path, method=method, seed=seed), sharp=sharp))
    return write_evaluation(made, right)


def bits(share: float, count: int = 400, *, shift: int = 0) -> np.ndarray:
    return np.roll(np.arange(count) < share * count, shift)


def only(*paths: Path) -> Verdict:
    (found,) = verdicts(gather(paths))
    return found


def test_two_runs_that_no_test_tells_apart(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", bits(0.90))
    two = judged(tmp_path / "two", bits(0.89, shift=6), method="dp-sgd", sharp=1.05)
    found = only(one, two)
    assert found.better == "Neither is shown to be: one 90.0 %, two 89.0 %."
    p = stats.binomtest(6, 8).pvalue  # one alone is right on 6, two alone on 2
    assert f"p = {p:.2g} (McNemar's exact test on the same 400 examples)" in found.sure
    assert "decides little about their methods" in found.sure
    assert "the same for both; unit: one example, add or remove one unit" in found.each
    expected = epsilon_of({(RATE, NOISE): 2 * STEPS}, 1e-5, "add-or-remove")
    assert found.together.startswith(
        f"Epsilon {rounded_up(expected, 4)} at delta 10⁻⁵ for both runs on digits"
    )
    assert "within error" in found.flatter
    assert found.lead == (
        "same epsilon; accuracies within error; largest eigenvalue within error, sharpness within error"
    )


def test_a_better_and_a_flatter_run(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", bits(0.95), sharp=0.57)
    two = judged(tmp_path / "two", bits(0.80), method="dp-sgd")
    found = only(two, one)
    assert found.better.startswith("one: one 95.0 %, two 80.0 %")
    assert "+15.0 points against two" in found.sure
    assert "Largest eigenvalue: one 43 % lower, 12.3 ± 1.5 against 21.5 ± 1.5 of two" in found.flatter
    assert "one's largest eigenvalue 43 % lower" in found.lead


def test_repeats_are_compared_by_both_tests(tmp_path: Path) -> None:
    ours = [judged(tmp_path / "a" / f"seed-{k}", bits(0.90 + 0.01 * k), seed=k) for k in range(3)]
    theirs = [
        judged(tmp_path / "b" / f"seed-{k}", bits(0.80 + 0.01 * k), seed=k, method="dp-sgd") for k in range(3)
    ]
    groups = grouped(gather([*ours, *theirs]))
    assert [(group.name, len(group.runs)) for group in groups] == [("a", 3), ("b", 3)]
    assert groups[0].accuracy == pytest.approx(0.91)
    assert groups[0].error == pytest.approx(0.01 / 3**0.5)
    found = only(*ours, *theirs)
    assert found.better == "a: a 91.0 % ± 0.6, b 81.0 % ± 0.6."
    assert "Welch's t-test over 3 and 3 repeats" in found.sure
    assert "paired z-test on the same 400 examples" in found.sure
    assert "for all 6 runs on digits" in found.together


def test_one_bad_test_is_enough_not_to_call_it(tmp_path: Path) -> None:
    """Both recipes' repeats differ on these examples, but spread so much that their means do not."""
    ours = [judged(tmp_path / "a" / f"seed-{k}", bits(s), seed=k) for k, s in enumerate((0.70, 0.99))]
    theirs = [
        judged(tmp_path / "b" / f"seed-{k}", bits(s), seed=k, method="dp-sgd")
        for k, s in enumerate((0.60, 0.90))
    ]
    assert only(*ours, *theirs).better.startswith("Neither is shown to be")


def test_many_comparisons_cost_something(tmp_path: Path) -> None:
    """p = 0.031 against one other; times two comparisons it shows nothing."""
    best = judged(tmp_path / "best", bits(0.5))
    rest = [judged(tmp_path / name, bits(0.485), method=m) for name, m in (("one", "dp-sgd"), ("two", "far"))]
    assert only(best, rest[0]).better.startswith("best: ")
    found = only(best, *rest)
    assert "not shown to be better than one, two" in found.better
    assert "for 2 comparisons at once" in found.sure


def test_what_cannot_be_said_is_not(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", method="dp-sgd", peak=0.5)
    found = only(one, two)
    assert found.better.startswith("Neither is shown to be")
    assert "no test can be made" in found.sure
    assert found.flatter.startswith("Not measured; saltflat landscape ")
    write_evaluation(one, bits(0.9), examples="these")
    write_evaluation(two, bits(0.5), examples="others")
    assert "no test can be made" in only(one, two).sure  # other test examples
    (one / "evaluation.json").write_text("{}")
    assert "evaluation" in gather([one])[0].evaluation.trouble


def test_an_interval_needs_the_reading_that_it_is_of(tmp_path: Path) -> None:
    path = write_evaluation(write_run(tmp_path / "one"), bits(0.9))
    assert "86.7 to 92.6 % (95 % interval, 400 test examples)" in only(path).sure
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": STEPS + 1, "accuracy": 0.8}) + "\n")  # of other weights
    assert "Unknown" in only(path).sure


def test_other_epsilons_do_not_compare(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", method="dp-sgd")
    with Ledger.open(two / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, 2.0, steps=3)
    found = only(one, two)
    assert (
        " at delta 10⁻⁵; unit: one example, add or remove one unit. Accuracies at other epsilons do"
        in found.each
    )
    assert found.lead.startswith("epsilons differ")


def test_epsilons_that_differ_by_rounding_compare(tmp_path: Path) -> None:
    """Three runs at 2.998, 2.998 and 2.997 were told not to compare."""
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", method="dp-sgd")
    with Ledger.open(two / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, 24.0, steps=4)
    found = only(one, two)
    assert "less than 1 % apart; unit: one example" in found.each
    assert "do not compare" not in found.each
    assert found.lead.startswith("epsilons within 1 %")


def test_the_losses_beside_flatness_are_of_those_it_names(tmp_path: Path) -> None:
    runs = [
        judged(tmp_path / name, bits(0.9), sharp=sharp) for name, sharp in (("b", 1), ("a", 0.4), ("c", 3))
    ]
    for run, method in zip(runs, ("dp-sgd", "dp-sat", "far"), strict=True):
        (run / "recipe.toml").write_text(
            (write_run(tmp_path / method, method=method) / "recipe.toml").read_text()
        )
    assert only(*runs).flatter.endswith("lowest and highest of 3. Loss: a 0.3, c 0.3.")


def test_measures_of_other_examples_do_not_compare(tmp_path: Path) -> None:
    one, two = judged(tmp_path / "one", bits(0.9)), judged(tmp_path / "two", bits(0.9), method="dp-sgd")
    file = two / "landscape" / "measures.json"
    file.write_text(file.read_text().replace("1f2e3d4c", "99999999"))
    assert only(one, two).flatter == "Not comparable: measured with other examples' hash."


def test_a_card_of_a_repeated_run(tmp_path: Path) -> None:
    runs = gather([judged(tmp_path / f"seed-{k}", bits(0.90 + 0.01 * k), seed=k) for k in range(3)])
    text = card(runs)
    assert "Test accuracy: 90.00 % (95 % interval 86.7 to 92.6 %, 400 test examples)." in text
    assert "Over 3 runs of this recipe: mean 91.00 %, standard error 0.58 %." in text
    assert "Example-level privacy" in text
    assert "physical" not in text
    assert "| largest Hessian eigenvalue | 21.5 ± 1.5 |" in text


def test_repeats_have_bands_and_a_section(tmp_path: Path) -> None:
    runs = gather([judged(tmp_path / f"seed-{k}", bits(0.90 + 0.01 * k), seed=k) for k in range(3)])
    text = page(runs)
    assert 'id="repeats"' in text
    assert 'class="band"' in text
    assert f'<td data-label="epsilon of all together">{_joint(3)}</td>' in text
    assert "91.00 %" in text
    assert "0.58 %" in text


def _joint(times: int) -> str:
    return rounded_up(epsilon_of({(RATE, NOISE): times * STEPS}, 1e-5, "add-or-remove"), 4)


def test_two_files_of_one_name_are_two_data_sets(tmp_path: Path) -> None:
    """Paths are shown by their ends, and told apart as a whole."""
    for name in ("one", "two"):
        path = write_run(tmp_path / name) / "recipe.toml"
        path.write_text(path.read_text().replace('data = "digits"', f'data = "/home/{name}/mine.csv"'))
    runs = gather([tmp_path / "one", tmp_path / "two"])
    assert len(verdicts(runs)) == 2
    text = page(runs)
    assert "mine.csv" in text
    assert "/home/" not in text
