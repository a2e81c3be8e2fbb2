"""What a learner keeps as plain arrays by name and one text that says what they belong to, and the
way back.

A named tree is a pytree under a name; its leaves become entries `name.key` of a flat dict. Random
keys are stored as their data, so that every entry is an array that a file of arrays can hold.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..frontends.base import Held
from ..step import dotted
from .how import How
from .stateful import CompiledModel, Learning, nothing_learned

FORMAT = 1  # of the text; one more when a reader of this version would misread it
OWN = 'learner'  # counters of the learner: one that an older snapshot lacks starts anew


class Snapshot(NamedTuple):
    """All that a learner keeps, at one moment.

    Args:
        arrays: arrays by name: `param/...`, `hidden/...`, `other/...`, `trace/...`, `learner/...`.
        about: JSON text: the rule and its options, the name, shape and dtype of every array, the
            version of the library.
    """

    arrays: dict[str, Any]
    about: str


# ---- trees as named arrays, and back ----


class _Entry(NamedTuple):
    """One leaf of a named tree: its name, itself, and its unit as text."""

    name: str
    leaf: Any
    unit: str


def _entries(trees: Mapping[str, Any]) -> list[_Entry]:
    times: Counter[str] = Counter()
    entries = []
    for root, tree in trees.items():
        for keys, part in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_quantity):
            name = dotted([root, *[_key(k) for k in keys]])
            unit = str(part.unit) if _is_quantity(part) else ''
            for leaf in jax.tree.leaves(part):
                again = times[name]
                times[name] += 1
                entries.append(_Entry(f'{name}#{again}' if again else name, leaf, unit))
    return entries


def _key(k: Any) -> Any:
    """What a user calls an entry of a pytree."""
    named = [getattr(k, a) for a in ('key', 'idx', 'name') if hasattr(k, a)]
    return named[0] if named else k


def _is_quantity(a: Any) -> bool:
    return hasattr(a, 'mantissa') and hasattr(a, 'unit')


def arrays_of(trees: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of named trees, each an array under its name."""
    return {name: _stored(name, leaf) for name, leaf, _ in _entries(trees)}


def types_of(trees: Mapping[str, Any]) -> dict[str, str]:
    """What each of these arrays is: `float32[2,4] mV`, or `key<fry>[]` for random keys."""
    return {name: f'{_type(leaf)} {unit}'.rstrip() for name, leaf, unit in _entries(trees)}


def with_arrays(trees: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Trees of the same structure with other leaves, placed on devices as these are."""
    return _with_leaves(trees, arrays, _like)


def traced_with(trees: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """As `with_arrays`, for arrays that are traced: wherever they lie."""
    return _with_leaves(trees, arrays, _unstored)


def _with_leaves(
    trees: Mapping[str, Any], arrays: Mapping[str, Any], restored: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """Trees of the same structure, whose leaves are `restored(old leaf, stored array)`."""
    new = iter([restored(leaf, arrays[name]) for name, leaf, _ in _entries(trees)])
    return {root: jax.tree.map(lambda _: next(new), tree) for root, tree in trees.items()}


def _unstored(old: Any, new: Any) -> Any:
    """A stored array as the old leaf was: as it is, or as random keys."""
    if not _is_key(old):
        return new
    return jax.random.wrap_key_data(new, impl=jax.random.key_impl(old))


def _type(leaf: Any) -> str:
    dtype = leaf.dtype if hasattr(leaf, 'dtype') else jnp.result_type(leaf)
    return f'{dtype}[{",".join(map(str, jnp.shape(leaf)))}]'


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, 'dtype') and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _stored(name: str, leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array | np.ndarray):
        return leaf
    if not isinstance(leaf, bool | int | float | complex | np.generic):
        raise TypeError(
            f'{name.removeprefix("more/")} holds a {type(leaf).__name__}: only arrays and numbers '
            'can be saved in a tree. A generator of numpy, an optimiser or a state is given by a '
            'name of its own, `save(step, learner, name=it)`.'
        )
    return np.asarray(leaf, jnp.result_type(leaf))


def _like(old: Any, new: Any) -> Any:
    """A stored array as the old leaf was: a number, an array of numpy, or one on the same
    devices."""
    if isinstance(old, bool | int | float | complex):
        return type(old)(np.asarray(new).item())
    if isinstance(old, np.ndarray | np.generic):
        return np.array(new)
    if _is_key(old):
        return jax.device_put(_unstored(old, jnp.asarray(new)), old.sharding)
    return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else jnp.asarray(new)


# ---- what a snapshot belongs to ----


def describe(how: How, types: Mapping[str, str]) -> str:
    """The text of a snapshot of a learner with these arrays."""
    said = {
        'rule': how.rule.name,
        'options': {name: _told(value) for name, value in how.options.items()},
        'credit': 'single-step' if how.single_step else 'multi-step',
        'trace': _told(how.traced),
    }
    about = {'braintrace': _version(), 'format': FORMAT, **said, 'arrays': dict(types)}
    return json.dumps(about, indent=1)


def _version() -> str:
    """Of this package, which stands above this room and cannot be imported from here."""
    return sys.modules[__name__.split('.')[0]].__version__  # type: ignore[attr-defined]


def _told(value: Any) -> Any:
    """A value of an option in JSON, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_told(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _told(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _told(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if _is_key(value):
        return _told(jax.random.key_data(value))
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return np.asarray(value).tolist()
    if callable(value):
        return getattr(value, '__qualname__', type(value).__qualname__)
    return str(value)


def check_trees(trees: Mapping[str, Any], types: Mapping[str, str]) -> None:
    """Refuse saved arrays of these types for other trees, naming the first difference."""
    difference = first_difference(types_of(trees), types)
    if difference:
        raise ValueError(f'What was saved does not fit: {difference}.')


def check_about(name: str, here: str, there: str, how: How) -> None:
    """Refuse arrays that are described by the text `there` in a learner described by `here`,
    naming the first difference."""
    mine, its = json.loads(here), _read(name, there)
    for part in ('rule', 'credit', 'trace'):
        if its.get(part) != mine[part]:
            _refuse(name, its, f'its {part} is {its.get(part)!r}, here it is {mine[part]!r}')
    _check_options(name, mine['options'], its, how)
    difference = first_difference(mine['arrays'], its['arrays'])
    if difference:
        _refuse(name, its, difference)


def _read(name: str, about: Any) -> dict[str, Any]:
    try:
        its = json.loads(about)
        complete = {'braintrace', 'format', 'options', 'arrays'} <= set(its)
    except (TypeError, ValueError):
        complete = False
    if not complete:
        raise ValueError(f'`{name}` is not one of a learner: its text does not say what it is of.')
    if its['format'] > FORMAT:
        _refuse(name, its, f'its format is {its["format"]}, and this version reads {FORMAT}')
    return its


def _check_options(name: str, mine: Mapping, its: Mapping, how: How) -> None:
    """An option that did not exist yet must have its usual value."""
    for option, value in mine.items():
        usual = _told(how.rule.options.get(option))
        if its['options'].get(option, usual) != value:
            was = its['options'].get(option, 'unknown')
            _refuse(name, its, f'its option `{option}` is {was!r}, here it is {value!r}')


def first_difference(mine: Mapping[str, str], its: Mapping[str, str]) -> str | None:
    """The first array that is not of the type that it has here; None for none."""
    for entry, kind in mine.items():
        if entry not in its and not entry.startswith(f'{OWN}/'):
            return f'it has no {entry}, here that is {kind}'
        if its.get(entry, kind) != kind:
            return f'its {entry} is {its[entry]}, here it is {kind}'
    for entry, kind in its.items():
        if entry not in mine:
            return f'it has {entry}, {kind}, and here is none'
    return None


def _refuse(name: str, its: Mapping, difference: str) -> None:
    raise ValueError(
        f'`{name}` does not fit this learner: {difference}. It was made by braintrace '
        f'{its["braintrace"]}; make the learner as it was made then, or begin anew.'
    )


def check_carry(wanted: Any, carry: Any) -> None:
    """Refuse a carry (a named tuple with `traces` and other trees) whose arrays are not of the
    wanted types, naming the first difference."""
    difference = first_difference(types_of(_parts(wanted)), types_of(_parts(carry)))
    if difference:
        raise ValueError(
            f'`carry` does not fit this learner: {difference}. It is of another model, rule or '
            'batch size: make a new one with `init(params, state)`.'
        )


def _parts(carry: Any) -> dict[str, Any]:
    """A carry as named trees."""
    parts = carry._asdict()
    return parts | {f'trace/{name}': a for name, a in parts.pop('traces').items()}


# ---- learners of models that hold their states ----


def take_snapshot(
    learning: Learning, compiled: CompiledModel, more: Mapping[tuple, Any]
) -> tuple[Snapshot, dict[str, Any]]:
    """A snapshot of a learner, and the trees it was made of by name. `more` are holders of values
    by path that the learner has besides its model."""
    trees = {name: h.value for name, h in holders(learning, compiled, more).items()}
    trees = dict(sorted({**trees, **memory_parts(learning.memory.value)}.items()))
    return Snapshot(arrays_of(trees), describe(learning.how, types_of(trees))), trees


def restore_snapshot(
    learning: Learning, compiled: CompiledModel, more: Mapping[tuple, Any], snapshot: Snapshot
) -> None:
    """Write a snapshot of `take_snapshot` back; a ValueError, and nothing is changed, if it does
    not fit."""
    arrays, about = snapshot
    now, trees = take_snapshot(learning, compiled, more)
    check_about('snapshot', now.about, about, learning.how)
    at_first = memory_parts(nothing_learned(compiled))
    counters = {name: value for name, value in at_first.items() if name.startswith(f'{OWN}/')}
    new = with_arrays(trees, _checked(now.arrays, {**counters, **arrays}))
    for name, held in holders(learning, compiled, more).items():
        held.write(new[name])
    learning.memory.value = memory_of(new)
    learning.remember(compiled)


def memory_parts(memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of a learner as named trees: `trace/...` and `learner/...`."""
    rest = dict(memory)
    traces = {f'trace/{text}': trace for text, trace in rest.pop('traces').items()}
    return {**traces, **{f'{OWN}/{name}': value for name, value in rest.items()}}


def memory_of(trees: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of a learner from these trees, whatever else there is."""
    return {**_below(f'{OWN}/', trees), 'traces': _below('trace/', trees)}


def _below(root: str, trees: Mapping[str, Any]) -> dict[str, Any]:
    return {n.removeprefix(root): tree for n, tree in trees.items() if n.startswith(root)}


def _checked(now: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays, which may be fewer or others than their text promises."""
    read = {}
    for name, old in now.items():
        if name not in arrays:
            raise ValueError(f'`snapshot` lacks the array {name}, of which its text speaks.')
        a = arrays[name]
        if isinstance(a, np.ndarray) and a.dtype == np.dtype(('V', old.dtype.itemsize)):
            a = a.view(old.dtype)  # files of numpy do not know bfloat16
        if _type(a) != _type(old):
            raise ValueError(
                f'`snapshot`: the array {name} is {_type(a)}, and its text says {_type(old)}.'
            )
        read[name] = a
    return read


def holders(
    learning: Learning, compiled: CompiledModel, more: Mapping[tuple, Any]
) -> dict[str, Held]:
    """Who holds the values of a learner, by name: the states of the model, what its step uses
    besides, and `more`."""
    states = dict(learning.framework.states_of(learning.model))
    known = {id(holder) for holder in states.values()}
    strangers = [h.holder for h in compiled.traced.held if id(h.holder) not in known]
    states |= {('outside', i): holder for i, holder in enumerate(strangers)}
    every = [learning.framework.held(path, holder) for path, holder in {**states, **more}.items()]
    return {f'{held.role}/{dotted(held.path)}': held for held in every}
