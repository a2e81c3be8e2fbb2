"""The documentation is complete: a section for every rule, an entry for every public name. Its
snippets run as doctests."""

import pathlib
import re

import jax
from told import LOST

import braintrace
from braintrace.rules.registry import BY_NAME

DOCS = pathlib.Path(__file__).parent.parent / 'docs'


def test_every_rule_has_a_section():
    pages = [p.read_text() for p in (DOCS / 'rules').glob('*.md')]
    for name in BY_NAME:
        [page] = [text for text in pages if f"\n(rule-{name})=\n## `'{name}'`" in text]
        section = page.split(f'(rule-{name})=')[1].split('(rule-')[0]
        assert all(word in section for word in ('**Exact**', '**Options', '**Reference')), name
        for option in BY_NAME[name].options:
            assert f'`{option}`' in page, f'{name}: option {option} is not described'


def test_every_public_name_has_an_entry():
    entries = re.findall(r'^\.\. auto\w+:: (\w+)$', (DOCS / 'api.md').read_text(), re.M)
    assert sorted(entries) == sorted(braintrace.__all__)


def test_every_public_member_has_a_docstring():
    for name in braintrace.__all__:
        cls = getattr(braintrace, name)
        own = [
            k
            for c in getattr(cls, '__mro__', [])[:-1]
            if c.__module__.startswith('braintrace')
            for k in vars(c)
            if k[0] != '_'
        ]
        bare = [
            k
            for k in own
            if (callable(getattr(cls, k)) or isinstance(getattr(cls, k), property))
            and not getattr(cls, k).__doc__
        ]
        assert cls.__doc__ and not bare, f'{name}: {bare}'


def test_every_page_is_in_a_toctree():
    for index in DOCS.rglob('index.md'):
        listed = set(
            re.findall(
                r'^[\w/]+$',
                ''.join(re.findall(r'```\{toctree\}(.*?)```', index.read_text(), re.S)),
                re.M,
            )
        )
        there = {
            str(p.relative_to(index.parent).with_suffix(''))
            for p in [*index.parent.glob('*.md'), *index.parent.glob('*/index.md')]
        } - {'index'}
        assert listed == there, index


@LOST
def test_the_picture_of_a_gru_is_what_its_page_draws():
    block = re.search(r'```python\n(.*?)```', (DOCS / 'pictures.md').read_text(), re.S)[1]
    lines = [line[4:] for line in block.splitlines() if line[:4] in ('>>> ', '... ')]
    made, double = {}, jax.config.jax_enable_x64
    jax.config.update('jax_enable_x64', False)
    try:
        exec(compile('\n'.join(lines[:-1]), 'cell.py', 'exec'), made)  # all but the saving
        drawn = made['learner'].report.draw().svg()
    finally:
        jax.config.update('jax_enable_x64', double)
    assert drawn == (DOCS / 'pictures' / 'gru.svg').read_text(), 'write `drawn` there'
