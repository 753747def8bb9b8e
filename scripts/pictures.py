#!/usr/bin/env python3
"""Draws the pictures of docs/pictures: for each NAME.txt, which describes who says what to whom, NAME.svg beside it.

usage: pictures.py FILE.txt ...
example: pictures.py docs/pictures/*.txt

A description is lines of:
  title TEXT            the heading, first
  lane NAME TEXT        a column, from left to right, as many as there are; "|" in its text begins a new line
  band TEXT             a heading across all columns
  at NAME TEXT          a box in a column: what happens there
  FROM -> TO TEXT       an arrow: a message, a call or its return
  FROM => TO TEXT       a thick arrow: many bytes
Empty lines and lines that begin with "#" say nothing.

The description stands in the picture as a comment, so a test can see whether the one was made from the other.
"""
import html
import pathlib
import sys
import textwrap

LANE, MARGIN, FONT, LINE = 208, 16, 12.5, 16
CHARACTER = 0.58 * FONT  # The mean width of a character of a wide font, in the units of the picture.
INK, QUIET, BOX, BAND, PAPER = "#1b2733", "#8a97a5", "#eef4fb", "#2f5d8a", "#ffffff"


class Wrong(Exception):
    """A description that says nothing that can be drawn."""


def read(text, name):
    """The title, the lanes (name, text) and the steps of a description."""
    title, lanes, steps = "", [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        rest = line.strip()[len(words[0]):].strip()
        if words[0] == "title":
            title = rest
        elif words[0] == "lane" and len(words) > 2:
            lanes.append((words[1], rest[len(words[1]):].strip()))
        elif words[0] == "band":
            steps.append(("band", None, None, rest))
        elif words[0] == "at" and len(words) > 2:
            steps.append(("at", words[1], None, rest[len(words[1]):].strip()))
        elif len(words) > 3 and words[1] in ("->", "=>"):
            steps.append((words[1], words[0], words[2], line.split(words[1], 1)[1].strip()[len(words[2]):].strip()))
        else:
            raise Wrong(f"{name}:{number}: not understood: {line.strip()!r}; pictures.py --help shows what a line may be")
    known = [lane for lane, _ in lanes]
    for kind, one, other, what in steps:
        for lane in (one, other):
            if lane is not None and lane not in known:
                raise Wrong(f"{name}: {what!r} is about {lane!r}, which is none of the lanes: {', '.join(known)}")
    if not lanes or not title:
        raise Wrong(f"{name}: it has no title, or no lane")
    return title, lanes, steps


class Picture:
    """What is drawn so far, from top to bottom."""

    def __init__(self, lanes):
        self.lanes = [name for name, _ in lanes]
        self.width = LANE * len(lanes) + 2 * MARGIN
        self.marks, self.y = [], 0

    def middle(self, lane):
        return MARGIN + LANE * (self.lanes.index(lane) + 0.5)

    def text(self, x, y, text, **style):
        style = {"fill": INK, "text-anchor": "middle", **{name.replace("_", "-"): value for name, value in style.items()}}
        attributes = " ".join(f'{name}="{value}"' for name, value in style.items())
        self.marks.append(f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(text)}</text>')

    def lines(self, text, room):
        return textwrap.wrap(text, max(8, int(room / CHARACTER)), break_long_words=False, break_on_hyphens=False)

    def rect(self, x, y, width, height, fill, stroke="none"):
        self.marks.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}" stroke="{stroke}"/>')

    def heading(self, title, lanes):
        self.text(MARGIN, 28, title, text_anchor="start", font_size="17", font_weight="bold")
        top = 42
        most = max(text.count("|") for _, text in lanes) + 1
        for name, text in lanes:
            self.rect(self.middle(name) - LANE / 2 + 6, top, LANE - 12, most * LINE + 12, BOX, QUIET)
            for at, part in enumerate(text.split("|")):
                self.text(self.middle(name), top + LINE * (at + 1) + 2, part.strip(), font_weight="bold" if at == 0 else "normal")
        self.y = self.top = top + most * LINE + 12

    def band(self, text):
        self.y += 14
        self.rect(MARGIN, self.y, self.width - 2 * MARGIN, 22, BAND)
        self.text(MARGIN + 10, self.y + 15.5, text, fill=PAPER, text_anchor="start", font_weight="bold")
        self.y += 26

    def at(self, lane, text):
        lines = self.lines(text, LANE - 32)
        height = len(lines) * LINE + 10
        self.y += 8
        self.rect(self.middle(lane) - LANE / 2 + 8, self.y, LANE - 16, height, BOX, QUIET)
        for at, line in enumerate(lines):
            self.text(self.middle(lane), self.y + LINE * (at + 1), line)
        self.y += height

    def arrow(self, one, other, text, thick):
        start, end = self.middle(one), self.middle(other)
        room = abs(end - start) - 26
        lines = self.lines(text, room)
        self.y += 8
        height = len(lines) * LINE
        self.rect((start + end) / 2 - room / 2, self.y, room, height, PAPER)
        for at, line in enumerate(lines):
            self.text((start + end) / 2, self.y + LINE * (at + 1) - 4, line)
        self.y += height + 4
        inward = 5 if start < end else -5
        self.marks.append(
            f'<line x1="{start:.1f}" y1="{self.y:.1f}" x2="{end - inward:.1f}" y2="{self.y:.1f}" stroke="{BAND}" '
            f'stroke-width="{4 if thick else 1.6}" marker-end="url(#head{"-thick" if thick else ""})"/>'
        )
        self.y += 6

    def svg(self, description):
        height = self.y + 20
        rails = "".join(
            f'<line x1="{self.middle(lane):.1f}" y1="{self.top:.1f}" x2="{self.middle(lane):.1f}" y2="{height - 10:.1f}" '
            f'stroke="{QUIET}" stroke-dasharray="3 4"/>\n'
            for lane in self.lanes
        )
        def head(name, size):
            return (
                f'<marker id="{name}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="{size}" markerHeight="{size}" orient="auto">'
                f'<path d="M0 0 L10 5 L0 10 z" fill="{BAND}"/></marker>'
            )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:.0f}" width="{self.width}" height="{height:.0f}" '
            f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="{FONT}">\n'
            f"<!-- made by scripts/pictures.py from:\n{description}-->\n"
            f'<defs>{head("head", 7)}{head("head-thick", 4)}</defs>\n'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + rails + "\n".join(self.marks) + "\n</svg>\n"
        )


def draw(path):
    description = path.read_text(encoding="utf-8")
    if "--" in description:
        raise Wrong(f'{path}: "--" cannot stand in the comment of a picture: write the flag or the dash in another way')
    title, lanes, steps = read(description, path)
    picture = Picture(lanes)
    picture.heading(title, lanes)
    for kind, one, other, text in steps:
        if kind == "band":
            picture.band(text)
        elif kind == "at":
            picture.at(one, text)
        else:
            picture.arrow(one, other, text, kind == "=>")
    path.with_suffix(".svg").write_text(picture.svg(description), encoding="utf-8")


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    try:
        for argument in arguments:
            draw(pathlib.Path(argument))
    except (Wrong, OSError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
