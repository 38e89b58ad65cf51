"""docs/train.md: its recipe is one, its tables list every setting, its mistakes are told in these words."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from saltflat.errors import SettingError
from saltflat.recipes import Recipe, Stage
from saltflat.recipes.build import draft_of
from saltflat.recipes.documents import parse
from saltflat.recipes.recipe import from_document

PAGE = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
(TEXT,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)


def test_the_recipe_is_one() -> None:
    plan = draft_of(from_document(parse(TEXT, "the page")), 60_000)
    assert [phase.steps for phase in plan.phases] == [450, 750]
    assert plan.rate == 1 / 30


@pytest.mark.parametrize(("heading", "cls"), [("above the phases", Recipe), ("in a `[[phase]]`", Stage)])
def test_the_tables_have_every_setting(heading: str, cls: type) -> None:
    table = PAGE.split(f"| {heading} | means")[1].split("\n\n")[0]
    listed = [
        name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    ]
    fields = [each.name for each in dataclasses.fields(cls) if not each.metadata.get("python_only")]
    assert sorted(listed) == sorted(name for name in fields if name != "phase")


def test_the_mistake_is_told_in_these_words() -> None:
    (said,) = re.findall(r"saltflat: mine.toml, line \d+: (.*raduis.*)", PAGE)
    with pytest.raises(SettingError) as stopped:
        from_document(parse(TEXT.replace("radius", "raduis"), "mine.toml"))
    assert str(stopped.value).endswith(said)
