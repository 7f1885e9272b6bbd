"""Pages without the console's frame: for users who are not signed in, and for failed requests."""

from html import escape

from starlette.responses import HTMLResponse, Response

from metier.server.problems import ProblemDocument

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Metier</title>
<link rel="icon" href="{base}/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{base}/static/style.css">
<script nonce="{nonce}" src="{base}/static/theme.js"></script>
</head><body class="bare"><p class="brand">{logo}Metier</p><main class="card{kind}"><h1>{title}</h1>
{content}</main></body></html>
"""
_LOGO = (
    '<svg width="22" height="22" viewBox="0 0 22 22" aria-hidden="true" fill="none" stroke="currentColor"'
    ' stroke-width="2" stroke-linecap="round" stroke-linejoin="round"><path d="M3 18V6l8 7 8-7v12"/></svg>'
)
_NOT_PAGES = ("/api/", "/mcp", "/a2a", "/static/", "/.well-known/")


def is_page_request(path: str, accept: str) -> bool:
    """Return whether a browser asked for a page. Programs and scripts get a problem document instead."""
    return "text/html" in accept and not path.startswith(_NOT_PAGES)


def render_plain_page(
    title: str, content: str, *, nonce: str, base: str, status: int = 200, is_wide: bool = False
) -> Response:
    """Render a page. `content` is trusted HTML; `base` is the root path of the server."""
    page = _PAGE.format(
        title=escape(title),
        content=content,
        nonce=nonce,
        base=escape(base),
        logo=_LOGO,
        kind=" wide" if is_wide else "",
    )
    return HTMLResponse(page, status_code=status)


def render_problem_page(problem: ProblemDocument, *, nonce: str, base: str, headers: dict[str, str]) -> Response:
    """Render a failed request as a page."""
    hint = f"<p>{escape(problem.hint)}</p>\n" if problem.hint else ""
    link = f'<p><a href="{escape(base)}/">Go to the console</a></p>\n'
    small = f"<p><small>{problem.status}, {escape(problem.code)}</small></p>"
    answer = render_plain_page(problem.detail, f"{hint}{link}{small}", nonce=nonce, base=base, status=problem.status)
    answer.headers.update(headers)
    return answer
