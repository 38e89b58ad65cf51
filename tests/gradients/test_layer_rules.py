"""A2: every layer rule against a loop over single examples, in float64 and float32, views and points included."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import CLASSES, FAMILIES, WORDS, Family, Standard, head, per_example_loss
from reference import Tree, flat, gradient_loop, trained
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from saltflat.core.contribution import per_example, supervised
from saltflat.errors import ModelError
from saltflat.gradients import bare, parts
from saltflat.gradients import chunk as chunks
from saltflat.gradients.chunk import Kept, book_keeping
from saltflat.gradients.conv import Patches, Summed


def kept(model: nn.Module, points: list[Tree], x: Tensor, y: Tensor, views: int = 1) -> Kept:
    return book_keeping(
        lambda point: per_example_loss(functional_call(model, point, (x,)), y),
        points,
        [1 / len(points)] * len(points),
        rows=len(x),
        views=views,
        constants=[*model.buffers(), *model.parameters()],
    )


def loop(model: nn.Module, points: list[Tree], x: Tensor, y: Tensor, views: int = 1) -> Tensor:
    each = [gradient_loop(model, point, x, y, per_example_loss) for point in points]
    mean = torch.stack(each).mean(0)
    return mean.view(-1, views, mean.shape[1]).mean(1)


def gap(mine: Tensor, reference: Tensor) -> float:
    return (
        float((mine - reference).abs().max() / reference.abs().max().clamp(min=1e-12))
        if mine.numel()
        else 0.0
    )


def worst_error(chunk: Kept, reference: Tensor, point: Tree) -> float:
    """The largest relative error over the four questions that a chunk answers."""
    g = torch.Generator().manual_seed(1)
    weights = torch.rand(len(reference), generator=g, dtype=torch.float64).to(reference.dtype)
    direction = {
        n: torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype) for n, p in point.items()
    }
    norms = ((chunk.norms() - reference.norm(dim=1)).abs() / reference.norm(dim=1)).max()
    errors = [
        float(norms),
        gap(flat(chunk.weighted_sum(weights)), weights @ reference),
        gap(chunk.dot(direction), reference @ flat(direction)),
        gap(chunk.scaled(direction).norms(), (reference * flat(direction)).norm(dim=1)),
    ]
    return float(torch.tensor(errors).max())  # NaN if one is; Python's max may leave it out


def build(family: Family, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return family.build().to(dtype)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("rows", "views"), [(1, 1), (3, 1), (4, 2)])
def test_rule_equals_loop(name: str, rows: int, views: int) -> None:
    family = FAMILIES[name]
    model, (x, y) = build(family), family.data(rows)
    point = trained(model)
    chunk = kept(model, [point], x, y, views)
    assert worst_error(chunk, loop(model, [point], x, y, views), point) < 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_several_points_are_combined_before_the_norm(name: str) -> None:
    family = FAMILIES[name]
    model, (x, y) = build(family), family.data(4)
    point = trained(model)
    points = [point, {n: p * 1.1 for n, p in point.items()}, {n: p + 0.01 for n, p in point.items()}]
    chunk = kept(model, points, x, y, views=2)
    assert worst_error(chunk, loop(model, points, x, y, views=2), point) < 1e-9


def standards(side: int, *, kernel: int, stride: int) -> nn.Module:
    """A standardised convolution whose gradients are kept kernel element by kernel element, and one of few channels."""
    first = Standard(8, 8, kernel, stride=stride, padding=1)
    second = Standard(8, 4, 3, padding=1, gain=False)
    width = second(first(torch.zeros(1, 8, side, side))).flatten().numel()
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), *head(width))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (4, 2), (3, 2), (1, 2)])
@pytest.mark.parametrize("points", [2, 9])
@pytest.mark.parametrize("factors", [True, False])
def test_standardised_weights_at_several_points(
    kernel: int, stride: int, points: int, factors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each point has a length and a direction of its own; no point's gradients go back through a graph one by one.

    At 9 points some are subtracted while others are still to come, and some at the end.
    """
    monkeypatch.setattr(chunks, "carried_back", None)
    monkeypatch.setattr("saltflat.gradients.conv.factors_are_cheaper", lambda *args: factors)
    family = Family(lambda: standards(6, kernel=kernel, stride=stride), (8, 6, 6))
    model, (x, y) = build(family), family.data(4)
    point, source = trained(model), torch.Generator().manual_seed(3)
    moved = lambda p: p + 0.3 * torch.randn(p.shape, generator=source, dtype=p.dtype)
    asked = [{n: moved(p) for n, p in point.items()} for _ in range(points)]
    chunk = kept(model, asked, x, y, views=2)
    assert worst_error(chunk, loop(model, asked, x, y, views=2), point) < 1e-9


@pytest.mark.parametrize(("uses", "points"), [(1, 4), (3, 1), (3, 4)])
def test_sums_are_in_memory_of_their_own(uses: int, points: int) -> None:
    """A bias' gradients, added up over uses and points, are the very numbers that its weight keeps as factors."""
    layer = nn.Linear(7, 7)
    model = build(Family(lambda: nn.Sequential(*[layer, nn.Tanh()] * uses, *head(7)), (7,)))
    x, y = FAMILIES["linear"].data(3)
    point = trained(model)
    asked = [{n: p + 0.1 * k for n, p in point.items()} for k in range(points)]
    assert worst_error(kept(model, asked, x, y), loop(model, asked, x, y), point) < 1e-9


def test_a_point_is_gone_before_the_next_one_is_made() -> None:
    """Points, rows and what passes leave behind: one of each is in memory, and the first point to tell the shapes."""
    model, (x, y) = build(FAMILIES["standardised"]), FAMILIES["standardised"].data(4)
    alive: list[weakref.ref[Tensor]] = []

    def asked() -> Iterator[chunks.Use]:
        for k in range(4):
            rows = x + k
            made = [rows, *(point := trained(model)).values()]
            assert not any(each() is not None for each in alive)
            alive.extend(weakref.ref(each) for each in (made if k else made[:1]))
            yield (
                lambda at, rows=rows: per_example_loss(functional_call(model, at, (rows,)), y),
                point,
                0.25,
            )
            del rows, made, point

    found = chunks.kept(asked(), rows=4, points=4, constants=list(model.parameters()))
    assert found.norms().isfinite().all()


@pytest.mark.parametrize(
    ("side", "points", "form"),
    [(4, 1, Patches), (4, 2, Summed), (4, 3, Summed), (2, 1, Patches), (2, 3, Patches)],
)
def test_a_convolution_is_kept_as_is_cheapest_at_all_points_together(
    side: int, points: int, form: type
) -> None:
    family = Family(lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), *head(8 * side**2)), (8, side, side))
    model, (x, y) = build(family), family.data(4)
    point = trained(model)
    asked = [{n: p + 0.01 * k for n, p in point.items()} for k in range(points)]
    chunk = kept(model, asked, x, y)
    assert [type(part) for part in chunk.parts if part.names == ("0.weight",)] == [form]
    assert worst_error(chunk, loop(model, asked, x, y), point) < 1e-9


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("kind", [nn.Conv2d, Standard])
@pytest.mark.parametrize(("kernel", "how"), [(3, {"padding": 1}), (2, {"stride": 2}), (3, {"padding": 3})])
def test_products_of_several_points_are_added_up_as_they_are_made(
    kernel: int, how: dict[str, int], kind: type[nn.Conv2d], views: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(8, 8, kernel, **how), nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES)).double()
    x, y = torch.randn(6, 8, 8, 8, dtype=torch.float64), torch.arange(6) % CLASSES
    model(x)
    point = trained(model)
    asked = [{n: p + 0.05 * torch.randn_like(p) for n, p in point.items()} for _ in range(11)]
    assert worst_error(kept(model, asked, x, y, views), loop(model, asked, x, y, views), point) < 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_that_memory_held_before_is_taken_for_numbers(name: str) -> None:
    """Whatever is not written yet is NaN here."""
    family = FAMILIES[name]
    model, (x, y) = build(family), family.data(4)
    point = trained(model)
    asked = [{n: p + 0.01 * k for n, p in point.items()} for k in range(3)]
    reference = loop(model, asked, x, y, views=2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert worst_error(kept(model, asked, x, y, views=2), reference, point) < 1e-9
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", FAMILIES)
def test_rule_equals_loop_in_float32(name: str) -> None:
    family = FAMILIES[name]
    model, (x, y) = build(family, torch.float32), family.data(4)
    x = x.float() if x.is_floating_point() else x
    point = trained(model)
    if name == "bare parameters":
        model.mask = model.mask.float()
    assert worst_error(kept(model, [point], x, y), loop(model, [point], x, y), point) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_rule_in_bfloat16_equals_the_loop_in_float32(name: str) -> None:
    """Through `per_example`, which widens: at the narrow weights, and on the narrow inputs."""
    family = FAMILIES[name]
    model, (x, y) = build(family, torch.bfloat16), family.data(4)
    x = x.bfloat16() if x.is_floating_point() else x
    if name == "bare parameters":
        model.mask = model.mask.bfloat16()
    chunk = per_example(model, supervised(per_example_loss))([trained(model)], [1.0], (x, y))
    wide = build(family, torch.bfloat16).float()
    if name == "bare parameters":
        wide.mask = model.mask.float()
    point = trained(wide)
    rows = x.float() if x.is_floating_point() else x
    assert chunk.norms().dtype == torch.float32
    assert worst_error(chunk, loop(wide, [point], rows, y), point) < 1e-4


@given(
    rows=st.integers(1, 4),
    channels=st.sampled_from([(1, 3), (3, 9), (9, 4), (16, 32), (32, 32)]),
    side=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    views=st.integers(1, 2),
)
def test_convolutions_of_any_geometry(rows, channels, side, kernel, stride, padding, dilation, views) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(*channels, kernel, stride=stride, padding=padding, dilation=dilation)
    model = nn.Sequential(
        conv, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels[1], CLASSES)
    )
    model = model.double()
    x = torch.randn(rows * views, channels[0], *side, dtype=torch.float64)
    y = torch.randint(CLASSES, (rows * views,))
    point = trained(model)
    assert worst_error(kept(model, [point], x, y, views), loop(model, [point], x, y, views), point) < 1e-9


@pytest.mark.parametrize("channels", [1, 3, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (2, 2), (4, 2), (8, 2), (3, 3), (3, 2)])
@pytest.mark.parametrize("padding", [0, 2])
def test_strides_become_phases(channels: int, kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 4, kernel, stride=stride, padding=padding)
    model = nn.Sequential(
        conv, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    ).double()
    x, y = torch.randn(4, channels, 11, 12, dtype=torch.float64), torch.randint(CLASSES, (4,))
    point = trained(model)
    for views in (1, 2):
        assert worst_error(kept(model, [point], x, y, views), loop(model, [point], x, y, views), point) < 1e-9


@given(
    rows=st.integers(1, 5),
    lead=st.lists(st.integers(1, 6), max_size=3),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    bias=st.booleans(),
)
def test_linear_layers_with_any_leading_dimensions(rows, lead, inputs, outputs, bias) -> None:
    torch.manual_seed(0)
    size = int(torch.tensor(lead).prod()) * outputs if lead else outputs
    model = nn.Sequential(
        nn.Linear(inputs, outputs, bias), nn.Tanh(), nn.Flatten(), nn.Linear(size, CLASSES)
    ).double()
    x, y = torch.randn(rows, *lead, inputs, dtype=torch.float64), torch.randint(CLASSES, (rows,))
    point = trained(model)
    assert worst_error(kept(model, [point], x, y), loop(model, [point], x, y), point) < 1e-9


def test_both_forms_of_every_factored_part_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the cost model chooses, the answer is the same."""
    from saltflat.gradients import conv

    for name in (
        "conv2d",
        "conv2d by pixels",
        "linear positions",
        "lstm",
        "tied",
        "standardised",
        "attention",
    ):
        family = FAMILIES[name]
        model, (x, y) = build(family), family.data(4)
        point = trained(model)
        reference = loop(model, [point], x, y, views=2)
        for choice in (True, False):
            for room in (conv, parts):
                monkeypatch.setattr(room, "factors_are_cheaper", lambda *args, choice=choice: choice)
            assert worst_error(kept(model, [point], x, y, views=2), reference, point) < 1e-9, (name, choice)


def test_maps_of_one_input_are_asked_at_once() -> None:
    family = FAMILIES["attention, maps of one input"]
    model, (x, y) = build(family), family.data(4)
    several = [
        part
        for part in parts.together(kept(model, [trained(model)], x, y).parts)
        if isinstance(part, parts.Siblings)
    ]
    names = [{name for maps in part.maps for name in maps} for part in several if len(part.outputs) > 1]
    assert {"query.weight", "key.weight", "value.weight"} in names
    assert {"narrow.0.weight", "narrow.1.weight"} in names
    assert len(names) == 2


def test_maps_of_one_output_and_their_biases_are_asked_at_once() -> None:
    family = FAMILIES["lstm"]
    model, (x, y) = build(family), family.data(4)
    (lstm,) = [
        part
        for part in parts.together(kept(model, [trained(model)], x, y).parts)
        if isinstance(part, parts.Siblings) and len(part.inputs) > 1
    ]
    assert {name.rpartition(".")[2] for name in lstm.names} == {
        *("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    }
    leaves = list(lstm.weighted(torch.ones(4)).values())
    assert len({leaf.data_ptr() for leaf in leaves}) == len(leaves)  # none is written into with another
    assert all(leaf.is_contiguous() for leaf in leaves)


def test_two_maps_with_one_gradient_are_two_outputs() -> None:
    family = FAMILIES["maps added"]
    model, (x, y) = build(family), family.data(4)
    (both,) = [
        part
        for part in parts.together(kept(model, [trained(model)], x, y).parts)
        if isinstance(part, parts.Siblings)
    ]
    assert len(both.outputs) == 2
    assert both.outputs[0].data_ptr() == both.outputs[1].data_ptr()
    assert sorted(both.names) == ["maps.0.bias", "maps.0.weight", "maps.1.bias", "maps.1.weight"]


def test_a_dead_unit_is_left_out_of_maps_and_biases() -> None:
    for name in ("lstm", "maps added", "maps added, wide", "linear positions"):
        family = FAMILIES[name]
        model, (x, y) = build(family), family.data(4)
        point, weights = trained(model), torch.tensor([1.0, 0.0, 0.5, 2.0]).double()
        whole = kept(model, [point], x, y)
        expected = whole.weighted_sum(weights)
        for part in whole.parts:  # what the unit holds does not matter
            for factor in ("a", "b"):
                if (values := getattr(part, factor, None)) is not None:
                    values[1] = float("nan")
        for leaf, other in zip(whole.weighted_sum(weights).values(), expected.values(), strict=True):
            torch.testing.assert_close(leaf, other)


@pytest.mark.parametrize("positions", [2, 16, 17, 18, 23, 24])
def test_a_gram_matrix_in_blocks_is_the_whole(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "HALVED", range(17, 24))  # whatever this processor prefers
    g = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(3, positions, width, generator=g, dtype=torch.float64) for width in (5, 4, 2))
    gradients = [torch.einsum("uti,uto->uoi", a, each) for each in (b, c)]
    expected = sum(each.square().sum((1, 2)) for each in gradients)
    torch.testing.assert_close(parts.gram(a).inner(parts.gram(b, c)), expected)
    torch.testing.assert_close(parts.gram_square(parts.gram(a), parts.gram(b, c)), expected)
    torch.testing.assert_close(parts.gram(a).diagonal(), a.square().sum(2))


@pytest.mark.parametrize("padding_idx", [2, -3, None])
@pytest.mark.parametrize("count", [5, 400])  # kept as a table, or as its touched rows
def test_a_table_looked_up_at_constants(count: int, padding_idx: int | None) -> None:
    """The same places for every row, one of them twice, beside places that are data: one gradient for both uses."""

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(count, 6)), nn.Linear(6, WORDS)
            self.register_buffer("place", torch.tensor([1, 2, 2, 4]))

        def forward(self, x: Tensor) -> Tensor:
            fixed = F.embedding(self.place, self.table, padding_idx)
            return self.out(torch.tanh(fixed + F.embedding(x % 5, self.table, padding_idx)))

    family = Family(Places, (4,), tokens=True)
    model, (x, y) = build(family), family.data(4)
    point = trained(model)
    for points in ([point], [point, {n: p * 1.1 for n, p in point.items()}]):
        chunk = kept(model, points, x, y, views=2)
        assert worst_error(chunk, loop(model, points, x, y, views=2), point) < 1e-9


def test_few_of_many_places_are_kept_as_rows() -> None:
    """A table of 512 places, of which a step uses 17, is never written out for a unit."""
    family = FAMILIES["attention, maps of one input"]
    model, (x, y) = build(family), family.data(4)
    (places,) = [p for p in kept(model, [trained(model)], x, y).parts if p.names == ("places.weight",)]
    assert isinstance(places, parts.Rows)
    assert places.b.shape == (4, 17, 16)


def test_a_model_is_left_as_it_was() -> None:
    for family in FAMILIES.values():
        model, (x, y) = build(family), family.data(3)
        before = {n: p.clone() for n, p in model.state_dict().items()}
        kept(model, [trained(model)], x, y).weighted_sum(torch.ones(3, dtype=torch.float64))
        after = model.state_dict()
        assert all(torch.equal(before[n], after[n]) for n in before)
        assert all(p.grad is None and not p._backward_hooks for p in model.parameters())
        assert all(not m._forward_hooks and not m._backward_hooks for m in model.modules())


def test_only_what_says_so_has_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        monkeypatch.setattr(
            bare, "_tell_once", lambda title, name=name: told.setdefault(name, []).append(title)
        )
        model, (x, y) = build(family), family.data(3)
        kept(model, [trained(model)], x, y)
    assert told == {"multilinear, no rule": ["bilinear"]}


def test_functions_without_a_rule_say_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare, "_told", set())
    family = FAMILIES["multilinear, no rule"]
    model, (x, y) = build(family), family.data(2)
    with caplog.at_level(logging.INFO, logger="saltflat"):
        kept(model, [trained(model)], x, y)
        kept(model, [trained(model)], x, y)
    assert caplog.text.count("bilinear") == 1
    assert "torch.func" in caplog.text


class TestRefusals:
    def test_a_loss_over_the_batch(self) -> None:
        model = nn.Linear(2, 3)
        with pytest.raises(ModelError, match="reduction='none'"):
            book_keeping(
                lambda p: functional_call(model, p, torch.ones(4, 2)).mean(), [trained(model)], [1.0], rows=4
            )

    def test_time_on_the_first_axis(self) -> None:
        model = nn.Linear(2, 3)
        x = torch.ones(5, 4, 2)
        with pytest.raises(ModelError, match="first axis"):
            book_keeping(lambda p: functional_call(model, p, x).sum((0, 2)), [trained(model)], [1.0], rows=4)

    def test_packed_sequences(self) -> None:
        model = nn.LSTM(2, 3, batch_first=True)
        packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 4, 2), [4, 3], batch_first=True)
        with pytest.raises(ModelError, match="padded"):
            book_keeping(
                lambda p: functional_call(model, p, (packed,))[0].data.sum(), [trained(model)], [1.0], rows=2
            )

    def test_embeddings_that_mix(self) -> None:
        model = nn.Embedding(5, 2, scale_grad_by_freq=True)
        x = torch.tensor([[1], [2]])
        with pytest.raises(ModelError, match="scale_grad_by_freq"):
            book_keeping(
                lambda p: functional_call(model, p, (x,)).sum((1, 2)), [trained(model)], [1.0], rows=2
            )

    @pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}])
    def test_bags_that_mix(self, options: dict) -> None:
        model, words = nn.EmbeddingBag(5, 2, **options), torch.tensor([[1], [2]])
        with pytest.raises(ModelError, match="EmbeddingBag with max_norm or scale_grad_by_freq"):
            book_keeping(
                lambda p: functional_call(model, p, (words,)).sum(1), [trained(model)], [1.0], rows=2
            )

    def test_bags_by_offsets(self) -> None:
        model = nn.EmbeddingBag(5, 2)
        words, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3])
        with pytest.raises(ModelError, match="pad the bags"):
            book_keeping(
                lambda p: functional_call(model, p, (words, offsets)).sum(1), [trained(model)], [1.0], rows=2
            )

    @pytest.mark.parametrize("starts", [[0, 3], [0, 1, 2], [1, 2], [0, 5]])
    @pytest.mark.parametrize("shared", [True, False])
    def test_a_bag_with_words_of_two_rows(self, starts: list[int], shared: bool) -> None:
        """Offsets that forward makes are the model's fault; those of the data are their unit's, which is left out."""
        model, words = nn.EmbeddingBag(5, 2), torch.tensor([[1, 2], [3, 4]])
        given = torch.tensor(starts)

        def losses(point: Tree) -> Tensor:
            offsets = torch.tensor(starts) if shared else given
            return functional_call(model, point, (words.flatten(), offsets))[:2].sum(1)

        with pytest.raises(ModelError if shared else ValueError):
            book_keeping(losses, [trained(model)], [1.0], rows=2)

    def test_trained_weights_of_words(self) -> None:
        model, own = nn.EmbeddingBag(5, 2, mode="sum"), nn.Parameter(torch.ones(2, 2))
        words = torch.tensor([[1, 2], [3, 4]])
        point = {**trained(model), "own": own.detach()}
        call = lambda p: functional_call(model, {"weight": p["weight"]}, (words, None, p["own"])).sum(1)
        with pytest.raises(ModelError, match="per_sample_weights"):
            book_keeping(call, [point], [1.0], rows=2)


class TestMutants:
    """Seeded bugs that the comparison with the loop must catch."""

    def errors(self, name: str) -> float:
        family = FAMILIES[name]
        model, (x, y) = build(family), family.data(4)
        point = trained(model)
        return worst_error(kept(model, [point], x, y), loop(model, [point], x, y), point)

    def test_tied_cross_term_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without_cross = lambda self: self.linear.square() + self.table.square()
        monkeypatch.setattr(parts.Tied, "square", without_cross)
        assert self.errors("tied") > 1e-4

    def test_repeated_use_counted_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        apart = lambda part, other: parts.Dense(
            part.name, torch.hypot(part.dense()[part.name], other.dense()[part.name])
        )
        monkeypatch.setattr(parts.Outer, "beside", apart)
        assert self.errors("repeated layers") > 1e-4

    def test_bias_norm_omitted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Kept.norms

        def without_bias(self: Kept) -> Tensor:
            return real(
                Kept(self.units, [p for p in self.parts if not p.names[0].endswith("bias")], self.like)
            )

        monkeypatch.setattr(chunks.Kept, "norms", without_bias)
        assert self.errors("linear") > 1e-4

    def test_an_input_taken_for_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts, "_place", lambda values: values.shape)
        assert self.errors("attention, maps of one input") > 1e-4

    def test_blocks_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts, "HALVED", range(17, 24))
        once = lambda self, other: sum(map(parts.pair_sum, self.along, other.along))
        monkeypatch.setattr(parts.Gram, "inner", once)
        assert self.errors("attention, maps of one input") > 1e-4

    def test_padding_row_trained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Tensor, "masked_fill", lambda self, mask, value: self.clone())
        assert self.errors("lstm") > 1e-4
