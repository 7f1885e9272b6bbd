"""A page without the console around it: for people who are not signed in, and for requests that no page answers."""

from html import escape

from starlette.responses import HTMLResponse, Response

from metier.server.problems import ProblemDocument

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Metier</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }}
label, input, button {{ display: block; width: 100%; box-sizing: border-box; font: inherit }}
input, button {{ margin: .5rem 0 1rem; padding: .6rem; min-height: 2.75rem }}
.wrong {{ color: #b00020 }} @media (prefers-color-scheme: dark) {{ .wrong {{ color: #ff8a80 }} }}
</style></head><body><main><h1>{title}</h1>
{content}</main></body></html>
"""
_MACHINES = ("/api/", "/mcp", "/a2a", "/static/", "/.well-known/")


def is_for_person(path: str, accept: str) -> bool:
    """A browser asked for a page. Programs, and the scripts of a page, are answered with a problem document."""
    return "text/html" in accept and not path.startswith(_MACHINES)


def render_plain_page(title: str, content: str, *, nonce: str, status: int = 200) -> Response:
    """`content` is HTML of ours."""
    return HTMLResponse(_PAGE.format(title=escape(title), content=content, nonce=nonce), status_code=status)


def render_problem_page(problem: ProblemDocument, *, nonce: str, base: str, headers: dict[str, str]) -> Response:
    """For a person whose request reached no page."""
    hint = f"<p>{escape(problem.hint)}</p>\n" if problem.hint else ""
    link = f'<p><a href="{escape(base)}/">Go to the console</a></p>\n'
    small = f"<p><small>{problem.status}, {escape(problem.code)}</small></p>"
    answer = render_plain_page(problem.detail, f"{hint}{link}{small}", nonce=nonce, status=problem.status)
    answer.headers.update(headers)
    return answer
