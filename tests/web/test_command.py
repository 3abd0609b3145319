"""The command `review`: what it refuses, and what it writes without a server."""

import socket
import sys
import threading

import pytest
from tiny_state import TINY_OPTIONS, picture, png, tiny

from purereplay.cli import main
from purereplay.live.decisions import Decision, DecisionLog
from purereplay.live.reviewed import audit_log, log_path


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    capsys.readouterr()
    codes: list[int] = []

    def run() -> None:
        try:
            main()
        except SystemExit as end:
            codes.append(int(end.code or 0))

    if arguments[0] == "review":  # playwright has an event loop in the main thread
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    return codes[0], *capsys.readouterr()


REFUSED = {
    "nothing to review": ([], "either --state DIR, or --audit"),
    "both": (["--state", "s", "--audit", "a.csv"], "either --state DIR, or --audit"),
    "audit without images": (["--audit", "a.csv"], "belong together"),
    "images without audit": (["--state", "s", "--images", "x"], "belong together"),
    "encoder of an audit": (["--audit", "a.csv", "--images", "x", "--encoder", "e"], "--encoder needs --state"),
    "no state": (["--state", "nothing"], "nothing holds no state"),
    "test without a state": (["--audit", "a.csv", "--images", ".", "--test", "t"], "--test needs --state"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_one_sentence(case, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments, reason = REFUSED[case]
    code, _, err = call(monkeypatch, capsys, "review", "--no-browser", *arguments)
    assert code == 2 and reason in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken(state, monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        code, _, err = call(monkeypatch, capsys, "review", "--state", state, "--port", number, "--no-browser")
    assert code == 2 and f"Port {number} of 127.0.0.1 cannot be used" in err


def test_without_the_extra(state, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "purereplay.web.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    code, _, err = call(monkeypatch, capsys, "review", "--state", state)
    assert code == 2 and "pip install 'purereplay[web]'" in err


def test_export(state, monkeypatch, capsys, tmp_path):
    out = tmp_path / "fixes.csv"
    code, _, err = call(monkeypatch, capsys, "review", "--state", state, "--export", out)
    assert code == 2 and "holds no decisions yet" in err and not out.exists()
    with DecisionLog.writing(log_path(state)) as log:
        log.record([Decision("s1", "label", "x"), Decision("s2", "drop")], "anna", "a")
    code, shown, _ = call(monkeypatch, capsys, "review", "--state", state, "--export", out)
    assert code == 0 and "labels exported: 1" in shown and out.read_text() == "id,label\ns1,x\n"
    code, _, err = call(monkeypatch, capsys, "review", "--state", state, "--export", log_path(state))
    assert code == 2 and "belongs to the state" in err


@pytest.mark.parametrize(
    "text", ["id,label\n1,a\n", "", "id,given_label,clean_probability,decision\nx,a,high,rejected\n"]
)
def test_a_file_that_is_no_audit(text, monkeypatch, capsys, tmp_path):
    (tmp_path / "audit.csv").write_text(text)
    arguments = ["--audit", tmp_path / "audit.csv", "--images", tmp_path, "--no-browser", "--port", 0]
    code, _, err = call(monkeypatch, capsys, "review", *arguments)
    assert code == 2 and ("is not an audit" in err or "cannot be used" in err)


def test_an_export_does_not_overwrite_the_audit_or_its_log(monkeypatch, capsys, tmp_path):
    audit = tmp_path / "audit.csv"
    audit.write_text("id,given_label,clean_probability,decision\nx,a,0.5,rejected\n")
    with DecisionLog.writing(audit_log(audit)) as log:
        log.record([Decision("x", "label", "b")], "anna", "a")
    (tmp_path / "link.csv").symlink_to(audit)
    (tmp_path / "hard.csv").hardlink_to(audit)
    before = audit.read_text(), audit_log(audit).read_bytes()
    options = ["review", "--audit", audit, "--images", tmp_path, "--export"]
    names = ["audit.csv", "audit.csv.decisions.sqlite", "audit.csv.decisions.sqlite-wal", "link.csv", "hard.csv"]
    for name in names:
        code, _, err = call(monkeypatch, capsys, *options, tmp_path / name)
        assert code == 2 and "belongs to the audit" in err, name
    assert (audit.read_text(), audit_log(audit).read_bytes()) == before
    code, _, err = call(monkeypatch, capsys, *options, tmp_path / "fixes.csv")
    assert code == 0 and (tmp_path / "fixes.csv").read_text() == "id,label\nx,b\n", err


def test_an_audit_with_blank_and_short_lines(monkeypatch, capsys, tmp_path):
    from purereplay.web.samples import AuditSamples

    audit, header = tmp_path / "audit.csv", "id,given_label,clean_probability,decision\n"
    audit.write_text(header + "x,a,0.5,rejected\n\n,,,\ny,a,0.4,accepted\n\n")
    samples = AuditSamples(audit, tmp_path)
    assert samples.names([0, 1]) == ["x", "y"] and len(samples.table.number) == 2
    audit.write_text(header + "x,a,0.5,rejected\n\ny,a\n")
    arguments = ["--audit", audit, "--images", tmp_path, "--no-browser", "--port", 0]
    code, _, err = call(monkeypatch, capsys, "review", *arguments)
    assert code == 2 and f"Line 4 of {audit} has 2 cells, but the header has 4." in " ".join(err.split())


def test_learn_waits_for_a_page_that_absorbs_decisions(state, monkeypatch, capsys, tmp_path):
    (tmp_path / "photos" / "label 0").mkdir(parents=True)
    (tmp_path / "photos" / "label 0" / "new.png").write_bytes(png(picture(99)))
    learn = ["learn", tmp_path / "photos", "--state", state, "--hold-rest", *TINY_OPTIONS]
    held, left = threading.Event(), threading.Event()

    def hold() -> None:
        with tiny(state):
            held.set()
            left.wait(1.0)

    with DecisionLog.writing(log_path(state)):
        pass
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    code, shown, err = call(monkeypatch, capsys, *learn)
    thread.join()
    assert code == 0 and "samples added: 1" in shown, err


def test_the_help_names_the_extra(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "review", "--help")
    assert code == 0 and "Needs the extra web." in " ".join(out.replace("`", "").split())
