"""Snapshots in a directory, written while the run goes on, and found again after it was killed.

Orbax writes them: asynchronously, from several processes, each array from the devices it lies on.
What is in the files is arrays and JSON text.
"""

from __future__ import annotations

import atexit
import json
import pathlib
import shutil
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..frontends.base import holders_of
from ..step import dotted
from .saving import Snapshot, arrays_of, check_trees, types_of, with_arrays

UNFINISHED = '.orbax-checkpoint-tmp'  # how the name of a directory ends while it is written


class Checkpoints:
    """The last few snapshots of a run in a directory. Whatever moment the process dies, the last
    complete one is found; one that is not complete is told and skipped.

    Needs orbax: `pip install 'braintrace[checkpoint]'`.

    Args:
        directory: where they are, one directory for each step; made if there is none.
        keep: how many of them; older ones are deleted.
        every: the steps between two of them in `etrace_learn`.

    Example:
        >>> import tempfile, jax.numpy as jnp, braintrace
        >>> step = lambda p, h, x: (jnp.tanh(h * p + x), h)
        >>> params, state = jnp.ones(2), jnp.zeros(2)
        >>> learner = braintrace.compile(step, 'd_rtrl', params, state, jnp.ones(2))
        >>> run = {'params': params, 'carry': learner.init(params, state)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with braintrace.Checkpoints(directory) as checkpoints:
        ...         print(checkpoints.restore(learner, run=run))
        ...         checkpoints.save(7, learner, run=run)
        ...         print(checkpoints.restore(learner, run=run))
        None
        7
    """

    def __init__(self, directory: Any, keep: int = 3, every: int = 1000):
        for name, value in (('keep', keep), ('every', every)):
            if isinstance(value, bool) or not hasattr(value, '__index__') or value < 1:
                raise ValueError(f'`{name}` must be a whole number of at least 1, got {value!r}.')
        self.directory, self.every = pathlib.Path(directory).absolute(), int(every)
        self._orbax: Any = _orbax()
        self._unfinished = sorted(self.directory.glob(f'*{UNFINISHED}*'))
        for torn in self._unfinished:
            _tell(torn, 'it is not finished')
        options = self._orbax.CheckpointManagerOptions(max_to_keep=int(keep), create=True)
        self._manager = self._orbax.CheckpointManager(self.directory, options=options)
        _before_threads_end(self._manager.wait_until_finished)

    def save(self, step: int, learner: Any, **more: Any) -> None:
        """Begin to save the values of now; the run may go on at once.

        Args:
            step: the number of steps done, larger than in all calls before.
            learner: the learner. One of a plain function holds nothing: give its parameters and
                its carry in `more`.
            more: what else belongs to the run, by name: a dict or list of arrays (also of trees
                and random keys), a state, a module, an optimiser, a generator of numpy.
        """
        last = self._manager.latest_step()
        if last is not None and step <= last:
            raise ValueError(f'`step` must be larger than {last}, the last that was saved.')
        snapshot, rest = learner.snapshot(), _More(more)
        arrays = {**snapshot.arrays, **arrays_of(rest.trees)}
        if not arrays:
            raise ValueError(
                'There is nothing to save: a learner of a plain function holds nothing. Give its '
                'parameters and its carry, `save(step, learner, run={...})`.'
            )
        about = {
            'learner': snapshot.about,
            'more': types_of(rest.trees),
            'generators': rest.generators,
        }
        if jax.process_index() == 0:  # who saves is the only one who writes here
            for torn in self._unfinished:
                shutil.rmtree(torn, ignore_errors=True)
        self._unfinished = []
        args = self._orbax.args
        parts = args.Composite(
            about=args.JsonSave(about), arrays=args.StandardSave(_numbered(arrays.values()))
        )
        self._manager.save(int(step), args=parts, force=True)

    def restore(self, learner: Any, **more: Any) -> int | None:
        """Be as at the last complete checkpoint. One that does not fit is refused with the first
        difference, and changes nothing.

        Args:
            learner: a learner made as the one that was saved.
            more: as given to `save`, with the structure and placement that is wanted; written in
                place.

        Returns:
            The number of steps done; None, and nothing is changed, if there is no checkpoint.
        """
        self.wait()
        rest = _More(more)
        for step in sorted(self._manager.all_steps(), reverse=True):
            args = self._orbax.args
            about = self._read(step, 'about', args.JsonRestore())
            if about is None:
                continue
            learner.check_snapshot(about['learner'])
            rest.check(about)
            names = [*json.loads(about['learner'])['arrays'], *about['more']]
            now = {**learner.snapshot().arrays, **arrays_of(rest.trees)}
            wanted = _numbered([_abstract(now[name]) for name in names])
            saved = self._read(step, 'arrays', args.StandardRestore(wanted))
            if saved is None:
                continue
            arrays = dict(zip(names, [saved[k] for k in wanted], strict=True))
            of_learner = {n: a for n, a in arrays.items() if n not in about['more']}
            learner.restore(Snapshot(of_learner, about['learner']))
            rest.write(arrays, about['generators'])
            return step
        return None

    def _read(self, step: int, part: str, how: Any) -> Any:
        """A part of a checkpoint; None, with a warning, if the files are damaged."""
        try:
            args = self._orbax.args.Composite(**{part: how})
            read, damage = self._manager.restore(step, args=args)[part], None
        except Exception as error:  # whatever the reader makes of damaged files
            read, damage = None, error
        if _everywhere(damage is None):
            return read
        _tell(self.directory / str(step), textwrap.shorten(str(damage), 200))
        if jax.process_index() == 0:  # out of the way of the step when it is saved again
            (self.directory / str(step)).rename(self.directory / f'damaged-{step}')
        _everywhere(True)
        self._manager.reload()
        return None

    def wait(self) -> None:
        """Wait until all that was saved is complete."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, and end what runs in the background."""
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _More:
    """What belongs to a run besides its learner: `trees` of arrays by name, and who holds them."""

    def __init__(self, more: Mapping[str, Any]):
        self._more = more
        self._numpy = {n: v.bit_generator for n, v in more.items() if hasattr(v, 'bit_generator')}
        self._held: dict[str, Any] = {}
        self.trees: dict[str, Any] = {}
        for name, value in more.items():
            if name in self._numpy:
                continue
            holders = holders_of(value)
            if holders is not None:
                at = {f'more/{dotted([name, *path])}': held for path, held in holders.items()}
                self._held |= at
                self.trees |= {place: held.value for place, held in at.items()}
            elif isinstance(value, dict | list):
                self.trees[f'more/{name}'] = value
            else:
                raise TypeError(
                    f'`{name}` is a {type(value).__name__}, which cannot be restored in place. Put '
                    f'it into a dict that the run keeps: `{name}={{...}}`.'
                )

    @property
    def generators(self) -> dict[str, Any]:
        """The states of numpy's generators, for JSON."""
        return {name: _plain(g.state) for name, g in self._numpy.items()}

    def check(self, about: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of other things."""
        check_trees(self.trees, about['more'])
        for name, generator in self._numpy.items():
            kind = about['generators'].get(name, {}).get('bit_generator')
            here = generator.state['bit_generator']
            if kind != here:
                raise ValueError(f'What was saved does not fit: its {name} is {kind}, not {here}.')

    def write(self, arrays: Mapping[str, Any], generators: Mapping[str, Any]) -> None:
        """Put saved values where they belong."""
        new = with_arrays(self.trees, arrays)
        for place, held in self._held.items():
            held.write(new[place])
        for name, value in self._more.items():
            if name in self._numpy:
                self._numpy[name].state = generators[name]
            elif isinstance(value, dict):
                value.update(new[f'more/{name}'])
            elif isinstance(value, list):
                value[:] = new[f'more/{name}']


def _plain(state: Any) -> Any:
    """The state of a generator of numpy with numbers and lists in the place of arrays."""
    if isinstance(state, dict):
        return {k: _plain(v) for k, v in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _numbered(arrays: Iterable[Any]) -> dict[str, Any]:
    """Arrays under names that suit every file system; the text has their own."""
    return {f'{k:06d}': a for k, a in enumerate(arrays)}


def _abstract(a: Any) -> Any:
    """What is to be read: the type, and the place. One process reads arrays of numpy by way of a
    device, whatever the devices were that they were saved from."""
    sharding = a.sharding if isinstance(a, jax.Array) else None
    if sharding is None and jax.process_count() == 1:
        sharding = SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)


def _everywhere(here: bool) -> bool:
    """Whether something holds in all processes."""
    if jax.process_count() == 1:
        return here
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.asarray(here))))


def _tell(directory: pathlib.Path, reason: str) -> None:
    warnings.warn(f'The checkpoint {directory} is skipped: {reason}.', stacklevel=4)


def _before_threads_end(f: Callable[[], None]) -> None:
    """Call `f` when the process ends, before the threads do that write in the background: they
    could not start the work that is left. The ordinary `atexit` comes too late for that."""
    getattr(threading, '_register_atexit', atexit.register)(f)


def _orbax() -> Any:
    try:
        import orbax.checkpoint as orbax
    except ModuleNotFoundError as error:
        raise ImportError(
            "`braintrace.Checkpoints` needs orbax: pip install 'braintrace[checkpoint]'",
            name='orbax',
        ) from error
    return orbax
