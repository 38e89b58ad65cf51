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


HOSTILE = "adversary/test_hostile.py::"
STEP = "core/test_private_step.py::"
CHECK, CONTRIBUTION, ASK = "core/check.py", "core/contribution.py", "core/ask.py"
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
        (CONTRIBUTION, "rows_in(batch) == rows and form_of", "form_of"),
        hole=2,
    ),
    mutant(
        "rows-counted-once",
        "rows are counted at the first look, and not in the batches that are stepped",
        HOSTILE + "test_a_collate_that_gives_more_rows_later",
        (CONTRIBUTION, "rows_in(batch) == rows and form_of", "form_of"),
        hole=2,
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
        "no-second-look",
        "the spot check compares nothing",
        HOSTILE + "test_mixing_in_large_batches_only_is_found_as_training_goes_on",
        (CHECK, "            self._compare(params, batch)\n", ""),
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
        ("core/step.py", "at.step in (1, plan.steps) or ", ""),
        hole=4,
    ),
    mutant(
        "finite-rows-only",
        "units are tried on finite rows only, so that NaN may spread over the batch",
        HOSTILE + "test_losses_that_mix_units_through_what_is_no_number[as it is]",
        (CHECK, "        _check_spoilt(trial, whole, largest, looks)\n", ""),
        hole=4,
    ),
    mutant(
        "tensors-on-the-side",
        "only buffers and parameters are compared, not what a module holds besides",
        HOSTILE + "test_a_tensor_on_the_side",
        (CHECK, "for k, leaf in held_by(module) if", "for k, leaf in () if"),
        hole=4,
    ),
    mutant(
        "batchnorm-let-through",
        "BatchNorm without learned scales is let through",
        "core/test_check.py::test_every_batchnorm_is_refused[no affine]",
        (CHECK, "if isinstance(module, _BatchNorm):", "if isinstance(module, _BatchNorm) and module.affine:"),
    ),
    mutant(
        "masks-from-a-known-seed",
        "dropout draws from the generator that the user seeded",
        HOSTILE + "test_what_is_seeded_outside_is_not_what_is_drawn[dropout]",
        (
            "core/chance.py",
            '    with _seeded(int.from_bytes(os.urandom(8), "little") >> 1, augment):',
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
            "(source.random(count) * (groups or 2**53)).astype(np.int64)",
            "np.arange(count) % (groups or 2**53)",
        ),
        hole=6,
    ),
    mutant(
        "views-as-units",
        "each view of an example is clipped by itself, and they are added up",
        STEP + "TestViews::test_views_are_averaged_before_the_clip",
        (CONTRIBUTION, "                views=self.views,\n", "                views=1,\n"),
    ),
    mutant(
        "mixup-let-through",
        "an augmentation may mix examples",
        HOSTILE + "test_mixup",
        (CHECK, "if rows and not torch.equal(", "if False and not torch.equal("),
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
            "else leaf.to(wide(self.like[name].dtype))",
            "else leaf.to(self.like[name].dtype)",
        ),
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
        (PARTS, "return pair_sum(a, b) + slack(a.dtype) * terms + 1024 * lost", "return pair_sum(a, b)"),
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
        "multiply-by-zero",
        "a unit of weight 0 is multiplied by 0: NaN stays NaN",
        STEP + "TestHostileRecords::test_it_moves_the_sum_by_at_most_the_clip_norm[10-dtype0-nan]",
        (
            "gradients/chunk.py",
            "parts = [part.erased(dead) for part in self.parts] if bool(dead.any()) else self.parts",
            "parts = self.parts",
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
            "privacy/noise.py",
            "    _polar(u.log_().add_(e), t, out)\n",
            "    _polar(u.log_().add_(e).mul_(0.98), t, out)\n",
        ),
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
            "            charge(plan, here, guards.meter)\n",
            "            if not len(drawn[-1]):\n"
            "                at = replace(here, step=here.step + 1, within=here.within + 1)\n"
            "                yield at\n"
            "                continue\n"
            "            charge(plan, here, guards.meter)\n",
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
            "return np.flatnonzero(source.random(count) < rate)",
            "return np.sort(np.argsort(source.random(count))[: round(count * rate)])",
        ),
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
        (TRAIN, "        if self.safeguards.noise.private:\n", "        if False:\n"),
        (
            TRAIN,
            "isinstance(sampler, np.random.Generator) and not self.safeguards.noise.private",
            "isinstance(sampler, np.random.Generator)",
        ),
    ),
)

RECORD = (
    mutant(
        "a-sampler-that-can-be-repeated",
        "a seeded generator of numpy counts as private",
        HOSTILE + "test_a_sampler_that_can_be_repeated_is_not_private[3]",
        (
            "core/step.py",
            "return self.noise.private and is_secret(self.sampling)",
            "return self.noise.private",
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
        ("runs/execute.py", "block=block, identity=identity) as run", "block=block) as run"),
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
        "a-run-that-can-be-copied",
        "two copies of a run take the same steps twice",
        "privacy/test_ledger.py::test_what_counts_steps_is_neither_copied_nor_pickled[copy]",
        ("privacy/record/single.py", "def __reduce_ex__(", "def _reduce_ex("),
        hole=13,
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
        (TRAIN, "            charge(plan, here, guards.meter)\n", ""),
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
            PLAN,
            "        planned = compose(*(phase.event(self.rate) for",
            "        planned = compose(*(phase.event(self.rate / 2) for",
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

MUTANTS: tuple[Mutant, ...] = (*UNITS_APART, *NUMBERS, *NOISE, *RECORD, *ACCOUNT, *TELLING)
