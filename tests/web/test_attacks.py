"""Attacks on the review page, each refused without a change."""

import json

import pytest
from review_page import ADDRESS, PORT, TOKEN, Page, serving
from starlette.testclient import TestClient
from tiny_state import items, picture, png, tiny

from purereplay.live.decisions import DecisionLog
from purereplay.live.reviewed import log_path

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE entries; --",
    "\u202eevil",
    "a\nb",
]


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """One state for all attacks, since they change nothing."""
    folder = tmp_path_factory.mktemp("attacked") / "state"
    with tiny(folder) as session:
        session.take(items(0, 40))
        session.work()
    return folder


@pytest.fixture(scope="module")
def server(state):
    with serving(state=state) as client:
        yield client


@pytest.fixture
def client(server):
    server.cookies.clear()
    return server


@pytest.fixture
def untouched(state):
    """Assert that the test changes no decision."""
    before = n_entries(state)
    yield
    assert n_entries(state) == before


def n_entries(state) -> int:
    with DecisionLog.reading(log_path(state)) as log:
        return 0 if log is None else len(log.entries())


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"localhost.evil:{PORT}", ""]
)
def test_another_host_header_is_refused(page, host):
    for path in ("/", "/api/begin", f"/?token={TOKEN}"):
        answer = page.client.get(path, headers={"Host": host}, follow_redirects=False)
        assert answer.status_code == 421 and "label" not in answer.text


def test_own_names_are_accepted(page):
    for name in ("127.0.0.1", "localhost", "[::1]"):
        cookie = {"Cookie": f"purereplay-{PORT}={TOKEN}", "Host": f"{name}:{PORT}"}
        assert page.client.get("/api/begin", headers=cookie).status_code == 200


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/begin", "/api/export.csv", "/image/0"])
@pytest.mark.parametrize("cookie", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"])
def test_a_missing_or_wrong_token_is_refused(client, path, cookie):
    headers = {"Cookie": f"purereplay-{PORT}={cookie}".encode()} if cookie else {}
    assert client.get(path, headers=headers).status_code == 401


def test_a_wrong_token_in_the_address_is_refused(client):
    assert client.get("/", params={"token": "wrong"}).status_code == 403
    assert client.get("/", params={"token": ""}).status_code == 403
    assert client.get("/api/begin", params={"token": TOKEN}).status_code == 401  # only the first page takes it


def test_the_token_goes_into_a_cookie_that_scripts_cannot_read(client):
    answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "-1",
        "1.5",
        "999999",
        "99999999999999999999999999",
        "0/../../secret",
        "0;ls",
        "%00",
    ],
)
def test_image_ids_lead_nowhere_else(page, name):
    answer = page.client.get(f"/image/{name}")
    assert answer.status_code == 404 and "root:" not in answer.text


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e%2fapp.py", "app.py", "static", "index.html%00"])
def test_only_files_of_the_page_are_served(page, name):
    answer = page.client.get(f"/{name}")
    assert answer.status_code == 404 and "Starlette" not in answer.text


def test_a_label_with_a_nul_is_refused(page, untouched):
    """CSV files and file names cannot have it."""
    [one] = page.next(1)
    answer = page.decide(one["sample"], "label", "a\0b")
    assert answer.status_code == 400 and "NUL" in answer.json()["error"]


def test_a_label_of_ten_megabytes_is_refused(page, untouched):
    [one] = page.next(1)
    assert page.decide(one["sample"], "label", "x" * 10_000_000).status_code == 413
    assert page.decide(one["sample"], "label", "x" * 1001).status_code == 400
    assert page.decide(one["sample"], "label", " ").status_code == 400


def test_a_label_of_a_thousand_characters_is_accepted(page):
    [one] = page.next(1)
    assert page.decide(one["sample"], "label", "x" * 1000).status_code == 200


def test_a_body_that_is_longer_than_it_says_is_not_read_to_its_end(page):
    def endless():
        for _ in range(200):
            yield b"x" * 1000

    headers = {"Origin": ADDRESS, "Content-Type": "application/json"}
    assert page.client.post("/api/decide", content=endless(), headers=headers).status_code == 411
    lying = {**headers, "Content-Length": "10"}
    assert page.client.post("/api/decide", content=endless(), headers=lying).status_code == 400


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", f"http://127.0.0.1:{PORT + 1}", f"https://127.0.0.1:{PORT}"]
)
@pytest.mark.parametrize("path", ["decide", "undo", "next", "status"])
def test_a_request_from_another_site_is_refused(page, untouched, origin, path):
    [one] = page.next(1)
    values = {"page": "p", "reviewer": "r", "action": "a", "decisions": [{"sample": one["sample"], "kind": "drop"}]}
    headers = {"Content-Type": "application/json"} | ({} if origin is None else {"Origin": origin})
    assert page.client.post(f"/api/{path}", content=json.dumps(values), headers=headers).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_site_is_refused(page, kind):
    headers = {"Origin": ADDRESS, "Content-Type": kind}
    assert page.client.post("/api/undo", content="{}", headers=headers).status_code == 415


def test_a_get_changes_nothing(page, untouched):
    for path in ("decide", "undo", "next", "status"):
        assert page.client.get(f"/api/{path}").status_code in (404, 405)


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_are_text(page, label):
    [one] = page.next(1)
    answer = page.decide(one["sample"], "label", label)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json()["items"][0]["decision"]["label"] == label


BAD = [
    [],
    "text",
    {},
    {"decisions": []},
    {"decisions": [{}]},
    {"decisions": ["x"]},
    {"decisions": [{"sample": True, "kind": "drop"}]},
    {"decisions": [{"sample": 10**30, "kind": "drop"}]},
    {"decisions": [{"sample": "0", "kind": "drop"}]},
    {"decisions": [{"sample": 0, "kind": "undo"}]},
    {"decisions": [{"sample": 0, "kind": "label", "label": 5}]},
    {"decisions": [{"sample": 0, "kind": "label", "label": "\ud800"}]},
    {"decisions": [{"sample": 0, "kind": "drop"}] * 2},
    {"decisions": [{"sample": i % 40, "kind": "drop"} for i in range(61)]},
    {"reviewer": "x" * 101, "decisions": [{"sample": 0, "kind": "drop"}]},
    {"action": None, "decisions": [{"sample": 0, "kind": "drop"}]},
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_is_no_decision_is_refused(page, untouched, number):
    values = BAD[number]
    if isinstance(values, dict):
        answer = page.post("decide", **values)
    else:
        headers = {"Origin": ADDRESS, "Content-Type": "application/json"}
        answer = page.client.post("/api/decide", content=json.dumps(values), headers=headers)
    assert answer.status_code == 400 and answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    "wanted",
    [
        {"label": 5},
        {"buffer": "0"},
        {"buffer": True},
        {"other": 1},
        {"decision": "x"},
        {"verdict": "x"},
        {"verdict": True},
        [1],
        "x",
    ],
)
def test_what_is_no_filter_is_refused(page, wanted):
    assert page.post("next", n=1, held=[], filter=wanted).status_code == 400


@pytest.mark.parametrize(
    "values", [{"n": 0}, {"n": 61}, {"n": "5"}, {"held": "x"}, {"held": [None]}, {"held": [10**40]}]
)
def test_what_is_no_request_for_samples_is_refused(page, values):
    assert page.post("next", **({"n": 1, "held": []} | values)).status_code == 400


def test_every_answer_forbids_other_hosts(client):
    paths = ["/", f"/?token={TOKEN}", "/main.js", "/nothing", "/image/0", "/api/begin"]
    for answer in [client.get(path, follow_redirects=False) for path in paths]:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in policy


def test_ids_of_an_audit_do_not_lead_out_of_the_folder(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.png").write_bytes(png(picture(1)))
    (tmp_path / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    names = ["../secret.png", str(tmp_path / "secret.png"), "link.png", "missing.png"]
    rows = "".join(f"{name},a,0.1,rejected\n" for name in names)
    audit = tmp_path / "audit.csv"
    audit.write_text("id,given_label,clean_probability,decision\n" + rows)
    with serving(audit=audit, images=tmp_path / "images") as client:
        page = Page(client)
        assert len(page.next(10)) == 4
        for number in range(4):
            answer = client.get(f"/image/{number}")
            assert answer.status_code == 404 and b"PNG" not in answer.content


def test_a_server_for_other_machines_still_checks_the_host(state):
    import torch

    from purereplay.nets.engine import Engine
    from purereplay.web.app import Subject, make_app

    app = make_app(Subject(state=state), Engine(torch.device("cpu")), token=TOKEN, host="0.0.0.0", port=PORT)
    with TestClient(app, base_url=ADDRESS) as client:
        codes = {
            host: client.get("/", headers={"Host": host}).status_code
            for host in (f"192.168.1.7:{PORT}", f"evil.example:{PORT}", f"localhost:{PORT}")
        }
    assert list(codes.values()) == [401, 421, 401]
