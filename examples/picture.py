"""The pictures that the examples write: a title that says what one sees, and quiet axes."""

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = '#0072b2', '#d55e00', '#009e73', '#6b7280'


def panels(title, *widths):
    """A figure with this title and panels of these relative widths beside each other."""
    figure = Figure(figsize=(10, 4), layout='constrained')
    figure.suptitle(title, x=0.01, ha='left', fontweight='bold')
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for one in axes:
        one.spines[['top', 'right']].set_visible(False)
        one.grid(True, color='#e5e7eb')
        one.set_axisbelow(True)
    return figure, axes


def level(axes, value, text):
    """A dotted line at a value that is known without learning, and what it is."""
    axes.axhline(value, color=GREY, linestyle=':')
    axes.annotate(
        text, (1, value), (0, 3), xycoords=('axes fraction', 'data'),
        textcoords='offset points', ha='right', fontsize=8, color=GREY,
    )  # fmt: skip


def save(figure, file):
    """Write a figure, and say so; nothing if there is no name."""
    if file:
        figure.savefig(file, dpi=120)
        print(f'The picture is in {file}.')
