"""Markdown as its reader sees it: for tests that no name becomes more than a name."""

from html.parser import HTMLParser

from markdown_it import MarkdownIt

# The tags that a summary is made of.
OURS = frozenset(
    "h2 h3 p ul li strong code pre span br details summary table thead tbody tr th td".split()  # noqa: SIM905
)


class Page(HTMLParser):
    """What a reader of the Markdown sees: text and tags."""

    def __init__(self, markdown: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.cells: list[int] = []
        reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.feed(reader.render(markdown))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.cells.append(0)
        if tag in {"td", "th"}:
            self.cells[-1] += 1

    def handle_data(self, data):
        self.text += data
