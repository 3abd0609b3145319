"""The page's logic, tested with node."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
STATIC = FOLDER.parent.parent / "src" / "purereplay" / "web" / "static"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser tests cover the page")
def test_the_logic_of_the_page():
    done = subprocess.run(
        ["node", "--test", str(FOLDER / "reducer.test.mjs")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert "pass 26" in done.stdout and "fail 0" in done.stdout


def test_the_page_is_small_and_names_no_other_host():
    files = list(STATIC.iterdir())
    assert sum(file.stat().st_size for file in files) < 80_000
    for file in files:
        text = file.read_text()
        assert "innerHTML" not in text and "eval(" not in text
        assert not [
            line for line in text.splitlines() if "//" in line and "http" in line and "w3.org/2000/svg" not in line
        ]
