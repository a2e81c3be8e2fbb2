"""The parts of JAX that differ between versions, or that live outside its everyday interface.

What leans on internals, and what breaks if it goes:

- `jax.extend.core`: `Jaxpr`, `ClosedJaxpr`, `JaxprEqn`, `Var`, `Literal`, `Primitive`. All of the
  compiler reads these records; without them nothing works.
- `jax.core.eval_jaxpr(jaxpr, consts, *args)`: `run_jaxpr`, `bind`. Steps and fragments could not
  be run; `jax.extend.core.jaxpr_as_fun` of a closed program does the same.
- `Jaxpr.replace(...)` of a blank program: `new_jaxpr`. In the place of the constructor, whose
  arguments change; without it programs could not be put together.
- `Jaxpr.constvars`, `ClosedJaxpr.jaxpr` and `.consts`: `open_jaxpr`, for programs that JAX has
  traced, and `close_jaxpr`, for the one that 0.2 published. JAX 0.11 has one record and derives the
  constvars from the values; these two are the ones to change.
- `jaxpr.debug_info._replace(arg_names=None, result_paths=None)`: `new_jaxpr`. Names of arguments
  must fit their number; if the fields go, leave the line out.
- `eqn.replace(invars=..., source_info=...)`: `bind`, and `located` in `graph/lines.py`. Without it
  a `custom_*` call cannot be evaluated on other operands, and lines of libraries are reported
  instead of the user's.
- `Var(aval)` with one argument: `bind`. Up to 0.4 it took a suffix and a count too; if it
  changes, take the inputs of a traced identity.
- `eqn.primitive.bind(*values, **eqn.params)` and `primitive.multiple_results`: `bind`. Every
  equation is evaluated so, but for calls by name below; `eval_jaxpr` of one equation is the
  slower way around.
- `primitive.impl`: `implementation`. Without it `code` refuses primitives of other libraries.
- Names of primitives that begin with `custom_`, `closed_call`, `core_call`: `bind`. The
  parameters of these are not those of their `bind`; a new primitive of that kind would raise
  there.
- The name `jit` of the call primitive (`pjit` up to 0.6), and its parameter `name`: the front-ends
  of libraries of kernels. Their kernels would be opened rather than called, which is slow.
- Programs inside of `eqn.params`, alone or in a tuple: `subjaxprs`. If they move into another
  container, what happens in loops and branches goes unseen.
- `eqn.effects` is a set: `prune`, `new_jaxpr`. Without it, equations with side effects are
  pruned.
- `eqn.source_info.traceback.frames` with `file_name`, `line_num`: `frames`. Reports and errors say
  `?` in the place of a line; nothing else depends on it.
- `jaxpr.debug_info.func_name`: `called_name`. Values in printed code have plainer names.
- `atom.aval` with `shape`, `dtype`, `size`, `ndim`, and `jax.core.ShapedArray(shape, dtype)`:
  `is_float`, `trace`. Typed as `AbstractValue`, which does not promise them.
- `jax.make_jaxpr` of abstract values: `trace`. Takes avals because they have `shape` and `dtype`,
  as a `jax.ShapeDtypeStruct` does; without weak types if that is given instead.
- What primitives of our own lean on is told in `primitives.py`.
- In other rooms, by name only: the primitives in the tables of `graph/` and `ops/` with their
  `params` (`dimension_numbers` of `dot_general`, `num_consts` and `jaxpr` of `scan`, `branches`
  of `cond`, `custom_jvp_call`, `custom_vjp_call`). A renamed primitive is unknown, and so opaque:
  its weights lose their traces with a diagnostic, gradients inside the window stay right.
- In other rooms, public but seldom used: `custom_jvp.defjvp(..., symbolic_zeros=True)` and
  `jax.linear_transpose` (`learn/`: a learner's call is given as its own transpose),
  `jax.core.Tracer` (to tell values of an outer trace), `jax.dtypes.float0`.
- `manual_axis_type` (`vma` before 0.10) of `jax.typeof(a)` and of `jax.core.ShapedArray`,
  `mlir.lower_fun` with other `avals_in`: `PER_DEVICE`, `varying_axes`, for learners inside
  `jax.shard_map`. Without them that needs `check_vma=False`.
- `explicit_axes` of the mesh of `jax.typeof(a).sharding`: `explicit_mesh`.
- `jax._src.config.trace_context()`: `trace_context`, a part of the key of what was compiled. It is
  what `jax.jit` itself looks at; without it, list the settings that matter by hand.
- `jax._src.core.trace_state_clean()`, and `debug_nans`, `debug_infs` and `disable_jit` of
  `jax._src.config`: `calls_just_run`. Without them it would have to be False, and streams would be
  slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

# fmt: off
__all__ = [
    'Atom', 'ClosedJaxpr', 'Jaxpr', 'JaxprEqn', 'Literal',
    'PER_DEVICE', 'Primitive', 'Traced', 'Var', 'bind', 'called_name', 'calls_just_run',
    'close_jaxpr', 'explicit_mesh', 'frames', 'is_complex', 'is_float',
    'mesh_axes', 'new_jaxpr', 'open_jaxpr', 'prune', 'real_dtype', 'run_jaxpr',
    'subjaxprs', 'trace', 'trace_context', 'type_of', 'varying_axes',
]
# fmt: on

if TYPE_CHECKING:
    # The records of a program as far as they are used here; JAX itself promises less, an `aval`
    # without shape.
    class Var:
        aval: jax.core.ShapedArray

        def __init__(self, aval: Any): ...

    class Literal:
        aval: jax.core.ShapedArray
        val: Any

    class JaxprEqn:
        invars: list[Any]  # variables and literals
        outvars: list[Var]
        primitive: Primitive
        params: dict[str, Any]
        effects: set[Any]
        source_info: Any

        def replace(self, **changes: Any) -> JaxprEqn: ...

    class Jaxpr:
        constvars: list[Var]
        invars: list[Var]
        outvars: list[Any]  # variables and literals
        eqns: list[JaxprEqn]
        effects: set[Any]
        debug_info: Any

        def replace(self, **changes: Any) -> Jaxpr: ...

    class ClosedJaxpr:
        jaxpr: Jaxpr
        consts: list[Any]

        def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]): ...
else:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Atom: TypeAlias = Var | Literal


def is_float(a: Any) -> bool:
    """Whether a derivative can flow through a value of this type: complex counts, integers and
    random keys do not."""
    return jnp.issubdtype(a.aval.dtype, jnp.inexact)


def is_complex(a: Any) -> bool:
    """Whether a value of this type has two real parts."""
    return jnp.issubdtype(a.aval.dtype, jnp.complexfloating)


def real_dtype(dtype: Any) -> Any:
    """The type of the parts of values of this type."""
    return jnp.finfo(dtype).dtype


@functools.cache
def _blank() -> Jaxpr:
    return jax.make_jaxpr(lambda: ())().jaxpr


def new_jaxpr(invars: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[JaxprEqn]) -> Jaxpr:
    """A program of these equations. Programs of ours have no constvars: what surrounds them enters
    as an input, see `open_jaxpr`."""
    return _blank().replace(
        invars=list(invars),
        outvars=list(outvars),
        eqns=list(eqns),
        effects=set().union(*(e.effects for e in eqns)),
        debug_info=_blank().debug_info._replace(arg_names=None, result_paths=None),
    )


def run_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """The outputs of a program without constvars."""
    return eval_jaxpr(cast(Any, jaxpr), (), *args)


class Traced(NamedTuple):
    """A program without constvars, and the values of its first inputs, which it closed over."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...] = ()


def open_jaxpr(program: ClosedJaxpr | Jaxpr) -> Traced:
    """A program that JAX has traced, its constants in front of its inputs.

    The only place that reads `constvars`: JAX 0.11 derives them from the number of constant values.
    """
    if isinstance(program, ClosedJaxpr):
        jaxpr, consts = program.jaxpr, tuple(program.consts)
    else:
        jaxpr, consts = program, ()
    if not jaxpr.constvars:
        return Traced(jaxpr, consts)
    return Traced(new_jaxpr([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns), consts)


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """A program whose first inputs are constants, in the form in which JAX hands programs out."""
    n = len(consts)
    opened = jaxpr.replace(constvars=jaxpr.invars[:n], invars=jaxpr.invars[n:])
    return ClosedJaxpr(opened, list(consts))


def prune(eqns: Sequence[JaxprEqn], outs: Sequence[Any]) -> list[JaxprEqn]:
    """The equations that `outs` need, in order, and those with effects."""
    live, kept = {v for v in outs if isinstance(v, Var)}, []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in live for v in eqn.outvars):
            kept.append(eqn)
            live.update(v for v in eqn.invars if isinstance(v, Var))
    return kept[::-1]


def bind(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Evaluate one equation on other operands, whatever form its parameters have in this version of
    JAX."""
    if not eqn.primitive.name.startswith(('custom_', 'closed_call', 'core_call')):
        out = eqn.primitive.bind(*values, **eqn.params)
        return list(out) if eqn.primitive.multiple_results else [out]
    formal = [Var(a.aval) for a in eqn.invars]
    return run_jaxpr(new_jaxpr(formal, eqn.outvars, [eqn.replace(invars=formal)]), *values)


def trace(f: Callable, *args: Any) -> Traced:
    """The program of `f` on flat arguments: atoms, avals or values."""
    traced: Any = jax.make_jaxpr(f)(*[getattr(a, 'aval', a) for a in args])
    return open_jaxpr(traced)


def implementation(eqn: JaxprEqn) -> Traced | None:
    """What a primitive of some library is made of; None where that is no program of JAX, as for
    those of JAX itself, whose implementation is the compiled primitive."""
    try:
        made = trace(functools.partial(eqn.primitive.impl, **eqn.params), *eqn.invars)
    except Exception:  # whatever an implementation does with values that are not there
        return None
    return None if _calls(made.jaxpr, eqn.primitive) else made


def _calls(jaxpr: Jaxpr, primitive: Primitive) -> bool:
    return any(
        eqn.primitive is primitive or any(_calls(inner, primitive) for inner in subjaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def subjaxprs(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs inside an equation: loop bodies, branches, called functions."""
    inner = [q for p in eqn.params.values() for q in (p if isinstance(p, tuple | list) else (p,))]
    return [open_jaxpr(q)[0] for q in inner if isinstance(q, ClosedJaxpr | Jaxpr)]


def frames(eqn: JaxprEqn) -> list[tuple[str, int]]:
    """The files and lines that led to an equation, from the inside."""
    return [(f.file_name, f.line_num) for f in getattr(eqn.source_info.traceback, 'frames', ())]


def called_name(eqn: JaxprEqn) -> str:
    """The name of the function that an equation calls, '' for none."""
    for program in subjaxprs(eqn)[:1]:
        return str(getattr(program.debug_info, 'func_name', ''))
    return ''


_WHERE_IT_VARIES = ('manual_axis_type', 'vma')  # of an abstract value, from JAX 0.10 on and before


def _per_device() -> Primitive:
    """A program of one device's values inside `jax.shard_map`: outside, its results count as other
    ones along the axes of the mesh `varies`, for each result; inside, no value says on which axes
    it varies."""
    from jax.interpreters import mlir

    def shapes(first: Any, *_: Any, program: Any, varies: Any) -> list[Any]:
        name = next(n for n in _WHERE_IT_VARIES if hasattr(first, n))
        kind, mesh = type(getattr(first, name)), first.sharding.mesh

        def one(a: Any, axes: Any) -> Any:
            sharding = NamedSharding(mesh, PartitionSpec(*[None] * a.ndim))
            where = {name: axes if issubclass(kind, frozenset) else kind(varying=axes)}
            return jax.core.ShapedArray(a.shape, a.dtype, sharding=sharding, **where)

        return [one(v.aval, axes) for v, axes in zip(program.jaxpr.outvars, varies, strict=True)]

    def run(*args: Any, program: Any) -> list[Any]:
        return eval_jaxpr(program.jaxpr, program.consts, *args)

    def lower(ctx: Any, *args: Any, program: Any, varies: Any) -> Any:
        plain = [jax.core.ShapedArray(a.shape, a.dtype) for a in ctx.avals_in]
        rule = mlir.lower_fun(run, multiple_results=True)
        return rule(ctx.replace(avals_in=plain), *args, program=program)

    p = Primitive('per_device')
    p.multiple_results = True
    p.def_abstract_eval(shapes)
    mlir.register_lowering(p, lower)
    return p


PER_DEVICE = _per_device()


def explicit_mesh(tree: Any) -> Any:
    """The mesh of arrays whose types say how they lie on it; None for none."""
    for a in jax.tree.leaves(tree):
        if not isinstance(a, jax.Array) or _on_one_device(a):
            continue
        mesh = jax.typeof(a).sharding.mesh
        if mesh.explicit_axes:
            return mesh
    return None


def _on_one_device(a: jax.Array) -> bool:
    """Whether an array that is there lies on one device: the usual case, and quickly seen."""
    return not isinstance(a, jax.core.Tracer) and isinstance(a.sharding, SingleDeviceSharding)


def varying_axes(tree: Any) -> frozenset:
    """The axes of a mesh, inside `jax.shard_map`, on which some value of a tree varies."""
    none: frozenset = frozenset()
    types = [jax.typeof(a) for a in jax.tree.leaves(tree) if isinstance(a, jax.core.Tracer)]
    said = [getattr(t, n) for t in types for n in _WHERE_IT_VARIES if hasattr(t, n)]
    return none.union(*[getattr(axes, 'varying', axes) for axes in said])


def mesh_axes(tree: Any) -> tuple[str, ...]:
    """The axes of the mesh of the values of a tree, inside `jax.shard_map`, in its order."""
    types = [jax.typeof(a) for a in jax.tree.leaves(tree) if isinstance(a, jax.core.Tracer)]
    return next((t.sharding.mesh.axis_names for t in types if t.sharding.mesh.axis_names), ())


def type_of(a: Any) -> tuple:
    """The type of an array as programs depend on it: shape, dtype, and how it lies on the axes of a
    mesh."""
    if isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer):
        return a.shape, a.dtype, None if _on_one_device(a) else a.sharding, None
    if not hasattr(a, 'dtype'):
        return jnp.shape(a), jnp.result_type(a), None, None
    if not isinstance(a, jax.core.Tracer):
        is_key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
        return a.shape, a.dtype if is_key else jax.dtypes.canonicalize_dtype(a.dtype), None, None
    aval = jax.typeof(a)
    placed = getattr(aval, 'sharding', None)
    if placed is not None and placed.mesh.empty:
        placed = None
    return aval.shape, aval.dtype, placed, varying_axes(a) or None


def trace_context() -> Any:
    """What JAX itself looks at while it traces: precision, axis names, meshes and other
    settings."""
    return jax._src.config.trace_context()


def calls_just_run() -> bool:
    """Whether XLA runs a compiled call here and now, and nothing is raised once it has run: no
    trace is going on, JAX does not look for numbers that are not finite, nor leave out `jit`."""
    config = jax._src.config
    debugging = config.debug_nans.value or config.debug_infs.value or config.disable_jit.value
    return jax._src.core.trace_state_clean() and not debugging
