"""Statements with several results: loops, branches, functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Sequence

from .control import Branches, Loop, While, WithDerivative
from .lines import targets, tuple_of
from .views import Node
from .words import call
from .write import Scope, statement


def _pair(outs: Sequence[str], first: int) -> str:
    """Two tuples."""
    return f'{tuple_of(outs[:first])}, {tuple_of(outs[first:])}'


@statement('scan')
def _scan(scope: Scope, node: Node, loop: Loop, left: list[str]) -> None:
    words, m = scope.file.words, loop.carry
    for v in node.args[: loop.consts]:
        scope.give_name(v.node)
    given = [scope.exact(v) for v in node.args[loop.consts :]]
    start, xs = given[:m], given[m:]
    name = scope.names.new('body')
    packed = ('carry', m), ('xs', len(xs))
    scope.function(name, loop.body, lambda outs: _pair(outs, m), packed)
    f = words.helper('scan') if words.is_numpy else 'jax.lax.scan'
    more = [str(loop.length)] if words.is_numpy or not xs else []
    more += ['reverse=True'] if loop.reverse else []
    called = call(f, name, tuple_of(start), tuple_of(xs), *more)
    scope.line(f'{_pair(left, m)} = ', called.text)


@statement('while')
def _while(scope: Scope, node: Node, loop: While, left: list[str]) -> None:
    for v in node.args[: loop.consts]:
        scope.give_name(v.node)
    start = [scope.exact(v) for v in node.args[loop.consts :]]
    going_on, body = scope.names.new('going_on'), scope.names.new('body')
    packed = [('carry', len(start))]
    scope.function(going_on, loop.going_on, lambda outs: outs[0], packed)
    scope.function(body, loop.body, tuple_of, packed)
    words = scope.file.words
    f = words.helper('while_loop') if words.is_numpy else 'jax.lax.while_loop'
    scope.line(f'{targets(left)} = ', call(f, going_on, body, tuple_of(start)).text)


@statement('cond')
def _cond(scope: Scope, node: Node, branches: Branches, left: list[str]) -> None:
    which, *outer = node.args
    for v in outer:
        scope.give_name(v.node)
    wanted = ('yes', 'no') if branches.by_truth else ('case',) * len(branches.blocks)
    names = [scope.names.new(name) for name in wanted]
    for name, block in zip(names, branches.blocks, strict=True):
        scope.function(name, block, tuple_of)
    choose = _choice_by_truth if branches.by_truth else _choice_by_number
    text = choose(scope.exact(which), names, scope.file.words.is_numpy)
    scope.line(f'{targets(left)} = ', text)


def _choice_by_truth(truth: str, names: Sequence[str], by_numpy: bool) -> str:
    yes, no = names
    return f'{yes}() if {truth} else {no}()' if by_numpy else f'jax.lax.cond({truth}, {yes}, {no})'


def _choice_by_number(number: str, names: Sequence[str], by_numpy: bool) -> str:
    cases = f'[{", ".join(names)}]'
    if by_numpy:
        return f'{cases}[min(max({number}, 0), {len(names) - 1})]()'
    return f'jax.lax.switch({number}, {cases})'


@statement('custom')
def _custom(scope: Scope, node: Node, info: WithDerivative, left: list[str]) -> None:
    scope.file.words.only_jax('a derivative of its own')
    f = scope.names.new('f')
    given = [scope.exact(v) for v in node.args]
    n, m = len(info.f.args), len(info.f.outs)

    def pair(outs: list[str]) -> str:
        return _pair(outs, m)

    scope.lines.append('@jax.custom_vjp' if info.back else '@jax.custom_jvp')
    scope.function(f, info.f, tuple_of)
    if info.back is None:
        scope.lines.append(f'@{f}.defjvp')
        packed = ('primals', n), ('tangents', n)
        scope.function(f'{f}_jvp', info.forward, pair, packed)
    else:
        scope.function(f'{f}_forward', info.forward, pair)
        packed = ('kept', len(info.back.args) - m), ('credit', m)
        scope.function(f'{f}_back', info.back, tuple_of, packed)
        scope.lines.append(f'{f}.defvjp({f}_forward, {f}_back)')
    scope.line(f'{targets(left)} = ', call(f, *given).text)
