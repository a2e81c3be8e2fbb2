"""Statements with several results: loops, branches, functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Sequence

from .control import Branches, Loop, While, WithDerivative
from .lines import targets, tuple_of
from .terms import Node
from .words import call
from .write import Scope, statement


def _unpacked(*parts: tuple[int, str]) -> list[str]:
    """Lines that take the arguments of a function apart, with room for their names."""
    return [f'{targets(["{}"] * n)} = {what}' for n, what in parts if n]


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
    unpack = _unpacked((m, 'carry'), (len(xs), 'xs'))
    scope.function(name, 'carry, xs', loop.body, unpack, lambda outs: _pair(outs, m))
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
    unpack = _unpacked((len(start), 'carry'))
    scope.function(going_on, 'carry', loop.going_on, unpack, lambda outs: outs[0])
    scope.function(body, 'carry', loop.body, unpack, tuple_of)
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
        scope.function(name, '', block, [], tuple_of)
    choice = scope.exact(which)
    if scope.file.words.is_numpy:
        text = f'{names[0]}() if {choice} else {names[1]}()'
        if not branches.by_truth:
            last = len(names) - 1
            text = f'[{", ".join(names)}][min(max({choice}, 0), {last})]()'
    elif branches.by_truth:
        text = call('jax.lax.cond', choice, *names).text
    else:
        text = call('jax.lax.switch', choice, f'[{", ".join(names)}]').text
    scope.line(f'{targets(left)} = ', text)


@statement('custom')
def _custom(scope: Scope, node: Node, info: WithDerivative, left: list[str]) -> None:
    scope.file.words.only_jax('a derivative of its own')
    f = scope.names.new('f')
    given = [scope.exact(v) for v in node.args]
    n, m = len(info.f.args), len(info.f.outs)

    def pair(outs: list[str]) -> str:
        return _pair(outs, m)

    scope.lines.append('@jax.custom_vjp' if info.back else '@jax.custom_jvp')
    scope.function(f, '', info.f, [], tuple_of)
    if info.back is None:
        scope.lines.append(f'@{f}.defjvp')
        unpack = _unpacked((n, 'primals'), (n, 'tangents'))
        scope.function(f'{f}_jvp', 'primals, tangents', info.forward, unpack, pair)
    else:
        scope.function(f'{f}_forward', '', info.forward, [], pair)
        unpack = _unpacked((len(info.back.args) - m, 'kept'), (m, 'credit'))
        scope.function(f'{f}_back', 'kept, credit', info.back, unpack, tuple_of)
        scope.lines.append(f'{f}.defvjp({f}_forward, {f}_back)')
    scope.line(f'{targets(left)} = ', call(f, *given).text)
