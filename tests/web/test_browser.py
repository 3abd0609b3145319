"""The review page in a headless Chromium, by keys and mouse."""

import csv
import re
import sqlite3
from pathlib import Path

import pytest
from review_page import wait_until
from tiny_state import items, tiny

from purereplay.live.reviewed import absorbed
from purereplay.live.store import Store

pytestmark = pytest.mark.long


class Tab:
    """A tab that must see no error and ask no other host."""

    def __init__(self, browser, address: str, **options) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.on(
            "request", lambda r: None if r.url.startswith("http://127.0.0.1:") else self.problems.append(r.url)
        )
        self.open(address)

    def _asked(self, request) -> None:
        if not request.url.startswith("http://127.0.0.1:"):
            self.problems.append(f"request to {request.url}")

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("#image:not([hidden])")

    def text(self, name: str) -> str:
        return self.page.inner_text(f"#{name}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def saved(self) -> int:
        return int(self.page.get_attribute("#decision", "data-saved"))

    def wait_saved(self, n: int) -> None:
        wait_until(lambda: self.saved() >= n, 20)

    def undo(self) -> None:
        self.press("z")
        wait_until(lambda: self.text("message").startswith("Undone"), 20)

    def export(self) -> dict[str, str]:
        with self.page.expect_download() as download:
            self.page.click("#export")
        return dict(csv.reader(Path(download.value.path()).read_text().splitlines()[1:]))

    def close(self) -> None:
        self.context.close()
        assert self.problems == []


def corrections(state: Path) -> dict[str, str]:
    with sqlite3.connect(state / "state.sqlite") as database:
        rows = database.execute(
            "SELECT s.id, c.label FROM corrections k JOIN samples s USING (position) JOIN classes c ON c.code = k.label"
            " ORDER BY number"
        )
        return dict(rows.fetchall())


def test_review_by_keys_alone_with_undo_and_a_kill(browser, review, state, tmp_path):
    """Labels in the export are those that were chosen, and the state holds exactly these."""
    server = review("--state", state, "--port", 8497)
    tab = Tab(browser, server.address)
    chosen: dict[str, str] = {}

    def decide(n: int) -> None:
        for i in range(n):
            name, given, before = tab.text("name"), tab.text("given"), tab.saved()
            tab.press("k" if i % 2 else "3")
            tab.wait_saved(before + 1)
            chosen[name] = given if i % 2 else "label 2"  # the third of three labels

    decide(8)
    server.kill()
    server.start()
    tab.open(server.address)
    tab.problems.clear()  # of the requests while nobody answered
    assert tab.text("numbers").split("\n")[1] == "8 of 40 scored"  # a kill loses nothing
    for _ in range(3):
        tab.undo()
    assert tab.text("numbers").split("\n")[1] == "5 of 40 scored"
    decide(6)
    tab.press("x", "s")
    tab.wait_saved(8)
    exported = tab.export()
    assert len(exported) == 11 and exported == {name: chosen[name] for name in exported}
    tab.close()
    assert "The page is closed" in server.end()
    assert corrections(state) == exported
    with Store.reading(state) as store:
        assert len(absorbed(store).dropped) == 1 and absorbed(store).number == 8 + 3 + 6 + 2


def test_mouse_search_filters_and_help(browser, served, state):
    server = served(state=state)
    tab = Tab(browser, server.address)
    page = tab.page
    wait_until(lambda: "probability" in tab.text("suggested-note") or "agrees" in tab.text("suggested-note"), 30)
    assert page.eval_on_selector("#near-given", "e => e.children.length") > 0
    wait_until(lambda: "copy in the state, 6 × 6 pixels" in tab.text("source"), 10)
    page.click("text=Keep given label")
    tab.wait_saved(1)
    first = tab.text("name")
    tab.press("ArrowLeft")
    assert tab.text("decision") == "Saved: label kept" and tab.text("name") != first
    tab.press("ArrowRight")
    assert tab.text("name") == first and tab.text("decision") == ""
    page.keyboard.type("/bel 2")
    assert page.locator("#matches li").all_inner_texts() == ["label 2", "New label “bel 2”"]
    tab.press("Enter")
    tab.wait_saved(2)
    page.keyboard.type("/Owl")
    page.click("#matches li")
    tab.wait_saved(3)
    assert sorted(tab.export().values())[0] == "Owl"
    page.select_option("#filter-label", label="label 1")
    wait_until(lambda: tab.text("given") == "label 1")
    page.select_option("#filter-decision", "label")
    page.select_option("#filter-label", label="any")
    wait_until(lambda: tab.text("decision").startswith("Saved: label"))
    tab.press("?")
    assert page.is_visible("#help")
    tab.press("x")  # behind the help nothing is decided
    tab.press("Escape")
    assert not page.is_visible("#help") and tab.saved() == 3
    tab.close()


def test_the_grid_and_two_reviewers(browser, served, state):
    server = served(state=state)
    one, two = Tab(browser, server.address), Tab(browser, server.address)
    assert one.text("name") != two.text("name")
    wait_until(lambda: "All" in one.text("activity") or one.text("activity") == "", 30)
    one.press("g")
    one.page.wait_for_selector("#cells button")
    n = one.page.locator("#cells button").count()
    one.press("a")
    assert one.text("chosen") == f"{n} of {n} selected"
    one.page.click("#cells button >> nth=0")
    assert one.text("chosen") == f"{n - 1} of {n} selected"
    if n == 1:
        one.page.click("#cells button >> nth=0")
    one.page.click("#accept")
    expected = max(1, n - 1)
    one.wait_saved(expected)
    wait_until(lambda: two.text("numbers").startswith(f"Decided\n{expected} of"), 20)  # the other sees it
    one.undo()
    wait_until(lambda: two.text("numbers").startswith("Decided\n0 of"), 20)
    one.close()
    two.close()


def test_hostile_names_are_shown_as_text(browser, served, tmp_path):
    label, name = "<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">.png"
    with tiny(tmp_path / "state") as session:
        samples = items(0, 40)
        named = [s._replace(id=name) if i == 7 else s for i, s in enumerate(samples)]
        session.take([s._replace(label=label) if i % 3 == 1 else s for i, s in enumerate(named)])
        session.work()
    server = served(state=tmp_path / "state")
    tab = Tab(browser, server.address)
    tab.page.select_option("#filter-label", label=label)
    wait_until(lambda: tab.text("given") == label)
    seen = set()
    for _ in range(14):
        seen.add(tab.text("name"))
        tab.press("ArrowRight")
        wait_until(lambda: tab.text("name") != "" or tab.page.is_visible("#empty"))
    assert name in seen and tab.page.title() == "Review · purereplay"
    tab.close()


def test_an_audit_is_reviewed_without_a_state(browser, served, cli_audit):
    audit, images = cli_audit
    server = served(audit=audit, images=images)
    tab = Tab(browser, server.address)
    assert re.fullmatch(r"label \d/\d\d\.png", tab.text("name"))
    wait_until(lambda: tab.text("source") == "file, 6 × 6 pixels", 10)
    tab.press("k")
    tab.wait_saved(1)
    assert len(tab.export()) == 1
    tab.close()


def test_without_the_token_there_is_no_page(browser, served, state):
    server = served(state=state)
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(server.address.partition("?")[0])
    assert answer.status == 401 and "the command printed" in page.inner_text("body")
    context.close()


def test_the_page_works_on_a_telephone(browser, served, state):
    server = served(state=state)
    tab = Tab(browser, server.address, viewport={"width": 390, "height": 800}, has_touch=True)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.tap("#keep")
    tab.wait_saved(1)
    tab.close()


def test_decisions_that_were_not_sent(browser, served, state):
    """After a reload they are sent to the state that they belong to; a refused one does not stop the page."""
    server = served(state=state)
    tab = Tab(browser, server.address)
    own = tab.page.evaluate("Object.keys(sessionStorage).find((name) => name.startsWith('outbox'))")

    def reload_with(key: str, kind: str, action: str) -> None:
        text = f'[{{"action": "{action}", "undo": false, "decisions": [{{"sample": 3, "kind": "{kind}"}}]}}]'
        # the page writes its own outbox, so the stored one is put there when it begins
        tab.page.add_init_script(f"sessionStorage.setItem({key!r}, {text!r})")
        tab.page.reload()
        tab.page.wait_for_selector("#image:not([hidden])")

    reload_with("outbox-of-another-state", "drop", "a1")
    assert tab.export() == {}
    reload_with(own, "nonsense", "a2")
    wait_until(lambda: "unknown decision" in tab.text("problem"), 20)
    reload_with(own, "keep", "a3")
    assert len(tab.export()) == 1
    tab.context.close()


def test_long_labels_keep_their_keys_and_a_grid_without_pairs_says_so(browser, served, tmp_path):
    state = tmp_path / "state"
    with tiny(state) as session:
        session.take([one._replace(label=one.label * 30) for one in items(0, 40)])
        session.work()
    tab = Tab(browser, served(state=state).address)
    for button in tab.page.query_selector_all("#classes button"):
        box, key = button.bounding_box(), button.query_selector("kbd").bounding_box()
        assert key["x"] + key["width"] <= box["x"] + box["width"]
    tab.page.route("**/api/pairs", lambda route: route.fulfill(json={"pairs": []}))
    tab.press("g")
    tab.page.wait_for_selector("#grid:not([hidden])")
    chosen = "document.getElementById('pair').selectedOptions[0]?.textContent"
    wait_until(lambda: tab.page.evaluate(chosen) == "no pairs", 20)
    assert tab.text("chosen") == "No suggestion differs from its label."
    tab.close()


def test_an_image_that_cannot_be_read_is_reported(browser, served, cli_audit):
    audit, images = cli_audit
    for path in images.rglob("*.png"):
        path.unlink()
    tab = Tab(browser, served(audit=audit, images=images).address)
    wait_until(lambda: "cannot be read" in tab.text("message"), 20)
    tab.context.close()  # the browser reports the missing images as errors


def test_keys_decide_again_after_the_search_is_left(browser, served, state):
    tab = Tab(browser, served(state=state).address)
    tab.press("/", "l", "Tab")
    assert not tab.page.is_visible("#matches")
    tab.press("k")
    tab.wait_saved(1)
    tab.press("/", "l")
    tab.page.click("#image")
    tab.press("k")
    tab.wait_saved(2)
    tab.press("/", "l")
    tab.page.click("#matches li >> nth=1")
    tab.wait_saved(3)
    tab.close()
