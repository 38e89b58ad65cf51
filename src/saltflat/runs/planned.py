"""Every setting of a sweep as a recipe of its own with its plan: what it would cost, alone and with all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from saltflat.core.plan import Plan, with_spare
from saltflat.errors import SettingError
from saltflat.privacy.record.costs import Cost
from saltflat.privacy.record.history import epsilon_of
from saltflat.recipes import Recipe, documents, toml
from saltflat.recipes.build import fitted, form_of, plan_of, size_of
from saltflat.recipes.recipe import from_document
from saltflat.runs.sweep import Setting, Sweep


@dataclass(frozen=True)
class Planned:
    """A setting as a recipe of its own, and its plan."""

    setting: Setting
    recipe: Recipe
    plan: Plan

    @property
    def unit(self) -> str:
        """Whose privacy it costs."""
        return "example" if self.recipe.clients is None else "client"

    @property
    def most(self) -> dict[Cost, int]:
        """The most steps of each cost that a trial of it may take over all its starts."""
        if any(callable(phase.noise_schedule) for phase in self.plan.phases):  # any place of it may run again
            return {cost: n + 2 * self.recipe.spare for cost, n in self.plan.by_cost().items()}
        return dict(with_spare(self.plan, self.recipe.spare).by_cost())


def planned_of(sweep: Sweep, data_dir: Path | None) -> list[Planned]:
    """Every setting of the grid, checked: a mistake in one is told before anything runs."""
    document = documents.parse(sweep.recipe, "the sweep's recipe")
    found = []
    for setting in sweep.settings:
        asked = [
            (toml.keys_of(key), toml.word(value), f"--over {key}={value}") for key, value in setting.changes
        ]
        recipe = from_document(document.but(asked))
        recipe = fitted(recipe, form_of(recipe, data_dir))
        plan = plan_of(recipe, size_of(recipe))
        if plan.data_driven:
            raise SettingError(
                f"{setting.name}: results decide when its noise changes, so what all trials cost together is not fixed "
                "in advance; sweep a recipe without until, or train each by itself"
            )
        found.append(Planned(setting, recipe, plan))
    same: dict[str, str] = {}
    for each in found:
        text = each.recipe.as_toml()
        if text in same:
            raise SettingError(
                f"{same[text]} and {each.setting.name} are one and the same recipe: one --over overrides another, or "
                "a value is there in two spellings"
            )
        same[text] = each.setting.name
    kinds = {each.plan.adjacency for each in found}
    if len(kinds) > 1:
        raise SettingError(
            "the settings differ in their draw, and costs of different adjacencies do not add up"
        )
    return found


def joint_of(sweep: Sweep, planned: Sequence[Planned]) -> float:
    """The epsilon of all trials, as planned."""
    total: Counter[Cost] = Counter()
    for each in planned:
        total.update({cost: n * len(sweep.seeds) for cost, n in each.plan.by_cost().items()})
    return epsilon_of(total, planned[0].recipe.delta, planned[0].plan.adjacency)
