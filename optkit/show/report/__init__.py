"""Reports: the result object for scripts, the document behind it, and that document for people.

result      optkit.result/v1, what `--json` prints      document    optkit.report/v1, report.json
html        one file for people                         markdown    a few tables for a pull request
fleet       optkit.fleet/v1: several targets and precisions side by side
search      the page of optkit.tune/v1                  plan_page   that of optkit.plan/v1
diff        the page of optkit.diff/v1                  explanation that of optkit.explain/v1
head        what a notebook shows of an artifact, a fleet or a search
junit       one test case per gate                      drawing/    every drawing, as SVG
view, layers, details, figures: the rows and units that they show
contract    what another machine may have written, checked against `documents/`
"""
