#!/usr/bin/env python3
"""make screenshots: what docs/pictures/top.svg and page.png show: a job of 8 ranks, two of whose nodes have died, in `radic top` and on the page of `radicd --http`.

usage: screenshots.py PROGRAM OUT

PROGRAM is an MPI program that runs for a minute (.deps/programs/mpich/jacobi with its options, in one word). radic is taken from PATH; needed are chromium (of Debian),
playwright and pyte (of PyPI). What is drawn as top.svg is the buffer of a terminal, cell by cell. Leaves nothing but the two pictures.
"""
import fcntl
import html
import json
import os
import pty
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte
from playwright.sync_api import sync_playwright

COLUMNS, LINES = 100, 30
CELL = (8, 17)
RANKS, NODES, SPARES = 8, 6, 2
VICTIMS = ("n3", "n5")
# Seconds for anything to happen, and from what was done last to the picture.
LIMIT, SETTLED = 60, 3
# A picture is in every clone of the repository.
BYTES = 200 << 10
PALETTE = {"default": "#e6e8ec", "black": "#14161a", "red": "#ff7b72", "green": "#5cc98f", "brown": "#f0ad4e", "blue": "#7aaef7", "magenta": "#ba8fd6",
           "cyan": "#56c8d8", "white": "#e6e8ec", "brightblack": "#8b919b"}


def radic(*words):
    return subprocess.run(["radic", *words], check=True, capture_output=True, text=True, timeout=LIMIT).stdout


def until(what, is_so):
    deadline = time.monotonic() + LIMIT
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"screenshots: {what}: not within {LIMIT} s")
        time.sleep(0.2)


def events():
    return [json.loads(line) for line in radic("events", "--json").splitlines()]


def count(name):
    return sum(event["event"] == name for event in events())


def job():
    found = json.loads(radic("jobs", "--json"))
    return found[0]["job"] if found else None


def through_deaths():
    until("a checkpoint of every rank", lambda: len({e["rank"] for e in events() if e["event"] == "checkpoint"}) == RANKS)
    for victim in VICTIMS:
        before = count("live")
        lost = sum(victim == node["name"] and len(node["ranks"]) for node in json.loads(radic("nodes", "--json")))
        radic("inject", "kill-node", victim)
        until(f"the ranks of {victim} to live", lambda: count("live") == before + lost)
        time.sleep(3)


def top(words, seconds):
    """The screen of `radic top` after so many seconds: a terminal's cells."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("NO_COLOR", None)
        os.execvp("radic", ["radic", "top", *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            stream.feed(os.read(terminal, 65536))
    os.write(terminal, b"q")
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # The other end is closed.
    os.waitpid(pid, 0)
    return screen


def color(name):
    return PALETTE.get(name) or ("#" + name if len(name) == 6 else PALETTE["default"])


def runs(row):
    """Cells in a row that look alike: where they begin, their text, and how they look."""
    found = []
    for column in range(COLUMNS):
        cell = row[column]
        look = (cell.fg, cell.bg, cell.bold, cell.reverse)
        if found and found[-1][2] == look:
            found[-1][1] += cell.data
        else:
            found.append([column, cell.data, look])
    return found


def drawn(screen):
    """The cells of a terminal as SVG."""
    width, height = COLUMNS * CELL[0] + 16, LINES * CELL[1] + 16
    out = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" font-family="monospace" font-size="13">',
           "<title>radic top: a job of 8 ranks, two of whose nodes have died</title>", f'<rect width="{width}" height="{height}" rx="6" fill="{PALETTE["black"]}"/>']
    for line in range(LINES):
        for column, text, (fg, bg, bold, reverse) in runs(screen.buffer[line]):
            ink, ground = color(fg), None if bg == "default" else color(bg)
            if reverse:
                ink, ground = ground or PALETTE["black"], ink
            x, y, long = 8 + column * CELL[0], 8 + line * CELL[1], len(text) * CELL[0]
            if ground:
                out.append(f'<rect x="{x}" y="{y}" width="{long}" height="{CELL[1]}" fill="{ground}"/>')
            if text.strip():
                weight = ' font-weight="bold"' if bold else ""
                place = f'x="{x}" y="{y + 13}" textLength="{long}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
                out.append(f'<text {place} fill="{ink}"{weight}>{html.escape(text)}</text>')
    return "\n".join([*out, "</svg>", ""])


def page():
    """The page as Chromium shows it, once it shows every rank and the bytes between them."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            tab = browser.new_page(viewport={"width": 1180, "height": 1420})
            tab.set_default_timeout(LIMIT * 1000)
            tab.goto(radic("web").split()[1])
            tab.wait_for_function(f"document.querySelectorAll('#ranks tbody tr').length === {RANKS}")
            tab.wait_for_function("document.getElementById('matrix-about').textContent.includes('between')")
            tab.select_option("#span", "60")
            tab.wait_for_timeout(SETTLED * 1000)
            return tab.screenshot()
        finally:
            browser.close()


def main(program, out):
    with tempfile.TemporaryDirectory(prefix="radic-pictures-") as work:
        os.environ["RADIC_CLUSTER"] = os.path.join(work, "cluster")
        radic("cluster", "start", "--nodes", str(NODES), "--spares", str(SPARES), "--slots", "2", "--http")
        try:
            path, *options = shlex.split(program)
            # Under a name that says nothing of this machine.
            os.symlink(os.path.abspath(path), os.path.join(work, "solver"))
            words = ["radic", "run", "-n", str(RANKS), "--ckpt-interval", "4", "--", "./solver", *options]
            running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=work)
            until("a job", job)
            through_deaths()
            picture = drawn(top([job(), "--interval", "1"], 4))
            pixels = page()
            radic("kill", job())
            running.wait(LIMIT)
        finally:
            radic("cluster", "stop")
    for name, data in (("top.svg", picture.encode()), ("page.png", pixels)):
        if len(data) > BYTES:
            sys.exit(f"screenshots: {name} would have {len(data)} bytes; {BYTES} are the most")
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)
        print(f"{os.path.join(out, name)}: {len(data)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
