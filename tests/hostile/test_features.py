"""Hostile files of features and labels: read as what they hold, or refused in one sentence."""

import csv
import datetime
import io
import re
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purereplay.cli import main
from purereplay.data.features import _columns, read_features, read_rows
from purereplay.data.scores import write_scores
from purereplay.data.text import printable, spreadsheet_safe
from purereplay.errors import UserError
from purereplay.purify.filter import SelfCenteredFilter

FEATURES = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = ["cat", "dog", "cat", "7", "dog", "cat"]
NANOSECOND = "2020-01-01T00:00:00.000000001"


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **({"features": FEATURES, "labels": np.array(LABELS)} | arrays))
    return path


def refused(path: Path, **options) -> str:
    """Return the sentence with which a file is refused."""
    with pytest.raises(UserError) as error:
        read_features(path, **options)
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text and str(path) in text
    return text


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array(["a", "\ud800", *"abcd"]), "row 1 of .* is not valid Unicode text"),
        (np.array([b"a", b"\xff", b"c", b"d", b"e", b"f"]), "row 1 of .* is not valid Unicode text"),
        (np.array([NANOSECOND] * 6, "M8[ns]"), "row 0 of .* is a date or time that Python cannot represent"),
        (np.array(["2020-01-01"] * 5 + ["20000-01-01"], "M8[D]"), "row 5 of .* cannot represent: save it as text"),
        (np.array(["-0001-01-01"] * 6, "M8[s]"), "row 0 of .* cannot represent"),
        (np.array([1, 2, 3, 4, 5, 2**62], "m8[D]"), "row 5 of .* cannot represent"),
        (np.array(["2020-01-01"] * 5 + ["NaT"], "M8[ns]"), "row 5 of .* is missing"),
        (np.array([1, 2, 3, 4, 5, np.nan], np.longdouble), "row 5 of .* is missing"),
        (np.array([1, 2, 3, 4, 5, complex("nan")]), "row 5 of .* is missing"),
    ],
    ids=["surrogate", "bytes", "nanosecond", "late date", "early date", "long time", "NaT", "longdouble", "complex"],
)
@pytest.mark.parametrize("role", ["labels", "ids"])
def test_surrogates_nanoseconds_and_dates_out_of_range_are_refused(tmp_path, labels, words, role):
    assert re.search(words, refused(npz(tmp_path / "a.npz", **{role: labels})))


def test_dates_are_one_label_in_every_unit_and_kind_of_file(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5)
    files = [npz(tmp_path / f"{unit}.npz", labels=np.array([moment] * 6, f"M8[{unit}]")) for unit in ("s", "us", "ns")]
    for unit in ("s", "us", "ns"):
        files.append(tmp_path / f"{unit}.parquet")
        column = arrow.array([moment] * 6, arrow.timestamp(unit))
        arrow.parquet.write_table(arrow.table({"f": FEATURES[:, 0], "label": column}), files[-1])
    assert {tuple(read_features(path).labels) for path in files} == {(str(moment),) * 6}


@pytest.mark.parametrize(
    ("kind", "value"),
    [("timestamp('ns')", 1577836800000000001), ("date32()", 2**30), ("duration('s')", 2**60), ("time64('ns')", 1)],
)
def test_times_in_parquet_that_python_cannot_represent_are_refused(tmp_path, kind, value):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    column = arrow.array([value] * 6, eval(f"arrow.{kind}", {"arrow": arrow}))
    arrow.parquet.write_table(arrow.table({"f": FEATURES[:, 0], "label": column}), tmp_path / "a.parquet")
    assert "The column 'label'" in refused(tmp_path / "a.parquet")


def test_whole_numbers_beyond_64_bits_are_written(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    huge = np.array([2**64 - 1, 0, 1, 2, 3, 4], np.uint64)
    table = read_features(npz(tmp_path / "a.npz", labels=huge))
    for name in ("a.csv", "a.parquet"):
        write_scores(tmp_path / name, {"label": table.labels})
    assert parquet.read_table(tmp_path / "a.parquet")["label"].to_pylist()[0] == str(2**64 - 1)
    floats = read_features(npz(tmp_path / "b.npz", labels=np.full(6, 1e300)))
    write_scores(tmp_path / "b.parquet", {"label": floats.labels})
    write_scores(tmp_path / "c.parquet", {"label": [2**63 - 1, -(2**63)]})
    assert parquet.read_table(tmp_path / "c.parquet")["label"].to_pylist() == [2**63 - 1, -(2**63)]


def test_features_beyond_64_bits_are_infinite(tmp_path):
    if np.finfo(np.longdouble).max <= np.finfo(np.float64).max:
        pytest.skip("no floats beyond 64 bits on this machine")
    huge = FEATURES.astype(np.longdouble)
    huge[3, 0] = np.longdouble("1e4000")
    path = npz(tmp_path / "a.npz", features=huge)
    assert "row 3" in refused(path)
    with pytest.raises(UserError, match="row 3"):
        read_rows(path)
    with pytest.raises(UserError, match="row 3"):
        SelfCenteredFilter().fit(huge, LABELS)


@pytest.mark.parametrize("member", ["features", "labels"])
def test_a_member_without_its_header_is_refused(tmp_path, member):
    """numpy returns the bytes of such a member; six bytes were read as six labels."""
    source, path = npz(tmp_path / "a.npz"), tmp_path / "b.npz"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"abcdef" if name == f"{member}.npy" else old.read(name))
    assert f"The array '{member}'" in refused(path)


@pytest.mark.parametrize("order", "<>")
def test_characters_that_do_not_exist_are_refused(tmp_path, order):
    codes = np.full((6, 2), 65, f"{order}u4")
    assert read_features(npz(tmp_path / "a.npz", labels=codes.view(f"{order}U2")[:, 0])).labels[0] == "AA"
    codes[3, 1] = 0x110000
    assert "characters that do not exist" in refused(npz(tmp_path / "b.npz", labels=codes.view(f"{order}U2")[:, 0]))


@pytest.mark.parametrize("kind", ["V4", "i4,f4"])
def test_records_and_raw_memory_are_no_labels(tmp_path, kind):
    assert "save numbers, text or dates" in refused(npz(tmp_path / "a.npz", labels=np.zeros(6, kind)))


def test_a_header_that_states_a_huge_shape_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**44, 3)})
    source, path = npz(tmp_path / "a.npz"), tmp_path / "b.npz"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        new.writestr("features.npy", header.getvalue())
        new.writestr("labels.npy", old.read("labels.npy"))
    assert "does not fit into memory" in refused(path)


# ------------------------------------------------------------------ many columns


class CountedName(str):
    """A name that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_the_columns_of_a_wide_table_are_chosen_in_linear_time(tmp_path):
    def n_comparisons(n: int, features: str) -> int:
        CountedName.comparisons = 0
        names = [CountedName(f"f{i}") for i in range(n)]
        chosen = _columns(tmp_path / "a.csv", [*names, "label"], features, None, None)
        assert len(chosen.features) == n
        return CountedName.comparisons

    for features in (lambda n: "*", lambda n: ",".join(f"f{i}" for i in range(n))):
        assert n_comparisons(2000, features(2000)) < 3 * n_comparisons(1000, features(1000)) + 100
        assert n_comparisons(2000, features(2000)) < 100 * 2000


def test_a_csv_file_of_forty_thousand_columns_is_read_at_once(tmp_path):
    n, path = 40_000, tmp_path / "wide.csv"
    header, cells = ",".join(f"f{i}" for i in range(n)), ",".join(["1.5"] * n)
    path.write_text(f"label,{header}\n" + f"a,{cells}\n" * 2)
    began = time.process_time()
    assert read_features(path).features.shape == (2, n)
    assert time.process_time() - began < 5  # 20 s and more when each name was looked up in a list


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("f20,f21,f2O", r"no columns of features \(--columns 'f2O'\); its columns are: f20, f21"),
        ("f2*,g*", r"\(--columns 'g\*'\)"),
        ("F20,f21", r"\(--columns 'F20'\)"),
        ("f20,label", r"\(--columns 'label'\); that is the label or id"),
        ("f20,id", r"\(--columns 'id'\); that is the label or id"),
        ("f20,lab*", r"\(--columns 'lab\*'\)"),
        (",", r"\(--columns ','\)"),
    ],
)
def test_an_entry_that_names_no_features_is_refused(tmp_path: Path, kind: str, features: str, words: str):
    columns = {"f20": [1.0, 2.0], "f21": [3.0, 4.0], "label": ["a", "b"], "id": ["x", "y"]}
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(columns), path)
    assert re.search(words, refused(path, features=features))
    assert read_features(path, features="f2*, f20,").features.tolist() == [[1, 3], [2, 4]]


# ------------------------------------------------------------------ text for people


def test_labels_that_spreadsheets_compute_are_neutralised_in_csv_and_raw_in_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    labels = ["=1+1", "+x", "-x", "@x", "\tx", "plain", "'quoted", ""]
    columns = {"label": np.array(labels, object), "clean_probability": np.full(len(labels), -0.5)}
    for name in ("scores.csv", "scores.parquet"):
        write_scores(tmp_path / name, columns)
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "plain", "'quoted", ""]
    assert {row["clean_probability"] for row in rows} == {"-0.5"}, "numbers stay numbers"
    assert parquet.read_table(tmp_path / "scores.parquet")["label"].to_pylist() == labels
    write_scores(tmp_path / "numbers.csv", {"label": [-1, -2]})
    assert (tmp_path / "numbers.csv").read_text() == "label\n-1\n-2\n"


@given(st.text(st.characters(blacklist_categories=()), max_size=20))
def test_printable_text_has_no_control_characters(text):
    shown = printable(text)
    assert not any(c < " " or "\x7f" <= c < "\xa0" or "\u202a" <= c <= "\u202e" for c in shown)
    shown.encode()
    assert printable(shown) == shown and (shown == text or not text.isprintable())
    assert not spreadsheet_safe(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def filtered(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["purereplay", "filter", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file names")
def test_escapes_and_markup_in_file_names_do_not_reach_the_terminal(tmp_path, monkeypatch, capsys):
    hostile = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold][/red]"
    source = tmp_path / f"in{hostile.replace('/', '')}.npz"
    npz(tmp_path / "a.npz").rename(source)
    folder = tmp_path / hostile.partition("/")[0]
    folder.mkdir()
    assert filtered(monkeypatch, source, "--out", folder / "s[red].csv", "--keep-small") == 0
    out = capsys.readouterr()
    assert "\x1b" not in out.out + out.err and "\x07" not in out.out
    assert "[bold]x[" in out.out and "s[red].csv" in out.out.replace("\n", "")
    assert filtered(monkeypatch, folder / "none.npz", "--out", folder / "s.csv") == 2
    (folder / "a.csv").write_text("label,\x1b[31mred\n1,x\n")
    assert filtered(monkeypatch, folder / "a.csv", "--out", folder / "s.csv") == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\\x1b]0;owned" in err and "Traceback" not in err


# ------------------------------------------------------------------ mutated files


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> dict[str, list[bytes]]:
    """Valid files by suffix; the members of an npz file are mutated before they are packed, so that their CRC fits."""
    folder = tmp_path_factory.mktemp("seeds")
    with_ids = (
        npz(folder / "a.npz", ids=np.arange(6)),
        npz(folder / "b.npz", labels=np.array([NANOSECOND] * 6, "M8[ns]")),
    )
    rows = [["id", "f0", "label", "f1"], *([i, i / 7, label, -i] for i, label in enumerate(LABELS))]
    text = "\n".join(",".join(f'"{cell}"' if i % 2 else str(cell) for i, cell in enumerate(row)) for row in rows)
    valid = {
        ".npz": [path.read_bytes() for path in with_ids],
        ".npy": [content for path in with_ids for content in members(path).values()],
        ".csv": [text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()],
    }
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return valid
    columns = {"f0": FEATURES[:, 0], "f1": FEATURES[:, 1], "label": LABELS}
    moments = pyarrow.array(range(6), pyarrow.timestamp("ms"))
    ids = pyarrow.array(list("abcdef")).dictionary_encode()
    lists = pyarrow.table({"features": list(FEATURES), "label": moments, "id": ids})
    valid[".parquet"] = []
    for table, compression in ((pyarrow.table(columns), "none"), (lists, "snappy")):
        written = io.BytesIO()
        pyarrow.parquet.write_table(table, written, compression=compression)
        valid[".parquet"].append(written.getvalue())
    return valid


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "insert", "delete", "copy", "number"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=5,
)
NUMBERS = [b"\xff" * 4, b"\x00\x00\x00\x80", b"\xff" * 8, b"1e999", b"-1", b"NaN", b"\xed\xa0\x80", b"\x00" * 4]
NUMBERS += [b'"', b"9" * 30]


def mutated(content: bytes, edits) -> bytes:
    own = bytearray(content)
    for action, place, value in edits:
        at = int(place * max(1, len(own)))
        if action == "set" and own:
            own[at] = value
        elif action == "flip" and own:
            own[at] ^= 1 << value % 8
        elif action == "insert":
            own[at:at] = bytes([value]) * (1 + value % 3)
        elif action == "delete":
            del own[at : at + 1 + value * len(own) // 512]
        elif action == "copy":
            own[at:at] = own[at : at + value]
        else:
            number = NUMBERS[value % len(NUMBERS)]
            own[at : at + len(number)] = number
    return bytes(own)


def check_hostile(folder: Path, suffix: str, content: bytes, which: int) -> str:
    """Read a mutated file; return whether it was read or refused."""
    path = folder / f"hostile{'.npz' if suffix == '.npy' else suffix}"
    if suffix == ".npy":
        name = ("features.npy", "labels.npy", "ids.npy")[which % 3]
        np.savez(path, features=FEATURES, labels=np.array(LABELS), ids=np.arange(6))
        packed = members(path) | {name: content}
        with zipfile.ZipFile(path, "w") as archive:
            for member, own in packed.items():
                archive.writestr(member, own)
    else:
        path.write_bytes(content)
    try:
        table = read_features(path)
    except UserError as error:
        assert str(error).endswith(".") and "\n" not in str(error), str(error)
        return "refused"
    n = len(table.features)
    assert table.features.ndim == 2 and np.isfinite(table.features.astype(np.float64)).all()
    assert len(table.labels) == n and (table.ids is None or len(set(table.ids)) == len(table.ids) == n)
    assert all(isinstance(label, int | float | str) and label == label and label != "" for label in table.labels)
    for kind in (".csv", ".parquet") if suffix == ".parquet" else (".csv",):  # what was read can be written
        write_scores(folder / f"scores{kind}", {"id": table.ids or np.arange(n), "label": table.labels})
    return "read"


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data(), suffix=st.sampled_from([".npz", ".npy", ".csv", ".parquet"]), edits=EDITS)
def test_mutated_files_are_read_or_refused(seeds, tmp_path_factory, data, suffix, edits):
    if suffix not in seeds:
        return
    which = data.draw(st.integers(0, len(seeds[suffix]) - 1))
    check_hostile(tmp_path_factory.getbasetemp(), suffix, mutated(seeds[suffix][which], edits), which)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_thousands_of_mutated_files_are_read_or_refused(seeds, tmp_path, suffix):
    if suffix not in seeds:
        pytest.skip("needs pyarrow")
    rng, counts = np.random.default_rng(0), {"read": 0, "refused": 0}
    actions = ["set", "flip", "insert", "delete", "copy", "number"]
    for _ in range(3000):
        which = int(rng.integers(len(seeds[suffix])))
        edits = [(str(rng.choice(actions)), rng.random(), int(rng.integers(256))) for _ in range(rng.integers(1, 6))]
        content = mutated(seeds[suffix][which], edits)
        try:
            counts[check_hostile(tmp_path, suffix, content, which)] += 1
        except BaseException:
            (tmp_path / "culprit").write_bytes(content)
            raise
    print(suffix, counts)  # noqa: T201
    assert counts["refused"] > 100
