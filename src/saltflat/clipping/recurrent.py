"""LSTM, GRU and plain recurrent layers, unrolled once: one product for all inputs, one small one per time step.

The gradient at the pre-activations z_t = W x_t + U h_(t-1) + b is all that is needed:
g_W = sum_t z'_t x_t^T and g_U = sum_t z'_t h_(t-1)^T. (In a GRU the third gate's recurrent term is first
multiplied by the reset gate r_t, and so is its gradient.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.clipping.linear import bias_part
from saltflat.clipping.parts import Part, outer
from saltflat.clipping.tape import Tape, rule
from saltflat.errors import ModelError

State = tuple[Tensor, ...]  # (h,) or (h, c)
Cell = Callable[[Tensor, Tensor, State], tuple[State, Tensor | None]]


def lstm_cell(x: Tensor, u: Tensor, state: State) -> tuple[State, None]:
    """i, f, g, o = x + u;  c <- sigmoid(f) c + sigmoid(i) tanh(g);  h <- sigmoid(o) tanh(c)."""
    i, f, g, o = (x + u).chunk(4, 1)
    c = torch.addcmul(f.sigmoid() * state[1], i.sigmoid(), g.tanh())
    return (o.sigmoid() * c.tanh(), c), None


def gru_cell(x: Tensor, u: Tensor, state: State) -> tuple[State, Tensor]:
    """r, z = sigmoid(x + u);  n = tanh(x_n + r u_n);  h <- (1 - z) n + z h."""
    (x_r, x_z, x_n), (u_r, u_z, u_n) = x.chunk(3, 1), u.chunk(3, 1)
    r = torch.sigmoid(x_r + u_r)
    n = torch.tanh(x_n + r * u_n)
    return (torch.lerp(n, state[0], torch.sigmoid(x_z + u_z)),), r.detach()


def tanh_cell(x: Tensor, u: Tensor, state: State) -> tuple[State, None]:
    """h <- tanh(x + u)."""
    return (torch.tanh(x + u),), None


def relu_cell(x: Tensor, u: Tensor, state: State) -> tuple[State, None]:
    """h <- max(x + u, 0)."""
    return (torch.relu(x + u),), None


def one_direction(
    tape: Tape, cell: Cell, x: Tensor, state: State, weights: list[Tensor], *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer read in one direction; x is (rows, time, width)."""
    w, u, *biases = weights
    b, c = biases or (None, None)
    order = -1 if backwards else 1
    hidden: list[Tensor] = []
    resets: list[Tensor | None] = []
    outputs: list[Tensor] = []
    inputs = tape.watch(
        tape.again(F.linear, x, w, b),
        lambda grad: _recurrent_parts(tape, grad, hidden[::order], resets[::order], (u, c)),
    )
    for z in inputs.unbind(1)[::order]:
        hidden.append(state[0].detach())
        state, reset = cell(z, F.linear(state[0], u, c), state)
        resets.append(reset)
        outputs.append(state[0])
    return torch.stack(outputs[::order], 1), state


def _recurrent_parts(
    tape: Tape,
    grad: Tensor,
    hidden: list[Tensor],
    resets: list[Tensor | None],
    weights: tuple[Tensor, Tensor | None],
) -> list[Part]:
    w, b = (tape.weight(value) for value in weights)
    if resets[0] is not None:
        width = hidden[0].shape[1]
        reset = torch.stack(resets, 1)  # type: ignore[arg-type]
        grad = torch.cat([grad[..., : 2 * width], grad[..., 2 * width :] * reset], 2)
    parts: list[Part] = []
    if w is not None:
        parts.append(outer(w.name, tape.by_unit(torch.stack(hidden, 1)), tape.by_unit(grad)))
    if b is not None:
        parts.append(bias_part(tape, b, grad))
    return parts


def layers(
    tape: Tape, cell: Cell, x: Tensor, states: State, weights: Any, options: tuple
) -> tuple[Tensor, State]:
    """All layers and directions of a recurrent module, as torch arranges their weights and states."""
    has_biases, count, dropout, train, bidirectional, batch_first = options
    directions, step = 1 + bidirectional, 2 + 2 * has_biases
    if len(weights) != step * count * directions:
        raise ModelError("a recurrent layer with proj_size has no rule; put a Linear after it instead")
    x = x if batch_first else x.transpose(0, 1)
    ends: list[State] = []
    for layer in range(count):
        sides = []
        for side in range(directions):
            at = layer * directions + side
            start = tuple(_for_data(tape, s[at]) for s in states)
            mine = list(weights[at * step : (at + 1) * step])
            output, end = one_direction(tape, cell, x, start, mine, backwards=side == 1)
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
    output, (h, c) = layers(tape, lstm_cell, x, tuple(states), weights, options)
    return output, h, c


def _one_state(cell: Cell) -> Any:
    def run(
        tape: Tape, func: Any, x: Tensor, state: Any, weights: Any, *options: Any
    ) -> tuple[Tensor, Tensor]:
        _refuse_packed(weights, options)
        output, (h,) = layers(tape, cell, x, (state,), weights, options)
        return output, h

    return run


for _function, _cell in ((torch.gru, gru_cell), (torch.rnn_tanh, tanh_cell), (torch.rnn_relu, relu_cell)):
    rule(_function)(_one_state(_cell))


def _refuse_packed(item: Any, options: tuple) -> None:
    """A packed sequence comes with batch sizes in front of the states, and without ``batch_first``."""
    if len(options) != 6 or isinstance(item, Tensor):
        raise ModelError(
            "a packed sequence does not tell its rows apart; pass padded sequences and mask the loss instead"
        )
