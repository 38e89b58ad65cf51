"""Before the first step of a run whose weights are sharded: what it cannot do is refused, in all processes.

Where weights are whole, the first process alone draws noise, and what the others were given does not matter. Where each
puts noise on its own coordinates, every one of them must have been given the same.
"""

from __future__ import annotations

from torch import distributed, nn

from saltflat.core.group import Group, talking
from saltflat.core.plan import Plan
from saltflat.core.resume import difference, outline
from saltflat.core.shards import NO_FRAMES, own_source, settle
from saltflat.core.step import Safeguards
from saltflat.door import layers
from saltflat.errors import ModelError, PrivacyError, SettingError
from saltflat.gradients.width import is_narrow
from saltflat.privacy.noise import is_secret
from saltflat.tree import is_sharded


def check_sharded(model: nn.Module, plan: Plan, contribution: object, safeguards: Safeguards) -> None:
    """Refuse, for a sharded model, what would not be private or exact; another model passes.

    *Guarantee*: nothing is charged or asked before all processes passed. They have the same plan, noise multipliers
    among it, and sources of noise of one kind, all private or none.
    """
    settle(model)
    if any(is_sharded(leaf) for leaf in (*model.parameters(), *model.buffers())):
        check_layout(model)
        _check_parts(plan, contribution)
        _check_same(plan, safeguards)
        own_source(
            safeguards.noise, Group.here()
        )  # of one kind in all of them by now: refused by all or none


def check_layout(model: nn.Module) -> None:
    """Every trained parameter is cut once, over all processes, and lies where it is computed with."""
    size = Group.here().size
    for name, leaf in model.named_parameters():
        if not is_sharded(leaf):
            if leaf.requires_grad:
                raise ModelError(
                    f"parameter {name!r} is not sharded, and others are: call fully_shard(model) on the whole model "
                    "too, after its layers, or freeze it"
                )
            continue
        mesh, placements = leaf.device_mesh, leaf.placements  # type: ignore[attr-defined]
        if mesh.ndim != 1 or mesh.size() != size or type(placements[0]).__name__ != "Shard":
            raise ModelError(
                f"parameter {name!r} is laid out as {tuple(placements)} on a mesh of {tuple(mesh.shape)} processes; "
                f"each coordinate must be held by exactly one of the {size}, or it would get noise twice: use "
                "fully_shard without a mesh, or with one of one dimension over all processes"
            )
        if leaf.device.type != mesh.device_type:
            raise ModelError(
                f"parameter {name!r} lies on {leaf.device.type!r} and is computed with on {mesh.device_type!r} "
                "(CPUOffloadPolicy), which is not supported: call fully_shard without an offload policy"
            )
    _check_ties(model)
    if is_narrow(model):
        raise ModelError(
            "the model has sharded weights in half precision; keep them in float32, and private steps are taken in it"
        )


def _check_ties(model: nn.Module) -> None:
    """Refuse a parameter that two layers shared and that was sharded twice: from then on it is two.

    PyTorch says so when the model runs by itself, which it does not do in a private step.
    """
    seen: set[object] = set()
    for state in {id(each): each for each in map(_state_of, model.modules()) if each is not None}.values():
        for group in getattr(state, "_fsdp_param_groups", ()):
            for each in getattr(group, "fsdp_params", ()):
                number = getattr(each, "_orig_param_uid", None)
                if number is not None and number in seen:
                    raise ModelError(
                        "a parameter that two layers share (tied embeddings) was sharded twice, and would be trained "
                        "as two: put both layers into one call, fully_shard([one, other]), or leave both to "
                        "fully_shard(model)"
                    )
                seen.add(number)


def _state_of(module: nn.Module) -> object | None:
    found = getattr(module, "_get_fsdp_state", None)
    return found() if callable(found) else None


def _check_parts(plan: Plan, contribution: object) -> None:
    if not hasattr(contribution, "near"):
        raise ModelError(
            f"a {type(contribution).__name__} cannot fetch sharded weights; per_example and per_user can"
        )
    if plan.public:
        raise SettingError(
            "methods that use public examples take their gradient whole, and the weights are sharded; take another "
            "method, or a model that is not sharded"
        )
    for phase in plan.phases:
        for owner in (*layers(phase.method), *layers(phase.optimizer)):  # type: ignore[arg-type]
            if getattr(owner, "takes_whole", False):
                raise SettingError(f"{type(owner).__name__}: {NO_FRAMES}")


def _check_same(plan: Plan, safeguards: Safeguards) -> None:
    """Compare what each process is about to do."""
    noise = safeguards.noise
    mine = (outline(plan), f"{type(noise).__name__}, {'' if is_secret(noise) else 'not '}private")
    said: list[tuple[object, str]] = [mine] * Group.here().size
    with talking():
        distributed.all_gather_object(said, mine)
    for rank, (there, source) in enumerate(said):
        other = difference(there, said[0][0])
        if other is not None:
            raise PrivacyError(
                f"process {rank} was given another plan than the first one: {other} (there: process {rank}; here: the "
                "first); each puts the noise of its own plan on its weights, so give all of them one: calibrate once, "
                "and hand out the noise multiplier"
            )
        if source != said[0][1]:
            raise PrivacyError(
                f"process {rank} draws noise from another source ({source}) than the first one ({said[0][1]}), and "
                "each puts noise on its own weights: give all of them the same, or leave noise out"
            )
