"""A small catalog for routing tests with more than the usual eight candidates."""

import pytest

from metier.routing.skill import RoutableSkill


def skill(name: str, description: str = "", *, tags: tuple[str, ...] = (), body: str = "") -> RoutableSkill:
    return RoutableSkill(id=name, name=name, description=description, tags=tags, body=body)


@pytest.fixture(scope="session")
def twelve() -> tuple[RoutableSkill, ...]:
    return TWELVE


TWELVE = (
    skill("pdf-tables", "Extract tables and text from PDF files and scanned invoices.", tags=("pdf", "ocr")),
    skill("code-review", "Review a pull request for bugs, naming and missing tests."),
    skill("release-notes", "Write release notes and a changelog from git history."),
    skill("kubernetes-deploy", "Deploy services to a Kubernetes cluster with Helm charts and rollbacks."),
    skill("sql-tuning", "Find slow database queries, read the query plan and add an index.", tags=("postgres",)),
    skill("translate", "Translate documents between languages and keep the formatting."),
    skill("weather", "Forecast of temperature and rain for a city."),
    skill("image", "Generate, crop and resize images and banners."),
    skill("meeting-minutes", "Turn a transcript of a meeting into minutes with decisions and owners."),
    skill("résumé", "Improve a curriculum vitae; suggest a café for the interview."),
    skill("документы", "Проверка договоров и юридических документов на русском языке."),
    skill("予約", "レストランの予約を管理し、空席を確認する。"),
)
