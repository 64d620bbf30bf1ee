"""Hostile names in a foreign model: markup, templates, CSS, and characters that reorder or hide
text or ring a bell."""

from __future__ import annotations

from collections.abc import Callable

PAYLOADS = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "</style><style>* { display: none }</style>",
    "} main { display: none } /*",
    "<img src=x onerror='window.pwned = 1'>",
    '"><svg onload="window.pwned = 1">',
    "' onmouseover='window.pwned = 1' autofocus onfocus='window.pwned = 1",
    '" style="position: fixed; inset: 0; background: url(http://evil.example/x)',
    "javascript:window.pwned = 1",
    "</td></tr></table></section><h1>owned</h1>",
    "</title><meta http-equiv=refresh content='0; url=http://evil.example'>",
    "<base href=http://evil.example/>",
    "<iframe src=http://evil.example></iframe>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<form action=http://evil.example><input name=x autofocus>",
    "<details open ontoggle='window.pwned = 1'>",
    "<template><img src=x></template>",
    "<!-- ",
    "--> ]]>",
    "{{ 7 * 7 }}{% include 'style.css' %}{# ",
    "${window.pwned = 1} `${1}`",
    "&lt;script&gt; &#60;b&#62; &amp;amp;",
    "\\u003cscript\\u003e \\x3c",
    "\u202egnp.exe\u2066 \u200b\u2028\u2029\ufeff",
    "\x1b[2J\x1b]0;owned\x07\x08\x00\x9b",
    "\ud800 \U000e0041 a\u0301\u0301\u0301\u0301",
    "tab\there\r\nand a line",
    "| a | b |",
    "a\r\n| x |\n| --- |",
    "\\| \\<script>",
    "`code` ``x",
    "[click](http://evil.example) ![x](http://evil.example/p.png)",
    "<http://evil.example> https://evil.example www.evil.example",
    "@everyone #1",
    "a\n# heading\n- item\n\n    code",
    "**bold** __bold__ ~~gone~~ *i* [^1]: note",
    "$x^2$",
    "=cmd|' /C calc'!A0",
    "constructor __proto__ toString",
    "long " + "x" * 3000,
)


def name(number: int) -> str:
    """One of arbitrarily many, all different."""
    return f"{PAYLOADS[number % len(PAYLOADS)]}#{number}"


def renamer(first: int) -> Callable[[str], str]:
    """Gives every name it meets one of these, from number `first` on, and always the same."""
    known: dict[str, str] = {}
    return lambda met: known.setdefault(met, name(first + len(known)))
