"""The console's files, read once, and the headers they leave with. Knows no service."""

from pathlib import Path

from ... import traces

_STATIC = Path(__file__).with_name("static")
_TRACE_STYLE = Path(traces.__file__).with_name("page.css")  # colours and layer map are those of the trace page
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

PAGE = (_STATIC / "index.html").read_bytes()
FILES = {
    path.name: (path.read_bytes(), _KINDS[path.suffix])
    for path in (*_STATIC.iterdir(), _TRACE_STYLE)
    if path.suffix in _KINDS
}
PATHS = frozenset({"/console", "/console/", *(f"/console/{name}" for name in FILES)})  # need no key
_POLICY = (
    "default-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "object-src 'none'",
    "require-trusted-types-for 'script'",  # text never becomes markup: the browser itself refuses it
)
HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
