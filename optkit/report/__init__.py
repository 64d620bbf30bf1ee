"""Reports: the result object for scripts, the document behind it, and that document for people.

result      optkit.result/v1, what `--json` prints      document    optkit.report/v1, report.json
html        one file for people                         markdown    a few tables for a pull request
fleet       optkit.fleet/v1: several targets and precisions side by side
view, charts, figures: the rows, drawings and units that both writers show
schemas/    JSON schemas of all (draft 2020-12)
"""

from optkit.report.html import to_html
from optkit.report.markdown import to_markdown

__all__ = ["to_html", "to_markdown"]
