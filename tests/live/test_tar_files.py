"""Tar archives against the standard library's reader, and against damage."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import tracemalloc
import zlib

import pytest

from purereplay.errors import UserError
from purereplay.live.decompressed import Damaged
from purereplay.live.shards import read_shards
from purereplay.live.tar_files import members

COMPRESS = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
FILES = [("1.png", b"x" * 700), ("1.cls", b"a"), ("d/2.png", b"y" * 512), ("d/2.cls", b""), ("3.png", b"z" * 70_000)]


def archive(files=FILES, form=tarfile.PAX_FORMAT, **common):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form, **common) as tar:
        for name, text in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), 1.5
            tar.addfile(member, io.BytesIO(text))
    return content.getvalue()


def read(content):
    return [(member.name, member.read()) for member in members(io.BytesIO(content)) if member.is_file]


def oracle(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar if member.isreg()]


def raw_header(kind, size, name="././@LongLink"):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("packer", COMPRESS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_same_files_as_the_standard_library(form, packer):
    files = [*FILES, ("l" * 90 + "/" + "n" * 95 + ".png", b"long")]
    if form != tarfile.USTAR_FORMAT:
        files += [("ü" * 1000 + ".png", b"q"), ("\udcff.png", b"not UTF-8")]
    content = archive(files, form, pax_headers={"comment": "of all files"})
    assert read(COMPRESS[packer](content)) == oracle(content) == files


def test_links_folders_and_unread_files_are_skipped():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("1.png")
            member.type, member.linkname = kind, "x" * 300
            tar.addfile(member)
        for name, text in FILES:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    assert read(content.getvalue()) == FILES
    assert [member.name for member in members(io.BytesIO(content.getvalue()))][5:] == [name for name, _ in FILES]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_the_program_tar(tmp_path, form):
    for name, text in FILES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(text)
    subprocess.run(["tar", f"--format={form}", "-cf", tmp_path / "s.tar", "-C", tmp_path / "in", "."], check=True)
    content = (tmp_path / "s.tar").read_bytes()
    assert read(content) == oracle(content)
    assert len(read(content)) == len(FILES)


def test_every_cut_is_found():
    content = archive(FILES[:4]).rstrip(b"\0")
    content += bytes(-len(content) % 512)
    assert read(content + bytes(1024)) == read(content + bytes(10240)) == FILES[:4]
    for length in range(0, len(content) + 1024, 64):
        with pytest.raises(Damaged, match=r"end|truncated header|empty"):
            read((content + bytes(1024))[:length])


def test_every_changed_bit_of_a_header_is_found():
    content = archive(FILES[:4], tarfile.USTAR_FORMAT)
    for block in (0, 3, 5, 7):  # the headers
        for byte in range(0, 512, 7):
            damaged = bytearray(content)
            damaged[512 * block + byte] ^= 1
            with pytest.raises(Damaged, match=f"the header at byte {512 * block:,} is damaged"):
                read(damaged)


def test_data_after_the_end_are_not_dropped():
    for more in (archive(), b"x", bytes(2048) + b"x"):
        with pytest.raises(Damaged, match="data follow its end marker"):
            read(archive() + more)
    with pytest.raises(Damaged, match="data follow its end marker"):
        read(gzip.compress(archive()) + gzip.compress(archive()))


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz"])
def test_damage_to_compressed_data_is_found(packer):
    whole = COMPRESS[packer](archive())
    assert read(whole + bytes(512)) == FILES  # padding
    middle = len(whole) // 2
    cuts = [whole[:length] for length in (middle, len(whole) - 8, len(whole) - 1)]
    changed = [whole[:k] + bytes([whole[k] ^ 0x55]) + whole[k + 1 :] for k in (middle, len(whole) - 6)]
    for damaged in (*cuts, *changed, whole + b"garbage"):
        with pytest.raises(Damaged):
            read(damaged)


def test_compressed_in_several_parts():
    content = archive()
    assert read(gzip.compress(content[:1000]) + gzip.compress(content[1000:])) == FILES


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("n_headers", [1, 512])
def test_large_headers_of_small_files_take_no_memory(tmp_path, kind, n_headers):
    packer, n_bytes = zlib.compressobj(9, wbits=31), 128 * 2**20
    content = b""
    for _ in range(n_headers):
        content += packer.compress(raw_header(kind, n_bytes // n_headers))
        for start in range(0, n_bytes // n_headers, 2**18):
            content += packer.compress(
                (b"%d k=" % (n_bytes // n_headers)).ljust(2**18, b"a") if not start else b"a" * 2**18
            )
    (tmp_path / "s.tar.gz").write_bytes(content + packer.flush())
    tracemalloc.start()
    with pytest.raises(UserError, match=r"s\.tar\.gz .*(a header has more than 1,048,576 bytes|pax header is damaged)"):
        list(read_shards([tmp_path / "s.tar.gz"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    "fields", [b"9 path=a", b"99 path=a\n", b"0 path=a\n", b"7 path\n", b"x", b"10 size=-\n", b"1" * 400]
)
def test_damaged_pax_fields(fields):
    content = raw_header(tarfile.XHDTYPE, len(fields)) + fields.ljust(512, b"\0")
    with pytest.raises(Damaged, match="pax header"):
        read(content + archive())


def test_files_with_holes_are_refused():
    with pytest.raises(Damaged, match=r"hole\.png is stored as a sparse file: pack it without --sparse"):
        read(raw_header(tarfile.GNUTYPE_SPARSE, 0, "hole.png") + archive())
    fields = b"22 GNU.sparse.major=1\n"
    with pytest.raises(Damaged, match=r"1\.png is stored as a sparse file"):
        read(raw_header(tarfile.XHDTYPE, len(fields)) + fields.ljust(512, b"\0") + archive(form=tarfile.USTAR_FORMAT))
