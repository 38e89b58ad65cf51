"""Recipes: everything that decides a run, as one flat list of settings that fits into a small TOML file.

The papers' settings ship as files beside this one; `names` lists them. `saltflat.recipes.build` makes the parts of a
run from a recipe; it is not imported here, so that the command line starts without torch.
"""

from saltflat.recipes.recipe import Recipe, about, names, read, shipped

__all__ = ["Recipe", "about", "names", "read", "shipped"]
