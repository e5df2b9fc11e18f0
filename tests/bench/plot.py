"""A bar chart as SVG."""

from xml.sax.saxutils import escape

WIDTH, LABEL, ROW = 760, 220, 34
COLOURS = ("#4472a8", "#c8803c")


def bars(rows):
    """`rows` of (name, whole path, driver's share), each as a ratio to ib_ipoib's."""
    top = max([1.0, *(v for row in rows for v in row[1:])]) * 1.1
    height = ROW * len(rows) + 50
    scale = (WIDTH - LABEL - 60) / top
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="10" y="18">Instructions, ib_ipoib = 1: <tspan fill="{COLOURS[0]}">whole path</tspan>, '
             f'<tspan fill="{COLOURS[1]}">driver</tspan></text>']
    for i, (name, *values) in enumerate(rows):
        y = 34 + i * ROW
        parts.append(f'<text x="{LABEL - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        for j, v in enumerate(values):
            parts.append(f'<rect x="{LABEL}" y="{y + 13 * j}" width="{v * scale:.1f}" height="11" fill="{COLOURS[j]}"/>'
                         f'<text x="{LABEL + v * scale + 4:.1f}" y="{y + 13 * j + 10}">{v:.2f}</text>')
    one = LABEL + scale
    parts.append(f'<line x1="{one:.1f}" y1="28" x2="{one:.1f}" y2="{height - 12}" stroke="black"/></svg>')
    return "\n".join(parts) + "\n"
