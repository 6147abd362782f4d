"""Regions: bytes, atomics, batches, buffers without a copy, revokes; messages by reference; datagrams."""

import os
import random
import subprocess
import sys
import threading

import pytest

import raas

HERE = "127.0.0.1"


def reopened(region, **options):
    return raas.Region.open(HERE, region.name, region.key, **options)


@pytest.fixture
def region():
    with raas.Region.create(f"test-{os.getpid()}-{random.random()}", 64 << 10) as made:
        yield made


def test_bytes_are_read_and_written(region):
    assert len(region) == region.nbytes == 64 << 10 and region.is_owner and region.epoch == 1
    with reopened(region) as other:
        assert not other.is_owner
        other.write(100, b"hello")
        assert region.read(98, 9) == b"\0\0hello\0\0"
        room = bytearray(5)
        region.read_into(100, room)
        assert room == b"hello"
        with pytest.raises(ValueError) as outside:
            other.write((64 << 10) - 2, b"abc")
        assert outside.value.reason == "out-of-bounds"
        with pytest.raises(ValueError):
            other.read(0, 1 << 60)
    with pytest.raises(OSError):
        other.read(0, 1)


def test_words(region):
    assert region.fetch_add(8, 5) == 0 and region.load(8) == 5
    assert region.compare_swap(8, 5, 7) == 5 and region.compare_swap(8, 5, 9) == 7
    assert region.swap(8, 2**64 - 1) == 7 and region.fetch_add(8, 2) == 2**64 - 1
    assert region.fetch_or(8, 0b110) == 1 and region.fetch_and(8, 0b011) == 0b111
    assert region.fetch_xor(8, 0b101) == 0b011 and region.fetch_max(8, 100) == 0b110
    assert region.fetch_min(8, 3) == 100 and region.load(8) == 3
    region.store(16, 12)
    assert region.read(16, 8) == (12).to_bytes(8, sys.byteorder)
    with pytest.raises(ValueError) as odd:
        region.load(4)
    assert odd.value.reason == "misaligned"
    with pytest.raises(OverflowError):
        region.store(8, 2**64)


def test_a_counter_of_threads_and_processes(region):
    script = (
        "import raas, sys\n"
        "r = raas.Region.open('127.0.0.1', sys.argv[1], sys.argv[2])\n"
        "for _ in range(1000): r.fetch_add(0, 1)\n"
    )
    words = [sys.executable, "-c", script, region.name, region.key]
    children = [subprocess.Popen(words) for _ in range(2)]
    threads = [threading.Thread(target=lambda: [region.fetch_add(0, 1) for _ in range(1000)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [child.wait(120) for child in children] == [0, 0]
    assert region.load(0) == 4000


def test_batches(region):
    region.write(32, b"before")
    batch = raas.Batch()
    assert batch.read(region, 32, 6) == 0
    batch.fence()
    batch.write(region, 32, b"behind")
    batch.fence()
    batch.read(region, 32, 6)
    batch.fetch_add(region, 0, 3)
    batch.compare_swap(region, 0, 3, 4)
    assert len(batch) == 5
    assert batch.run() == [b"before", None, b"behind", 0, 3]
    assert len(batch) == 0 and batch.run() == []
    batch.write(region, 64 << 10, b"outside")
    with pytest.raises(ValueError):
        batch.run()


def test_keys_names_and_accesses(region):
    with pytest.raises(PermissionError) as wrong:
        raas.Region.open(HERE, region.name, "00" * 16)
    assert wrong.value.reason == "wrong-key"
    with pytest.raises(FileNotFoundError):
        raas.Region.open(HERE, "no such region", region.key)
    with pytest.raises(FileExistsError):
        raas.Region.create(region.name, 4096)
    with pytest.raises(ValueError):
        raas.Region.open(HERE, region.name, "short")
    with reopened(region, access="read") as reader:
        with pytest.raises(PermissionError) as refused:
            reader.write(0, b"x")
        assert refused.value.reason == "no-access"
        with memoryview(reader) as view:
            assert view.readonly
            with pytest.raises(TypeError):
                view[0] = 1
    with reopened(region, access="write") as writer, pytest.raises(PermissionError):
        memoryview(writer)


def test_a_view_is_the_memory_itself(region):
    with reopened(region) as other, memoryview(region) as view:
        assert len(view) == 64 << 10 and not view.readonly and view.format == "B"
        view[10:15] = b"views"
        assert other.read(10, 5) == b"views"
        other.write(10, b"V")
        assert bytes(view[10:15]) == b"Views"
        assert region.views == 1 and other.views == 0 and region.stale_views == 0
        with pytest.raises(BufferError):
            region.close()
        with pytest.raises(BufferError):
            region.revoke()
    assert region.views == 0


def test_numpy_arrays_share_the_memory(region):
    numpy = pytest.importorskip("numpy")
    mine = numpy.frombuffer(region, dtype="f8")
    other = reopened(region)
    theirs = numpy.frombuffer(other, dtype="f8")
    mine[:] = numpy.arange(len(mine))
    assert (theirs == numpy.arange(len(mine))).all() and theirs.sum() == mine.sum()
    assert mine.ctypes.data != theirs.ctypes.data, "two mappings of one memory"
    part = mine[10:20]
    del mine
    # An array made of an array keeps the buffer.
    assert region.views == 1 and part[0] == 10
    del part
    assert region.views == 0
    # An array outlives what it was made of.
    del other
    assert theirs[7] == 7


def test_a_revoke_and_views(region):
    other = reopened(region)
    view = memoryview(other)
    assert region.revoke() == 2
    with pytest.raises(raas.Revoked) as revoked:
        other.read(0, 1)
    assert revoked.value.reason == "revoked" and not revoked.value.may_have_landed
    with pytest.raises(raas.Revoked):
        other.check()
    # The memory is still mapped, and the region's is another.
    view[0:4] = b"lost"
    assert bytes(view[0:4]) == b"lost" and region.read(0, 4) == b"\0\0\0\0"
    with pytest.raises(raas.Revoked):
        memoryview(other)
    view.release()
    other.close()
    region.check()
    with reopened(region) as again:
        assert again.epoch == 2


def test_a_revoke_by_another_program_makes_the_owners_views_stale(region, daemon):
    region.write(0, b"kept")
    view = memoryview(region)
    words = [os.environ["RAAS"], "region", "revoke", region.name, "--key", region.key, "--socket", str(daemon)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    # The owner follows when the daemon has told it, which a call notices.
    while region.epoch == 1:
        region.read(0, 4)
    assert region.read(0, 4) == b"kept" and region.stale_views == 1
    with pytest.raises(raas.Revoked) as stale:
        region.check()
    assert stale.value.may_have_landed
    view.release()
    region.check()
    with memoryview(region) as fresh:
        assert bytes(fresh[:4]) == b"kept"


def test_notifications(region):
    with pytest.raises(TimeoutError):
        region.notification(timeout=0.02)
    with reopened(region) as other:
        other.write(0, b"first", notify=7)
        assert region.notification(timeout=60) == 7 and region.read(0, 5) == b"first"
        threading.Timer(0.4, other.notify, [8]).start()
        assert region.notification() == 8
        with pytest.raises(PermissionError) as owner:
            other.notification(timeout=1)
        assert owner.value.reason == "not-owner"


def test_messages_by_reference(region):
    numpy = pytest.importorskip("numpy")
    with raas.listen_messages((HERE, 0)) as listener:
        lender = raas.connect_messages(listener.getsockname(), timeout=60)
        receiver, _ = listener.accept()
        receiver.settimeout(60)
        array = numpy.frombuffer(region, dtype="i4")
        array[:] = numpy.arange(len(array))
        lent = lender.lend(region, 400, 4000)
        assert not lent.is_back() and not lent.wait(timeout=0.02)
        with receiver.receive_view() as view:
            assert view.is_lent and len(view) == view.nbytes == 4000
            got = numpy.frombuffer(view, dtype="i4")
            assert (got == numpy.arange(100, 1100)).all() and not got.flags.writeable
            # It is the lender's memory, not a copy.
            array[100] = -1
            assert got[0] == -1
            view.check()
            with pytest.raises(BufferError):
                view.release()
            assert not lent.is_back()
            del got
        assert lent.wait(timeout=60)
        with pytest.raises(BufferError):
            memoryview(view)
        lender.send(b"as bytes")
        with receiver.receive_view() as view:
            assert not view.is_lent and bytes(view) == b"as bytes"
        # Who does not ask for a view gets a copy.
        lent = lender.lend(region, 0, 4)
        assert receiver.receive() == b"\0\0\0\0" and lent.wait(timeout=60)
        lender.close()
        assert receiver.receive_view() is None


def test_a_lent_view_outlives_its_lender():
    script = (
        "import raas, sys\n"
        "r = raas.Region.create('lent by a child', 1 << 20)\n"
        "memoryview(r)[:] = bytes(range(256)) * 4096\n"
        "s = raas.connect_messages(('127.0.0.1', int(sys.argv[1])), timeout=60)\n"
        "s.lend(r, 0, 1 << 20)\n"
        "sys.stdin.read()\n"
    )
    with raas.listen_messages((HERE, 0)) as listener:
        listener.settimeout(60)
        words = [sys.executable, "-c", script, str(listener.getsockname()[1])]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
            receiver, _ = listener.accept()
            receiver.settimeout(60)
            view = receiver.receive_view()
            buffer = memoryview(view)
            child.kill()
        assert bytes(buffer) == bytes(range(256)) * 4096
        buffer.release()
        view.release()


def test_datagrams():
    with raas.DatagramSocket((HERE, 0)) as one, raas.DatagramSocket((HERE, 0)) as two:
        one.settimeout(60)
        two.settimeout(60)
        assert one.sendto(b"hello", two.getsockname()) == 5
        data, sender = two.recvfrom()
        assert data == b"hello" and sender == one.getsockname()
        two.sendto(bytearray(100), sender)
        with pytest.raises(ValueError) as small:
            one.recvfrom_into(bytearray(10))
        assert small.value.reason == "buffer-too-small"
        assert one.recvfrom_into(bytearray(200))[0] == 100
        longest = one.max_payload(two.getsockname())
        with pytest.raises(ValueError) as long:
            one.sendto(bytes(longest + 1), two.getsockname())
        assert long.value.reason == "too-long"
        one.settimeout(0)
        with pytest.raises(BlockingIOError):
            one.recvfrom()
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.recvfrom()
