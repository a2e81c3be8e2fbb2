import jax
import pytest

jax.config.update('jax_enable_x64', True)


@pytest.fixture(autouse=True)
def _double_precision():
    """The oracle works in float64; a test may leave another setting behind."""
    yield
    jax.config.update('jax_enable_x64', True)
