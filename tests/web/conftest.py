"""A small state, the application over it, and a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from review_page import CHROMIUM, FLAGS, Page, Review, Served, serving
from starlette.testclient import TestClient
from tiny_state import TINY, items, picture, png, tiny

from purereplay.nets.engine import Engine


@pytest.fixture
def state(tmp_path) -> Path:
    """Forty scored samples, s0 to s39, of three labels."""
    folder = tmp_path / "state"
    with tiny(folder) as session:
        session.take(items(0, 40))
        session.work()
    return folder


@pytest.fixture
def cli_audit(tmp_path) -> tuple[Path, Path]:
    """An audit file, and the folder of images that it is about."""
    from purereplay.live.audit import audit
    from purereplay.live.store import Store

    images = tmp_path / "images"
    for i in range(40):
        path = images / f"label {i % 3}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 3)))
    from purereplay.live.learn import learn
    from purereplay.live.settings import Wanted

    learn(str(images), tmp_path / "audited", Wanted(learner="spr", overrides=TINY), device="cpu")
    with Store.reading(tmp_path / "audited") as store:
        audit(store, Engine(torch.device("cpu")), tmp_path / "audit.csv")
    return tmp_path / "audit.csv", images


@pytest.fixture
def client(state) -> Iterator[TestClient]:
    with serving(state=state) as client:
        yield client


@pytest.fixture
def page(client) -> Page:
    return Page(client)


@pytest.fixture
def review() -> Iterator[Callable[..., Review]]:
    started: list[Review] = []

    def start(*options: object) -> Review:
        started.append(Review(*options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(**subject: Path) -> Served:
        started.append(Served(**subject))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; tests that need it are skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()
