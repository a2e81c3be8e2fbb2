"""A function of brainstate states as one compiled call, with as little as possible between the caller and XLA: for streams, a step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..frontends import brainstate as frontend

brainstate: Any = frontend.brainstate


class Compiled:
    """`f`, which reads and writes states, compiled. `held()` names the states it may meet: when they are other ones, or when a setting of
    `brainstate.environ` changes, it is compiled anew; for arguments and states of other shapes JAX does so by itself. After an exception all states are
    as they were."""

    def __init__(self, f: Callable, held: Callable[[], tuple]):
        self._f, self._held = frontend.within(f), held
        self._key: Any = None
        self._states: list = []
        self._traced: Any = None
        self._jitted: Callable = f

    def __call__(self, *args: Any) -> Any:
        settings, moving = frontend.surroundings()
        key = settings, self._held()
        if key != self._key:
            self._start(moving, args)
            self._key = key
        new, out = self._jitted([s.value for s in self._states], moving, args)
        for state, value in zip(self._states, new, strict=True):
            state.value = value
        return out

    def _start(self, moving: dict, args: tuple) -> None:
        self._traced, self._states = self._trace(moving, args)
        self._jitted = jax.jit(self._pure)

    def _trace(self, moving: dict, args: tuple) -> tuple[Any, list]:
        traced = brainstate.transform.StatefulFunction(
            self._f, return_only_write=False, name='step'
        )
        with (
            brainstate.check_state_value_tree()
        ):  # else a state whose unit changes keeps a tracer for ever
            return traced, list(traced.get_states(moving, *args))

    def _pure(self, values: list, moving: dict, args: tuple) -> tuple[list, Any]:
        traced, self._traced = self._traced, None
        if traced is None:  # other shapes than the first time
            traced, states = self._trace(moving, args)
            if [id(s) for s in states] != [id(s) for s in self._states]:
                raise ValueError(
                    'With inputs of this shape the step meets other states than before: make a new stream for them.'
                )
        return traced.jaxpr_call(values, moving, *args)
