"""Changes through a window and credit back through it, where the parameters change too.

What a step does to the state goes from step to step. What the parameters do to a step does not, so
it is asked of all steps at once: their products become one product over all steps, and nothing of
the size of the parameters is touched at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .evaluate import Values, combine, floats_of
from .loop import all_steps, scan
from .window import Window

Floats = dict[int, Any]  # the float leaves of something, by number
State = tuple[Floats, Floats]  # hidden and other


def push(window: Window, state: State, params: Mapping[int, Any]) -> State:
    """Changes of the entry state, and of parameters, to those of the exit state."""
    changes = dict(params)
    made = {i: window.params[i] for i in changes}
    _, grown = jax.jvp(_each_step(window), (made,), (changes,))
    entry, nothing = _floats(window.given[2:4]), jax.tree.map(jnp.zeros_like, grown)
    return jax.jvp(_in_order(window), (entry, nothing), (state, grown))[1]


def pull(window: Window, credit: State, params: Sequence[int]) -> tuple[State, Floats]:
    """Credit of the exit state to that of the entry state and of parameters."""
    made = {i: window.params[i] for i in params}
    like, pull_back = jax.vjp(_each_step(window), made)
    nothing = jax.tree.map(jnp.zeros_like, like)
    _, through_steps = jax.vjp(_in_order(window), _floats(window.given[2:4]), nothing)
    entry, exits = through_steps(credit)
    [of_params] = pull_back(exits)
    return entry, of_params


def _floats(state: tuple[Values, Values]) -> State:
    return floats_of(state[0]), floats_of(state[1])


def _each_step(window: Window) -> Callable[[Floats], State]:
    """From parameters to the state after each step, every one from the state that it had."""
    start = window.before, window.before_other

    def steps(params: Floats) -> State:
        turn = window.turn(combine(params, window.params))
        return all_steps(lambda *at: _floats(turn(*at)[0]), window.length, start, window.inputs)

    return steps


def _in_order(window: Window) -> Callable[[State, State], State]:
    """From the entry state, and what is added after each step, to the exit state."""
    turn, start = window.turn(window.params), window.given[2:4]

    def run(entry: State, added: State) -> State:
        def one(state, x):
            inputs, more = x
            new = turn(state, inputs)[0]
            return _with(jax.tree.map(jnp.add, _floats(new), more), new), None

        exit, _ = scan(one, _with(entry, start), (window.inputs, added), window.length)
        return _floats(exit)

    return run


def _with(moving: State, state: tuple[Values, Values]) -> tuple[Values, Values]:
    """A state with these float leaves."""
    return combine(moving[0], state[0]), combine(moving[1], state[1])
