#!/usr/bin/env python3
"""make page-at-scale: the page in Chromium, of 1,000 nodes and 4,000 ranks that all change ten times a second: it goes on, and answers.

usage: page_at_scale.py FEED

FEED is the example `feed` of web/, which simulates the daemon. Prints how often the table changed, how long a filter took, and the longest time for which the page
answered nothing; fails if one of them is over its bound, if the browser has an error to tell, or if the page does not show all. Needed are chromium (of Debian) and
playwright (of PyPI). Leaves nothing.
"""
import shutil
import subprocess
import sys
import time

from playwright.sync_api import sync_playwright

NODES, RANKS, UPDATES = 1000, 4000, 10
LIMIT = 60
SECONDS = 5
# A second: what is more than that one takes for a page that hangs.
SLOWEST = 1.0
LEAST_CHANGES = 2 * SECONDS

WATCH = """() => {
  window.changes = 0; window.longest = 0;
  new MutationObserver(() => window.changes++).observe(document.querySelector('#ranks tbody'), {childList: true, subtree: true, characterData: true});
  new PerformanceObserver(list => { for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration); }).observe({entryTypes: ['longtask']});
}"""


def look(tab, address):
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.set_default_timeout(LIMIT * 1000)
    tab.goto(address)
    tab.wait_for_function(f"document.getElementById('head').textContent.includes('{NODES}')")
    tab.wait_for_function("document.querySelectorAll('#ranks tbody tr').length > 0")
    tab.evaluate(WATCH)
    tab.wait_for_timeout(SECONDS * 1000)
    changes, longest = tab.evaluate("[window.changes, window.longest]")
    begun = time.monotonic()
    tab.fill("#filter", str(RANKS - 1))
    tab.wait_for_function(f"[...document.querySelectorAll('#ranks tbody tr')].every(row => row.innerText.includes('{RANKS - 1}'))")
    filtered = time.monotonic() - begun
    print(f"{NODES} nodes, {RANKS} ranks: the table changed {changes / SECONDS:.1f} times a second, a filter took {filtered:.2f} s, "
          f"and the page answered nothing for at most {longest / 1000:.2f} s")
    bad = errors + [what for what, is_bad in [
        ("the table hardly changes", changes < LEAST_CHANGES),
        ("a filter is slow", filtered > SLOWEST),
        ("the page hangs", longest > 1000 * SLOWEST),
    ] if is_bad]
    if bad:
        sys.exit("page_at_scale: " + "; ".join(bad))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    feed = subprocess.Popen([sys.argv[1], str(NODES), str(RANKS), str(UPDATES), str(LIMIT)], stdout=subprocess.PIPE, text=True)
    try:
        address = feed.stdout.readline().strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            look(browser.new_context(viewport={"width": 1200, "height": 900}, bypass_csp=True).new_page(), address)
            browser.close()
    finally:
        feed.terminate()
        feed.wait()


main()
