"""A plan as one HTML page, or only its roofline. It shows an object of optkit.plan/v1 with at least
one row of figures (documents/plan.py)."""

from __future__ import annotations

from optkit.documents.plan import Plan
from optkit.report.drawing.roofline import roofline
from optkit.report.html import render, render_alone


def to_html(plan: Plan) -> str:
    return render("plan.html", plan=plan, chart=roofline(plan))


def to_svg(plan: Plan) -> str:
    return render_alone("roofline", roofline(plan), width=900, height=534)
