"""The demo: its data, its floors, its table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from braintrace.tools.demo import demo, floors, stretch, table
from braintrace.tools.demo_picture import Curve, picture


def test_the_stream():
    x, y, past = stretch(jax.random.key(0), jnp.zeros((10, 500)), 100)
    first, second, label = np.asarray(x[5:95, :, 0]), np.asarray(x[:90, :, 0]), np.asarray(y[10:])
    for a in (0, 1):
        for b in (0, 1):
            assert (
                abs(label[(first == a) & (second == b)].mean() - (0.5 + 0.5 * a - 0.25 * b)) < 0.02
            )
    np.testing.assert_array_equal(past, x[-10:, :, 0])
    np.testing.assert_allclose(list(floors().values()), [0.6616, 0.5192, 0.4545], atol=1e-4)


@pytest.mark.long
def test_demo(tmp_path, capsys):
    results = demo(
        steps=60, units=4, streams=3, chunk=20, plot=tmp_path / 'curves.png', progress=False
    )
    assert [r.rule for r in results] == ['d_rtrl', 'pp_prop', 'rtrl', 'bptt']
    for r in results:
        assert np.isfinite(r.losses).all() and len(r.losses) == 3 and r.speed > 0
    exact, _, full, truncated = results
    np.testing.assert_allclose(exact.losses, full.losses, atol=1e-4)
    assert abs(full.cosine - 1) < 1e-5 > abs(exact.cosine - 1) and truncated.cosine < 0.999
    assert exact.trace_bytes < full.trace_bytes and truncated.trace_bytes == 0
    assert table(results) in capsys.readouterr().out and 'truncated BPTT' in table(results)
    assert (tmp_path / 'curves.png').stat().st_size > 1000


def test_the_picture_tells_when_a_floor_was_reached(tmp_path):
    falling = Curve('D_RTRL', np.linspace(0.66, 0.46, 60), 100)
    high = Curve('truncated BPTT, 1 step', np.full(60, 0.6), 100)
    first, second = list(floors().values())[1:]
    steps, loss = falling.smooth
    at = falling.reached(first)
    k = list(steps).index(at)
    assert loss[k] < first + 0.01 <= loss[k - 1]
    assert at < falling.reached(second) and high.reached(first) is None
    figure = picture([falling, high], tmp_path / 'demo.png')
    told = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {f'{at:,}', 'never', 'D_RTRL'} <= told and any(
        'nothing can do better' in t for t in told
    )
