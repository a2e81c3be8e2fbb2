"""Unbiased estimates of J: UORO, one random rank-one product, and KF-RTRL, a random Kronecker product for each weight.

    UORO      J ~ s (x) th       s <- r0 Phi s + r1 nu,     th <- th / r0 + nu M / r1                nu random signs
    KF-RTRL   J ~ u (x) A        u <- c0 p0 u + sum c_k p_k x_k,   A <- c0/p0 Phi A + sum c_k/p_k dh_b/dy_k   c random signs

The r and p balance the norms of the two factors, which keeps the variance low. Both take whole windows; UORO needs one jvp and one vjp of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from string import ascii_lowercase
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import is_float
from ..ops.axes import gradient, spread, spread_gradient
from ..plan.layout import Layout
from .carrier import Contribution, Credit, Entry, Traces
from .rtrl import Exactly, Pulls


def signs(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Plus or minus one, each with probability one half."""
    return jax.random.rademacher(key, shape).astype(dtype)


@dataclass(frozen=True, eq=False)
class RankOne(Exactly):
    """UORO over all float states and parameters. `draw(key, shape, dtype)` gives the signs, from a stream of its own."""

    layout: Layout
    seed: Any = 42
    eps: float = 1e-12
    draw: Callable = signs

    @cached_property
    def _params(self) -> list[int]:
        return [i for i, v in enumerate(self.layout.graph.step.param_vars) if is_float(v)]

    def _names(self) -> tuple[list[str], list[str]]:
        step = self.layout.graph.step
        leaves = [*step.hidden, *step.other]
        floats = [i for i, v in enumerate([*step.hidden_vars, *step.other_vars]) if is_float(v)]
        return [f's:{i}:{leaves[i].name}' for i in floats], [
            f'theta:{i}:{step.params[i].name}' for i in self._params
        ]

    def init(self) -> Traces:
        s, theta = self._names()
        step = self.layout.graph.step
        states = {
            name: jnp.zeros(v.aval.shape, v.aval.dtype)
            for name, v in zip(s, self.state, strict=True)
        }
        params = {
            name: jnp.zeros(step.param_vars[i].aval.shape, step.param_vars[i].aval.dtype)
            for name, i in zip(theta, self._params, strict=True)
        }
        return {**states, **params, 'key': jax.random.key_data(as_key(self.seed))}

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        s, theta = self._names()
        size = sum(
            jnp.vdot(lam, traces[name]) for lam, name in zip(self.moving(credit), s, strict=True)
        )
        found = {
            i: (size * traces[name]).astype(traces[name].dtype)
            for name, i in zip(theta, self._params, strict=True)
        }
        return Contribution(
            params=[found.get(i) for i in range(len(self.layout.graph.step.params))]
        )

    def advance(self, traces: Traces, window) -> Traces:
        s, theta = self._names()
        key, use = jax.random.split(jax.random.wrap_key_data(traces['key']))
        keys = jax.random.split(use, len(s))
        nu = [
            self.draw(k, v.aval.shape, v.aval.dtype) for k, v in zip(keys, self.state, strict=True)
        ]
        n = self.hidden
        h, o = window.push([traces[name] for name in s[:n]], [traces[name] for name in s[n:]])
        moved = [*h, *o]
        dp, *_ = window.pull(hidden=self.spread(nu[:n]), other=nu[n:])
        M = [dp[i] for i in self._params]
        old = [traces[name] for name in theta]
        r0 = jnp.sqrt((_norm(old) + self.eps) / (_norm(moved) + self.eps))
        r1 = jnp.sqrt((_norm(M) + self.eps) / (_norm(nu) + self.eps))
        new = {
            name: (r0 * a + r1 * b).astype(a.dtype) for name, a, b in zip(s, moved, nu, strict=True)
        }
        new |= {
            name: (a / r0 + b / r1).astype(a.dtype)
            for name, a, b in zip(theta, old, M, strict=True)
        }
        return {**new, 'key': jax.random.key_data(key)}

    def block(
        self, traces: Traces | None, window, credit: Credit, steps, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        """Step by step: `dw_t = same-step gradient + (s_t . Phi s) th`."""
        s, theta = self._names()
        signal = self.kept(credit.signals(together=True))

        def turn(carry, k):
            traces, total = carry
            w = window.step(k)
            h, _ = w.push(
                [traces[name] for name in s[: self.hidden]],
                [traces[name] for name in s[self.hidden :]],
            )
            meet = lambda credit, leaves: sum(
                jnp.vdot(jax.lax.dynamic_index_in_dim(c, k, keepdims=False), a)
                for c, a in zip(credit, leaves, strict=True)
            )
            size = meet(signal, h) + (
                meet(self.kept(credit.past), [traces[name] for name in s[: self.hidden]])
                if credit.past is not None
                else 0
            )
            return (
                self.advance(traces, w),
                [t + size * traces[name] for t, name in zip(total, theta, strict=True)],
            ), None

        old = self.init() if traces is None else traces
        (new, total), _ = jax.lax.scan(
            turn, (old, [jnp.zeros_like(old[name]) for name in theta]), jnp.arange(window.length)
        )
        same = {
            r: gradient(x.op, window.operands[r], credit.y[r])
            for r, x in enumerate(self.layout.relations)
        }
        found = dict(zip(self._params, total, strict=True))
        return Contribution(
            same, [found.get(i) for i in range(len(self.layout.graph.step.params))]
        ), new if keep else None


@dataclass(frozen=True, eq=False)
class Kronecker(Pulls):
    """KF-RTRL: for each use of a weight an input factor u and an output factor A, for each sample."""

    layout: Layout
    seed: Any = 42
    eps: float = 1e-12
    draw: Callable = signs

    def init(self) -> Traces:
        traces: Traces = {'key': jax.random.key_data(as_key(self.seed))}
        for name, use, op, _ in self.uses:
            traces[f'A:{name}'] = jnp.zeros((self.size, *use.y[0].aval.shape), use.y[0].aval.dtype)
            if op.axes.x is not None:
                x = jax.eval_shape(
                    lambda *v, op=op: spread(op, op.x(v)),
                    *[jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in use.eqn.invars],
                )
                traces[f'u:{name}'] = jnp.zeros(x.shape, x.dtype)
        return traces

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = self.rows(self.moving(credit))
        found = []
        for name, _, op, k in self.uses:
            A = traces[f'A:{name}']
            dy = jnp.einsum(f'{_sample(A, k)}Z,Z{_letters(A)}->{_letters(A)}', lam, A)
            found.append(
                dy
                if op.axes.x is None
                else spread_gradient(op, traces[f'u:{name}'][None], dy[None])
            )
        return self.to_params(found, credit.params)

    def advance(self, traces: Traces, window) -> Traces:
        Phi, dys, xs = self.pulled(window)
        key, use_key = jax.random.split(jax.random.wrap_key_data(traces['key']))
        new: Traces = {'key': jax.random.key_data(key)}
        for i, (name, _, op, k) in enumerate(self.uses):
            A, dy, x = traces[f'A:{name}'], dys[i], xs[i]
            A = jnp.einsum(f'Y{_sample(A, k)}Z,Z{_letters(A)}->Y{_letters(A)}', Phi, A)
            if op.axes.x is None:
                new[f'A:{name}'] = (A + dy.sum(1)).astype(A.dtype)
                continue
            x = jax.vmap(partial(spread, op))(x)
            c = self.draw(jax.random.fold_in(use_key, i), (window.length + 1,), A.dtype)
            u = traces[f'u:{name}']
            p0 = jnp.sqrt((_norm([A]) + self.eps) / (_norm([u]) + self.eps))
            size = lambda a, axis: jnp.sqrt(
                (a**2).sum(axis=tuple(i for i in range(a.ndim) if i != axis))
            )
            p = jnp.sqrt((size(dy, 1) + self.eps) / (size(x, 0) + self.eps))
            new[f'u:{name}'] = (c[0] * p0 * u + jnp.tensordot(c[1:] * p, x, 1)).astype(u.dtype)
            new[f'A:{name}'] = (
                c[0] / p0 * A + jnp.tensordot(c[1:] / p, jnp.moveaxis(dy, 1, 0), 1)
            ).astype(A.dtype)
        return new

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError(
            "KF-RTRL takes its credit inside windows: use vjp_method='multi-step'."
        )


def _letters(A: Any) -> str:
    return ascii_lowercase[: A.ndim - 1]


def _sample(A: Any, axis: int) -> str:
    return '' if axis < 0 else _letters(A)[axis]


def _norm(leaves: Sequence[Any]) -> Any:
    return jnp.sqrt(sum((a**2).sum() for a in leaves))


def as_key(seed: Any) -> Any:
    """A random key from a key, its data, or a number."""
    return (
        seed
        if hasattr(seed, 'dtype') and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
        else jax.random.wrap_key_data(jnp.asarray(seed))
        if jnp.ndim(seed)
        else jax.random.key(seed)
    )
