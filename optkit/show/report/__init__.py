"""Reports: the result object for scripts, the document behind it, and that document for people.

build_result          optkit.result/v1, what `--json` prints
document              optkit.report/v1, report.json
recommendation_rules  the sentence about one build: ship it or not, and why
recommended_choice    that about several builds, or about the rows of a plan
worth                 what a build gains, in words
gate_reasons          why a gate fails or is undecided, in words
build_page            report.html                     fleet_page        several builds side by side
search_page           the page of optkit.tune/v1      plan_page         that of optkit.plan/v1
diff_page             the page of optkit.diff/v1      explanation_page  that of optkit.explain/v1
markdown              a few tables for a pull request
junit                 one test case per gate
evidence_look         the mark and the colour of each evidence
head                  what a notebook shows of an artifact, a fleet or a search
drawing               every drawing, as SVG
view, layers, details, figures: the rows and units that they show
contract              what another machine may have written, checked against the documents
"""
