"""The review page, measured in a headless Chromium: what 100 decisions buy, and a state of 100,000 samples.

    python benchmarks/review.py digits --out results/review     # docs/live.md's digits, reviewed with keys alone
    python benchmarks/review.py digits --learner full-memory --digits 300 --out results/review      # its first 300
    python benchmarks/review.py first --out results/review      # time from `learn` to the first corrected label
    python benchmarks/review.py large --out results/review      # first page, next image and memory of the server
    python benchmarks/review.py report --folder FOLDER --out results/review     # of the state that `large` left there
    python benchmarks/review.py looks --state STATE --axe axe.min.js --out results/review   # pictures in docs/review

The reviewer of `digits` is a script that reads the page and knows the true labels. It needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
CHROMIUM = "/usr/bin/chromium"
PICTURES = Path(__file__).parent.parent / "docs" / "review"


class Server:
    """`purereplay review` as a process."""

    def __init__(self, *options: object) -> None:
        self.options = [str(option) for option in options]
        self.start()

    def start(self) -> None:
        began = time.perf_counter()
        call = [sys.executable, "-m", "purereplay.cli", "review", "--no-browser", "--device", "cpu", *self.options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(call, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://\S+", line):
                self.address = found[0]
                break
        self.seconds = time.perf_counter() - began

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        [line] = [x for x in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)


@contextmanager
def browsing() -> Iterator[Any]:
    """A page in Chromium that records errors and requests to other hosts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
        page.problems = []
        page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: page.problems.append(str(e)))
        own = re.compile(r"http://127\.0\.0\.1:\d+/")
        page.on("request", lambda r: None if own.match(r.url) else page.problems.append(f"request to {r.url}"))
        yield page
        browser.close()


def text(page: Any, name: str) -> str:
    return str(page.inner_text(f"#{name}"))


def n_saved(page: Any) -> int:
    return int(page.get_attribute("#decision", "data-saved") or 0)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# ---------------------------------------------------------------- what 100 decisions buy


_SAVED = "(n) => Number(document.getElementById('decision').dataset.saved) >= n"
_SHOWN = "() => { const i = document.getElementById('image'); return i.complete && i.naturalWidth }"


def review_with_keys(page: Any, truth: dict[str, str], n: int) -> None:
    """Decide on n images by keys, as somebody who knows the true labels; waits until all are saved."""
    before = n_saved(page)
    for i in range(n):
        page.wait_for_function("() => document.getElementById('given').textContent !== ''")
        name, given, suggested = text(page, "name"), text(page, "given"), text(page, "suggested")
        right = truth[Path(name).name]
        page.keyboard.press("Enter" if suggested == right else "k" if given == right else right)
        page.wait_for_function(
            "(n) => Number(document.getElementById('decision').dataset.saved) >= n", arg=before + i + 1
        )


def accuracy(page: Any) -> str:
    found = re.search(r"Accuracy on the test folder\s*([\d.]+ %)[^(]*\(([\d.]+ %) at", text(page, "numbers"))
    return found[0] if found else ""


def measured_accuracy(folder: Path, state: Path, truth: dict[str, str]) -> float:
    call = [sys.executable, "-m", "purereplay.cli", "predict", "new", "--format", "csv", "--device", "cpu", "--state"]
    done = subprocess.run([*call, str(state)], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    return float(np.mean([truth[Path(row["image"]).name] == row["label"] for row in rows]))


def digits(folder: Path, seed: int, n: int, *options: str) -> dict[str, Any]:
    """Review 100 suspects of the document's first n digits with keys alone: undo 10, kill the server at 50, go on.

    The digits of the folder `new` are the same for every n.
    """
    sys.path.insert(0, str(Path(__file__).parent))
    from live import make_digits

    truth = make_digits(folder)
    for path in (folder / "digits").rglob("*.png"):
        if int(path.stem) >= n:
            path.unlink()
    for path in (folder / "new").glob("*.png"):
        (folder / "test" / truth[path.name]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "test" / truth[path.name] / path.name)
    state = folder / "state"
    learn = [sys.executable, "-m", "purereplay.cli", "learn", "digits", "--state", str(state), "--device", "cpu"]
    subprocess.run([*learn, "--seed", str(seed), *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    before = measured_accuracy(folder, state, truth)
    server = Server("--state", state, "--test", folder / "test", "--port", free_port())
    began = time.perf_counter()
    with browsing() as page:
        page.goto(server.address)
        page.wait_for_function("() => document.getElementById('suggested-note').textContent.includes('probability')")
        review_with_keys(page, truth, 50)
        server.kill()
        server.start()
        page.goto(server.address)
        page.problems.clear()  # requests that got no answer
        page.wait_for_function("() => document.getElementById('suggested-note').textContent.includes('probability')")
        for _ in range(10):
            page.keyboard.press("z")
            page.wait_for_function("() => document.getElementById('message').textContent.startsWith('Undone')")
        decided_after_undo = text(page, "numbers").split("\n")[1]
        review_with_keys(page, truth, 60)
        page.wait_for_function(
            "() => document.getElementById('activity').textContent === 'All decisions are learned.'", timeout=120_000
        )
        shown, numbers, problems = accuracy(page), text(page, "numbers"), page.problems
        with page.expect_download() as download:
            page.click("#export")
        exported = Path(download.value.path()).read_text()
    seconds = time.perf_counter() - began
    server.end()
    labels = dict(row for row in csv.reader(exported.splitlines()[1:]))
    wrong = [name for name in labels if truth[Path(name).name] != Path(name).parts[0]]
    return {
        "seed": seed,
        "samples": len(list((folder / "digits").rglob("*.png"))),
        "decisions": len(labels),
        "decided_after_undo": decided_after_undo,
        "labels_right": sum(truth[Path(name).name] == label for name, label in labels.items()),
        "were_wrong": len(wrong),
        "state_holds_exactly_these": _corrections(state) == labels,
        "accuracy_before": before,
        "accuracy_after": measured_accuracy(folder, state, truth),
        "shown_on_the_page": " ".join(shown.split()),
        "numbers_on_the_page": numbers.split("\n"),
        "seconds_with_the_page": round(seconds, 1),
        "console_errors_and_other_hosts": problems,
    }


def first(folder: Path) -> dict[str, Any]:
    """Measure the seconds from the start of `learn` until the first corrected label is saved; default learner."""
    sys.path.insert(0, str(Path(__file__).parent))
    from live import make_digits

    truth = make_digits(folder)
    began = time.perf_counter()
    call = [sys.executable, "-m", "purereplay.cli", "learn", "digits", "--state", "state", "--device", "cpu"]
    subprocess.run(call, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    learned = time.perf_counter() - began
    server = Server("--state", folder / "state", "--port", free_port())
    with browsing() as page:
        page.goto(server.address)
        page.wait_for_function("() => document.getElementById('suggested-note').textContent.includes('probability')")
        shown = time.perf_counter() - began
        name, given = text(page, "name"), text(page, "given")
        review_with_keys(page, truth, 1)
        saved = time.perf_counter() - began
        problems = page.problems
    server.end()
    return {
        "samples": len(list((folder / "digits").rglob("*.png"))),
        "seconds_to_learn": round(learned, 1),
        "seconds_to_the_first_suggestion": round(shown, 1),
        "seconds_to_the_first_corrected_label": round(saved, 1),
        "was_wrong": truth[Path(name).name] != given,
        "corrected_to_the_true_label": _corrections(folder / "state") == {name: truth[Path(name).name]},
        "load_of_the_machine": round(os.getloadavg()[0], 1),
        "console_errors_and_other_hosts": problems,
    }


def _corrections(state: Path) -> dict[str, str]:
    import sqlite3

    with sqlite3.connect(state / "state.sqlite") as database:
        rows = database.execute(
            "SELECT s.id, c.label FROM corrections k JOIN samples s USING (position) JOIN classes c ON c.code = k.label"
            " ORDER BY number"
        )
        return dict(rows.fetchall())


# ---------------------------------------------------------------- a state of 100,000 samples


def make_large(folder: Path, n: int, n_labels: int = 10) -> Path:
    """Make a state whose first samples were learned, and whose other samples have invented scores.

    The page reads the same tables as in a state that `learn` made; only the verdicts are random.
    """
    import torch

    from purereplay.learners.base import FilterReport
    from purereplay.live.items import Item
    from purereplay.live.session import Session
    from purereplay.live.settings import Wanted
    from purereplay.nets.engine import Engine

    dice = np.random.default_rng(0)
    small = {"delayed_size": "500", "base_epochs": "2", "finetune_epochs": "2", "hidden": "64"}
    state = folder / "large"
    patterns = dice.integers(0, 200, (n_labels, 28, 28))

    def pixels(label: int) -> np.ndarray:
        return np.asarray(np.clip(patterns[label] + dice.integers(0, 56, (28, 28)), 0, 255), np.uint8)

    with Session.open(state, Wanted(learner="spr", overrides=small), Engine(torch.device("cpu"))) as session:
        session.take([Item(f"{i:06}.png", f"label {i % n_labels}", _png(pixels(i % n_labels))) for i in range(500)])
        session.work()
        store, learner = session.store, session.learning.learner
        assert learner is not None
        for start in range(500, n, 500):
            stop = min(n, start + 500)
            with store.transaction():
                for i in range(start, stop):
                    store.add(f"{i:06}.png", f"label {i % n_labels}", pixels(dice.integers(n_labels))[None])
                index = torch.arange(start, stop)
                report = FilterReport(
                    buffer=start // 500,
                    index=index,
                    labels=index % n_labels,
                    held_index=learner.purified.index,
                    clean_probability=torch.from_numpy(dice.random(stop - start)),
                    centrality=torch.from_numpy(dice.random(stop - start)),
                    selected_mask=torch.from_numpy(dice.random(stop - start) < 0.5),
                )
                current = store.write_learner(learner.state(), stop, learner.purified.index, report)
            store.tidy(current)
    return state


def _png(pixels: np.ndarray) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def large(folder: Path, n: int, n_decisions: int, pause: float = 0.2) -> dict[str, Any]:
    """Measure the page on a large state."""
    began = time.perf_counter()
    state = folder / "large" if (folder / "large").exists() else make_large(folder, n)
    making = time.perf_counter() - began
    server = Server("--state", state, "--port", 0)
    memory = [server.memory()]
    with browsing() as page:
        firsts = []
        for _ in range(5):  # the first visit, while the classifier is made, and four more
            began = time.perf_counter()
            page.goto(server.address)
            page.wait_for_function(
                "() => { const i = document.getElementById('image'); return i.complete && i.naturalWidth }"
            )
            firsts.append(time.perf_counter() - began)
        nexts: list[float] = []
        for i in range(n_decisions):
            nexts.append(page.evaluate(_NEXT, "k" if i % 5 else "x"))
            time.sleep(pause)
            if (i + 1) % (n_decisions // 8) == 0:
                memory.append(server.memory())
        problems = page.problems
    memory.append(server.memory())
    server.end()
    later = sorted(nexts)
    return {
        "samples": n,
        "seconds_to_make_the_state": round(making, 1),
        "seconds_to_start_the_server": round(server.seconds, 2),
        "seconds_to_the_first_image": [round(s, 3) for s in firsts],
        "decisions": n_decisions,
        "seconds_between_decisions": pause,
        "ms_to_the_next_image": {
            "median": round(later[len(later) // 2], 1),
            "99 %": round(later[int(0.99 * len(later))], 1),
            "largest": round(later[-1], 1),
        },
        "server_memory_mib": [round(m) for m in memory],
        "load_of_the_machine": [round(load, 1) for load in os.getloadavg()],
        "console_errors_and_other_hosts": problems,
    }


# from the key to the next image, decoded and in the page
_NEXT = """
async (key) => {
  const image = document.getElementById("image"), before = image.getAttribute("src"), began = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const waits = () => [before, null].includes(image.getAttribute("src"));
  while (waits()) await new Promise(requestAnimationFrame);
  await image.decode();
  return performance.now() - began;
}
"""


def report(folder: Path) -> dict[str, Any]:
    """Measure the report of the large state: its size, and the time until it is drawn."""
    call = [sys.executable, "-m", "purereplay.cli", "report", "--state", str(folder / "large"), "--images", "500"]
    out = folder / "report.html"
    began = time.perf_counter()
    subprocess.run([*call, "--out", str(out), "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
    making = time.perf_counter() - began
    content = out.read_text()
    opening = []
    with browsing() as page:
        page.problems.clear()
        for _ in range(5):
            began = time.perf_counter()
            page.goto(out.resolve().as_uri())
            page.wait_for_selector("#histogram-sampled svg rect")
            opening.append(time.perf_counter() - began)
        asked = [problem for problem in page.problems if not problem.startswith("request to file:")]
    return {
        "buffers": len(json.loads(content.partition('id="histograms">')[2].partition("</script>")[0])["buffers"]),
        "gallery_images": content.count('src="data:image/'),
        "megabytes": round(out.stat().st_size / 1e6, 2),
        "seconds_to_write": round(making, 1),
        "seconds_to_open": [round(s, 2) for s in opening],
        "load_of_the_machine": [round(load, 1) for load in os.getloadavg()],
        "console_errors_and_other_hosts": [p for p in asked if not p.startswith("request to data:")],
    }


# ---------------------------------------------------------------- looks and accessibility


def looks(state: Path, axe: Path | None, pictures: Path) -> dict[str, Any]:
    """Draw focus view, grid view and report, light and dark, wide and narrow; axe-core checks each of them."""
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {}
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        copy, out = Path(name) / "digits", Path(name) / "report.html"
        shutil.copytree(state, copy)
        call = [sys.executable, "-m", "purereplay.cli", "report", "--state", str(copy), "--out", str(out)]
        subprocess.run([*call, "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
        server = Server("--state", copy, "--port", free_port())
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
            for width, height in ((1280, 800), (390, 844)):
                for scheme in ("light", "dark"):
                    size = {"width": width, "height": height}
                    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
                    page = context.new_page()
                    page.goto(server.address)
                    page.wait_for_function("() => document.getElementById('suggested-note').textContent.length > 30")
                    page.wait_for_timeout(500)
                    for view in ("focus", "grid", "help", "report"):
                        if view == "grid":
                            page.keyboard.press("g")
                            page.wait_for_selector("#cells button img")
                            page.keyboard.press("a")
                            page.wait_for_timeout(500)
                        elif view == "help":
                            page.keyboard.press("?")
                        elif view == "report":
                            page.set_viewport_size({"width": width, "height": 1240})
                            page.goto(out.as_uri())
                            page.wait_for_selector("figure svg")
                            page.wait_for_timeout(500)
                        key = f"{view}-{width}-{scheme}"
                        if view != "help":
                            page.screenshot(path=str(pictures / f"{key}.png"))
                        wide = page.evaluate("document.documentElement.scrollWidth")
                        found[key] = {"scrolls_sideways": wide > width, **_violations(page, axe)}
                    context.close()
            browser.close()
        server.end()
    return found


def _violations(page: Any, axe: Path | None) -> dict[str, list[str]]:
    """Return the rules that axe-core finds violated, by impact."""
    if axe is None:
        return {}
    page.evaluate(axe.read_text() + "; 0")
    rows = page.evaluate("axe.run().then((r) => r.violations.map((v) => [v.impact, v.id, v.nodes[0].html]))")
    by_impact: dict[str, list[str]] = {impact: [] for impact in ("critical", "serious", "moderate", "minor")}
    for impact, rule, node in rows:
        by_impact[impact].append(f"{rule}: {node[:120]}")
    return by_impact


def _name(arguments: argparse.Namespace) -> str:
    """Return the name of the result file."""
    if arguments.part != "digits":
        return str(arguments.part)
    learner = "" if arguments.learner == "spr" else f"-{arguments.learner}"
    return f"digits{learner}{'' if arguments.digits == 1500 else f'-{arguments.digits}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("digits", "first", "large", "report", "looks"))
    parser.add_argument("--state", type=Path, help="state of digits, for the pictures")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the pictures")
    parser.add_argument("--axe", type=Path, help="file axe.min.js of the npm package axe-core")
    parser.add_argument("--out", type=Path, help="folder for one JSON file per part")
    parser.add_argument("--samples", type=int, default=100_000, help="of the large state")
    parser.add_argument("--decisions", type=int, default=800, help="on the large state")
    parser.add_argument("--digits", type=int, default=1500, help="digits that are learned, the first ones")
    parser.add_argument("--seeds", default="1,2,3", help="of digits, comma-separated")
    parser.add_argument("--learner", default="spr", help="of digits, as for `learn`")
    parser.add_argument("--folder", type=Path, help="working folder that is kept. (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        found: Any
        if arguments.part == "large":
            found = large(folder, arguments.samples, arguments.decisions)
        elif arguments.part == "first":
            found = first(folder)
        elif arguments.part == "report":
            found = report(folder)
        elif arguments.part == "looks":
            pictures = arguments.pictures
            found = looks(arguments.state, arguments.axe, pictures)
        else:
            found = []
            for seed in map(int, arguments.seeds.split(",")):
                own = folder / secrets.token_hex(4)
                own.mkdir(parents=True)
                found.append(digits(own, seed, arguments.digits, "--learner", arguments.learner))
                print(json.dumps(found[-1], indent=2), flush=True)
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{_name(arguments)}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
