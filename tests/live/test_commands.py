"""The commands on a state: output, refused items and exit codes."""

import base64
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_images import COLOUR, encoded, huge_png
from tiny_state import ALL_LEARNERS, TINY_OPTIONS, fingerprint, picture, png, tiny_options

from purereplay.live import images

GOOD = ("a/0.png", "a/1.png", "b/2.png")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "purereplay.cli", *map(str, arguments)]


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(GOOD):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(png(picture(number)))
    return tmp_path / "photos"


def ids(state: Path) -> list[str]:
    return [row[1] for row in fingerprint(state)["samples"]]


def frames(form: str) -> bytes:
    pictures = [Image.fromarray(picture(i)) for i in range(3)]
    return encoded(pictures[0], form, save_all=True, append_images=pictures[1:])


BAD_FILES = {
    "empty": (b"", "is empty"),
    "truncated JPEG": (encoded(Image.fromarray(picture(5)), "JPEG")[:-20], "is damaged"),
    "huge": (huge_png(40_000, 40_000), "has 1,600,000,000 pixels, more than 50,000,000"),
    "animated GIF": (frames("GIF"), "is an animation"),
    "animated PNG": (frames("PNG"), "is an animation"),
    "text": (b"hello", "is not an image"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_named_and_the_others_are_added(kind, photos, cli):
    content, reason = BAD_FILES[kind]
    (photos / "a" / "0bad.png").write_bytes(content)
    done = cli("learn", photos, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 2
    first, last = done.err.strip().splitlines()
    assert first.startswith("a/0bad.png ") and reason in first
    assert last == "purereplay: 1 of 4 items were refused; the others were added."
    assert ids(photos / "state") == list(GOOD)


def test_images_of_other_sizes_are_resized_and_the_size_is_told(photos, cli):
    others = {"small": png(picture(5, size=3)), "wide": png(COLOUR[:, :5].repeat(30, 0)), "CMYK": b"", "palette": b""}
    others["CMYK"] = encoded(Image.new("CMYK", (6, 6)), "JPEG")
    others["palette"] = encoded(Image.new("P", (6, 6)))
    for name, content in others.items():
        (photos / "b" / f"{name}.png").write_bytes(content)
    done = cli("learn", photos, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 0 and len(ids(photos / "state")) == 7
    told = "7 images looked at: 3 × 3 pixels to 5 × 150. All images are resized to 6 × 6, colour; the aspect is kept."
    assert told in done.out


def test_images_that_are_converted_to_grey(photos, cli):
    """Images with sixteen bits, one bit or transparency become grey like the others."""
    others = {
        "deep": Image.fromarray(picture(7).astype(np.uint16) << 8),
        "bits": Image.fromarray(picture(8) > 60),
        "clear": Image.merge("LA", [Image.fromarray(picture(9))] * 2),
    }
    for name, image in others.items():
        (photos / "b" / f"{name}.png").write_bytes(encoded(image))
    assert cli("learn", photos, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS).code == 0
    assert len(ids(photos / "state")) == 6


def test_an_unreadable_file(photos, cli, monkeypatch):
    opened = images._open

    def guarded(root, path):
        if path.name == "1.png":
            raise PermissionError(13, "Permission denied")
        return opened(root, path)

    monkeypatch.setattr(images, "_open", guarded)
    done = cli("learn", photos, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 2 and "a/1.png cannot be read: Permission denied" in done.err
    assert ids(photos / "state") == ["a/0.png", "b/2.png"]


def test_links_and_special_files_in_a_folder(photos, cli):
    (photos / "a" / "9.png").symlink_to("/etc/hostname")
    (photos / "a" / "loop").symlink_to(photos)
    os.mkfifo(photos / "a" / "fifo")
    (photos / "lost.png").write_bytes(png(picture(8)))
    done = cli("learn", photos, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 2 and "4 of 7 items were refused" in done.err
    for sentence in (
        "9.png leads out of the folder",
        "a/loop is a link",
        "fifo is not a file",
        "lost.png has no label",
    ):
        assert sentence in done.err
    assert ids(photos / "state") == list(GOOD)


def test_a_folder_of_images_without_subfolders_is_refused_as_a_whole(tmp_path, cli):
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(png(picture(k)))
    done = cli("learn", tmp_path, "--state", tmp_path / "state")
    assert done.code == 2 and "holds images without labels: put them into one subfolder per label" in done.err
    assert "0.png" not in done.err and not (tmp_path / "state").exists()


def test_a_label_that_no_sample_had_is_told(photos, cli, tmp_path):
    options = ("--state", tmp_path / "state")
    assert "new labels" not in cli("learn", photos, *options, *TINY_OPTIONS).out
    assert "new labels" not in cli("learn", photos, *options).out
    (photos / "aa").mkdir()
    (photos / "aa" / "7.png").write_bytes(png(picture(7)))
    assert re.search(r"new labels +aa +\n", cli("learn", photos, *options, "--dry-run").out)
    assert "new labels (check the spelling): aa\n" in cli("learn", photos, *options).out
    (tmp_path / "fixes.csv").write_text("id,label\na/0.png,b\nb/2.png,ab\n")
    done = cli("correct", tmp_path / "fixes.csv", *options)
    assert "labels corrected: 2" in done.out and "new labels (check the spelling): ab\n" in done.out


def test_lists(photos, cli):
    listing = photos / "list.csv"
    listing.write_text("path,label\na/0.png,x\n../no.png,x\na/1.png,\nb/2.png,y\na/0.png,y\n")
    done = cli("learn", listing, "--state", photos / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 2 and "3 of 5 items were refused" in done.err
    assert ids(photos / "state") == ["a/0.png", "b/2.png"]
    assert "a/0.png was added before with the label 'x'" in done.err
    listing = photos / "list.jsonl"
    lines = [
        {"path": "a/1.png", "label": "x"},
        {"id": "n", "path": "b/2.png", "label": 3},
        {"path": "a/0.png", "label": "x"},
    ]
    listing.write_text("\n".join(json.dumps(line) for line in lines) + '\n{"path": "b/2')
    done = cli("learn", listing, "--state", photos / "state", "--hold-rest")
    assert done.code == 2 and "n has a label that is a number, not text" in done.err
    assert "line 4 is not JSON" in done.err and "2 of 4 items" in done.err
    assert "added: 1, already known: 1" in done.out
    assert ids(photos / "state") == ["a/0.png", "b/2.png", "a/1.png"]


def test_no_state_is_created_for_missing_data(tmp_path, cli):
    for data, sentence in [("nowhere", "does not exist"), (tmp_path, "holds no images")]:
        done = cli("learn", data, "--state", tmp_path / "state")
        assert done.code == 2 and sentence in done.err and len(done.err.strip().splitlines()) == 1
        assert not (tmp_path / "state").exists()
    for arguments in (("status",), ("audit", "--out", "x.csv"), ("predict", "x.png"), ("correct", "x.csv")):
        done = cli(*arguments, "--state", tmp_path / "state")
        assert done.code == 2 and "holds no state" in done.err and not (tmp_path / "state").exists()


@pytest.mark.parametrize("learner", ALL_LEARNERS)
def test_all_commands(learner, tmp_path, cli, monkeypatch, small_features):
    """learn, status, audit, correct, predict; then more of the same folder."""
    folder, state = tmp_path / "photos", tmp_path / "state"
    for i in range(50):
        path = folder / f"[{i % 2}]" / f"{i:02}.png"  # a label that looks like markup
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 2)))
    done = cli("learn", folder, "--state", state, *tiny_options(learner))
    assert done.code == 0 and "added: 50, already known: 0, judged: 50" in done.out and "audit" in done.out
    assert "`purereplay review --state" in done.out
    done = cli("status", "--state", state)
    judged = "50; judged once so far" if learner == "full-memory" else "50 in 3 buffers"
    assert done.code == 0 and judged in done.out and "[0]" in done.out and f"learner {learner}" in done.out
    assert json.loads(cli("status", "--state", state, "--format", "json").out)["scored"] == 50
    done = cli("audit", "--state", state, "--out", tmp_path / "audit.csv", "--device", "cpu")
    assert done.code == 0 and "samples judged: 50" in done.out and "waiting" not in done.out
    rows = list(csv.DictReader((tmp_path / "audit.csv").open()))
    assert len(rows) == 50
    (tmp_path / "fixes.csv").write_text("id,label\n[0]/00.png,[1]\nunknown,[1]\n")
    done = cli("correct", "--state", state, tmp_path / "fixes.csv", "--device", "cpu")
    assert done.code == 2 and "labels corrected: 1" in done.out and "1 of 2 corrections were refused" in done.err
    done = cli("predict", "--state", state, folder, "--format", "jsonl")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0 and len(lines) == 50 and set(lines[0]["probabilities"]) == {"[0]", "[1]"}
    assert lines[0]["probability"] == max(lines[0]["probabilities"].values())
    (tmp_path / "bad.png").write_bytes(b"")
    done = cli("predict", "--state", state, folder / "[0]" / "00.png", tmp_path / "bad.png", "--format", "csv")
    assert done.code == 2 and "bad.png is empty" in done.err and "1 of 2 images were refused" in done.err
    [row] = csv.DictReader(io.StringIO(done.out))
    assert row["label"] == lines[0]["label"] and row[f"probability of {row['label']}"] == row["probability"]
    monkeypatch.chdir(folder)
    done = cli("predict", "--state", state, "[0]/00.png")
    assert done.code == 0 and lines[0]["label"] in done.out and "00.png" in done.out
    (folder / "[0]" / "new.png").write_bytes(png(picture(99)))
    done = cli("learn", folder, "--state", state, "--hold-rest")
    assert "added: 1, already known: 50, judged: 0" in done.out
    for arguments in (("predict", folder, "--format", "xml"), ("status", "--format", "xml")):
        assert "'xml' is unknown" in cli(*arguments, "--state", state).err


@pytest.mark.parametrize("choice", ["features=patches", "features=penultimate", "filter=aum", "self_replay=never"])
def test_every_filter_and_training_leads_from_folder_to_prediction(choice, tmp_path, cli):
    """Also those without experts or base: the time left is estimated from the training that they have."""
    folder, state = tmp_path / "photos", tmp_path / "state"
    for i in range(50):
        path = folder / str(i % 2) / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 2, size=8)))
    fast = ["--set", "aum_epochs=2"] if choice == "filter=aum" else []
    done = cli("learn", folder, "--state", state, *TINY_OPTIONS, "--set", choice, *fast)
    assert done.code == 0 and "judged: 50" in done.out, done.err
    assert "samples judged: 50" in cli("audit", "--state", state, "--out", tmp_path / "a.csv", "--device", "cpu").out
    done = cli("predict", "--state", state, folder / "0" / "00.png", "--format", "jsonl")
    assert done.code == 0 and json.loads(done.out)["label"] in ("0", "1")


def test_status_tells_how_often_all_were_judged_and_when_again(photos, cli, tmp_path, small_features):
    def row(name: str) -> str:
        lines = cli("status", "--state", tmp_path / "state").out.splitlines()
        return next(line for line in lines if line.startswith(name)).removeprefix(name).strip()

    for i in range(15):
        (photos / "ab"[i % 2] / f"{i}.png").write_bytes(png(picture(i, i % 2)))
    cli("learn", photos, "--state", tmp_path / "state", "--hold-rest", *tiny_options("full-memory"))
    assert row("judged") == "0; all are judged for the first time with 20 samples"
    cli("learn", photos, "--state", tmp_path / "state")
    assert row("created with") == "learner full-memory, seed 1"
    assert row("judged") == "17; judged once so far; next time with 26 samples"


def test_the_audit_counts_samples_that_wait(photos, cli, tmp_path, small_features):
    for i in range(25):
        (photos / "ab"[i % 2] / f"{i}.png").write_bytes(png(picture(i, i % 2)))
    cli("learn", photos, "--state", tmp_path / "state", *tiny_options("full-memory"))
    (photos / "a" / "new.png").write_bytes(png(picture(77)))
    cli("learn", photos, "--state", tmp_path / "state", "--hold-rest")
    done = cli("audit", "--state", tmp_path / "state", "--out", tmp_path / "audit.csv")
    assert "waiting, not listed: 1; `purereplay learn … --score-rest` judges them" in done.out


def test_a_list_with_another_root_names_ten_files_and_where_they_were_looked_for(photos, cli, tmp_path):
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"b/{i}.png,b\n" for i in range(100, 115)))
    done = cli("learn", tmp_path / "list.csv", "--state", tmp_path / "state")
    *named, more, where, last = done.err.splitlines()
    assert done.code == 2 and named == [f"b/{i}.png was not found in {tmp_path}" for i in range(100, 110)]
    assert more == "… and 5 more" and last == "purereplay: All 15 items were refused."
    assert where.startswith(f"paths are relative to {tmp_path}, the folder of the list")
    assert where.endswith("choose another with --root")
    done = cli("learn", tmp_path / "list.csv", "--root", photos, "--state", tmp_path / "state")
    assert f"paths are relative to {photos}, the folder of" in done.err
    done = cli("correct", tmp_path / "list.csv", "--state", tmp_path / "state")
    assert "paths are relative" not in done.err


def test_files_that_are_no_images_are_named_and_no_error(photos, cli):
    (photos / "a" / "Thumbs.db").write_bytes(b"x")
    (photos / "readme.txt").write_bytes(b"x")
    done = cli("learn", photos, "--state", photos.parent / "state", "--hold-rest", *TINY_OPTIONS)
    assert done.code == 0 and "files skipped because they are not images: a/Thumbs.db, readme.txt" in done.out
    assert ids(photos.parent / "state") == list(GOOD)
    done = cli("learn", photos, "--state", photos.parent / "state", "--dry-run")
    assert "other files 2, skipped" in " ".join(done.out.split())
    for name in GOOD:
        (photos / name).unlink()
    done = cli("learn", photos, "--state", photos.parent / "state")
    assert done.code == 2 and "holds no images" in done.err


def test_lines_of_progress_where_bars_are_not_shown(photos, cli, monkeypatch, small_features):
    for i in range(30):
        (photos / "ab"[i % 2] / f"{i}.png").write_bytes(png(picture(i, i % 2)))
    state = photos.parent / "state"
    assert "judging: " not in cli("learn", photos, "--state", photos.parent / "other").out  # quick
    monkeypatch.setattr("purereplay.report.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr("purereplay.live.items.CHUNK", 10)
    done = cli("learn", photos, "--state", state)
    lines = done.out.splitlines()
    assert "added: 10 of 32" in lines and any(re.fullmatch(r"added: 20 of 32, .* left", line) for line in lines)
    assert any(re.fullmatch(r"judging 32 samples: \d\d %, about .* left", line) for line in lines)
    (photos.parent / "fixes.csv").write_text("id,label\na/0.png,b\n")
    done = cli("correct", "--state", state, photos.parent / "fixes.csv")
    assert done.code == 0 and "all 32 samples are judged again" in done.out and "judging 32 samples: 0 %" in done.out


def test_words_about_one_and_all(photos, cli, small_features):
    state = photos.parent / "state"
    cli("learn", photos, "--state", state)
    assert "judged 0; judged once so far; next time with" in " ".join(cli("status", "--state", state).out.split())
    (photos / "bad.png").write_bytes(b"")
    done = cli("predict", "--state", state, photos / "bad.png")
    assert done.code == 2 and done.err.endswith("purereplay: The only image was refused.\n")
    done = cli("predict", "--state", state, photos / "bad.png", photos / "bad.png")
    assert "All 2 images were refused." in done.err
    done = cli("predict", "--state", state, photos / "bad.png", photos / "a")
    assert "1 of 3 images were refused; the others were classified." in done.err


def test_a_dry_run_says_what_would_happen_and_writes_nothing(photos, cli, tmp_path):
    (photos / "a" / "wide.png").write_bytes(png(picture(5, size=9)[:3]))
    (photos / "lost.png").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    done = cli("learn", photos, "--state", tmp_path / "state", "--dry-run")
    text = " ".join(done.out.split())
    assert done.code == 0 and sorted(path.name for path in tmp_path.rglob("*")) == before
    for part in (
        "images 5, of these in the state 0, unusable 1",
        "labels 2: a 3, b 1",
        "new 4: a 3, b 1",
        "learned as 6 × 6 pixels, grey",
        "learner full-memory, seed 1",
    ):
        assert part in text
    assert "time about" in text and text.endswith("Nothing was written.")
    assert done.err == "lost.png has no label\n"
    (photos / "lost.png").unlink()
    cli("learn", photos, "--state", tmp_path / "state", "--hold-rest", *TINY_OPTIONS)
    (tmp_path / "list.csv").write_text("path,label\na/0.png,x\nb/2.png,y\n")
    done = cli("learn", tmp_path / "list.csv", "--root", photos, "--state", tmp_path / "state", "--dry-run")
    text = " ".join(done.out.split())
    assert "images 2, of these in the state 2" in text and "learner spr" in text and "time unknown" in text
    done = cli("learn", "-", "--state", tmp_path / "state", "--dry-run")
    assert done.code == 2 and "--dry-run needs a folder or a list" in done.err


def test_the_time_of_a_dry_run_has_a_fixed_part_and_is_0_if_nothing_is_new(photos, cli, tmp_path, small_features):
    def told() -> str:
        text = " ".join(cli("learn", photos, "--state", tmp_path / "state", "--dry-run").out.split())
        return re.search(r"time (.*?) Nothing was written", text)[1]

    for i in range(30):
        (photos / "ab"[i % 2] / f"{i}.png").write_bytes(png(picture(i, i % 2)))
    assert float(re.fullmatch(r"about (\S+) s", told())[1]) > 3  # 32 images
    cli("learn", photos, "--state", tmp_path / "state", "--hold-rest")
    assert told().startswith("about ")  # stored, and not judged yet
    cli("learn", photos, "--state", tmp_path / "state")
    assert told() == "0 s, since nothing is new"


def test_work_that_takes_long_or_much_memory_is_announced_before_it_begins(photos, cli, monkeypatch):
    monkeypatch.setattr("purereplay.live.plan._LONG", 0.0)
    monkeypatch.setattr("purereplay.live.learn._MANY", 0)
    monkeypatch.setattr("purereplay.live.full_memory.FullMemory.work", lambda *_, **__: None)
    done = cli("learn", photos, "--state", photos / "state")
    assert done.code == 0 and "This takes about 0 minutes; a smaller --size takes less." in done.err
    monkeypatch.setattr("purereplay.live.plan._LARGE", 0)
    done = cli("learn", photos, "--state", photos / "other", "--hold-rest", *TINY_OPTIONS)
    assert "Training on images of 6 × 6 pixels needs at least 0 GiB of memory and takes long" in done.err


def test_the_help_of_learn_states_the_defaults(cli):
    text = " ".join(cli("learn", "--help").out.replace("│", " ").split())
    for default in (
        "chosen by the first images",
        "as the first images",
        "the list's folder, or the working directory",
        "live",
        "1",
    ):
        assert f"(default: {default})" in text
    assert "(default: hold them with a pipe or --follow)" in text


# ---------------------------------------------------------------- in separate processes


def line(i: int, **changes: object) -> str:
    image = base64.b64encode(png(picture(i, i % 3))).decode()
    return json.dumps({"id": f"s{i}", "image": image, "label": f"label {i % 3}"} | changes) + "\n"


@pytest.mark.long
def test_a_pipe_is_answered_line_by_line_and_a_second_process_is_refused(tmp_path):
    call = command("learn", "-", "--state", tmp_path / "state", *TINY_OPTIONS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(call, env=ENVIRONMENT, **pipes)
    process.stdin.write(line(0) + line(1, label=7) + line(0) + line(2))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(4)]  # before the pipe ends
    refused = {"id": "s1", "line": 2, "error": "s1 has a label that is a number, not text"}
    assert answers == [{"id": "s0", "ok": True}, refused, {"id": "s0", "ok": True}, {"id": "s2", "ok": True}]
    assert ids(tmp_path / "state") == ["s0", "s2"]
    second = subprocess.run(call, env=ENVIRONMENT, capture_output=True, text=True, input=line(3), timeout=60)
    assert second.returncode == 2 and second.stdout == "" and "Another process is working on" in second.stderr
    out, err = process.communicate("".join(line(i) for i in range(3, 25)) + '{"id": "s25", "im', timeout=60)
    answers = [json.loads(text) for text in out.splitlines()]
    assert [a.get("id") for a in answers] == [f"s{i}" for i in range(3, 25)] + [None]
    assert answers[-1]["line"] == 27 and "line 27 is not JSON" in answers[-1]["error"]
    *summary, last = err.splitlines()
    assert process.returncode == 2 and last == "purereplay: 2 of 27 items were refused; the others were added."
    assert summary[0] == "samples added: 24, already known: 1, judged: 20" and "audit --state" in summary[1]
    assert len(fingerprint(tmp_path / "state")["decisions"]) == 20  # the rest is held


@pytest.mark.long
def test_a_watched_folder_and_ctrl_c(tmp_path):
    folder, state = tmp_path / "photos", tmp_path / "state"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "0.png").write_bytes(png(picture(0)))
    call = command("learn", folder, "--state", state, "--follow", *TINY_OPTIONS)
    process = subprocess.Popen(call, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for n in (1, 22):
        for i in range(n):
            (folder / "a" / f"{i}.png").write_bytes(png(picture(i)))
        deadline = time.time() + 60
        while time.time() < deadline and not (state.exists() and _n_samples(state) == n):
            time.sleep(0.05)
        assert _n_samples(state) == n
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "the same command continues from here" in err and "Traceback" not in err


def _n_samples(state: Path) -> int:
    try:
        return len(ids(state))
    except Exception:  # not created yet
        return -1
