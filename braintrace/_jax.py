"""The parts of JAX that differ between versions, or that live outside its everyday interface."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.sharding import SingleDeviceSharding

__all__ = [
    'Atom',
    'ClosedJaxpr',
    'FunctionPrimitive',
    'Jaxpr',
    'JaxprEqn',
    'Literal',
    'Primitive',
    'Traced',
    'Var',
    'bind',
    'calls_library_kernel',
    'close_jaxpr',
    'identity_primitive',
    'is_float',
    'located',
    'new_jaxpr',
    'open_jaxpr',
    'prune',
    'run_jaxpr',
    'source_line',
    'subjaxprs',
    'trace',
    'trace_context',
    'type_of',
]

Atom: TypeAlias = Var | Literal


def is_float(a: Any) -> bool:
    """Whether a derivative can flow through a value of this type: complex counts, integers and
    random keys do not."""
    return jnp.issubdtype(a.aval.dtype, jnp.inexact)


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
    return eval_jaxpr(jaxpr, (), *args)


class Traced(NamedTuple):
    """A program without constvars, and the values of its first inputs, which it closed over."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...] = ()


def open_jaxpr(program: ClosedJaxpr | Jaxpr) -> Traced:
    """A program that JAX has traced, its constants in front of its inputs.

    The only place that reads `constvars`: JAX 0.11 derives them from the number of constant values.
    """
    jaxpr, consts = program, ()
    if isinstance(program, ClosedJaxpr):
        jaxpr, consts = program.jaxpr, tuple(program.consts)
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
    return eval_jaxpr(new_jaxpr(formal, eqn.outvars, [eqn.replace(invars=formal)]), (), *values)


def trace(f: Callable, *args: Any) -> Traced:
    """The program of `f` on flat arguments: atoms, avals or values."""
    return open_jaxpr(jax.make_jaxpr(f)(*[getattr(a, 'aval', a) for a in args]))


def subjaxprs(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs inside an equation: loop bodies, branches, called functions."""
    inner = [q for p in eqn.params.values() for q in (p if isinstance(p, tuple | list) else (p,))]
    return [open_jaxpr(q)[0] for q in inner if isinstance(q, ClosedJaxpr | Jaxpr)]


_HERE = re.escape(os.path.dirname(__file__))
_LIBRARIES = re.compile(
    r'/(jax|saiunit|brainunit|brainstate|brainevent|brainpy|brainpy_state|braintools|flax|equinox)/'
    rf'|{_HERE}/(ops|nn)/'
)
_TRACING = re.compile(
    rf'{_HERE}/(?!ops/|nn/)'
)  # what runs a user's model, rather than is a part of it

_KERNELS = ('brainevent.',)  # how the compiled functions of libraries of kernels begin


def calls_library_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a kernel that a library has written for some device."""
    return eqn.primitive.name == 'jit' and eqn.params['name'].startswith(_KERNELS)


def _lines(eqn: JaxprEqn) -> tuple[list, list]:
    """The lines that led to an equation, from the inside: all, and those that are no library's."""
    frames = [(f.file_name, f.line_num) for f in getattr(eqn.source_info.traceback, 'frames', ())]
    inside = list(itertools.takewhile(lambda f: not _TRACING.search(f[0]), frames)) or frames
    return inside, [f for f in inside if not _LIBRARIES.search(f[0])]


def located(eqn: JaxprEqn, around: JaxprEqn | None) -> JaxprEqn:
    """The equation; where none of its lines is the user's own, as inside functions that a library
    compiles, at the place of the call around it."""
    return eqn if around is None or _lines(eqn)[1] else eqn.replace(source_info=around.source_info)


def source_line(eqn: JaxprEqn) -> str:
    """`cell.py:41`: the line behind an equation, the user's own rather than a library's if there is
    one, or `?`."""
    inside, own = _lines(eqn)
    own = own or [f for f in inside if not re.search('/(jax|saiunit)/', f[0])] or inside
    return f'{own[0][0].split("/")[-1]}:{own[0][1]}' if own else '?'


def identity_primitive(name: str) -> Primitive:
    """A primitive that returns its operand, with any parameters, under jit, grad and vmap."""
    from jax.interpreters import ad, batching, mlir

    p = Primitive(name)
    p.def_impl(lambda x, **_: x)
    p.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(p, lambda ctx, x, **_: [x])
    ad.deflinear2(p, lambda ct, x, **params: [p.bind(ct, **params)])
    batching.defvectorized(p)
    return p


class FunctionPrimitive(Primitive):
    """A primitive that computes a function `f(*operands, **params)`; everything else JAX needs is
    derived from it."""

    def __init__(self, name: str, f: Callable):
        from jax.interpreters import ad, batching, mlir

        super().__init__(name)
        self.f = f
        self.def_impl(lambda *a, **params: jax.jit(functools.partial(f, **params))(*a))
        self.def_abstract_eval(self._shapes)
        mlir.register_lowering(self, mlir.lower_fun(f, multiple_results=False))
        ad.primitive_jvps[self] = self._jvp
        batching.primitive_batchers[self] = lambda args, axes, **params: (
            jax.vmap(functools.partial(f, **params), axes)(*args),
            0,
        )

    def _shapes(self, *avals: Any, **params: Any) -> Any:
        out = jax.eval_shape(
            functools.partial(self.f, **params),
            *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals],
        )
        return jax.core.ShapedArray(out.shape, out.dtype)

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        from jax.interpreters import ad

        return jax.jvp(
            functools.partial(self.f, **params),
            tuple(primals),
            tuple(ad.instantiate_zeros(t) for t in tangents),
        )


def type_of(a: Any) -> tuple:
    """The type of an array as programs depend on it: shape, dtype, and how it lies on the axes of a
    mesh."""
    if isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer):  # the usual case, and quick
        placed = None if isinstance(a.sharding, SingleDeviceSharding) else a.sharding
        return a.shape, a.dtype, placed, None
    if not hasattr(a, 'dtype'):
        return jnp.shape(a), jnp.result_type(a), None, None
    if not isinstance(a, jax.core.Tracer):
        return a.shape, jax.dtypes.canonicalize_dtype(a.dtype), None, None
    aval = jax.typeof(a)
    placed = getattr(aval, 'sharding', None)
    if placed is not None and placed.mesh.empty:
        placed = None
    return aval.shape, aval.dtype, placed, getattr(aval, 'vma', None) or None


def trace_context() -> Any:
    """What JAX itself looks at while it traces: precision, axis names, meshes and other
    settings."""
    return jax._src.config.trace_context()
