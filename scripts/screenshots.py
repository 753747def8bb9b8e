#!/usr/bin/env python3
"""make screenshots: a job of 8 ranks, two of whose nodes die, and which is suspended and resumed, in `radic top` and on the page of `radicd --http`, light and dark, also
as a phone shows it.

usage: screenshots.py PROGRAM OUT

PROGRAM is an MPI program that runs for a minute (.deps/programs/mpich/jacobi with its options, in one word). radic is taken from PATH; needed are chromium (of Debian),
playwright, pyte and pillow (of PyPI; docs/watching.md says how). `radic top` and the page are opened once, before anything happens, and must show each step by themselves:
else this fails. So it does if the page is wider than a phone's screen. What is drawn of `radic top` is the buffer of a terminal, cell by cell. Leaves nothing but the
pictures.
"""
import fcntl
import html
import io
import json
import os
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import pyte
from PIL import Image
from playwright.sync_api import sync_playwright

COLUMNS, LINES = 100, 30
CELL = (8, 17)
RANKS, NODES, SPARES = 8, 6, 2
VICTIMS = ("n3", "n5")
SUSPENDED = "suspended"
# Width of a small phone's screen.
PHONE = 375
# Seconds for anything to happen, and from what was done last to the picture.
LIMIT, SETTLED = 60, 3
# A picture is in every clone of the repository.
BYTES = 200 << 10
COLORS = 256
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


class Top:
    """`radic top` in a terminal: a process, and the terminal's cells as they are now."""

    def __init__(self, *words):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.environ.pop("NO_COLOR", None)
            os.execvp("radic", ["radic", "top", *words])
        self.pid = pid
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.kill(pid, signal.SIGWINCH)
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.lock = threading.Lock()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        stream = pyte.ByteStream(self.screen)
        try:
            while said := os.read(self.terminal, 65536):
                with self.lock:
                    stream.feed(said)
        except OSError:
            pass  # The other end is closed.

    def press(self, keys):
        os.write(self.terminal, keys)

    def shows(self, *texts):
        with self.lock:
            shown = "\n".join(self.screen.display)
        return all(text in shown for text in texts)

    def drawn(self, title):
        with self.lock:
            return drawn(self.screen, title)

    def leave(self):
        self.press(b"q")
        os.waitpid(self.pid, 0)
        self.reader.join(LIMIT)


class Page:
    """A tab of Chromium with the page, opened once. The page's policy allows no script but its own. Chromium does not keep it here, because scripts ask for what is waited for."""

    def __init__(self, browser, address, width, height, **options):
        self.tab = browser.new_context(viewport={"width": width, "height": height}, bypass_csp=True, **options).new_page()
        self.tab.set_default_timeout(LIMIT * 1000)
        self.tab.goto(address)
        self.tab.evaluate("window.opened = 1")
        self.tab.select_option("#span", "60")

    def until(self, text):
        """Until it is shown, by the page that was opened once."""
        self.tab.wait_for_function("text => window.opened === 1 && document.body.innerText.includes(text)", arg=text)

    def until_ranks(self, count):
        self.tab.wait_for_function(f"document.querySelectorAll('#ranks tbody tr').length === {count}")
        self.tab.wait_for_function("document.getElementById('matrix-about').textContent.includes('between')")

    def check_width(self, width):
        wide = self.tab.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        if wide > width:
            sys.exit(f"screenshots: the page is {wide} pixels wide on a screen of {width}")

    def picture(self, whole=False, scheme="light"):
        """As PNG with a palette, in which each colour of a bar has its place: it is in every clone of the repository."""
        self.tab.emulate_media(color_scheme=scheme)
        # The page draws anew in the next frame.
        self.tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shot = Image.open(io.BytesIO(self.tab.screenshot(full_page=whole))).convert("RGB")
        out = io.BytesIO()
        shot.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        return out.getvalue()


def through_deaths(shown):
    """Each death, until all that is open shows that the ranks live again."""
    until("a checkpoint of every rank", lambda: len({e["rank"] for e in events() if e["event"] == "checkpoint"}) == RANKS)
    for gone, victim in enumerate(VICTIMS, 1):
        before = count("live")
        lost = sum(victim == node["name"] and len(node["ranks"]) for node in json.loads(radic("nodes", "--json")))
        radic("inject", "kill-node", victim)
        until(f"the ranks of {victim} to live", lambda: count("live") == before + lost)
        shown(f"{NODES + SPARES - gone} of {NODES + SPARES} nodes alive")


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


def drawn(screen, title):
    """The cells of a terminal as SVG."""
    width, height = COLUMNS * CELL[0] + 16, LINES * CELL[1] + 16
    out = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" font-family="monospace" font-size="13">',
           f"<title>radic top: {title}</title>", f'<rect width="{width}" height="{height}" rx="6" fill="{PALETTE["black"]}"/>']
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


def take(browser, running):
    """All pictures, by their names."""
    address, this = radic("web").split()[1], job()
    top = Top(this, "--interval", "0.5")
    page = Page(browser, address, 1180, 1420)
    phone = Page(browser, address, PHONE, 812, is_mobile=True, has_touch=True, device_scale_factor=1)
    pictures = {}

    def shown(text):
        until(f"{text!r} in radic top", lambda: top.shows(text))
        page.until(text)
        phone.until(text)

    def running_now(jobs):
        until(f"{jobs} in radic top", lambda: top.shows(f"jobs running: {jobs}"))
        page.until(f"{jobs} job running" if jobs == 1 else f"{jobs} jobs running")

    try:
        shown(f"{NODES + SPARES} of {NODES + SPARES} nodes alive")
        through_deaths(shown)
        until("ranks that are safe again", lambda: count("re-protected") >= len(VICTIMS))
        page.until_ranks(RANKS)
        page.tab.wait_for_timeout(SETTLED * 1000)
        pictures["top.svg"] = top.drawn("a job of 8 ranks, two of whose nodes have died").encode()
        pictures["page.png"] = page.picture()
        pictures["page-dark.png"] = page.picture(scheme="dark")
        phone.check_width(PHONE)
        pictures["phone.png"] = phone.picture(whole=True)
        pictures["phone-dark.png"] = phone.picture(whole=True, scheme="dark")
        radic("suspend", this, SUSPENDED)
        running.wait(LIMIT)
        top.press(b"\x1b")
        shown("suspended")
        running_now(0)
        pictures["top-suspended.svg"] = top.drawn("the job is suspended").encode()
        pictures["page-suspended.png"] = page.picture()
        phone.check_width(PHONE)
        again = subprocess.Popen(["radic", "resume", SUSPENDED], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running_now(1)
        page.until_ranks(RANKS)
        radic("kill", job())
        again.wait(LIMIT)
    finally:
        top.leave()
    return pictures


def main(program, out):
    with tempfile.TemporaryDirectory(prefix="radic-pictures-") as work, sync_playwright() as browsers:
        os.environ["RADIC_CLUSTER"] = os.path.join(work, "cluster")
        os.chdir(work)
        radic("cluster", "start", "--nodes", str(NODES), "--spares", str(SPARES), "--slots", "2", "--http")
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            path, *options = shlex.split(program)
            # Under a name that says nothing of this machine.
            os.symlink(path, "solver")
            words = ["radic", "run", "-n", str(RANKS), "--ckpt-interval", "4", "--", "./solver", *options]
            running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until("a job", job)
            pictures = take(browser, running)
        finally:
            browser.close()
            radic("cluster", "stop")
    for name, data in pictures.items():
        if len(data) > BYTES:
            sys.exit(f"screenshots: {name} would have {len(data)} bytes; {BYTES} are the most")
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)
        print(f"{os.path.join(out, name)}: {len(data)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, out = sys.argv[1:]
    path, *options = shlex.split(program)
    main(shlex.join([os.path.abspath(path), *options]), os.path.abspath(out))
