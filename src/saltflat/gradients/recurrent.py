"""LSTM, GRU and plain recurrent layers, unrolled once: one product for all inputs, one small one per time step.

The gradient at the pre-activations z_t = W x_t + U h_(t-1) + b is all that is needed:
g_W = sum_t z'_t x_t^T and g_U = sum_t z'_t h_(t-1)^T. (In a GRU the third gate's recurrent term is first
multiplied by the reset gate r_t, and so is its gradient.) An LSTM with projections has h_t = P m_t; with the gradient
h'_t there, from the output and from the time step after it, g_P = sum_t h'_t m_t^T.

A cell goes forward and backward by hand, because automatic differentiation would keep a dozen nodes per time step.
What needs no order in time, the slopes of the gates above all, is taken for all time steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.linear import bias_part
from saltflat.gradients.parts import Part, outer
from saltflat.gradients.tape import Tape, rule

State = tuple[Tensor, ...]  # (h,) or (h, c)
Kept = dict[str, Tensor]  # by name, with time as the first axis: one time step lies together in memory


class Cell(Protocol):
    """One kind of layer, in one direction."""

    @property
    def states(self) -> tuple[str, ...]:
        """("h",) or ("h", "c"): kept with one entry more than there are time steps, the start."""
        ...

    @property
    def keeps(self) -> dict[str, int]:
        """What else is kept for the way back, and how many times as wide as one gate it is."""
        ...

    def forward(self, x: Tensor, u: Tensor, b: Tensor | None, kept: Kept) -> None:
        """Fill what is kept, one time step after the other; x is W x_t + b at all times, b is U's bias."""
        ...

    def backward(self, outputs: Tensor, ends: State, u: Tensor, kept: Kept, z: Tensor) -> State:
        """Gradients at all h and at the last states -> those at the first states; fills ``z``, those at x."""
        ...


class LSTMCell:
    """i, f, g, o = x + u;  c <- sigmoid(f) c + sigmoid(i) tanh(g);  m = sigmoid(o) tanh(c).

    h <- m, or P m with a projection P, which makes h narrower than a gate.
    """

    def __init__(self, projection: Tensor | None = None) -> None:
        self.projection = projection

    @property
    def states(self) -> tuple[str, ...]:
        return ("h", "c")

    @property
    def keeps(self) -> dict[str, int]:
        return {"gates": 4, "tanh g": 1, "tanh c": 1} | ({} if self.projection is None else {"m": 1})

    def forward(self, x: Tensor, u: Tensor, b: Tensor | None, kept: Kept) -> None:
        h, c, tanh_g, tanh_c = (kept[name].unbind() for name in ("h", "c", "tanh g", "tanh c"))
        torch.add(x, 0 if b is None else b, out=kept["gates"])  # with time first, all at once
        gates, each = kept["gates"].unbind(), [gate.unbind() for gate in kept["gates"].chunk(4, 2)]
        p, m = self.projection, h[1:] if self.projection is None else kept["m"].unbind()
        u = u.clone()
        for doubled in (kept["gates"].chunk(4, 2)[2], u.chunk(4)[2]):
            doubled.mul_(2)  # tanh(g) = 2 sigmoid(2 g) - 1: one call for all four gates
        for t, (z, i, f, g, o) in enumerate(zip(gates, *each, strict=True)):
            z.addmm_(h[t], u.mT).sigmoid_()
            torch.sub(g, 1, out=tanh_g[t]).add_(g)
            torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, tanh_g[t])
            torch.tanh(c[t + 1], out=tanh_c[t])
            torch.mul(o, tanh_c[t], out=m[t])
            if p is not None:
                torch.mm(m[t], p.mT, out=h[t + 1])

    def backward(self, outputs: Tensor, ends: State, u: Tensor, kept: Kept, z: Tensor) -> State:
        i, f, _, o = kept["gates"].chunk(4, 2)
        g, tanh_c = kept["tanh g"], kept["tanh c"]
        slope = kept["gates"].addcmul(kept["gates"], kept["gates"], value=-1)  # sigmoid' = s (1 - s)
        slope_i, slope_f, slope_g, slope_o = slope.chunk(4, 2)
        slope_i *= g
        slope_f *= kept["c"][:-1]
        torch.addcmul(i, i * g, g, value=-1, out=slope_g)  # i tanh', tanh' = 1 - g^2
        slope_o *= tanh_c
        c_of_h = o.addcmul(o * tanh_c, tanh_c, value=-1).unbind()
        by_gate = slope.unflatten(2, (4, -1)).unbind()
        fs, outs, zs, into = f.unbind(), outputs.unbind(), z.unbind(), z.unflatten(2, (4, -1)).unbind()
        h, c = ends
        p = self.projection
        if p is not None:  # gradients at P m, for all times
            kept["at h"] = torch.empty_like(kept["h"][1:])
        from_both = c.new_empty(len(c), 4, c.shape[1])  # c for i, f and g; m for o
        from_c, from_h = from_both[:, :3], from_both[:, 3]
        for t in reversed(range(len(outs))):
            if p is None:
                torch.add(h, outs[t], out=from_h)
            else:
                from_h.copy_(torch.add(h, outs[t], out=kept["at h"][t]) @ p)
            c = torch.addcmul(c, from_h, c_of_h[t])
            from_c.copy_(c.unsqueeze(1))
            torch.mul(by_gate[t], from_both, out=into[t])
            h, c = zs[t] @ u, c * fs[t]
        return h, c


class GRUCell:
    """r, z = sigmoid(x + u);  n = tanh(x_n + r u_n);  h <- (1 - z) n + z h."""

    @property
    def states(self) -> tuple[str, ...]:
        return ("h",)

    @property
    def keeps(self) -> dict[str, int]:
        return {"gates": 3, "u": 3}

    def forward(self, x: Tensor, u: Tensor, b: Tensor | None, kept: Kept) -> None:
        h, gates, width = kept["h"], kept["gates"], u.shape[1]
        for t, again in enumerate(kept["u"]):
            torch.mm(h[t], u.mT, out=again)
            if b is not None:
                again += b
            torch.add(x[t, :, : 2 * width], again[:, : 2 * width], out=gates[t, :, : 2 * width]).sigmoid_()
            reset, update, new = gates[t].chunk(3, 1)
            torch.addcmul(x[t, :, 2 * width :], reset, again[:, 2 * width :], out=new).tanh_()
            torch.lerp(new, h[t], update, out=h[t + 1])

    def backward(self, outputs: Tensor, ends: State, u: Tensor, kept: Kept, z: Tensor) -> State:
        reset, update, new = kept["gates"].chunk(3, 2)
        slope_n = (1 - update) * (1 - new.square())
        slope_r = slope_n * kept["u"].chunk(3, 2)[2] * (reset * (1 - reset))
        slope_z = (kept["h"][:-1] - new) * (update * (1 - update))
        slope = torch.stack([slope_r, slope_z, slope_n], 2)
        (h,) = ends
        for t in reversed(range(len(outputs))):
            h = h + outputs[t]
            torch.mul(slope[t], h.unsqueeze(1), out=z[t].unflatten(1, (3, -1)))
            h = torch.addmm(h * update[t], at_recurrent_term(z[t], reset[t]), u)
        return (h,)


def at_recurrent_term(z: Tensor, reset: Tensor) -> Tensor:
    """A GRU's gradient at U h from the one at W x: the third gate's is multiplied by the reset gate."""
    width = reset.shape[-1]
    return torch.cat([z[..., : 2 * width], z[..., 2 * width :] * reset], -1)


class PlainCell:
    """h <- tanh(x + u), or h <- max(x + u, 0)."""

    def __init__(self, *, relu: bool) -> None:
        self._relu = relu

    @property
    def states(self) -> tuple[str, ...]:
        return ("h",)

    @property
    def keeps(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor, u: Tensor, b: Tensor | None, kept: Kept) -> None:
        h = kept["h"].unbind()
        torch.add(x, 0 if b is None else b, out=kept["h"][1:])
        for before, after in pairwise(h):
            after.addmm_(before, u.mT)
            after.relu_() if self._relu else after.tanh_()

    def backward(self, outputs: Tensor, ends: State, u: Tensor, kept: Kept, z: Tensor) -> State:
        after = kept["h"][1:]
        slope = (after > 0).to(after.dtype) if self._relu else 1 - after.square()
        (h,) = ends
        for t in reversed(range(len(outputs))):
            torch.mul(h + outputs[t], slope[t], out=z[t])
            h = z[t] @ u
        return (h,)


class _Unrolled(torch.autograd.Function):
    """(cell, where it keeps things, W x + b, U, bias of U, zeros, starting states) -> (h at all times, *last states).

    The zeros stand for what could be added to P m: their gradient is the one at that product.
    """

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, kept: Kept, x: Tensor, u: Tensor, b: Any, zeros: Any, *start: Tensor
    ) -> Any:
        rows, time, _ = x.shape
        x = x.transpose(0, 1)
        for name, value in zip(cell.states, start, strict=True):
            kept[name] = x.new_empty(time + 1, rows, value.shape[1])
            kept[name][0] = value
        for name, times in cell.keeps.items():
            kept[name] = x.new_empty(time, rows, times * start[-1].shape[1])
        cell.forward(x, u, b, kept)
        ctx.cell, ctx.kept, ctx.u, ctx.shape = cell, kept, u, x.shape
        return kept["h"][1:].transpose(0, 1).contiguous(), *(kept[name][-1].clone() for name in cell.states)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor, *ends: Tensor) -> Any:
        z = outputs.new_empty(ctx.shape)
        starts = ctx.cell.backward(outputs.transpose(0, 1), ends, ctx.u, ctx.kept, z)
        at_h = ctx.kept.pop("at h").transpose(0, 1) if ctx.needs_input_grad[5] else None
        return None, None, z.transpose(0, 1).contiguous(), None, None, at_h, *starts


def one_direction(
    tape: Tape, cell: Cell, x: Tensor, state: State, weights: list[Tensor], *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer read in one direction; x is (rows, time, width)."""
    w, u, *biases = weights
    b, c = biases or (None, None)
    kept: Kept = {}
    projection = tape.weight(cell.projection) if isinstance(cell, LSTMCell) else None
    zeros = None
    if projection is not None:
        into = lambda grad: [
            outer(projection.name, tape.by_unit(kept["m"].transpose(0, 1)), tape.by_unit(grad), tape.points)
        ]
        zeros = tape.watch(x.new_zeros(*x.shape[:2], len(projection.value)), into)
    if backwards:
        x = x.flip(1)
    inputs = tape.watch(
        tape.again(F.linear, x, w, b), lambda grad: _recurrent_parts(tape, cell, grad, kept, (u, c))
    )
    outputs, *end = _Unrolled.apply(cell, kept, inputs, u, c, zeros, *state)
    return outputs.flip(1) if backwards else outputs, tuple(end)


def _recurrent_parts(
    tape: Tape, cell: Cell, grad: Tensor, kept: Kept, weights: tuple[Tensor, Tensor | None]
) -> list[Part]:
    w, b = (tape.weight(value) for value in weights)
    hidden = kept["h"][:-1].transpose(0, 1)
    if isinstance(cell, GRUCell):
        grad = at_recurrent_term(grad, reset=kept["gates"][..., : hidden.shape[2]].transpose(0, 1))
    parts: list[Part] = []
    if w is not None:
        parts.append(outer(w.name, tape.by_unit(hidden), tape.by_unit(grad), tape.points))
    if b is not None:
        parts.append(bias_part(tape, b, grad, *parts))
    return parts


def layers(
    tape: Tape, cell: Cell, x: Tensor, states: State, weights: Any, options: tuple
) -> tuple[Tensor, State]:
    """All layers and directions of a recurrent module, as torch arranges their weights and states."""
    has_biases, count, dropout, train, bidirectional, batch_first = options
    directions, step = 1 + bidirectional, 2 + 2 * has_biases
    projected = len(weights) > step * count * directions  # one matrix more for each layer and direction
    step += projected
    x = x if batch_first else x.transpose(0, 1)
    ends: list[State] = []
    for layer in range(count):
        sides = []
        for side in range(directions):
            at = layer * directions + side
            start = tuple(_for_data(tape, s[at]) for s in states)
            mine = list(weights[at * step : (at + 1) * step])
            own = LSTMCell(mine.pop()) if projected else cell
            output, end = one_direction(tape, own, x, start, mine, backwards=side == 1)
            sides.append(output)
            ends.append(end)
        x = torch.cat(sides, 2) if directions > 1 else sides[0]
        if dropout and train and layer < count - 1:
            x = F.dropout(x, dropout)
    return x if batch_first else x.transpose(0, 1), tuple(torch.stack(s) for s in zip(*ends, strict=True))


def _for_data(tape: Tape, state: Tensor) -> Tensor:
    if tape.weight(state) is not None:
        raise ModelError("a trained initial state of a recurrent layer has no rule; keep it fixed (a buffer)")
    return state


@rule(torch.lstm)
def lstm(tape: Tape, func: Any, x: Tensor, states: Any, weights: Any, *options: Any) -> tuple[Tensor, ...]:
    """torch.lstm(x, (h, c), weights, has_biases, layers, dropout, train, bidirectional, batch_first)."""
    _refuse_packed(states, options)
    output, (h, c) = layers(tape, LSTMCell(), x, tuple(states), weights, options)
    return output, h, c


def _one_state(cell: Cell) -> Any:
    def run(
        tape: Tape, func: Any, x: Tensor, state: Any, weights: Any, *options: Any
    ) -> tuple[Tensor, Tensor]:
        _refuse_packed(weights, options)
        output, (h,) = layers(tape, cell, x, (state,), weights, options)
        return output, h

    return run


rule(torch.gru)(_one_state(GRUCell()))
rule(torch.rnn_tanh)(_one_state(PlainCell(relu=False)))
rule(torch.rnn_relu)(_one_state(PlainCell(relu=True)))


def _refuse_packed(item: Any, options: tuple) -> None:
    """A packed sequence comes with batch sizes in front of the states, and without ``batch_first``."""
    if len(options) != 6 or isinstance(item, Tensor):
        raise ModelError(
            "a packed sequence does not tell its rows apart; pass padded sequences and mask the loss instead"
        )


def _gates(tape: Tape, x: Tensor, h: Tensor, weights: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The two linear layers of a cell: of its input, and of its state."""
    w_x, w_h, b_x, b_h = (*weights, None, None)[:4]
    return tape.again(F.linear, x, w_x, b_x), tape.again(F.linear, tape.as_rows(h), w_h, b_h)


@rule(torch.gru_cell)
def gru_cell(tape: Tape, func: Any, x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
    """r, z = sigmoid(...);  n = tanh(x_n + r h_n);  h <- n + z (h - n)."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (gate.chunk(3, 1) for gate in _gates(tape, x, h, weights))
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return n + z * (h - n)


@rule(torch.lstm_cell)
def lstm_cell(
    tape: Tape, func: Any, x: Tensor, state: Sequence[Tensor], *weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """i, f, o = sigmoid(...);  c <- f c + i tanh(g);  h <- o tanh(c)."""
    h, c = state
    i, f, g, o = torch.add(*_gates(tape, x, h, weights)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@rule(torch.rnn_tanh_cell, torch.rnn_relu_cell)
def plain_cell(tape: Tape, func: Any, x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
    """h <- tanh(W x + U h), or relu."""
    total = torch.add(*_gates(tape, x, h, weights))
    return torch.tanh(total) if func is torch.rnn_tanh_cell else torch.relu(total)
