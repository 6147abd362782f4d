"""Tensors: numpy and torch without copies, and every way in which one is over."""

import json
import struct
import subprocess
import sys
import time

import numpy
import pytest

import raas
import raas.tensor

HOLDS = """
import sys, numpy, raas.tensor
reader = raas.tensor.Reader("127.0.0.1", sys.argv[1], sys.argv[2])
held = reader.get("a")
print(numpy.asarray(held).sum(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pool(request):
    name = request.node.name[:40].replace("[", "-").replace("]", "")
    with raas.tensor.Pool(name, 1 << 20) as pool:
        yield pool


def reader_of(pool):
    return raas.tensor.Reader("127.0.0.1", pool.name, pool.key)


def all_come_back(pool):
    """Where the connection has ended the daemon says it, a little later."""
    deadline = time.monotonic() + 60
    while pool.holders():
        assert time.monotonic() < deadline, pool.holders()
        time.sleep(0.002)


def put(pool, name, value, count=10):
    draft = pool.empty((count,), "int64")
    numpy.asarray(draft)[:] = value
    return pool.put(name, draft)


def test_numpy_fills_and_reads_it_without_a_copy(pool):
    draft = pool.empty((2, 3), numpy.float32)
    array = numpy.asarray(draft)
    assert (array.shape, array.dtype, array.flags.writeable) == ((2, 3), numpy.float32, True)
    array[:] = [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(BufferError, match="alive"):
        pool.put("a", draft)
    del array
    pool.put("a", draft)
    reader = reader_of(pool)
    held = reader.get("a")
    found = numpy.asarray(held)
    assert found.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not found.flags.writeable and not found.flags.owndata
    assert reader.counts() == (1, 0, 0, 0) and pool.counts()[1] == 0
    with pytest.raises(ValueError):
        found.setflags(write=True)


def test_strides_zero_sizes_and_no_dimension(pool):
    columns = pool.empty((3, 2), "int16", strides=(1, 3))
    numpy.asarray(columns)[:] = [[1, 4], [2, 5], [3, 6]]
    pool.put("columns", columns)
    pool.put("none", pool.empty((0, 4), "float64"))
    single = pool.empty((), "complex128")
    numpy.asarray(single)[()] = 1 + 2j
    pool.put("single", single)
    reader = reader_of(pool)
    held = reader.get("columns")
    assert numpy.asarray(held).tolist() == [[1, 4], [2, 5], [3, 6]] and held.strides == (1, 3)
    assert struct.unpack("6h", held.tobytes()) == (1, 2, 3, 4, 5, 6)
    assert numpy.asarray(reader.get("none")).shape == (0, 4)
    assert numpy.asarray(reader.get("single"))[()] == 1 + 2j


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_types_of_numpy(pool, dtype):
    array = numpy.arange(12).reshape(3, 4).astype(dtype)
    pool.put("a", array)
    found = numpy.asarray(reader_of(pool).get("a"))
    assert found.dtype == array.dtype and (found == array).all()
    if dtype != "bool":  # numpy 1.24 takes none by DLPack
        assert numpy.from_dlpack(pool.copy(array)).tolist() == array.tolist()


def test_what_is_refused_is_refused_by_name(pool):
    for array in (numpy.arange(3, dtype=">i4"), numpy.arange(3, dtype=">c16")):
        with pytest.raises(raas.Error) as caught:
            pool.put("a", array)
        assert caught.value.reason == "big-endian"
    cases = [((1,), ">f4", "big-endian"), ((1,), "object", "unknown-type"), ((1 << 40,), "u1", "too-large"), ((1,) * 13, "u1", "bad-shape")]
    for shape, dtype, reason in cases:
        with pytest.raises(raas.Error) as caught:
            pool.empty(shape, dtype)
        assert caught.value.reason == reason
    with pytest.raises(BufferError, match="backwards"):
        pool.put("a", numpy.arange(10)[::-1])
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(pool.empty((2,), "bfloat16"))
    with pytest.raises(raas.Error) as caught:
        pool.empty((2,), "f8").write(b"12345678", at=4)
    assert caught.value.reason == "misaligned"


def test_stale_freed_and_unknown(pool):
    reader = reader_of(pool)
    put(pool, "a", 1)
    first = reader.get("a")
    reference = first.reference
    put(pool, "a", 2)
    with pytest.raises(raas.Revoked) as caught:
        reader.get_ref(reference)
    assert caught.value.reason == "stale"
    assert set(numpy.asarray(first)) == {1} and set(numpy.asarray(reader.get("a"))) == {2}
    assert [row[1:3] for row in pool.free("a")] == []
    with pytest.raises(raas.Revoked) as caught:
        reader.get_ref(reference)
    assert caught.value.reason == "freed"
    with pytest.raises(raas.NotFound) as caught:
        reader.get("a")
    assert caught.value.reason == "no-tensor"


def test_an_array_keeps_its_tensor(pool):
    reader = reader_of(pool)
    put(pool, "a", 7)
    array = numpy.asarray(reader.get("a"))  # nobody else has the tensor
    put(pool, "a", 8)
    assert len(pool.holders()) == 1
    for value in range(200):
        put(pool, "b", value, 1000)
    assert set(array) == {7}
    del array
    assert pool.holders() == []


def test_a_reader_that_is_killed_gives_everything_back(pool):
    put(pool, "a", 3)
    command = [sys.executable, "-c", HOLDS, pool.name, pool.key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"30\n"
        (holder,) = pool.free("a")
        assert holder[1] == "a" and holder[4]
        child.kill()
    all_come_back(pool)
    assert pool.free_bytes == (1 << 20) - 256


def test_no_room_says_who_holds_it(pool):
    put(pool, "big", 1, 60_000)
    held = reader_of(pool).get("big")
    pool.free("big")
    with pytest.raises(raas.Error, match="holds `big`") as caught:
        put(pool, "big", 1, 80_000)
    assert caught.value.reason == "no-room"
    pool.revoke()
    put(pool, "big", 2, 80_000)
    assert set(numpy.asarray(held)) == {1}
    with pytest.raises(raas.Revoked) as caught:
        held.check()
    assert caught.value.reason == "revoked"


def test_a_pool_without_its_owner(pool):
    put(pool, "a", 5)
    reader = reader_of(pool)
    held = reader.get("a")
    pool.close()
    with pytest.raises(raas.Error) as caught:
        reader.get("a")
    assert caught.value.reason == "owner-gone"
    assert set(numpy.asarray(held)) == {5}


def written(path, tensors):
    header, data = {"__metadata__": {"by": "a test"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + data)


def test_a_safetensors_file_comes_into_a_pool(tmp_path):
    weights = numpy.arange(1000, dtype="f4")
    path = tmp_path / "model-1.safetensors"
    written(path, {"w": ("F32", [10, 100], weights.tobytes()), "b": ("BF16", [2], b"\x80\x3f\x00\x40"), "n": ("I64", [0], b"")})
    with raas.tensor.load(path) as pool:
        assert pool.name == "model-1" and [row[0] for row in pool.names()] == ["b", "n", "w"]
        reader = reader_of(pool)
        assert (numpy.asarray(reader.get("w")) == weights.reshape(10, 100)).all()
        assert reader.get("b").tobytes() == b"\x80\x3f\x00\x40" and reader.get("b").dtype == "bfloat16"
        assert reader.counts()[1] == 4, "only what `tobytes` copied"


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]"])
def test_what_is_no_safetensors_file_leaves_nothing(tmp_path, pool, damage):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(damage)
    with pytest.raises((ValueError, OSError)):
        raas.tensor.load(path, pool)
    written(path, {"a": ("F32", [1], b"1234"), "b": ("F32", [2], b"1234")})
    with pytest.raises(ValueError, match="`b`"):
        raas.tensor.load(path, pool)
    assert pool.names() == [] and pool.free_bytes == (1 << 20) - 256


def test_torch_fills_it_and_reads_it(pool):
    torch = pytest.importorskip("torch", reason="python3-torch is not there")
    draft = pool.empty((2, 2), torch.bfloat16)
    made = torch.from_dlpack(draft)
    assert made.dtype == torch.bfloat16
    made.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    with pytest.raises(BufferError, match="alive"):
        pool.put("a", draft)
    del made
    pool.put("a", draft)
    reader = reader_of(pool)
    held = reader.get("a")
    assert held.tobytes() == b"\x80\x3f\x00\x40\x40\x40\x80\x40"
    # A consumer whose DLPack cannot say read-only does not get memory to which it must not write.
    if "max_version" not in str(torch.from_dlpack.__doc__):
        with pytest.raises(BufferError, match="read-only"):
            held.__dlpack__()
    pool.put("t", torch.arange(6).reshape(2, 3).t())
    found = reader.get("t")
    assert found.strides == (1, 3) and numpy.asarray(found).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert torch.from_numpy(numpy.asarray(found)).data_ptr() == numpy.asarray(found).ctypes.data


def test_a_capsule_that_nobody_takes_gives_its_tensor_back(pool):
    draft = pool.empty((4,), "f4")
    capsule = draft.__dlpack__()
    versioned = draft.__dlpack__(max_version=(1, 0))
    with pytest.raises(BufferError, match="alive"):
        pool.put("a", draft)
    del capsule, versioned
    pool.put("a", draft)
    held = reader_of(pool).get("a")
    with pytest.raises(BufferError, match="read-only"):
        held.__dlpack__()
    capsule = held.__dlpack__(max_version=(1, 0))
    held.release()
    assert len(pool.holders()) == 1
    del capsule
    all_come_back(pool)
