"""A browser without JavaScript that follows forms and links of the console over real sockets."""

import re
from html import unescape
from html.parser import HTMLParser

import httpx2
from running_server import RunningServer


class _Fields(HTMLParser):
    """A parser of hidden fields, text areas and inputs of the form with an action."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action
        self.fields: dict[str, str] = {}
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.is_inside = found.get("action") == self.action
        elif self.is_inside and tag == "input" and found.get("type") == "hidden":
            self.fields[found["name"]] = found.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.is_inside = False


class ConsoleClient:
    def __init__(self, server: RunningServer, *, token: str = "") -> None:
        """Sign in as the owner of the server, or as the user of a token."""
        self.http: httpx2.Client = server.client("") if token else server.sign_in()
        if token:
            assert self.http.post("/login", data={"token": token}).status_code == 303
        self.page = ""
        self.status = 0

    def open(self, path: str) -> str:
        """Open a page and return its text."""
        answer = self.http.get(path, headers={"accept": "text/html"})
        self.page, self.status = answer.text, answer.status_code
        return self.page

    def submit(self, action: str, **values: str) -> str:
        """Submit the form of the last page and follow the redirect."""
        fields = _Fields(action)
        fields.feed(self.page)
        assert fields.fields.get("csrf_token"), f"the page has no form {action}"
        answer = self.http.post(action, data={**fields.fields, **values}, headers={"accept": "text/html"})
        if answer.status_code == 303:
            return self.open(answer.headers["location"])
        self.page, self.status = answer.text, answer.status_code
        return self.page

    def close(self) -> None:
        self.http.close()

    def words(self) -> str:
        """Return the visible text without markup."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.page)).split())
