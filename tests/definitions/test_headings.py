from metier.definitions.text.headings import Section, find_section, first_paragraph, parse_sections, walk_sections

BODY = """Intro

# Title

Text

## Usage ##

```bash
# not a heading
```

### Détails `x`

Usage
-----

More

Last
====
"""


def outline(body: str) -> list[tuple[int, str, str, int, int]]:
    sections = walk_sections(parse_sections(body))
    return [(each.level, each.text, each.slug, each.line, each.end_line) for each in sections]


def find(body: str, name: str) -> Section:
    section = find_section(parse_sections(body), name)
    assert section is not None
    return section


def test_both_kinds_of_headings_form_one_tree() -> None:
    assert outline(BODY) == [
        (1, "Title", "title", 3, 19),
        (2, "Usage", "usage", 7, 14),
        (3, "Détails x", "détails-x", 13, 14),
        (2, "Usage", "usage-1", 15, 19),
        (1, "Last", "last", 20, 21),
    ]
    (title, last) = parse_sections(BODY)
    assert [child.slug for child in title.children] == ["usage", "usage-1"]
    assert last.children == ()


def test_a_section_is_extracted_by_text_and_by_bytes() -> None:
    section = find(BODY, "détails X")

    assert BODY[section.start : section.end] == "### Détails `x`\n\n"
    assert BODY.encode()[section.start_byte : section.end_byte].decode() == "### Détails `x`\n\n"


def test_the_first_section_with_a_heading_or_slug_is_found() -> None:
    assert find(BODY, "usage").line == 7
    assert find(BODY, "## Usage".lstrip("# ")).line == 7
    assert find(BODY, "usage-1").line == 15
    assert find_section(parse_sections(BODY), "nothing") is None


def test_line_numbers_can_refer_to_the_file() -> None:
    assert parse_sections("# A\n", first_line=9)[0].line == 9


def test_code_comments_lists_and_tables_contain_no_headings() -> None:
    body = (
        "~~~\n# a\n```\n# b\n~~~\n\n    # indented\n\n<!--\n# c\n-->\n\n- item\n---\n\n> quote\n---\n\n"
        "| a |\n|---|\n\n#hashtag\n\n````\n```\n# d\n````\n"
    )

    assert outline(body) == []


def test_an_unclosed_fence_extends_to_the_end() -> None:
    assert [text for _, text, *_ in outline("# A\n\n```\n# b\n")] == ["A"]


def test_equal_headings_get_different_slugs_even_if_one_is_numbered() -> None:
    assert [slug for _, _, slug, *_ in outline("# A\n# A-1\n# A\n# A\n")] == ["a", "a-1", "a-2", "a-3"]


def test_links_and_markup_are_removed_from_the_text() -> None:
    assert [text for _, text, *_ in outline("# **Bold** _it_ [link](http://x) `a_b`\n")] == ["Bold it link a_b"]


def test_levels_may_be_skipped() -> None:
    (top,) = parse_sections("# A\n### B\n## C\n")

    assert [child.text for child in top.children] == ["B", "C"]


def test_the_first_paragraph_skips_headings_rules_images_and_code() -> None:
    body = "# T\n\n---\n\n![x](y)\n\n```\ncode\n```\n\nOne\ntwo.\n\nThree\n"

    assert first_paragraph(body) == "One two."
    assert first_paragraph("# Only\n") == "Only"
    assert first_paragraph("Title\n=====\n\n> quoted\n> twice\n") == "quoted twice"
    assert first_paragraph("- one\n- two\n\nThree\n") == "- one - two"
    assert first_paragraph("") == ""


def test_headings_are_those_of_commonmark() -> None:
    body = (
        "# `a*` \\* ![alt](x) &amp;\n\n- item\n\n  # in a list\n\n> # quoted\n\n<pre>\n\n# raw\n</pre>\n\n# _private\n"
    )

    assert [text for _, text, *_ in outline(body)] == ["a* * alt &", "_private"]


def test_lines_end_as_in_commonmark() -> None:
    body = "# A\r\n\x0b\u2028\r# B\r\n"

    assert [(text, line, end) for _, text, _, line, end in outline(body)] == [("A", 1, 2), ("B", 3, 3)]
    assert [body[each.start : each.end] for each in parse_sections(body)] == ["# A\r\n\x0b\u2028\r", "# B\r\n"]


def test_a_lone_surrogate_is_kept() -> None:
    body = "# a [x](\ud800) \udfff\n\n[r]: \ud800\n"

    assert [text for _, text, *_ in outline(body)] == ["a x \udfff"]
    assert find_section(parse_sections(body), "[\ud800](\ud800)") is None
