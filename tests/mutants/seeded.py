"""The list of seeded privacy bugs: each takes a few lines of the library away or spoils them, and names its killer.

A mutant is one or more edits of text in ``src/saltflat``; the text must be there exactly once. `run.py` applies one at
a time to a copy of the sources and runs the named test against it, which must fail. Those with a ``hole`` take out what
closed one of the 18 ways in which the promise was once broken (the numbers are those of ``docs/reliability.md``);
the others are mistakes that libraries for private training have made, or could.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """``before`` becomes ``after`` in a file of ``src/saltflat``."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Mutant:
    """A seeded bug: what it does, in words, and the test that must fail."""

    name: str
    story: str
    killed_by: str
    edits: tuple[Edit, ...]
    hole: int | None = None


HOLES = {
    1: "a loss divided by the batch's length",
    2: "a collate that gives more rows than units",
    3: "packed tokens",
    4: "mixing that one look misses",
    5: "dropout from a seed that is known",
    6: "points by a unit's place",
    7: "sums in half precision",
    8: "norms that come out too small",
    9: "a sampler that can be repeated",
    10: "steps chosen by results under a fixed list's budget",
    11: "a run known by its folder's spelling",
    12: "a record of another unit, adjacency or source",
    13: "copies, threads, files changed under the writer",
    14: "failures that tell",
    15: "gradients left over in frozen parameters",
    16: "the number of examples taken as public in silence",
    17: "bounds rounded down in print",
    18: "pages that mislead",
}


def mutant(
    name: str, story: str, killed_by: str, *edits: tuple[str, str, str], hole: int | None = None
) -> Mutant:
    return Mutant(name, story, f"tests/{killed_by}", tuple(Edit(*edit) for edit in edits), hole)


WIDTH = "gradients/test_width.py::"
SHARDS = "core/test_shards.py::"
HOSTILE = "adversary/test_hostile.py::"
PIPELINES = "adversary/test_pipelines.py::"
STEP = "core/test_private_step.py::"
KEEPING = "front/test_keeping_a_loop.py::TestEpsilonIsAPromise::"
SCATTERED = "core/test_sampling.py::TestScattered::"
AHEAD = "core/test_ahead.py::"
STORED = "data/test_stored.py::"
LAYERS, SPOT, CHECK = "core/layers.py", "core/spot.py", "core/check.py"
CONTRIBUTION, ASK, SAMPLING = "core/contribution.py", "core/ask.py", "core/sampling.py"
MECHANISM, PLAN, TRAIN = "core/mechanism.py", "core/plan.py", "core/train.py"
LEDGER, HISTORY, FORMAT = (f"privacy/record/{name}.py" for name in ("ledger", "history", "format"))
PARTS, TAPE = "gradients/parts.py", "gradients/tape.py"

UNITS_APART = (
    mutant(
        "sizes-never-tried",
        "the check exchanges units, and never changes how many there are",
        HOSTILE + "test_losses_that_mix_units[by_length]",
        (CHECK, "    if trial.by_chance:\n        companies", "    if True:\n        companies"),
        hole=1,
    ),
    mutant(
        "rows-not-counted",
        "a unit may come as many rows, each with a clip of its own",
        HOSTILE + "test_a_collate_that_gives_more_rows_than_units",
        (CHECK, "            _check_rows(contribution, batch)\n", ""),
        (
            CONTRIBUTION,
            "if has_rows(own, self.rows_per_unit) and",
            "if True and",
        ),
        hole=2,
    ),
    mutant(
        "rows-counted-once",
        "rows are counted at the first look, and not in the batches that are stepped",
        PIPELINES + "test_one_unit_moves_the_sum_by_at_most_the_clip_norm[3-two rows of some records]",
        (
            CONTRIBUTION,
            "if has_rows(own, self.rows_per_unit) and",
            "if True and",
        ),
        hole=2,
    ),
    mutant(
        "draws-go-on-from-unit-to-unit",
        "a dataset's draws are not started anew for each unit, so they shift for all units after one that leaves",
        PIPELINES + "test_one_unit_moves_the_sum_by_at_most_the_clip_norm[3-torch draws in an item]",
        (
            SAMPLING,
            "        start_from(fresh_key())\n        try:\n            return self.collate(",
            "        try:\n            return self.collate(",
        ),
    ),
    mutant(
        "draws-from-a-known-key",
        "the draws of a unit start from a key that anybody knows",
        PIPELINES + "test_a_unit_draws_anew_each_time_it_is_read",
        ("core/rng.py", "    return secrets.randbits(62)", "    return 1"),
    ),
    mutant(
        "units-read-together",
        "a dataset's units are read and collated together, padded to the longest",
        PIPELINES + "test_one_unit_moves_the_sum_by_at_most_the_clip_norm[3-padding to the longest text]",
        (
            "core/micro_batches.py",
            'getattr(units, "is_row_wise", False)',
            'getattr(units, "is_row_wise", True)',
        ),
        (
            CONTRIBUTION,
            "form = form_of(units.take(np.arange(0)))",
            "form = form_of(units.take(np.arange(1)))",
        ),
        (CONTRIBUTION, "sound = form_of(batch) == self.form and has_rows", "sound = has_rows"),
    ),
    mutant(
        "asserts-about-a-batch",
        "a loss that reads values of the batch is asked about all units at once, so one can silence the others",
        PIPELINES + "test_one_unit_moves_the_sum_by_at_most_the_clip_norm[3-an assert about a mean]",
        (
            "gradients/chunk.py",
            "            if tape.reads_values and tape.rows > tape.views:\n                raise ReadsValues\n",
            "",
        ),
    ),
    mutant(
        "equal-shares-assumed",
        "tokens picked by a mask are dealt out in equal shares",
        HOSTILE + "test_packed_tokens[equal]",
        (TAPE, "            self._refuse_loose(func, tensors)\n", ""),
        (TAPE, "or id(value) in self._folded\n\n", "or len(value) % self.rows == 0\n\n"),
        hole=3,
    ),
    mutant(
        "four-rows-are-enough",
        "the check looks at four rows of the data, never at made-up ones",
        HOSTILE + "test_losses_that_mix_units[hardest]",
        (CHECK, "for trial in (made, own)", "for trial in (own,)"),
        hole=4,
    ),
    mutant(
        "a-model-that-remembers",
        "nobody looks whether rows of before change what a model does",
        HOSTILE + "test_what_a_model_remembers_of_earlier_rows[number]",
        (CHECK, "        _check_forgets(trial)\n", ""),
        hole=4,
    ),
    mutant(
        "one-unit-speaks-for-all",
        "the spot check compares one drawn unit, where a model mixes into one of many",
        HOSTILE + "test_a_model_that_mixes_where_nobody_was_expected_to_look[Unequal]",
        (SPOT, "        _check_part(trial)\n", ""),
        hole=4,
    ),
    mutant(
        "rows-left-in-a-model",
        "what forward keeps of private rows stays in the model",
        HOSTILE + "test_rows_that_forward_leaves_in_a_model_are_taken_out[fit]",
        (SPOT, "            self.held.clear(self.contribution.model)\n", "            pass\n"),
        hole=4,
    ),
    mutant(
        "noise-in-every-process",
        "each of several processes puts noise on its own sum",
        "core/test_group.py::test_two_processes_are_one[own loop]",
        (
            "core/group.py",
            "        kinds, pieces = _kinds(total), _packed(total, total)\n",
            "        kinds, pieces = _kinds(total), _packed(release(total), total)\n",
        ),
    ),
    mutant(
        "noise-in-no-process",
        "the sum over several processes is handed out as it is",
        "core/test_group.py::test_two_processes_are_one[own loop]",
        ("core/group.py", "_packed(release(_unpacked(pieces, kinds, total)), total)", "pieces"),
    ),
    mutant(
        "nobody-has-the-ledger",
        "of the processes of a run not even the first charges its steps",
        "cli/test_train_cli.py::test_a_run_keeps_everything",
        ("runs/execute.py", "meter = None if account is None else account[1]", "meter = None"),
    ),
    mutant(
        "a-run-goes-on-unasked",
        "a folder that holds a run is gone on with, whether or not that was asked for",
        "cli/test_train_cli.py::test_a_run_keeps_everything",
        ("cli/train.py", "resume or (restartable and _holds_a_run", "resume or (True and _holds_a_run"),
    ),
    mutant(
        "leaves-in-any-order",
        "what several processes add up is packed in the order that each of them happens to have",
        "core/test_group.py::test_leaves_travel_in_one_order_whoever_has_them",
        ("core/group.py", "for name in sorted(like):", "for name in like:"),
    ),
    mutant(
        "a-sample-for-each-process",
        "each of several processes adds up all that was drawn",
        "core/test_group.py::test_two_processes_are_one[an empty process]",
        ("core/group.py", "units if self.size == 1 else units[self.rank :: self.size]", "units"),
    ),
    mutant(
        "less-noise-on-shards",
        "each process with sharded weights takes its noise for a share, 1/sqrt(processes) of what there must be",
        SHARDS + "test_noise_is_on_every_shard_once_and_no_two_are_alike",
        (
            "core/shards.py",
            "    answer = release({**mine, **rest} if group.leads else mine)\n",
            "    given = {**mine, **rest} if group.leads else mine\n"
            "    answer = {n: given[n] + (x - given[n]) / group.size**0.5 for n, x in release(given).items()}\n",
        ),
    ),
    mutant(
        "no-noise-on-later-shards",
        "only the first process puts noise on the weights that it holds",
        SHARDS + "test_noise_is_on_every_shard_once_and_no_two_are_alike",
        (
            "core/shards.py",
            "    answer = release({**mine, **rest} if group.leads else mine)\n",
            "    answer = release({**mine, **rest}) if group.leads else mine\n",
        ),
    ),
    mutant(
        "the-same-noise-on-every-shard",
        "processes with sharded weights draw the same numbers",
        SHARDS + "test_noise_in_parts_differs_from_process_to_process_and_from_step_to_step",
        (
            "privacy/noise.py",
            'return self.source._drawn(like, f" part {self.number}")',
            'return self.source._drawn(like, "")',
        ),
    ),
    mutant(
        "a-source-without-parts",
        "a source whose noise depends on all coordinates is used by parts",
        SHARDS + "test_noise_that_has_no_parts_is_refused",
        (
            "core/shards.py",
            "        return noise.part(group.rank)\n",
            "        return noise.part(group.rank)\n    return noise\n",
        ),
    ),
    mutant(
        "sums-of-one-process-on-its-shard",
        "each process with sharded weights keeps its part of the sum over its own units",
        SHARDS + "test_two_processes_are_one[an empty process]",
        (
            "core/shards.py",
            "        return {name: summed(leaf, self.like[name]) for name, leaf in self.chunk.leaves(weights)}\n",
            "        return self.chunk.weighted_sum(weights)\n",
        ),
    ),
    mutant(
        "norms-over-a-shard",
        "a unit is clipped by the norm over a part of the parameters",
        SHARDS + "test_two_processes_are_one[an empty process]",
        (
            "core/shards.py",
            "        return self.chunk.norms()\n",
            "        return self.chunk.only(list(self.like)[::2]).norms()\n",
        ),
    ),
    mutant(
        "plans-that-differ",
        "processes with sharded weights are not asked whether they have the same plan",
        SHARDS + "test_what_cannot_be_done_is_refused_in_all[another plan]",
        ("core/alike.py", "        _check_same(plan, safeguards)\n", ""),
    ),
    mutant(
        "schedules-that-differ",
        "a schedule of noise that is another in each process is let pass",
        SHARDS + "test_what_cannot_be_done_is_refused_in_all[another schedule]",
        (
            "core/ask.py",
            "            check_same_release(multiplier, bounded.sensitivity, group)\n",
            "",
        ),
    ),
    mutant(
        "numbers-of-a-shard",
        "an inner product is that of the weights which this process holds",
        SHARDS + "test_numbers_of_a_tree_are_those_of_the_whole_tree",
        (
            "tree.py",
            "return whole(torch.stack(list(parts.values())).sum())",
            "return torch.stack(list(parts.values())).sum()",
        ),
    ),
    mutant(
        "no-second-look",
        "the spot check compares nothing",
        HOSTILE + "test_mixing_in_large_batches_only_is_found_as_training_goes_on",
        (SPOT, "            self._compare(params, batch)\n", ""),
        hole=4,
    ),
    mutant(
        "one-mode-for-all",
        "a mode that was never looked at is trained in",
        HOSTILE + "test_a_layer_that_wakes_up_after_the_check[Stateless]",
        ("core/step.py", "if (due or spot.changed())", "if due"),
        hole=4,
    ),
    mutant(
        "no-look-at-the-first-step",
        "neither the first step nor the last is looked at, so that a model may mix in large batches, or in the end",
        HOSTILE + "test_a_model_that_mixes_where_nobody_was_expected_to_look[Crowded]",
        ("core/step.py", "at.step == 1 or last or ", ""),
        hole=4,
    ),
    mutant(
        "finite-rows-only",
        "units are tried on finite rows only, so that NaN may spread over the batch",
        HOSTILE + "test_losses_that_mix_units_through_what_is_no_number[as it is]",
        (CHECK, "        _check_spoilt(trial, largest)\n", ""),
        hole=4,
    ),
    mutant(
        "tensors-on-the-side",
        "only buffers and parameters are compared, not what a module holds besides",
        HOSTILE + "test_a_tensor_on_the_side",
        (SPOT, "for k, leaf in held_by(module) if", "for k, leaf in () if"),
        hole=4,
    ),
    mutant(
        "batchnorm-let-through",
        "BatchNorm without learned scales is let through",
        "core/test_check.py::test_every_batchnorm_is_refused[no affine]",
        (
            LAYERS,
            "if isinstance(module, _BatchNorm):",
            "if isinstance(module, _BatchNorm) and module.affine:",
        ),
    ),
    mutant(
        "masks-from-a-known-seed",
        "dropout draws from the generator that the user seeded",
        HOSTILE + "test_what_is_seeded_outside_is_not_what_is_drawn[dropout]",
        (
            "core/chance.py",
            "    with _seeded(fresh_key(), held):",
            "    if True:",
        ),
        hole=5,
    ),
    mutant(
        "labels-by-place",
        "units that have points of their own are numbered by their place",
        "core/test_sampling.py::TestLabels::test_groups_are_equally_likely_at_every_place",
        (
            "core/sampling.py",
            "(_uniforms(count, source) * (groups or 2**53)).astype(np.int64)",
            "np.arange(count) % (groups or 2**53)",
        ),
        hole=6,
    ),
    mutant(
        "frames-as-memory-was",
        "the frame of padding around an image is whatever lay there in memory, another unit's numbers say",
        "gradients/test_layer_rules.py::test_nothing_that_memory_held_before_is_taken_for_numbers[conv2d]",
        (
            "gradients/conv.py",
            "    for rest in (room[..., : lines.start, :], room[..., lines.stop :, :]):\n",
            "    for rest in ():\n",
        ),
    ),
    mutant(
        "margins-as-memory-was",
        "zeros beside the lines of an image, shared with the line above, are whatever lay there in memory",
        "gradients/test_layer_rules.py::test_nothing_that_memory_held_before_is_taken_for_numbers[conv2d by pixels]",
        (
            "gradients/conv.py",
            "    for rest in (room[..., : columns.start], room[..., columns.stop :]):\n",
            "    for rest in ():\n",
        ),
    ),
    mutant(
        "mean-of-the-last-point",
        "of several points that wait, only the last one's mean is subtracted from standardised gradients",
        "gradients/test_layer_rules.py::test_standardised_weights_at_several_points[False-9-3-1]",
        (
            "gradients/standardised.py",
            "        self._flat += flat.mT.unsqueeze(2)\n",
            "        self._flat[:] = flat.mT.unsqueeze(2)\n",
        ),
    ),
    mutant(
        "waiting-again",
        "what was subtracted from standardised gradients is subtracted once more with the next points",
        "gradients/test_layer_rules.py::test_standardised_weights_at_several_points[False-9-3-1]",
        ("gradients/standardised.py", "        self._flat.zero_()\n", ""),
    ),
    mutant(
        "views-across-units",
        "views that have points of their own are dealt out by the place of a row in the batch",
        "methods/test_public.py::TestWeightMultiplicity::test_view_k_is_asked_at_weights_k",
        (
            CONTRIBUTION,
            "every(self.views, batch, place % self.views)\n",
            "mapped(lambda leaf: leaf.chunk(self.views)[place % self.views], batch)\n",
        ),
    ),
    mutant(
        "private-as-public",
        "the units that are trained on may be handed in as public examples",
        "methods/test_public.py::TestPublic::test_the_units_of_the_run_are_not_public",
        (TRAIN, "    check_apart(plan.public, units)\n", ""),
    ),
    mutant(
        "private-rows-in-public-memory",
        "rows that are trained on may be handed in as public examples by an array over the same memory",
        "methods/test_public.py::TestPublic::test_nor_are_they_by_another_way_to_the_same_memory[numpy]",
        ("core/public.py", "return place == there and low < high and start < end", "return one is other"),
    ),
    mutant(
        "private-rows-in-public-holders",
        "rows that are trained on may be handed in as public examples by a holder with names of its own",
        "methods/test_public.py::TestPublic::test_nor_are_they_by_another_way_to_the_same_memory[clients]",
        (
            "core/public.py",
            'inside: Iterable[object] = getattr(holder, "__dict__", {}).values()',
            "inside: Iterable[object] = ()",
        ),
    ),
    mutant(
        "authors-without-a-name",
        "comments whose author has no name are each a unit of its own",
        "data/test_text.py::TestAuthors::test_names_that_are_none",
        (
            "data/text.py",
            "if not all(isinstance(author, str | int | np.integer)",
            "if False and not all(author",
        ),
    ),
    mutant(
        "features-that-remember",
        "a stage of one's own is not tried after other rows",
        "features/test_features.py::TestOnesOwn::test_a_stage_that_mixes_or_remembers[module0]",
        ("features/stages.py", "for found in (others, after)]", "for found in (others,)]"),
    ),
    mutant(
        "features-vouched-for",
        "the statement says of a stage that is not ours that no private row is in it",
        "features/test_features.py::TestOnesOwn::test_the_statement_does_not_vouch_for_them_and_prints_no_row",
        ("privacy/record/statement.py", 'if "declared by its maker" in self.features:', "if False:"),
    ),
    mutant(
        "features-over-the-batch",
        "features are scaled by the length of a column, in which all examples of a batch are",
        "features/test_features.py::test_an_examples_features_depend_on_it_alone[whitened]",
        ("features/scaled.py", "features.flatten(1), dim=1,", "features.flatten(1), dim=0,"),
    ),
    mutant(
        "form-from-private-pictures",
        "the form of a folder's images is read from a private picture",
        "data/test_image_folders.py::test_the_form_is_that_of_the_public_part",
        (
            "data/folder.py",
            'files = picture_files(path / "test", names)',
            'files = picture_files(path / "train", names)',
        ),
    ),
    mutant(
        "views-as-units",
        "each view of an example is clipped by itself, and they are added up",
        STEP + "TestViews::test_views_are_averaged_before_the_clip",
        (CONTRIBUTION, "views=1 if self.places else self.views,\n", "views=1,\n"),
    ),
    mutant(
        "mixup-let-through",
        "an augmentation may mix examples",
        HOSTILE + "test_mixup",
        (CHECK, "if rows and not torch.equal(", "if False and not torch.equal("),
    ),
    mutant(
        "a-collate-that-mixes",
        "what is read together is not compared with what is read alone",
        HOSTILE + "test_a_collate_that_mixes_units[centred]",
        ("core/reading.py", "    if fault:\n", "    if False:\n"),
        hole=4,
    ),
    mutant(
        "rows-left-as-numbers",
        "what forward writes down of private rows in lists and sets stays in the model",
        HOSTILE + "test_rows_that_forward_notes_as_numbers_are_taken_out_too",
        (SPOT, "if new or _grew(value, self.plain[name].get(key)):", "if new:"),
        hole=4,
    ),
    mutant(
        "rows-left-in-buffers",
        "a buffer that forward registers on the way stays in the model",
        HOSTILE + "test_rows_that_forward_notes_as_numbers_are_taken_out_too",
        (SPOT, "                    del module._buffers[key]\n", "                    pass\n"),
        hole=4,
    ),
    mutant(
        "a-dataset-that-remembers",
        "what is read of a unit after others is not compared with what it was before",
        HOSTILE + "test_units_that_remember_who_was_read_before[mean]",
        ("core/reading.py", "and not _near(before, after, beside)", "and False"),
        hole=4,
    ),
    mutant(
        "a-random-stream-that-is-not-found",
        "data that does not repeat itself under the same random state is let through",
        "core/test_reading.py::test_a_stream_that_is_not_found_is_refused",
        ("core/reading.py", "    if not _near(alone, again, alone):\n", "    if False:\n"),
        hole=4,
    ),
    mutant(
        "generators-of-global-variables-are-shared",
        "generators that a dataset draws from by the name of a global variable are not fenced",
        "core/test_reading.py::test_generators_of_global_variables_are_found",
        ("core/rng.py", "            held.append(value)\n", "            pass\n"),
        hole=4,
    ),
    mutant(
        "a-row-whose-type-follows-others",
        "a row of arrays gets other types if a row beside it cannot be read",
        "core/test_reading.py::test_a_row_is_the_same_beside_one_that_cannot_be_read",
        (CONTRIBUTION, "if self.form is None else unit\n", "if True else unit\n"),
        hole=4,
    ),
    mutant(
        "clients-that-know-of-others",
        "what is read of clients together is not compared with what is read of each",
        "federated/test_contribution.py::test_clients_whose_rows_know_of_others[company]",
        (
            "federated/contribution.py",
            "        check_each_read(take, units, lambda client: client.rows)\n",
            "        return\n",
        ),
        hole=4,
    ),
    mutant(
        "reading-tried-once",
        "batches that are read later are not looked at",
        HOSTILE + "test_a_collate_that_mixes_units[one_in_many]",
        (
            "core/step.py",
            "        if read_again is not None:\n",
            "        if False:\n",
        ),
        hole=4,
    ),
)

NUMBERS = (
    mutant(
        "narrow-sum",
        "a sum over units is rounded to the weights' own narrow type",
        HOSTILE + "test_narrow_weights_do_not_narrow_the_sum[dtype0]",
        ("tree.py", "return torch.promote_types(dtype, torch.float32)", "return dtype"),
        hole=7,
    ),
    mutant(
        "partial-sums-rounded",
        "only the sums of single chunks are rounded to bfloat16",
        HOSTILE + "test_narrow_weights_do_not_narrow_the_sum[dtype0]",
        (
            "gradients/chunk.py",
            "yield name, leaf.to(wide(like.dtype))",
            "yield name, leaf.to(torch.bfloat16).to(wide(like.dtype))",
        ),
        hole=7,
    ),
    mutant(
        "half-precision-kernels",
        "a narrow model's gradients are taken by kernels of half precision",
        WIDTH + "test_a_narrow_model_has_the_gradients_of_its_weights_in_float32[dtype0]",
        (
            "gradients/width.py",
            "return leaf.to(wide(leaf.dtype)) if leaf.dtype in NARROW else leaf",
            "return leaf",
        ),
        hole=7,
    ),
    mutant(
        "casts-unnoticed",
        "a model in float32 casts to bfloat16 on its way",
        WIDTH + "test_a_model_that_leaves_float32_on_its_way_has_the_gradients_of_one_that_does_not[casts]",
        ("gradients/tape.py", "        check_width(result)\n", ""),
        hole=7,
    ),
    mutant(
        "norms-under-autocast",
        "autocast around training reaches norms and sums",
        WIDTH + "test_autocast_around_training_changes_nothing",
        ("core/step.py", "    with full_float32():\n        direction", "    if True:\n        direction"),
        hole=7,
    ),
    mutant(
        "squares-that-vanish",
        "a square below the smallest number counts as 0",
        HOSTILE + "test_no_unit_passes_because_a_square_vanished",
        (PARTS, " + tiny(flat.dtype) * flat.shape[1] ** 0.5)", ")"),
        hole=8,
    ),
    mutant(
        "gains-nearly-off",
        "a standardised convolution divides by its gain, however small",
        HOSTILE + "test_a_standardised_convolution_that_is_nearly_off[1e-07-10000.0]",
        ("gradients/standardised.py", "_FAINT = 1e-2", "_FAINT = 0.0"),
        hole=8,
    ),
    mutant(
        "clip-norm-without-a-floor",
        "an adaptive clip norm falls below what norms can be compared with",
        STEP + "test_an_adaptive_clip_norm_stays_where_norms_can_be_told_apart",
        (
            ASK,
            "rule.times(min(max(factor, SMALLEST / rule.sensitivity), LARGEST / rule.sensitivity))",
            "rule.times(factor)",
        ),
        hole=8,
    ),
    mutant(
        "any-clip-norm",
        "a clip norm of 1e-30 is taken",
        HOSTILE + "test_clip_norms_beyond_what_numbers_can_tell_apart[1e-30]",
        (PLAN, "if not (is_number(bound, SMALLEST, LARGEST) or", "if not (is_number(bound, 0, LARGEST) or"),
        hole=8,
    ),
    mutant(
        "plain-ghost-norm",
        "a norm whose terms cancel is taken as it comes",
        STEP + "test_a_record_whose_positions_cancel_is_still_clipped",
        (
            PARTS,
            "return a.inner(b).add_(terms, alpha=slack(roots.dtype)).add_(lost, alpha=least)",
            "return a.inner(b)",
        ),
    ),
    mutant(
        "inputs-mistaken",
        "the Gram matrix of one layer's input is taken for that of another of the same shape",
        "gradients/test_layer_rules.py::test_rule_equals_loop[3-1-attention, maps of one input]",
        (PARTS, "values.dtype, values.data_ptr(), values.shape", "values.dtype, values.shape"),
    ),
    mutant(
        "biases-of-maps-left-out",
        "biases at several positions are in the sum and not in the norm",
        "gradients/test_layer_rules.py::test_rule_equals_loop[3-1-lstm]",
        (PARTS, "gram(*self.inputs).plus(len(self.biases[0]))", "gram(*self.inputs)"),
    ),
    mutant(
        "one-gradient-counted-once",
        "two maps of one input with one gradient at their outputs are in the norm as one",
        "gradients/test_layer_rules.py::test_rule_equals_loop[3-1-maps added]",
        (PARTS, ", gram(*self.outputs)", ", gram(*{b.data_ptr(): b for b in self.outputs}.values())"),
    ),
    mutant(
        "blocks-counted-once",
        "what a position shares with those of the other half is in the norm once instead of twice",
        "gradients/test_layer_rules.py::test_a_gram_matrix_in_blocks_is_the_whole[17]",
        (PARTS, "more.append(2 * pair_sum(x, y))", "more.append(pair_sum(x, y))"),
    ),
    mutant(
        "places-forgotten",
        "places that are used twice are in the norm of their table as if each were another",
        "gradients/test_layer_rules.py::test_a_table_looked_up_at_constants[400-None]",
        (
            "gradients/linear.py",
            "rows.expand(len(values), -1), values, count",
            "torch.arange(len(rows)).expand(len(values), -1), values, count",
        ),
    ),
    mutant(
        "tied-cross-term",
        "a table used twice has a norm without the cross term",
        "gradients/test_layer_rules.py::test_rule_equals_loop[3-1-tied]",
        (PARTS, " + 2 * cross", ""),
    ),
    mutant(
        "bias-left-out",
        "biases are in the sum and not in the norm",
        STEP + "test_answer_is_the_clipped_sum[0.5]",
        (
            PARTS,
            "(self.name,)\n\n    def square(self) -> Tensor:\n        return square_rows(self.values)\n",
            "(self.name,)\n\n    def square(self) -> Tensor:\n        return 0 * square_rows(self.values)\n",
        ),
    ),
    mutant(
        "full-bound-per-layer",
        "every layer is clipped to the whole C",
        "methods/test_formulas.py::TestClippingRules::test_one_number_is_shared_by_the_layers",
        ("clipping.py", "self.bounds / math.sqrt(len(groups))", "self.bounds"),
    ),
    mutant(
        "sensitivity-of-one-layer",
        "the noise fits the largest layer's bound, not all of them together",
        "test_every_method.py::test_every_method[sensitivity-per-layer bounds]",
        ("clipping.py", "math.hypot(*self.bounds.values())", "max(self.bounds.values())"),
    ),
    mutant(
        "norm-of-uses-not-seen",
        "a standardised weight's norm is taken from sums over some of its uses",
        "gradients/test_layer_rules.py::test_rule_equals_loop[3-1-standardised, groups]",
        ("gradients/chunk.py", " and how.observed == tape.times[name]", ""),
    ),
    mutant(
        "sum-in-a-factor",
        "gradients of several points are added up in memory that another part of the norm is taken from",
        "gradients/test_layer_rules.py::test_sums_are_in_memory_of_their_own[3-1]",
        (
            "gradients/parts.py",
            "        elif part.own or part.kind in self._own:\n",
            "        elif True:\n",
        ),
    ),
    mutant(
        "multiply-by-zero",
        "a unit of weight 0 is multiplied by 0: NaN stays NaN",
        STEP + "TestHostileRecords::test_it_moves_the_sum_by_at_most_the_clip_norm[10-dtype0-nan]",
        (
            "gradients/chunk.py",
            "made.update((part.erased(dead) if spare else part).weighted(weights))",
            "made.update(part.weighted(weights))",
        ),
    ),
    mutant(
        "nan-norm-clipped",
        "min(1, C / norm) of a norm that is no number",
        STEP + "TestHostileRecords::test_it_moves_the_sum_by_at_most_the_clip_norm[10-dtype0-nan]",
        (
            "clipping.py",
            "return torch.where(torch.isfinite(norms), (bound / norms).clamp(max=1), 0)",
            "return (bound / norms).clamp(max=1)",
        ),
    ),
    mutant(
        "gap-not-clamped",
        "a unit's loss difference enters the release as large as it is",
        "methods/test_switch.py::TestGap::test_the_clamped_mean_of_differences",
        (MECHANISM, "sound.clamp(-bound, bound).sum()", "sound.sum()"),
    ),
)

NOISE = (
    mutant(
        "noise-per-physical-batch",
        "noise is drawn for every physical batch",
        STEP + "test_the_physical_batch_never_changes_a_result[3]",
        (
            ASK,
            "        bounded = self._bounded(chunks, like)\n        answer = self._noised(bounded, share)\n",
            "        each = [self._bounded([chunk], like) for chunk in chunks] or [self._bounded([], like)]\n"
            "        bounded, told = each[0], [self._noised(one, share) for one in each]\n"
            "        answer = {name: sum(one[name] for one in told) for name in told[0]}\n",
        ),
    ),
    mutant(
        "half-noise",
        "half the noise",
        STEP + "test_noise_is_multiplier_times_clip_norm",
        (
            MECHANISM,
            "std = noise_multiplier * bounded.sensitivity",
            "std = noise_multiplier * bounded.sensitivity / 2",
        ),
    ),
    mutant(
        "noise-without-clip-norm",
        "the noise does not know the clip norm",
        STEP + "test_noise_is_multiplier_times_clip_norm",
        (MECHANISM, "std = noise_multiplier * bounded.sensitivity", "std = noise_multiplier"),
    ),
    mutant(
        "one-percent-less",
        "noise of 0.99 standard deviations",
        "privacy/test_noise.py::test_b1_variance[torch.float32-SecureNoise]",
        (
            "privacy/box_muller.py",
            "    _polar(u.log_().add_(e), t, out)\n",
            "    _polar(u.log_().add_(e).mul_(0.98), t, out)\n",
        ),
    ),
    mutant(
        "any-compiled-transform",
        "a compiled transform is used whatever it makes of random words",
        "privacy/test_noise.py::test_a_compiled_transform_that_says_otherwise_is_not_used[halved]",
        (
            "privacy/box_muller.py",
            "return bool(((one - other).abs() <= 2e-6 * (1 + other.abs())).all())",
            "return True",
        ),
    ),
    mutant(
        "few-pairs-transformed",
        "the compiled transform is given one pair too few, and memory is released as it was found",
        "privacy/test_noise.py::test_the_compiled_transform_leaves_no_pair_out_and_writes_nothing_else[8]",
        ("privacy/box_muller.py", "out.data_ptr(), bits.shape[1])", "out.data_ptr(), bits.shape[1] - 1)"),
    ),
    mutant(
        "a-leaf-without-noise",
        "the first parameter gets no noise",
        STEP + "test_an_empty_batch_is_pure_noise",
        (MECHANISM, "alpha=std, out=leaf)", "alpha=std * (name != next(iter(fresh))), out=leaf)"),
    ),
    mutant(
        "no-noise-for-nobody",
        "an empty batch gets no noise",
        STEP + "test_an_empty_batch_is_pure_noise",
        (
            MECHANISM,
            "    if noise_multiplier == 0:",
            "    if noise_multiplier == 0 or not any(leaf.any() for leaf in bounded.total.values()):",
        ),
    ),
    mutant(
        "empty-batch-skipped",
        "a step that drew nobody is left out",
        "core/test_train.py::TestLoop::test_an_empty_draw_is_a_step_like_any_other",
        (
            TRAIN,
            "            try:\n                charge(plan, here, guards.meter)\n",
            "            if not len(drawn[-1]):\n"
            "                at = replace(here, step=here.step + 1, within=here.within + 1)\n"
            "                yield at\n"
            "                continue\n"
            "            try:\n                charge(plan, here, guards.meter)\n",
        ),
    ),
    mutant(
        "divide-by-those-drawn",
        "the sum is divided by how many were drawn",
        STEP + "test_denominator_is_a_constant",
        (
            ASK,
            "        bounded = self._bounded(chunks, like)\n",
            "        chunks = list(chunks)\n        bounded = self._bounded(chunks, like)\n",
        ),
        (
            ASK,
            "leaf.div_(self._release.expected_units)",
            "leaf.div_(sum(len(chunk.norms()) for chunk in chunks) or 1)",
        ),
    ),
    mutant(
        "divide-by-the-data",
        "the sum is divided by what the data holds, not by what was declared",
        "core/test_neighbours.py::test_a1_neighbours",
        ("core/step.py", "expected_units=plan.expected_units", "expected_units=plan.rate * private.count"),
    ),
    mutant(
        "shares-for-free",
        "a question with a share of the step gets the noise of a whole one",
        STEP + "TestShares::test_two_questions_share_one_step",
        (ASK, "return self._release.noise_multiplier / share**0.5", "return self._release.noise_multiplier"),
    ),
    mutant(
        "a-door-that-does-not-count",
        "a method may ask as often as it likes",
        STEP + "TestShares::test_no_more_than_one_step[shares1]",
        (ASK, "        self.left -= share\n", ""),
    ),
    mutant(
        "a-count-for-free",
        "the count behind an adaptive clip norm costs nothing",
        "methods/test_formulas.py::TestAdaptiveClipping::test_noise_of_the_count_and_of_the_gradients",
        ("clipping.py", "return self.bound / math.sqrt(1 - self.share)", "return self.bound"),
    ),
    mutant(
        "a-key-used-again",
        "every call draws from one key",
        "privacy/test_noise.py::test_b3_no_block_twice_over_steps_parameters_and_forks",
        ("privacy/noise.py", "    return os.urandom(32)\n", "    return bytes(32)\n"),
    ),
    mutant(
        "no-poisson-sample",
        "a fixed number of units is drawn",
        "core/test_sampling.py::test_it_is_poisson",
        (
            "core/sampling.py",
            "return np.flatnonzero(_uniforms(count, source) < rate)",
            "return np.sort(np.argsort(source.random(count))[: round(count * rate)])",
        ),
    ),
    mutant(
        "the-last-unit-is-never-drawn",
        "points are thrown at one unit too few",
        SCATTERED + "test_it_is_poisson",
        (
            "core/sampling.py",
            "_below(max(1, count), stay, source)",
            "_below(max(1, count - 1), stay, source)",
        ),
    ),
    mutant(
        "the-first-unit-is-never-drawn",
        "points are numbered from 1",
        SCATTERED + "test_it_is_poisson",
        (
            "core/sampling.py",
            "np.unique(_below(max(1, count), stay, source))",
            "np.unique(_below(max(1, count - 1), stay, source) + 1)",
        ),
    ),
    mutant(
        "every-point-stays",
        "units join more often than the rate says, as the number of points is rounded up",
        SCATTERED + "test_it_is_poisson",
        ("core/sampling.py", "_words(thrown, source) < kept", "_words(thrown, source) >= 0"),
    ),
    mutant(
        "points-by-the-rate-itself",
        "the mean number of points is the rate's, and a unit that is hit twice joins once",
        SCATTERED + "test_no_unit_joins_more_often_than_the_rate_says",
        ("core/sampling.py", "mean = -math.log1p(-rate) * count", "mean = rate * count"),
    ),
    mutant(
        "as-many-points-each-time",
        "the number of points is fixed",
        SCATTERED + "test_it_is_poisson",
        ("core/sampling.py", "thrown = int(_poisson_ones(ones, source).sum())", "thrown = ones"),
    ),
    mutant(
        "numbers-that-are-not-poisson",
        "too many large numbers of points are taken",
        SCATTERED + "test_poisson_numbers",
        ("core/sampling.py", "int((tried >= k).sum()), source) < 2", "int((tried >= k).sum()), source) < 3"),
    ),
    mutant(
        "a-sample-stepped-again",
        "the sample that was drawn ahead is used for every step that follows",
        AHEAD + "TestSecretDraws::test_each_sample_is_stepped_once_in_the_order_of_draws",
        (
            TRAIN,
            "ahead = self._next_drawn(here, private)",
            "ahead = ahead or self._next_drawn(here, private)",
        ),
    ),
    mutant(
        "drawn-for-another-phase",
        "a sample that was drawn ahead is used although the phase has ended",
        AHEAD + "TestSecretDraws::test_a_phase_that_ends_by_results_forgets_what_was_drawn",
        (TRAIN, "drawn = ahead if ahead and here is at else draw(", "drawn = ahead if ahead else draw("),
    ),
    mutant(
        "a-sampler-ahead-of-its-checkpoint",
        "the next sample is drawn early from a sampler that is kept, and set back to another place",
        AHEAD + "TestNothingChanges::test_a_run_that_goes_on_goes_on_alike",
        (TRAIN, " or not isinstance(guards.sampling, SecureSampling)", ""),
    ),
    mutant(
        "another-batch-read-ahead",
        "whatever was read ahead is handed out, to whoever asks",
        AHEAD + "TestAhead::test_a_batch_is_handed_out_once_and_to_its_own_units",
        (
            "core/ahead.py",
            "found = self._waiting.pop(indices.tobytes(), None)",
            "found = self._waiting.pop(next(iter(self._waiting), b''), None)",
        ),
    ),
    mutant(
        "objects-in-arrays",
        "an .npy file of objects is opened",
        STORED + "TestHostileFiles::test_an_error_and_no_code[objects]",
        ("data/blocks.py", 'if dtype.kind not in "fiu" or dtype.hasobject:', "if False:"),
    ),
    mutant(
        "a-file-that-changes-under-the-run",
        "rows are read of a file that was cut since it was opened",
        STORED + "TestRowsThatFail::test_it_adds_nothing[grown]",
        ("data/blocks.py", "if not whole or any(", "if any("),
    ),
    mutant(
        "labels-that-nobody-declared",
        "a label on disk that is no class reaches the loss",
        STORED + "TestRowsThatFail::test_it_adds_nothing[label]",
        ("data/stored.py", "if self.form.classes and bool(", "if False and bool("),
    ),
    mutant(
        "lists-that-reach-into-the-next-row",
        "a list that is too short is filled up from the next row's",
        "data/test_parquet.py::TestRowsThatFail::test_lists_that_would_make_up_for_each_other[.parquet]",
        ("data/parquet.py", "if found.null_count or len(pc.unique(lengths)) > 1:", "if found.null_count:"),
    ),
    mutant(
        "more-rows-than-declared",
        "the data may hold more examples than the statement says",
        STORED + "TestDeclaredSize::test_more_rows_than_declared",
        ("front/given.py", "if self.size is not None and count > self.size:", "if False:"),
    ),
    mutant(
        "seeded-noise-is-private",
        "seeded noise says that it is private",
        "privacy/test_noise.py::test_only_seeded_noise_is_stamped",
        (
            "privacy/noise.py",
            "    private = False\n    stamp = SEEDED\n",
            "    private = True\n    stamp = SEEDED\n",
        ),
    ),
    mutant(
        "sampler-set-back",
        "a private run that goes on draws the same units again",
        "core/test_resume.py::test_private_runs_draw_fresh_noise_and_fresh_samples",
        (TRAIN, "        if at.step and is_secret(self.safeguards.noise):\n", "        if False:\n"),
        (
            TRAIN,
            "isinstance(sampler, np.random.Generator) and not is_secret(self.safeguards.noise)",
            "isinstance(sampler, np.random.Generator)",
        ),
    ),
)

RECORD = (
    mutant(
        "a-child-unlocks",
        "a forked child that closes the ledger lets another writer in beside its parent",
        "privacy/test_ledger.py::test_a_child_that_leaves_does_not_unlock_the_ledger",
        (LEDGER, "        ledger._forget()", "        ledger._drop()"),
    ),
    mutant(
        "a-sampler-that-can-be-repeated",
        "a seeded generator of numpy counts as private",
        HOSTILE + "test_a_sampler_that_can_be_repeated_is_not_private[3]",
        (
            "core/step.py",
            "return is_secret(self.noise) and is_secret(self.sampling)",
            "return is_secret(self.noise)",
        ),
        hole=9,
    ),
    mutant(
        "any-budget-for-chosen-steps",
        "a budget without an order takes a run whose results choose its steps",
        "core/test_on_record.py::TestChosenByResults::test_a_budget_without_order_refuses_such_a_plan[by_train]",
        (LEDGER, "            self._ledger._check_order(self._ledger.history.budget)\n", ""),
        hole=10,
    ),
    mutant(
        "a-run-known-by-its-path",
        "a run is found by the spelling of its folder",
        "runs/test_identity.py::test_a_run_that_goes_on_by_another_path_states_all_that_is_on_record[relative-False]",
        ("runs/execute.py", "block=block, identity=identity\n", "block=block\n"),
        hole=11,
    ),
    mutant(
        "users-as-examples",
        "an example-level run is put on record as one of users",
        "core/test_on_record.py::TestOneCheck::test_what_the_record_would_not_say_is_refused[unit-by_fit]",
        ("core/record.py", "    if run.unit != unit:\n", "    if False:\n"),
        hole=12,
    ),
    mutant(
        "seeded-on-a-private-record",
        "noise that can be repeated is put on record as private",
        "core/test_on_record.py::TestOneCheck::test_what_the_record_would_not_say_is_refused[noise-by_train]",
        ("core/record.py", "        _check_secret(safeguards)\n", "        pass\n"),
        hole=12,
    ),
    mutant(
        "a-bound-of-a-smaller-order",
        "a Renyi bound is taken for one at larger orders",
        "privacy/test_costs.py::test_between_two_orders_the_larger_one_holds_and_beyond_the_last_nothing_is_known",
        ("privacy/accounting/events.py", "self.points if known >= order)", "self.points if known <= order)"),
    ),
    mutant(
        "replacing-counted-as-removing",
        "a fixed-size draw is accounted as if a replaced unit moved the sum by C",
        "privacy/test_costs.py::test_a_fixed_size_step_costs_at_least_what_a_replaced_unit_shows[10-9-2.0]",
        (
            "privacy/accounting/renyi.py",
            "            leaf.source_dataset_size, leaf.sample_size, _halved(leaf.event)\n",
            "            leaf.source_dataset_size, leaf.sample_size, leaf.event\n",
        ),
    ),
    mutant(
        "a-fixed-number-of-who-is-there",
        "a fixed number is drawn from the units that are there, who then join more often than declared",
        "core/test_draw.py::test_units_that_are_not_there_leave_their_places_empty",
        ("core/draw.py", "places = without_replacement(size,", "places = without_replacement(count,"),
    ),
    mutant(
        "replaced-on-a-record-of-removed",
        "a plan that promises something about replaced units is put on record as one of removed units",
        "core/test_draw.py::test_a_record_of_added_or_removed_units_is_refused[by_train]",
        ("core/record.py", "    if run.adjacency != plan.adjacency:\n", "    if False:\n"),
        hole=12,
    ),
    mutant(
        "memories-under-fixed-draws",
        "clients with error memories are drawn without replacement, where their cost is not known",
        "core/test_draw.py::test_units_that_remember_are_refused",
        (TRAIN, "    check_draws(plan, contribution)\n", ""),
    ),
    mutant(
        "a-fixed-size-draw-in-any-run",
        "a draw of fixed size is put on record where units are added or removed",
        "privacy/test_costs.py::"
        "test_a_cost_without_a_bound_under_the_adjacency_is_refused_and_nothing_is_charged",
        (LEDGER, "        check_adjacency(cost, self.history.adjacency)\n", ""),
    ),
    mutant(
        "a-run-that-can-be-copied",
        "two copies of a run take the same steps twice",
        "privacy/test_ledger.py::test_what_counts_steps_is_neither_copied_nor_pickled[copy]",
        ("privacy/record/single.py", "def __reduce_ex__(", "def _reduce_ex("),
        hole=13,
    ),
    mutant(
        "lost-steps-taken-again",
        "a run that goes on takes every step of its plan, whatever was lost",
        "core/test_resume.py::TestLedger::test_as_many_steps_as_were_lost_are_left_out",
        (
            TRAIN,
            "                self.allowance.take(plan.costs_at(here.phase, here.within))\n",
            "                pass\n",
        ),
    ),
    mutant(
        "an-unknown-loss-is-none",
        "a run that goes on without a record counts what its checkpoint counts",
        "core/test_resume.py::TestLedger::test_without_a_record_all_that_was_left_counts_as_taken",
        (TRAIN, "spent.steps if spent.known else whole", "spent.steps"),
    ),
    mutant(
        "lost-steps-taken-again-in-a-loop",
        "a loop that goes on from a state takes every step that was left",
        KEEPING + "test_a_warning_says_how_many_and_why",
        (
            "front/loop.py",
            "            self._allowance.take(self.plan.costs_at(here.phase, here.within))\n",
            "            pass\n",
        ),
    ),
    mutant(
        "nothing-lost-unless-said",
        "a loop takes nothing for lost if nobody says how much was",
        KEEPING + "test_a_warning_says_how_many_and_why",
        ("front/loop.py", "steps = kept.left if lost is None else", "steps = 0 if lost is None else"),
    ),
    mutant(
        "more-than-planned-unsaid",
        "the statement of a run that was allowed more is that of its plan",
        KEEPING + "test_more_is_taken_where_that_is_allowed_and_it_says_so",
        (PLAN, "        if self.covers(charged):\n", "        if True:\n"),
    ),
    mutant(
        "dear-steps-for-cheap-ones",
        "a step with little noise uses up a planned one with more",
        "core/test_allowance.py::test_it_is_the_matching_of_steps[pair]",
        (
            "core/allowance.py",
            "        self._left = left.cumsum()\n",
            "        self._left = left[::-1].cumsum()[::-1]\n",
        ),
    ),
    mutant(
        "one-sample-of-two-counts",
        "a step that draws two samples uses up one planned sample",
        "core/test_allowance.py::test_what_is_covered_costs_no_more[pair-add-or-remove]",
        (
            "core/allowance.py",
            "places = [self._place(cost) for cost in costs]",
            "places = [self._place(cost) for cost in costs][:1]",
        ),
    ),
    mutant(
        "paid-for-whatever-was-charged",
        "a statement counts what was paid for in advance, although more was charged",
        "runs/test_spare_steps.py::test_what_is_stated_covers_the_record",
        ("runs/execute.py", " and not plan.covers(charged) and paid.covers(charged):", ":"),
    ),
    mutant(
        "more-units-than-declared",
        "a plan takes more units than it declares",
        "core/test_draw.py::test_more_units_than_declared_are_refused_and_not_counted_aloud[by_train]",
        (
            "core/record.py",
            "    if plan.adjacency != ADJACENCIES[0] and count > plan.size:\n",
            "    if False:\n",
        ),
    ),
    mutant(
        "a-batch-stepped-twice",
        "a batch of one's own loop can be stepped again",
        "front/test_own_loop.py::TestBatches::test_twice_is_an_error_and_costs_nothing",
        ("front/loop.py", "        if batch is not self._waiting:\n", "        if False:\n"),
        hole=13,
    ),
    mutant(
        "files-trusted",
        "a ledger whose file was removed goes on in a file without a name",
        "privacy/test_ledger.py::test_files_that_change_under_the_writer_are_noticed_at_the_next_block"
        "[ledger removed-step]",
        (LEDGER, "            self._check_files(descriptor)\n", "            pass\n"),
        hole=13,
    ),
    mutant(
        "charge-after-the-step",
        "a step is charged when it is over",
        "core/test_train.py::TestLoop::test_charged_before_noise_is_drawn",
        (TRAIN, "                charge(plan, here, guards.meter)\n", "                pass\n"),
        (
            TRAIN,
            "            at = advance(plan, here, ask)\n",
            "            at = advance(plan, here, ask)\n            charge(plan, here, guards.meter)\n",
        ),
    ),
    mutant(
        "a-failed-step-for-free",
        "a step of one's own loop that fails after the noise is not counted",
        "front/test_own_loop.py::TestCost::test_a_step_that_fails_is_paid_for",
        ("front/loop.py", "            self._count(here)\n", ""),
        (
            "front/loop.py",
            "            at = self._at = parts.advance(self.plan, here, ask)\n",
            "            at = parts.advance(self.plan, here, ask)\n"
            "            self._count(here)\n            self._at = at\n",
        ),
    ),
    mutant(
        "second-sample-not-charged",
        "a step that draws two samples pays for one",
        "core/test_train.py::TestLoop::test_a_second_sample_is_charged_too",
        (
            "core/step.py",
            "        for noise_multiplier in _noises(plan, at):\n",
            "        for noise_multiplier in _noises(plan, at)[:1]:\n",
        ),
    ),
    mutant(
        "no-fsync",
        "lines of the ledger wait in the memory of the machine",
        "privacy/test_durable.py::test_d3_after_a_power_cut_it_is_the_last_one_written_or_the_next",
        (
            "privacy/record/durable.py",
            "    _write_all(descriptor, data)\n    sync(descriptor)\n",
            "    _write_all(descriptor, data)\n",
        ),
    ),
    mutant(
        "no-checksum",
        "a changed line of the ledger is read as it is",
        "privacy/test_ledger.py::test_d5_damage",
        (FORMAT, 'good = line(entry) == text + b"\\n" and _sensible(entry)', "good = _sensible(entry)"),
        (FORMAT, "if number == last and digest not in (None, entry.hash):", "if False:"),
    ),
    mutant(
        "no-checksum-in-checkpoints",
        "a damaged checkpoint is read as it is",
        "privacy/test_checkpoint.py::test_d5_damage",
        (
            "privacy/record/checkpoint.py",
            'if len(data) != content["bytes"] or hashlib.sha256(data).hexdigest() != content["sha256"]:',
            "if False:",
        ),
    ),
    mutant(
        "used-steps-given-back",
        "a clean end gives back steps that were taken",
        "privacy/test_ledger.py::test_a_clean_end_settles_and_a_crash_keeps_the_block",
        (LEDGER, 'self._open.body["steps"] - self._left}', "0}"),
    ),
    mutant(
        "a-gate-that-is-generous",
        "a step fits that passes the budget by a hundredth",
        "privacy/test_ledger.py::test_the_gate_stops_at_the_last_step_that_fits",
        (
            HISTORY,
            "if spent <= budget.epsilon else math.inf",
            "if spent <= 1.2 * budget.epsilon else math.inf",
        ),
    ),
    mutant(
        "an-older-ledger-taken",
        "a checkpoint goes on with an older copy of its ledger",
        "core/test_resume.py::TestLedger::test_an_older_copy_of_the_ledger_is_refused",
        ("core/resume.py", "        meter.expect(head)\n", "        pass\n"),
    ),
    mutant(
        "rerun-steps-for-free",
        "the statement leaves out steps that ran again after a crash",
        "front/test_one_call.py::test_steps_on_record_beyond_the_plan_are_added_to_it",
        (PLAN, "        return compose(self.event(), *(", "        return self.event() or compose(*("),
    ),
    mutant(
        "chosen-steps-as-planned",
        "a run whose results chose its steps counts with those it took",
        "core/test_on_record.py::TestChosenByResults::test_its_epsilon_on_record_is_that_of_all_that_results_could_have_chosen[1-by_train]",
        (HISTORY, "            if planned and by_cost.total():\n", "            if False:\n"),
    ),
)

ACCOUNT = (
    mutant(
        "half-the-rate",
        "the accountant is told half the sampling rate",
        "core/test_train.py::TestPlan::test_published_epsilon",
        (
            "core/draw.py",
            "        return rate, noise_multiplier\n\n\n",
            "        return rate / 2, noise_multiplier\n\n\n",
        ),
    ),
    mutant(
        "one-step-fewer",
        "a phase is charged one step less than it takes",
        "core/test_train.py::TestLoop::test_a_ledger_is_a_meter",
        (
            PLAN,
            "return Counter({noise: k * self.steps for",
            "return Counter({noise: k * (self.steps - 1) or 1 for",
        ),
    ),
    mutant(
        "schedule-not-charged",
        "a schedule that lowers the noise is not accounted for",
        "test_every_method.py::test_every_method[budget-noise schedule]",
        (
            PLAN,
            "        if callable(self.noise_schedule):\n            return Counter(",
            "        if False:\n            return Counter(",
        ),
    ),
    mutant(
        "replacing-costs-as-removing",
        "replacing a unit is accounted as removing it",
        "privacy/test_accounting.py::test_replacing_doubles_the_sensitivity_of_an_unsampled_step",
        (
            "privacy/accounting/bounds.py",
            "return sigma / 2 if adjacency is REPLACE else sigma",
            "return sigma",
        ),
    ),
    mutant(
        "delta-ignored",
        "epsilon is that at delta 1e-5, whatever delta is",
        "privacy/test_accounting.py::test_epsilon_grows_with_steps_and_rate_and_falls_with_noise_and_delta",
        (
            "privacy/accounting/bounds.py",
            "value = found.epsilon(delta) * (1 + 1e-9)",
            "value = found.epsilon(1e-5) * (1 + 1e-9)",
        ),
    ),
    mutant(
        "target-met-from-above",
        "calibration returns the scale with too little noise",
        "privacy/test_calibration.py::test_targets_are_met_from_below",
        (
            "privacy/accounting/calibration.py",
            "                return high[0]\n",
            "                return low[0]\n",
        ),
    ),
    mutant(
        "advantage-without-adjacency",
        "the noise of a replaced unit is calibrated to the advantage of a removed one",
        "privacy/test_risk.py::test_an_advantage_is_met_where_a_unit_is_replaced",
        (
            "privacy/accounting/calibration.py",
            "        advantage=partial(risk.advantage, adjacency=adjacency),\n"
            "        draft_advantage=partial(risk.draft_advantage, adjacency=adjacency),\n",
            "",
        ),
    ),
    mutant(
        "advantage-without-spare-steps",
        "the spare steps of a recipe are not part of what its advantage pays for",
        "front/test_advantage.py::TestRecipe::test_its_plan_and_spare_steps_keep_to_it",
        (
            "recipes/build.py",
            "plan = calibrate(plan, advantage=recipe.advantage)",
            "plan = with_spare(calibrate(draft, advantage=recipe.advantage), recipe.spare)",
        ),
    ),
    mutant(
        "curve-below-the-lines",
        "the lines of a trade-off curve go through the origin, as if delta were 0",
        "privacy/test_risk.py::test_a_gaussian_has_the_curve_of_its_closed_form[1.0-1]",
        (
            "privacy/accounting/risk.py",
            "small = deltas + np.exp(epsilons) * f",
            "small = np.exp(epsilons) * f",
        ),
    ),
    mutant(
        "renyi-curve-too-tight",
        "what a bit may tell by Renyi bounds is a quarter of it, and in one direction",
        "privacy/test_risk.py::test_renyi_bounds_alone_give_a_looser_curve_and_say_so[0.7]",
        (
            "privacy/accounting/risk.py",
            "return bool((_bits(order, p, q) <= most).all() and (_bits(order, q, p) <= most).all())",
            "return bool((_bits(order, p, q) <= most / 4).all())",
        ),
    ),
    mutant(
        "risk-to-nearest",
        "a limit in per cent is rounded to nearest",
        "privacy/test_statement.py::test_the_risk_is_that_of_the_trade_off_curve",
        (
            "privacy/record/statement.py",
            "    said = rounded_up(100 * share)\n",
            '    said = f"{100 * share:.3g}"\n',
        ),
    ),
    mutant(
        "risk-of-another-adjacency",
        "the statement on a replaced unit has the risk of a removed one",
        "privacy/test_statement.py::test_the_risk_is_that_of_the_trade_off_curve",
        (
            "privacy/record/statement.py",
            "attacked = risk.tradeoff(event, adjacency=adjacency)",
            "attacked = risk.tradeoff(event)",
        ),
    ),
    mutant(
        "risk-of-less-than-was-spent",
        "the card gives the limit of the statement although the ledger has more on record",
        "report/test_page.py::test_a_limit_is_not_shown_of_a_run_that_cost_more",
        (
            "report/words.py",
            "    if correction(run):\n        return UNKNOWN",
            "    if False:\n        return UNKNOWN",
        ),
    ),
    mutant(
        "delta-as-large-as-one-unit",
        "a delta above 1/n is taken",
        "privacy/test_statement.py::test_a_delta_above_one_over_n_is_refused_unless_reproducing",
        (
            "privacy/record/statement.py",
            "    if delta * size > 1 + 1e-9 and not declared.reproduce:\n",
            "    if False:\n",
        ),
    ),
    mutant(
        "nan-passes",
        "`x < low` lets what is no number through",
        "test_fuzz.py::test_d8_the_usual_mistakes_in_every_setting",
        (
            "settings.py",
            "return _is_real(value) and math.isfinite(value) and low <= value <= high",
            "return _is_real(value) and not (value < low or value > high)",
        ),
    ),
    mutant(
        "truth-for-one",
        "True is taken for the number 1",
        "test_fuzz.py::test_d8_the_usual_mistakes_in_every_setting",
        (
            "settings.py",
            "if not isinstance(value, numbers.Real) or isinstance(value, bool):",
            "if not isinstance(value, numbers.Real):",
        ),
    ),
    mutant(
        "nan-delta-passes",
        "a delta that is no number passes for a small one",
        "privacy/test_accounting.py::test_bad_deltas_are_refused[nan]",
        (
            "privacy/limits.py",
            "    if DELTA_FLOOR <= value < 1:\n",
            "    if not (value < DELTA_FLOOR or value >= 1):\n",
        ),
    ),
)

TELLING = (
    mutant(
        "a-failure-ends-the-run",
        "a unit whose backward pass fails ends the run with its own words",
        HOSTILE + "test_a_unit_that_fails_anywhere_adds_nothing[backward]",
        (CONTRIBUTION, "            if self.strict:\n", "            if True:\n"),
        hole=14,
    ),
    mutant(
        "an-item-ends-the-run",
        "an item that cannot be read ends the run with its name",
        HOSTILE + "test_items_that_cannot_be_read_add_nothing_and_nothing_is_said",
        (
            CONTRIBUTION,
            "        except Exception:\n            return None\n",
            "        except ZeroDivisionError:\n            return None\n",
        ),
        hole=14,
    ),
    mutant(
        "a-refusal-with-values",
        "a refusal quotes the failure on private rows",
        HOSTILE + "test_an_error_on_private_rows_holds_no_value_of_theirs",
        (CHECK, '    return f"a {type(error).__name__} that rows', '    return f"{error} that rows'),
        hole=14,
    ),
    mutant(
        "leftover-gradients",
        "what lies in frozen parameters' .grad is applied without noise",
        HOSTILE + "test_gradients_left_over_in_frozen_parameters_are_not_applied",
        ("front/loop.py", "                p.grad = None\n", "                pass\n"),
        hole=15,
    ),
    mutant(
        "size-in-silence",
        "the statement does not say that the number of examples was read",
        "front/test_one_call.py::TestSize::test_a_size_that_was_read_is_said_to_be",
        ("front/given.py", "counted=ready.counted,", "counted=False,"),
        hole=16,
    ),
    mutant(
        "public-in-silence",
        "the statement does not say whose examples were used without protection",
        "methods/test_public.py::TestPublic::test_the_statement_names_them[optimizer]",
        (PLAN, "for owner in (phase.method, phase.optimizer)", "for owner in (phase.method,)"),
    ),
    mutant(
        "features-in-silence",
        "the statement does not say that features stand before the model, nor what they were made from",
        "features/test_features.py::TestPage::test_the_recipe_trains",
        ("runs/execute.py", "features=described(recipe.features)", 'features=""'),
    ),
    mutant(
        "bounds-to-nearest",
        "a printed bound is rounded to nearest",
        "privacy/test_statement.py::test_printing_never_lowers_a_bound",
        ("privacy/limits.py", "scaled = math.ceil(value", "scaled = round(value"),
        hole=17,
    ),
    mutant(
        "joint-epsilon-vanishes",
        "one listed run on other data silences what the others cost together",
        "report/test_joint.py::test_a_run_on_other_data_takes_nothing_away",
        (
            "report/joint.py",
            "for data, them in groups.items() if len(them) > 1]",
            "for data, them in groups.items() if len(them) == len(runs) > 1]",
        ),
        hole=18,
    ),
    mutant(
        "an-older-figure",
        "a run that ended at no number shows the last good accuracy",
        "report/test_page.py::test_a_run_that_ended_at_no_number_shows_no_older_figure",
        (
            "report/folder.py",
            "        return self.last.accuracy if self.last else None\n",
            "        return next((r.accuracy for r in reversed(self.readings.value or ()) if r.accuracy), None)\n",
        ),
        hole=18,
    ),
    mutant(
        "momentum-left-out",
        "the noise of many steps leaves momentum out",
        "runs/test_list_of_measures.py::test_the_noise_is_that_of_the_last_phase_with_its_momentum",
        ("runs/survey.py", "std=std, momentum=optimizer.momentum, seed", "std=std, momentum=0.0, seed"),
        hole=18,
    ),
    mutant(
        "advised-delta-rounded-up",
        "an advised limit grows when it is printed",
        "privacy/test_statement.py::test_the_advised_delta_is_never_rounded_up[60000]",
        ("privacy/limits.py", "front = math.floor(value", "front = math.ceil(value"),
        hole=18,
    ),
)

CLIENTS_AND_ROUNDS = (
    mutant(
        "a-bad-client-silences-the-others",
        "clients that are trained together with one that fails are left out with it",
        "federated/test_together.py::test_a_client_whose_rows_fail_is_void_and_the_others_are_identical",
        (
            "federated/together.py",
            "            sound = [self.tried(point, client) is not None for client in clients]\n",
            "            return [None] * len(clients)\n",
        ),
    ),
    mutant(
        "workers-that-remember",
        "a model that carries one client's data to the next is not noticed where clients train in other processes",
        "federated/test_workers.py::test_a_model_that_begins_to_remember_is_refused",
        ("federated/workers.py", "else _pickled(CHANGED)", "else found"),
    ),
    mutant(
        "an-ended-process-stops-the-round",
        "a client whose rows end the process that trains it ends the run, and so tells of itself",
        "federated/test_workers.py::test_whoever_ends_its_process_is_void_and_the_others_are_identical",
        (
            "federated/workers.py",
            "hand.channel.recv_bytes()))\n            except (EOFError, OSError):\n",
            "hand.channel.recv_bytes()))\n            except ImportError:\n",
        ),
    ),
    mutant(
        "rows-that-cannot-be-sent-stop-the-round",
        "a client whose rows cannot go to another process ends the run, and so tells of itself",
        "federated/test_workers.py::test_rows_that_cannot_be_sent_are_void_though_nobody_else_is_there",
        (
            "federated/workers.py",
            "        except Exception:\n            continue\n        yield place, task\n",
            "        except ImportError:\n            continue\n        yield place, task\n",
        ),
    ),
    mutant(
        "workers-with-known-orders",
        "clients that train in other processes take their rows in an order that can be repeated",
        "federated/test_workers.py::test_orders_are_secret_and_fresh_in_every_process",
        (
            "federated/workers.py",
            '{"local": training.local, "step": training.step}',
            '{"local": replace(training.local, seed=0), "step": training.step}',
        ),
    ),
    mutant(
        "points-without-a-copy",
        "a model that writes into the weights that it is given writes into what is released",
        "core/test_contributions.py::test_what_is_written_into_a_point_reaches_neither_the_release_nor_the_next_batch",
        (
            "core/contribution.py",
            "if sharded else Copies(points)",
            "if sharded else points",
        ),
    ),
    mutant(
        "clients-share-the-servers-weights",
        "a model that writes into its weights hands one client's rows to the next, and to the server",
        "federated/test_contribution.py::test_a_model_that_writes_into_its_weights_writes_into_no_other_clients[1]",
        ("federated/local.py", "at, velocity, lr = tree.copied(point), ", "at, velocity, lr = point, "),
    ),
    mutant(
        "odd-clients-that-never-train",
        "the clients after which others are tried have numbers that no key can be made of, and so do nothing",
        "federated/test_contribution.py::test_what_would_let_clients_mix_is_refused[loudest]",
        ("federated/check.py", "Client(most, spoilt), Client(most + 1, ", "Client(-1, spoilt), Client(-2, "),
    ),
    mutant(
        "labels-that-shift",
        "a client with more labels than images gives the clients after it in the stack other labels",
        "federated/test_contribution.py::test_f3_a_client_with_bad_rows_leaves_the_others_bit_identical[more labels]",
        (
            "federated/together.py",
            "        (rows,) = {len(leaf) for leaf in leaves(client.rows)}\n",
            "        rows = rows_in(client.rows)\n",
        ),
    ),
    mutant(
        "an-error-stops-the-round",
        "a client whose training fails ends the run, and so tells of itself",
        "federated/test_contribution.py::test_f3_a_client_with_bad_rows_leaves_the_others_bit_identical[label]",
        (
            "federated/local.py",
            "            return self.alone(point, client)\n        except Exception:\n            return None\n",
            "            return self.alone(point, client)\n        except ImportError:\n            return None\n",
        ),
    ),
    mutant(
        "replies-taken-as-they-come",
        "an update of other shapes reaches the sum",
        "federated/test_contribution.py::test_f3_a_hundred_mixes_of_bad_updates",
        ("federated/contribution.py", "found.shape == leaf.shape and ", ""),
    ),
    mutant(
        "void-is-kept",
        "an update that is void has whatever norm it has, and not none",
        "federated/test_contribution.py::test_f3_each_kind_by_itself_adds_at_most_the_clip_norm[one nan]",
        (
            "clipping.py",
            "torch.where(torch.isfinite(norms), (bound / norms).clamp(max=1), 0)",
            "(bound / norms).clamp(max=1)",
        ),
    ),
    mutant(
        "divided-by-replies",
        "the sum is divided by how many answered",
        "federated/test_contribution.py::test_the_sum_is_divided_by_the_declared_number_whoever_answers",
        (
            ASK,
            "        bounded = self._bounded(chunks, like)\n",
            "        chunks = list(chunks)\n        replies = max(1, sum(len(each.norms()) for each in chunks))\n"
            "        bounded = self._bounded(chunks, like)\n",
        ),
        (ASK, "            leaf.div_(self._release.expected_units)\n", "            leaf.div_(replies)\n"),
    ),
    mutant(
        "orders-from-the-round",
        "the order of a client's rows can be worked out from the round",
        "federated/test_local.py::test_without_a_seed_the_order_cannot_be_told_from_round_and_number",
        ("federated/local.py", "return secrets.randbits(63)", "return hash((step, number)) & (2**63 - 1)"),
    ),
    mutant(
        "one-order-for-all",
        "a client's order does not follow its own number",
        "federated/test_local.py::test_the_order_follows_seed_round_and_number_and_nothing_else",
        ("federated/local.py", "SeedSequence([self.seed, step, number])", "SeedSequence([self.seed, step])"),
    ),
    mutant(
        "numbers-by-place",
        "who stands behind a client that leaves gets another number, and with it another order",
        "federated/test_contribution.py::test_others_keep_their_numbers_when_one_leaves",
        ("federated/clients.py", "numbers=[self._number(k) for k in left])", "numbers=None)"),
    ),
    mutant(
        "one-memory-for-all",
        "what one client leaves out is sent by the next",
        "federated/test_contribution.py::test_a_memory_belongs_to_one_client[9]",
        ("federated/local.py", "        self.kept[number] = (", "        self.kept[0] = ("),
        ("federated/local.py", "self.kept.get(number, (-1", "self.kept.get(0, (-1"),
    ),
    mutant(
        "memory-without-end",
        "a client's memory grows as it likes",
        "federated/test_local.py::test_memory_is_bounded_and_a_void_update_leaves_it",
        ("federated/local.py", "min(1.0, local.feedback.bound / (length or 1.0))", "1.0"),
    ),
    mutant(
        "clients-never-compared",
        "the check does not compare a client alone with the same in company",
        "federated/test_contribution.py::test_what_would_let_clients_mix_is_refused[remembers]",
        ("federated/check.py", "        _check_apart(trainer, params, clients)\n", ""),
    ),
    mutant(
        "clients-of-one-size",
        "the check tries clients of like sizes only, after which a running maximum stays where it is",
        "federated/test_contribution.py::test_what_would_let_clients_mix_is_refused[loudest]",
        (
            "federated/check.py",
            "Client(most + 1, mapped(of_other_sizes, rows))]",
            "Client(most + 1, rows)]",
        ),
    ),
    mutant(
        "clients-looked-at-once",
        "no client is looked at again as training goes on",
        "federated/test_contribution.py::test_a_model_that_begins_to_mix_is_found_by_a_second_look",
        ("federated/check.py", "            self._compare(params, batch[: max(8, len(batch) // 8)])\n", ""),
    ),
    mutant(
        "padding-that-weighs",
        "rows that fill up a minibatch count",
        "federated/test_together.py::test_together_as_one_by_one[3-plain]",
        (
            "federated/together.py",
            "    return places, (torch.arange(width) < sizes) / sizes\n",
            "    return places, torch.ones(len(parts), width) / sizes\n",
        ),
    ),
    mutant(
        "shares-that-are-missing",
        "drop-outs thin the noise: nobody adds the shares that did not arrive",
        "federated/test_shares.py::test_the_server_adds_what_is_missing[5]",
        (
            "federated/shares.py",
            "missing = max(0, _checked(shares) - arrived)",
            "missing = 0 * _checked(shares)",
        ),
    ),
    mutant(
        "shares-too-small",
        "every share has a part of the standard deviation, and not of the variance",
        "federated/test_shares.py::test_the_noise_on_the_sum[seven]",
        ("federated/shares.py", "1 / math.sqrt(_checked(shares))", "1 / _checked(shares)"),
    ),
    mutant(
        "published-epsilon",
        "tensors that are clipped one by one are counted as if they were clipped together",
        "federated/test_contribution.py::test_clipping_tensor_by_tensor_is_counted_as_what_it_is",
        (
            "federated/legacy.py",
            "true = noise_multiplier / math.sqrt(len(params))",
            "true = noise_multiplier",
        ),
    ),
    mutant(
        "norms-told-to-anybody",
        "clients' update norms are told without a declaration",
        "federated/test_contribution.py::test_what_clipping_does_is_told_only_where_it_may_be",
        (
            "federated/measured.py",
            'declared(access, "the clipping of updates")',
            'access or Access("public")',
        ),
    ),
    mutant(
        "a-mask-that-clips-all",
        "coordinates that a mask leaves out still take part in the norm",
        "methods/test_masked.py::test_units_are_clipped_within_the_mask",
        ("frames.py", "return chunk.scaled(self.kept)", "return chunk"),
    ),
    mutant(
        "a-mask-hides-missing-noise",
        "where a mask is, nobody looks whether noise was drawn",
        "methods/test_masked.py::test_noise_that_leaves_coordinates_out_is_still_found",
        (
            "core/step.py",
            "    for answer in ask.noised:\n        check_answer(own_parts(answer), before)\n",
            "",
        ),
    ),
)


FLEETS = "federated/test_remote.py::"
SERVED = "runs/test_serve.py::TestKills::"
REMOTE, SENT = "federated/flower/remote.py", "federated/flower/client.py"

FLEET = (
    mutant(
        "a-server-without-a-budget",
        "a federated run takes all its planned rounds after any number of kills, and passes its epsilon",
        SERVED + "test_without_an_epsilon_the_plan_is_the_most",
        ("runs/serve.py", "                book.set_budget(budget)\n", "                pass\n"),
    ),
    mutant(
        "a-server-that-states-its-plan",
        "the statement of a federated run leaves out rounds that ran again after a kill",
        SERVED + "test_three_kills_fit_into_the_declared_epsilon",
        ("runs/serve.py", "event = plan.event_on_record(charged)", "event = plan.event()"),
    ),
    mutant(
        "divide-by-replies",
        "the sum is divided by how many clients replied, so that drop-outs make each of them count for more",
        FLEETS + "TestDropOuts::test_the_denominator_is_the_declared_number",
        (
            REMOTE,
            "        return chunk_of([update for update in updates if update is not None], points[0])\n",
            "        sound = [update for update in updates if update is not None]\n"
            "        chunk = chunk_of(sound, points[0])\n"
            "        added, share = chunk.weighted_sum, self.fleet.clients / max(1, len(sound))\n"
            "        object.__setattr__(chunk, 'weighted_sum', lambda weights: added(weights * share))\n"
            "        return chunk\n",
        ),
    ),
    mutant(
        "weights-by-reported-counts",
        "updates are weighted by a number that clients report",
        FLEETS + "TestCounts::test_what_clients_report_is_never_read[1000000000.0]",
        (
            REMOTE,
            "        return chunk_of([update for update in updates if update is not None], points[0])\n",
            "        chunk = chunk_of([update for update in updates if update is not None], points[0])\n"
            "        counts = torch.tensor([float(reply.client or 1) for reply in replies])\n"
            "        added = chunk.weighted_sum\n"
            "        object.__setattr__(chunk, 'weighted_sum', lambda weights: added(weights * counts))\n"
            "        return chunk\n",
        ),
    ),
    mutant(
        "replies-of-any-round",
        "a reply of an earlier round is taken for one of this round",
        FLEETS + "TestBadClients::test_a_replayed_round_adds_nothing",
        (
            REMOTE,
            "if reply.node in open_at and (reply.round, reply.nonce) == (question.round, question.nonce):",
            "if reply.node in open_at:",
        ),
    ),
    mutant(
        "replies-more-than-once",
        "a client that replies twice is added twice",
        FLEETS + "TestBadClients::test_two_replies_count_once",
        (
            REMOTE,
            "        found: dict[int, Reply] = {}\n",
            "        found: dict = {}\n        asked = set(open_at)\n",
        ),
        (REMOTE, "if reply.node in open_at and", "if reply.node in asked and"),
        (
            REMOTE,
            "                    found[reply.node] = reply\n",
            "                    found.setdefault(reply.node, []).append(reply)\n",
        ),
        (
            REMOTE,
            "        return [found[here[number]] for number in numbers if here.get(number) in found]\n",
            "        return [each for number in numbers for each in found.get(here.get(number), [])]\n",
        ),
    ),
    mutant(
        "a-number-of-two-nodes",
        "of two nodes that give one number the last takes the place, so that one who leaves is replaced by the other",
        FLEETS + "TestWhoIsWho::test_a_number_that_two_nodes_give_belongs_to_neither",
        (REMOTE, "if times[client] == 1}", "if times[client]}"),
    ),
    mutant(
        "places-of-those-who-are-there",
        "the clients that are there move up, and who is drawn depends on who else is there",
        FLEETS + "TestWhoIsWho::test_who_is_drawn_follows_the_coins_of_places_alone",
        (
            REMOTE,
            "        return {client: node for node, client in claims.items() if times[client] == 1}\n",
            "        there = sorted(node for node, client in claims.items() if times[client] == 1)\n"
            "        return dict(enumerate(there))\n",
        ),
    ),
    mutant(
        "updates-leave-unclipped",
        "a client sends its update as long as it is",
        FLEETS + "TestWhatLeavesAClient::test_no_update_is_longer_than_the_bound",
        (SENT, "LEEWAY * self.clip_norm, points[0]", "math.inf, points[0]"),
    ),
    mutant(
        "errors-leave-a-client",
        "what fails on a client is raised, and Flower sends its text to the server",
        FLEETS + "TestWhatLeavesAClient::test_whatever_fails_an_empty_answer_is_sent[rows]",
        (SENT, "            return {}\n\n    def _answer", "            raise\n\n    def _answer"),
    ),
    mutant(
        "a-round-charged-after-its-replies",
        "the server charges a round when its replies are in: killed before that, the broadcast is on no record",
        "federated/test_server_kills.py::test_death_right_at_a_broadcast",
        (TRAIN, "                charge(plan, here, guards.meter)\n", "                pass\n"),
        (
            TRAIN,
            "            at = advance(plan, here, ask)\n",
            "            at = advance(plan, here, ask)\n            charge(plan, here, guards.meter)\n",
        ),
    ),
)

VOTES = "pate/test_votes.py::"
ASKED = "pate/test_labelling.py::"
COSTS = "pate/test_costs_of_votes.py::"
SMOOTHED = "pate/test_smooth.py::"
GNMAX, TEACHERS = "pate/gnmax.py", "pate/teachers.py"

OF_VOTES = (
    mutant(
        "teachers-that-answer-from-one-stream",
        "what a network draws while it answers comes from a stream that all teachers share",
        VOTES
        + "TestTeachers::test_one_example_changes_no_draws_of_other_teachers[torch-makes its teacher fail]",
        (
            "pate/fitting.py",
            "    with torch.no_grad(), draws_from(seed, model):",
            "    with torch.no_grad():",
        ),
    ),
    mutant(
        "teachers-that-share",
        "several teachers may be one network, so that one unit changes the votes of all who come later",
        VOTES + "TestTeachers::test_what_several_teachers_share_is_refused[a network]",
        (
            TEACHERS,
            "        if not torch.allclose(outputs, again,",
            "        if False and not torch.allclose(outputs, again,",
        ),
    ),
    mutant(
        "dropout-of-other-teachers",
        "what a teacher's random layers draw depends on how many rows the teachers before it had",
        VOTES + "TestTeachers::test_what_random_layers_draw_is_a_teachers_own",
        (
            "pate/fitting.py",
            "    with draws_from(seed, model, examples.scale):\n        return _fitted(",
            "    if True:\n        return _fitted(",
        ),
    ),
    mutant(
        "teachers-by-place",
        "a row goes to a teacher by its place, so that whoever leaves moves all that come after",
        VOTES + "TestLayouts::test_examples_go_by_what_they_hold",
        (
            "pate/layout.py",
            "[number % teachers for number in found]",
            "[k % teachers for k, _ in enumerate(found)]",
        ),
    ),
    mutant(
        "a-user-in-two-parts",
        "a user's rows are dealt out one by one",
        VOTES + "TestLayouts::test_one_user_changes_one_part_over_100_random_layouts",
        (
            "pate/layout.py",
            "[number % teachers for number in found]",
            "[k % teachers for k, _ in enumerate(found)]",
        ),
        ("pate/layout.py", "if owners.setdefault(key, int(teacher)) != teacher:", "if False:"),
    ),
    mutant(
        "votes-that-move-by-one",
        "one moved vote is taken to change the counts by 1",
        VOTES + "test_one_changed_vote_is_within_both_sensitivities",
        ("pate/renyi.py", "COUNTS = math.sqrt(2)", "COUNTS = 1.0"),
    ),
    mutant(
        "answers-at-half-price",
        "the cap counts an answer as 1 / sigma2^2",
        COSTS + "test_the_cap_at_the_counts_of_svhn[40-epsilons0]",
        (GNMAX, "return (COUNTS / self.sigma2) ** 2", "return (LARGEST / self.sigma2) ** 2"),
    ),
    mutant(
        "tests-for-free",
        "queries that are not answered cost nothing",
        COSTS + "test_the_cap_at_the_counts_of_svhn[40-epsilons0]",
        (GNMAX, "return self.queries * test + self.answers * answer", "return self.answers * answer"),
    ),
    mutant(
        "test-without-noise",
        "the largest count is compared with the threshold as it is",
        ASKED + "test_everything_is_drawn_before_its_noise[3]",
        (
            GNMAX,
            "test = noised(votes.largest(query), gnmax.sigma1 / LARGEST, noise)",
            "test = votes.largest(query).total",
        ),
    ),
    mutant(
        "asked-before-drawn",
        "a block is asked, and then put on record",
        ASKED + "test_everything_is_drawn_before_its_noise[3]",
        (
            GNMAX,
            "        allowance.draw(gnmax.allows, queries=count, answers=answers)\n"
            "        one = _asked(votes, gnmax, order[place : place + count], answers, source)\n",
            "        one = _asked(votes, gnmax, order[place : place + count], answers, source)\n"
            "        allowance.draw(gnmax.allows, queries=count, answers=answers)\n",
        ),
    ),
    mutant(
        "a-claim-forgets",
        "a start that goes on with a claim begins at nothing drawn",
        ASKED + "TestClaims::test_a_kill_in_the_middle_of_a_block_loses_no_charge",
        (HISTORY, 'return dict(found[-1].body["used"]) if found else {}', "return {}"),
    ),
    mutant(
        "more-answers-than-the-cap",
        "answers are given for as long as queries are asked",
        ASKED + "test_strong_votes_are_answered_rightly_until_the_cap",
        (GNMAX, "<= self.queries and used.get(ANSWERS, 0) <= self.answers", "<= self.queries"),
    ),
    mutant(
        "negative-draws",
        "a draw of less than nothing makes room for more",
        ASKED + "TestClaims::test_no_more_is_given_back_than_was_drawn",
        (LEDGER, "if type(number) is not int or number < 0:", "if type(number) is not int:"),
    ),
    mutant(
        "a-teacher-that-tells",
        "what goes wrong in a teacher's part ends the run, with its message",
        VOTES + "TestTeachers::test_a_teacher_that_fails_abstains_and_nobody_is_told[raises]",
        (
            TEACHERS,
            "        except Exception:\n            return nobody\n",
            "        except ZeroDivisionError:\n            return nobody\n",
        ),
    ),
    mutant(
        "votes-in-pickles",
        "votes can be copied and pickled",
        VOTES + "TestNothingShows::test_in_copies_or_pickles[dumps]",
        ("pate/votes.py", "def __reduce_ex__(self", "def _reduce_ex(self"),
    ),
    mutant(
        "public-by-rank",
        "who is public depends on who else is there, so that one who leaves exchanges others",
        "data/test_sharing.py::test_whoever_leaves_or_changes_everybody_else_stays_on_their_side",
        (
            "data/sharing.py",
            "is_public = keys_of(examples, seed=seed) < _threshold(rate)",
            "is_public = keys_of(examples, seed=seed).argsort().argsort() < rate * examples.count",
        ),
    ),
    mutant(
        "planted-features",
        "a file that somebody else put into the cache is taken for features",
        "privacy/test_cache.py::test_what_this_user_did_not_write_is_not_believed",
        ("privacy/record/cache.py", "return hmac.compare_digest(file.read(), tag)", "return True"),
    ),
    mutant(
        "times-of-a-selection",
        "the ledger says how long all trials of a selection took",
        "cli/test_sweep.py::test_only_the_best_of_a_selection_is_left",
        ("runs/selected.py", "timed=False", "timed=True"),
    ),
    mutant(
        "private-folder-for-all",
        "what teachers chose can be read by everybody on the machine",
        VOTES + "TestTeachers::test_they_are_kept_for_their_owner_and_gone_on_with",
        ("privacy/record/durable.py", "        os.mkdir(path, 0o700)", "        os.mkdir(path, 0o755)"),
        ("privacy/record/durable.py", "if stat.S_IMODE(found.st_mode) != 0o700:", "if False:"),
    ),
    mutant(
        "teachers-of-another-run",
        "what was kept of a teacher is believed of another run, other rows or other settings",
        VOTES + "TestTeachers::test_what_is_kept_of_anything_else_is_not_believed[rows]",
        (
            TEACHERS,
            "            if not hmac.compare_digest(",
            "            if False and not hmac.compare_digest(",
        ),
    ),
    mutant(
        "bound-without-its-conditions",
        "the data-dependent bound is used at orders that its theorem does not cover",
        COSTS + "TestDependentCost::test_it_is_the_independent_one_where_a_condition_fails",
        ("pate/renyi.py", "return (order <= mu2 + 1) & (mu2 > 1)", "return (mu2 > 1)"),
    ),
    mutant(
        "changes-here-only",
        "smooth sensitivity looks at the votes as they are, and not at those of others nearby",
        SMOOTHED + "test_the_smooth_sensitivity_is_smooth_and_above_the_local_one",
        (
            "pate/smooth.py",
            "    return float((np.exp(-beta",
            "    changes = changes[:1]\n    return float((np.exp(-beta",
        ),
    ),
    mutant(
        "released-twice",
        "what votes cost is released as often as one asks",
        SMOOTHED + "test_it_is_released_once_and_charged_before",
        ("pate/sanitised.py", "allowance.draw(lambda used: used[RELEASES] <= 1, releases=1)", "pass"),
    ),
    mutant(
        "conditions-not-looked-at",
        "smooth sensitivity is used where it is not proved",
        SMOOTHED + "test_settings_that_are_not_proved_are_refused_before_a_vote_is_looked_at",
        (
            "pate/sanitised.py",
            "    Slope(gnmax.sigma2, smooth.order, classes).check(teachers)\n",
            "    return\n",
        ),
    ),
)

REPEATED = "cli/test_repeats.py::test_repeats_share_a_ledger_and_say_what_all_cost"

OF_REPORTS = (
    mutant(
        "bits-of-private-examples",
        "a run keeps which private examples it is right on",
        REPEATED,
        (
            "runs/execute.py",
            "hits(model, split.test, size).as_json()",
            "hits(model, split.train, size).as_json()",
        ),
    ),
    mutant(
        "repeats-one-by-one",
        "repeats are charged to a ledger each, and nobody adds them up",
        REPEATED,
        ("cli/repeats.py", "out=folder, ledger=ledger, resume", "out=folder, ledger=None, resume"),
    ),
    mutant(
        "repeats-without-a-limit",
        "the ledger of repeats has no budget",
        REPEATED,
        ("cli/repeats.py", "dataset=recipe.data, budget=budget", "dataset=recipe.data, budget=None"),
    ),
    mutant(
        "samples-of-nobody-knows-whom",
        "samples that are not said to be released are shown without a word",
        "report/test_kinds.py::test_samples_and_their_metrics",
        ("report/page.py", 'made.status not in ("released", "public")', "False"),
    ),
)


STAGES = "runs/test_stages.py::"
OF_PUBLIC = (
    mutant(
        "public-among-private",
        "examples that are public stay among the private units, and count as protected",
        STAGES
        + "TestNothingPublicIsProtected::test_public_examples_are_taken_out_of_the_private_units[digits-warm]",
        (
            "recipes/build.py",
            "train=parts.private, public=parts.public",
            "train=split.train, public=parts.public",
        ),
    ),
    mutant(
        "size-below-the-private",
        "the declared number of private units is the expected one, and there may be more",
        STAGES
        + "TestNothingPublicIsProtected::test_public_examples_are_taken_out_of_the_private_units[digits-warm]",
        (
            "recipes/build.py",
            'it")\n    return size\n',
            'it")\n    return size - (recipe.public.count if recipe.public else 0)\n',
        ),
    ),
    mutant(
        "public-not-taken-out",
        "a run trains privately on examples that its recipe declares public",
        STAGES + "TestNothingPublicIsProtected::test_a_split_that_still_has_them_is_refused",
        ("runs/stages.py", "    if recipe.public is None:\n        return\n", "    return\n"),
    ),
    mutant(
        "warm-up-on-private",
        "generator and warm-up see the private examples, without noise",
        STAGES
        + "TestNothingPublicIsProtected::test_no_private_example_decides_anything_before_the_private_phase",
        ("runs/stages.py", "split.train.scale, split.public)", "split.train.scale, split.train)"),
    ),
    mutant(
        "infinity-undeclared",
        "a training without noise is kept though nobody declared the data public",
        STAGES + "TestNothingPublicIsProtected::test_without_noise_only_if_the_data_is_declared_public",
        (
            "runs/execute.py",
            "    if infinity not in (None, PUBLIC):\n",
            "    if infinity in ():\n",
        ),
    ),
    mutant(
        "infinity-unsaid",
        "the statement does not say that a training without noise was kept",
        STAGES + "TestWhatIsKept::test_who_was_public_is_on_record",
        (
            "runs/execute.py",
            'said is not None and said.stage("without noise") is not None',
            "said is None",
        ),
    ),
    mutant(
        "public-unsaid",
        "the statement does not say whose examples were used as public ones before the private phase",
        STAGES + "TestWhatIsKept::test_who_was_public_is_on_record",
        ("runs/execute.py", "public=(*ready.used, *own, ", "public=(*own, "),
    ),
)

GUARD, TRANSFER = "bridges/guard.py", "features/transfer.py"
AROUND = (
    mutant(
        "shown-private-rows",
        "a bridge evaluates and predicts on the rows that it trains on",
        "bridges/test_guard.py::test_private_rows_are_not_shown",
        (GUARD, "    if have_common_rows(shown, private):", "    if False:"),
    ),
    mutant(
        "shown-by-another-wrapper",
        "a part of the private data in a subset, or in a slice of its memory, passes for other data",
        "bridges/test_overlap.py::test_private_rows_are_seen[a slice of tensors]",
        (
            "bridges/overlap.py",
            "mine[0] == theirs[0] and mine[1] < theirs[2]",
            "False and mine[1] < theirs[2]",
        ),
    ),
    mutant(
        "a-generator-made-at-the-first-read",
        "a collator's seeded generator that is made when the first unit is read is not fenced",
        "adversary/test_pipelines.py::test_a_generator_that_is_made_at_the_first_read_is_fenced",
        (
            "core/sampling.py",
            "            if not before.issuperset(map(id, self._generators)):",
            "            if False:",
        ),
    ),
    mutant(
        "a-closure-of-our-own",
        "an augmentation inside each_view keeps its seeded generator",
        "core/test_reading.py::test_generators_in_a_closure_of_the_librarys_own_are_found",
        ("core/rng.py", "        return held  # what it was given", "        return []  # what it was given"),
    ),
    mutant(
        "gradients-by-another-way",
        "somebody else's loop may hand the optimizer a gradient of its own",
        "bridges/test_guard.py::test_a_gradient_by_another_way",
        (GUARD, "        if self._inside:\n", "        if True:\n"),
    ),
    mutant(
        "weights-moved-by-others",
        "nobody looks whether another optimizer moved the weights between two private steps",
        "bridges/test_guard.py::test_a_weight_that_another_hand_moved",
        (GUARD, "        if moved or now", "        if False and now"),
    ),
    mutant(
        "a-momentum-by-another-hand",
        "a callback may write into the optimizer's momentum, which the next private step adds to the weights",
        "bridges/test_guard.py::test_a_momentum_that_another_hand_wrote",
        (GUARD, "{**marks(self.model), **_remembered(self.model, self._optimizer)}", "{**marks(self.model)}"),
    ),
    mutant(
        "a-hook-on-the-optimizer",
        "a callback may hook the optimizer, and change what a private step takes",
        "bridges/test_guard.py::test_a_hook_on_the_optimizer[pre]",
        (GUARD, "        if _hooks(self._optimizer) != self._hooks:", "        if False:"),
    ),
    mutant(
        "steps-not-counted",
        "steps of somebody else's loop need not be private ones",
        "bridges/test_guard.py::test_a_step_that_was_not_ours",
        (GUARD, "        if steps is not None and steps", "        if steps is None and steps"),
    ),
    mutant(
        "an-extractor-in-train-mode",
        "features of a batch are normalised by the whole batch",
        "features/test_transfer.py::test_features_are_those_of_the_model_in_eval_mode",
        (TRANSFER, ".requires_grad_(False).eval()", ".requires_grad_(False)"),
    ),
    mutant(
        "an-extractor-that-mixes",
        "features of an example may depend on who is beside it",
        "features/test_transfer.py::test_what_is_refused",
        ("features/stages.py", "    if not all(float(gap) < 1e-3 for gap in gaps):\n", "    if False:\n"),
    ),
)

SWEEP, RUNS_SWEEP, CLERK = "cli/sweep.py", "runs/sweep.py", "runs/clerk.py"
PLANNED, SELECTED = "runs/planned.py", "runs/selected.py"
ALL_CHARGED = "cli/test_sweep.py::test_every_trial_is_charged_and_the_winner_is_named_with_what_looking_cost"
BEST_LEFT = "cli/test_sweep.py::test_only_the_best_of_a_selection_is_left"
GOES_ON = "cli/test_sweep.py::test_a_selection_that_goes_on_draws_nothing_anew_and_pays_once"
GRANTED = "runs/test_clerk.py::test_a_step_is_on_disk_when_it_is_granted_and_none_is_granted_past_the_plan"
LOOKED = (
    mutant(
        "trials-drawn-again",
        "a selection that goes on draws anew how many trials there are, and which",
        GOES_ON,
        (
            RUNS_SWEEP,
            "    if not place.exists():\n        durable.replace(private",
            "    if True:\n        durable.replace(private",
        ),
        (RUNS_SWEEP, "durable.create(place, json", "durable.replace(place, json"),
    ),
    mutant(
        "trials-granted-uncharged",
        "the clerk of a sweep grants steps that it does not charge",
        GRANTED,
        (CLERK, "        run.take(cost)\n        self._taken", "        self._taken"),
    ),
    mutant(
        "trials-without-a-limit",
        "a trial that is killed again and again takes more steps than its selection was charged for",
        GRANTED,
        (CLERK, "if self._taken[place] >= self._most.get(place, 0):", "if place is None:"),
    ),
    mutant(
        "looked-at-the-winner-alone",
        "what a sweep says to have cost leaves out trials that lost",
        ALL_CHARGED,
        (
            RUNS_SWEEP,
            "    folders = [out / trial.folder for trial in sweep.trials]\n    names",
            "    folders = [out / trial.folder for trial in sweep.trials][:1]\n    names",
        ),
    ),
    mutant(
        "looked-once-though-it-ran-twice",
        "what a sweep says to have cost counts only the last start of a trial",
        "cli/test_sweep.py::test_a_trial_that_fails_is_told_and_stays_charged_and_others_go_on",
        (RUNS_SWEEP, "for line in history.identified(name)]", "for line in history.identified(name)[-1:]]"),
    ),
    mutant(
        "selected-without-spare-steps",
        "a selection is not charged for the steps that its trials may take again after a kill",
        BEST_LEFT,
        (PLANNED, "with_spare(self.plan, self.recipe.spare).by_cost()", "with_spare(self.plan, 0).by_cost()"),
    ),
    mutant(
        "selected-and-losers-kept",
        "the trials that lost stay in the folder of a selection",
        BEST_LEFT,
        (
            SWEEP,
            "    if (out / PRIVATE).exists():\n        shutil.rmtree(out / PRIVATE)\n    _tell",
            "    _tell",
        ),
    ),
    mutant(
        "selected-at-the-trials-epsilon",
        "the winner of a selection keeps the statement that it had as a trial",
        BEST_LEFT,
        (
            SELECTED,
            "    said = state(event_of(cost), declared,",
            "    said = own or state(event_of(cost), declared,",
        ),
    ),
    mutant(
        "selected-readings-at-the-trials-epsilon",
        "the winner's readings say what it would have cost without a selection",
        BEST_LEFT,
        (RUNS_SWEEP, '{**asdict(each), "epsilon": epsilon}', "{**asdict(each)}"),
    ),
    mutant(
        "selected-among-unequal-costs",
        "a selection draws among settings that cost more than the one that is charged",
        "cli/test_sweep.py::test_a_mistake_is_one_line_and_leaves_nothing",
        (SELECTED, "if any(each.most != planned[0].most for each in planned):", "if not planned:"),
    ),
    mutant(
        "selected-twice",
        "a copy of a selection's folder releases a second winner for one price",
        "cli/test_sweep.py::test_a_copy_of_a_selection_releases_no_second_winner",
        (SELECTED, "lambda used: sum(used.values()) <= 1", "lambda used: True"),
    ),
    mutant(
        "selected-and-reported",
        "a report shows trials of a selection that has not ended",
        GOES_ON,
        (
            RUNS_SWEEP,
            "        return [WINNER] if self.mode == SELECTED else",
            "        return [PRIVATE] if self.mode == SELECTED else",
        ),
    ),
    mutant(
        "selected-for-a-coin-that-is-no-coin",
        "a selection always has as many trials as are expected",
        "cli/test_sweep.py::test_the_coin_of_a_selection_is_geometric",
        (RUNS_SWEEP, "while coin.random() >= 1 / mean:", "while count < mean:"),
    ),
    mutant(
        "public-trials-on-a-private-record",
        "trials on examples that were declared public are charged as those of the private data set",
        "cli/test_sweep.py::test_public_examples_are_on_no_private_record",
        (SWEEP, '" (declared public)" if', '"" if'),
    ),
    mutant(
        "asked-by-anybody",
        "whoever finds the socket of a sweep may charge its ledger",
        "runs/test_clerk.py::test_who_does_not_know_the_secret_is_not_served",
        ("runs/jobs.py", "key = os.urandom(32)", 'key = b"guessed"'),
    ),
    mutant(
        "best-of-for-the-price-of-one",
        "the best of several trials costs what one of them does",
        "privacy/test_costs.py::test_the_best_of_several_trials_costs_what_the_theorem_says",
        (
            "privacy/record/costs.py",
            "    return selection.geometric_trials(trial, mean=cost.mean)",
            "    return trial if selection else trial",
        ),
    ),
)


CLIPPING, FRAMES = "clipping.py", "frames.py"
OWN_PARTS = (
    mutant(
        "a-function-of-a-weight-in-a-batch",
        "a custom function that takes a weight is asked about several units at once, whose sum is clipped as one",
        "gradients/test_own_functions.py::test_a_function_of_a_weight_is_never_asked_about_several_units",
        ("gradients/chunk.py", "        if tape.rows > tape.views:\n            raise\n", ""),
    ),
    mutant(
        "data-in-a-weight",
        "data that forward writes into a weight under no_grad stays there",
        HOSTILE + "test_data_written_into_a_weight",
        (TAPE, "            if weight._version != version:\n", "            if False:\n"),
    ),
    mutant(
        "bags-of-two-units",
        "a bag by offsets may hold words of the unit before it",
        "gradients/test_layer_rules.py::TestRefusals::test_a_bag_with_words_of_two_rows",
        ("gradients/linear.py", "        fits = bool((local[:, 0] == 0).all() and ", "        fits = bool("),
    ),
    mutant(
        "a-rule-is-believed",
        "a clipping rule of somebody's own is believed, whatever it does",
        HOSTILE + "test_a_clipping_rule_of_ones_own[Unclipped]",
        (CLIPPING, "    if type(clip) not in (Flat, Counted, Automatic, PerLayer):", "    if False:"),
    ),
    mutant(
        "a-rule-by-its-family",
        "a subclass of a clipping rule is taken for the rule",
        HOSTILE + "test_a_clipping_rule_of_ones_own[Loose]",
        (
            CLIPPING,
            "type(clip) not in (Flat, Counted, Automatic, PerLayer)",
            "not isinstance(clip, Flat | Counted | Automatic | PerLayer)",
        ),
    ),
    mutant(
        "bounds-read-twice",
        "the clip and the noise each read bounds that may change in between",
        HOSTILE + "test_bounds_that_read_otherwise_the_second_time",
        (
            CLIPPING,
            "        if isinstance(self.bounds, Mapping):\n            # kept",
            "        if False:\n            # kept",
        ),
    ),
    mutant(
        "a-frame-that-peeps",
        "a method may bring a frame of its own, which sees units before the clip",
        HOSTILE + "test_a_frame_of_ones_own_sees_no_unit[asked-Peeping]",
        (FRAMES, "    elif type(frame) not in (Shift, Precondition, Mask):", "    elif False:"),
    ),
    mutant(
        "a-frame-that-peeps-at-losses",
        "the frame of a question about losses is not looked at",
        HOSTILE + "test_a_frame_of_ones_own_sees_no_unit[of losses-Peeping]",
        (
            ASK,
            "        if frame is not None:\n            check_frame(frame)\n        expected",
            "        expected",
        ),
    ),
    mutant(
        "draws-by-their-family",
        "a subclass of Poisson may draw whom it likes at Poisson's cost",
        HOSTILE + "test_draws_of_ones_own",
        (
            PLAN,
            "type(self.draw) not in (Poisson, WithoutReplacement)",
            "not isinstance(self.draw, Poisson | WithoutReplacement)",
        ),
    ),
    mutant(
        "plans-by-their-family",
        "a subclass of Plan may say what it costs",
        HOSTILE + "test_a_plan_of_ones_own",
        ("core/record.py", "type(plan) is not Plan", "not isinstance(plan, Plan)"),
    ),
    mutant(
        "a-schedule-asked-again",
        "a schedule of the noise is asked by the accountant, and again by the run",
        HOSTILE + "test_a_schedule_of_the_noise_that_remembers",
        (PLAN, "    @cached_property\n    def _factors", "    @property\n    def _factors"),
    ),
    mutant(
        "noise-is-believed",
        "a source of noise that says it is secret may draw nothing",
        HOSTILE + "test_a_source_of_less_noise_than_is_accounted_for",
        (MECHANISM, "        if count and not square", "        if False and not square"),
    ),
    mutant(
        "noise-by-its-family",
        "a subclass of SecureNoise is taken for it",
        HOSTILE + "test_a_source_of_less_noise_than_is_accounted_for[Quiet]",
        (MECHANISM, "type(noise) not in VOUCHED", "not isinstance(noise, VOUCHED)"),
    ),
    mutant(
        "noise-as-it-says-when-it-draws",
        "a source of noise says to the statement that it is secret, and to the look that it is not",
        HOSTILE + "test_a_source_of_less_noise_than_is_accounted_for[TwoFaced]",
        (
            MECHANISM,
            "type(noise) not in VOUCHED and not disowned(noise)",
            "type(noise) not in VOUCHED and noise.private",
        ),
    ),
    mutant(
        "draws-as-they-say-when-they-fall",
        "a source of draws says to the statement that it is secret, and to the look that it is not",
        HOSTILE + "test_a_source_of_draws_by_which_all_join[TwoFacedCoins]",
        ("core/sampling.py", "not disowned(source) and count", "getattr(source, 'private', False) and count"),
    ),
    mutant(
        "secret-against-its-class",
        "a source whose class says that it is not secret is stated to be so",
        HOSTILE + "test_what_a_class_says_is_what_is_believed",
        ("privacy/noise.py", "return not disowned(source) and bool(", "return bool("),
    ),
    mutant(
        "noise-of-all-leaves-together",
        "a leaf without noise is made up for by the others",
        HOSTILE + "test_a_source_of_less_noise_than_is_accounted_for",
        (MECHANISM, "for square, count in [*leaves, whole]:", "for square, count in [whole]:"),
    ),
    mutant(
        "draws-are-believed",
        "a source of draws that says it is secret may let all units join",
        HOSTILE + "test_a_source_of_draws_by_which_all_join[Coins]",
        ("core/sampling.py", "        if not (away <= 7.2 and", "        if not (True or"),
    ),
    mutant(
        "a-hook-left-out",
        "a hook on a trained weight is left out in silence",
        "core/test_check.py::test_what_stands_between_is_refused_at_once[a hook on a weight]",
        (LAYERS, "weight.requires_grad and (weight._backward_hooks or", "weight.requires_grad and ("),
    ),
)


MUTANTS: tuple[Mutant, ...] = (
    *(*UNITS_APART, *NUMBERS, *NOISE, *RECORD, *ACCOUNT, *TELLING),
    *(*CLIENTS_AND_ROUNDS, *FLEET, *OF_VOTES, *OF_REPORTS, *OF_PUBLIC, *AROUND, *LOOKED, *OWN_PARTS),
)
